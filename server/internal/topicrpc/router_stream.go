package topicrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/internal/streamwriter"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// WrapStreamingHandler implements connect.Interceptor. The first message says where the
// stream belongs.
func (r *Router) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		request, _, err := kinds(conn.Spec())
		if err != nil {
			return err
		}
		first := request.New().Interface()
		late := time.AfterFunc(AttachTime, func() { streamwriter.CutRead(ctx, time.Unix(1, 0)) })
		err = conn.Receive(first)
		late.Stop()
		if err != nil {
			return next(ctx, &replayed{StreamingHandlerConn: conn, err: err}) // which says what is wrong
		}
		at, err := r.slotKeyOf(first)
		if err != nil {
			return err
		}
		return r.until(ctx, patience, func(ctx context.Context) error {
			if s, leave, ok := r.cfg.Slots.Enter(at.slot); ok {
				defer leave()
				return next(With(ctx, s), &replayed{StreamingHandlerConn: conn, first: first})
			}
			return r.forward(ctx, at.slot, conn, first)
		})
	}
}

// replayed is a stream whose first message was received already.
type replayed struct {
	connect.StreamingHandlerConn
	first proto.Message
	err   error // of the first message
}

// Receive implements connect.StreamingHandlerConn.
func (c *replayed) Receive(m any) error {
	if c.err != nil {
		return c.err
	}
	if c.first == nil {
		return c.StreamingHandlerConn.Receive(m)
	}
	into, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("topicrpc: %T is not a message", m)
	}
	proto.Merge(into, c.first)
	c.first = nil
	return nil
}

// stream is a stream that is passed on.
type stream struct {
	spec  connect.Spec
	conn  connect.StreamingHandlerConn
	there *connect.BidiStreamForClient[rawMessage, rawMessage]
}

// forward passes a stream on to the owner of a slot. errNoOwner: the client has received
// nothing, and nothing has happened.
func (r *Router) forward(
	ctx context.Context, slot int, conn connect.StreamingHandlerConn, first proto.Message,
) (err error) {
	client, base, err := r.owner(ctx, slot)
	if err != nil {
		return err
	}
	own, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	identity := r.cfg.Identify(ctx)
	leave, err := r.cfg.Streams.Enter(identity, func(reason string) { cancel(endedStream{reason}) })
	if err != nil {
		return err
	}
	defer leave()
	s := &stream{spec: conn.Spec(), conn: conn}
	s.there = newClient(client, base, s.spec.Procedure).CallBidiStream(own)
	defer func() { _ = s.there.CloseResponse() }() // the stream is over
	if err := introduce(s.there.RequestHeader(), identity, slot); err != nil {
		return err
	}
	answer, err := s.begin(first)
	if err != nil {
		return s.cause(own, judge(ctx, err))
	}
	var up sync.WaitGroup
	if s.spec.StreamType == connect.StreamTypeBidi {
		up.Go(func() {
			if err := s.requests(first.ProtoReflect().Type()); err != nil {
				cancel(err)
			}
		})
	}
	err = s.responses(own, answer)
	cancel(err)
	streamwriter.CutRead(ctx, time.Unix(1, 0)) // the reader may wait for the client
	up.Wait()
	return err
}

// endedStream is the cause of the end of a stream that this server ends.
type endedStream struct{ reason string }

// Error implements error.
func (e endedStream) Error() string { return "topicrpc: the stream was ended: " + e.reason }

// begin sends the first message, and returns the first answer.
func (s *stream) begin(first proto.Message) (*rawMessage, error) {
	m, err := marshal(first)
	if err != nil {
		return nil, err
	}
	// An error of a request is one of the answer, too, which says more.
	_ = s.there.Send(m)
	if s.spec.StreamType != connect.StreamTypeBidi {
		_ = s.there.CloseRequest()
	}
	return s.there.Receive()
}

// requests passes on what the client sends, until it has sent all.
func (s *stream) requests(kind protoreflect.MessageType) error {
	for {
		m := kind.New().Interface()
		err := s.conn.Receive(m)
		if errors.Is(err, io.EOF) {
			return s.there.CloseRequest()
		}
		if err != nil {
			return err
		}
		b, err := marshal(m)
		if err != nil {
			return err
		}
		if s.there.Send(b) != nil {
			return nil //nolint:nilerr // the answer says why
		}
	}
}

// responses passes on what the owner sends, until it has sent all.
func (s *stream) responses(ctx context.Context, answer *rawMessage) error {
	_, kind, err := kinds(s.spec)
	if err != nil {
		return err
	}
	out := streamwriter.New(ctx, s.conn)
	defer out.Close()
	for {
		if err := out.Send(&encoded{wire: answer.bytes, kind: kind}); err != nil {
			return err
		}
		answer, err = s.there.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			continue
		}
		err = s.cause(ctx, judge(ctx, err))
		var by endedStream
		if errors.As(err, &by) {
			return s.gone(out, by.reason)
		}
		var ce *connect.Error
		if errors.As(err, &ce) || ctx.Err() != nil {
			return err
		}
		return refusal.New(refusal.NoOwner, "the server that has the topic does not answer: attach again")
	}
}

// cause is why the stream ended, if this server knows it better.
func (s *stream) cause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// gone tells the client why the stream ends.
func (s *stream) gone(out *streamwriter.Writer, reason string) error {
	switch g := (&topicv1.Gone{Reason: reason}); s.spec.Procedure {
	case ConsumeProcedure:
		_ = out.Send(&topicv1.ConsumeResponse{Body: &topicv1.ConsumeResponse_Gone{Gone: g}})
	case BidiProcedure:
		_ = out.Send(&topicv1.ConsumeBidiResponse{Body: &topicv1.ConsumeBidiResponse_Gone{Gone: g}})
	}
	return Gone(reason)
}
