package modeltest

import (
	"context"
	"fmt"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// lie is what a broken server does with a call: next makes the call. Lies of one liar are told one
// at a time, but for what next takes.
type lie func(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error)

// liar stands between the clients of a world and a server that keeps the contract.
type liar struct {
	sync.Mutex
	honest Clients // of alice, whose calls do not pass the liar
	lie    lie
	// operator is a principal whose calls do not pass it either.
	operator Clients
	hears    func(proto.Message) // changes what streams bring; nil: nothing
}

// lying returns clients whose calls pass the liar.
func (l *liar) lying(s *server, user string) Clients { return s.as(user, connect.WithInterceptors(l)) }

// WrapUnary implements connect.Interceptor. A call takes another request in place of its own,
// which it has again when it ends: callers repeat it.
func (l *liar) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, call connect.AnyRequest) (connect.AnyResponse, error) {
		req := call.Any().(proto.Message)
		own := proto.CloneOf(req)
		var res connect.AnyResponse
		answer, err := l.lie(l, own, func(m proto.Message) (_ proto.Message, err error) {
			become(req, m)
			defer become(req, own)
			if res, err = next(ctx, call); err != nil {
				return nil, err
			}
			return res.Any().(proto.Message), nil
		})
		switch {
		case err != nil:
			return nil, err
		case res == nil:
			return response(answer), nil
		}
		become(res.Any().(proto.Message), answer)
		return res, nil
	}
}

// become gives a message the content of another one.
func become(m, other proto.Message) {
	if m != other {
		proto.Reset(m)
		proto.Merge(m, other)
	}
}

// response is the response to a call that the server did not get.
func response(m proto.Message) connect.AnyResponse {
	switch m := m.(type) {
	case *topicv1.PublishResponse:
		return connect.NewResponse(m)
	case *topicv1.AckResponse:
		return connect.NewResponse(m)
	case *topicv1.NackResponse:
		return connect.NewResponse(m)
	case *topicv1.ExtendResponse:
		return connect.NewResponse(m)
	case *topicv1.PauseSubscriptionResponse:
		return connect.NewResponse(m)
	case *topicv1.ResumeSubscriptionResponse:
		return connect.NewResponse(m)
	case *topicv1.SeekSubscriptionResponse:
		return connect.NewResponse(m)
	case *topicv1.StartBackfillResponse:
		return connect.NewResponse(m)
	case *topicv1.UnparkKeysResponse:
		return connect.NewResponse(m)
	case *topicv1.CancelSubscriptionResponse:
		return connect.NewResponse(m)
	}
	panic(fmt.Sprintf("a lie about %T", m))
}

// WrapStreamingClient implements connect.Interceptor. A liar says something else on a stream than the
// client.
func (l *liar) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return lyingStream{next(ctx, spec), l}
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (l *liar) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// lyingStream is a stream of a client.
type lyingStream struct {
	connect.StreamingClientConn
	l *liar
}

// Send implements connect.StreamingClientConn.
func (s lyingStream) Send(m any) error {
	req, ok := m.(proto.Message)
	if !ok {
		return s.StreamingClientConn.Send(m) // the end of what the client says
	}
	_, err := s.l.lie(s.l, req, func(m proto.Message) (proto.Message, error) {
		return nil, s.StreamingClientConn.Send(m)
	})
	return err
}

// Receive implements connect.StreamingClientConn.
func (s lyingStream) Receive(m any) error {
	err := s.StreamingClientConn.Receive(m)
	if res, ok := m.(proto.Message); ok && err == nil && s.l.hears != nil {
		s.l.Lock()
		defer s.l.Unlock()
		s.l.hears(res)
	}
	return err
}

// asks is a lie about requests of one kind: the server gets another one.
func asks[Q proto.Message](change func(Q)) lie {
	return func(_ *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
		if _, ok := req.(Q); ok {
			req = proto.CloneOf(req)
			change(req.(Q))
		}
		return next(req)
	}
}

// answers is a lie about answers of one kind: the client gets another one.
func answers[Q, S proto.Message](change func(l *liar, req Q, res S)) lie {
	return func(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
		res, err := next(req)
		if q, ok := req.(Q); ok && err == nil {
			l.Lock()
			defer l.Unlock()
			change(l, q, res.(S))
		}
		return res, err
	}
}

// ignores is a lie about some requests of one kind: they are answered and not done.
func ignores[Q, S proto.Message](which func(Q) bool, answer S) lie {
	return func(l *liar, req proto.Message, next func(proto.Message) (proto.Message, error)) (proto.Message, error) {
		q, ok := req.(Q)
		if !ok {
			return next(req)
		}
		l.Lock()
		ignored := which(q)
		l.Unlock()
		if !ignored {
			return next(req)
		}
		return proto.CloneOf(answer), nil
	}
}

// every returns a function that is true each nth time.
func every[Q any](n int) func(Q) bool {
	calls := 0
	return func(Q) bool {
		calls++
		return calls%n == 0
	}
}
