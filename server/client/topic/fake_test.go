package topic_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// fake is a server with one topic of one partition and one group, that fails where a test
// wants it to. Positions are never leased to two sessions at a time.
type fake struct {
	topicv1connect.UnimplementedTopicServiceHandler
	topicv1connect.UnimplementedSubscriptionServiceHandler
	topicv1connect.UnimplementedConsumerServiceHandler
	web *httptest.Server

	mu         sync.Mutex
	changed    chan struct{} // closed with each change
	messages   []*topic.Message
	numbers    map[numberOf]int64 // first position of the request
	owner      map[int64]string
	acked      map[int64]bool
	attempts   map[int64]uint32
	sessions   map[string]bool
	made       int
	config     *topicv1.SubscriptionConfig
	calls      []string // names of calls, in order
	detached   []*topicv1.DetachRequest
	nacks      []*topicv1.NackSet
	requests   int // of Publish that were stored
	extensions int
	attached   []*topicv1.Attach
	tokens     map[string]bool // that are refused
	generation string          // of its history; empty, as that of an earlier release: it compares nothing
	commit     int64
	ancestors  map[string]int64 // earlier generations, with their last commits
	// before is asked before each call; an error is its answer. lost has the connection of a
	// call cut after it was done.
	before func(call string) error
	lost   func(call string) bool
	// mismatch, if given, says of a message that it is not as the topic's schema says.
	mismatch func(*topic.Message) bool
}

// numberOf is a number of a producer.
type numberOf struct {
	producer string
	number   int64
}

// newFake starts a server that speaks HTTP/2, or only HTTP/1.1.
func newFake(t *testing.T, old bool) *fake {
	t.Helper()
	f := &fake{changed: make(chan struct{}), numbers: map[numberOf]int64{}, owner: map[int64]string{},
		acked: map[int64]bool{}, attempts: map[int64]uint32{}, sessions: map[string]bool{}, tokens: map[string]bool{},
		before: func(string) error { return nil }, lost: func(string) bool { return false }}
	mux := http.NewServeMux()
	interceptor := connect.WithInterceptors(&interceptor{f})
	mux.Handle(topicv1connect.NewTopicServiceHandler(f, interceptor))
	mux.Handle(topicv1connect.NewSubscriptionServiceHandler(f, interceptor))
	mux.Handle(topicv1connect.NewConsumerServiceHandler(f, interceptor))
	f.web = httptest.NewUnstartedServer(mux)
	f.web.Config.Protocols = &http.Protocols{}
	f.web.Config.Protocols.SetHTTP1(true)
	f.web.Config.Protocols.SetUnencryptedHTTP2(!old)
	f.web.Start()
	t.Cleanup(f.web.Close)
	return f
}

// interceptor records calls and fails them.
type interceptor struct{ f *fake }

func (i *interceptor) enter(spec connect.Spec, header http.Header) error {
	i.f.mu.Lock()
	defer i.f.mu.Unlock()
	name := spec.Procedure[1+slices.Index([]byte(spec.Procedure[1:]), '/')+1:]
	i.f.calls = append(i.f.calls, name)
	if i.f.tokens[header.Get("Authorization")] {
		return connect.NewError(connect.CodeUnauthenticated, errors.New("token"))
	}
	if err := i.f.before(name); err != nil {
		return err
	}
	return i.f.compare(header.Get("Parley-History"))
}

func (i *interceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := i.enter(req.Spec(), req.Header()); err != nil {
			return nil, err
		}
		res, err := next(ctx, req)
		i.f.mu.Lock()
		lost := i.f.lost(req.Spec().Procedure)
		i.f.mu.Unlock()
		if lost {
			panic(http.ErrAbortHandler)
		}
		if said := get(i.f, i.f.says); err == nil && said != "" {
			res.Header().Set("Parley-History", said)
		}
		return res, err
	}
}

func (*interceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (i *interceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := i.enter(conn.Spec(), conn.RequestHeader()); err != nil {
			return err
		}
		return next(ctx, conn)
	}
}

// refuse makes an error with a stable name.
func refuse(code connect.Code, reason string) error {
	err := connect.NewError(code, errors.New(reason))
	if d, detailErr := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: reason}); detailErr == nil {
		err.AddDetail(d)
	}
	return err
}

// dial makes a client of the server.
func (f *fake) dial(t *testing.T, old bool, options ...connect.ClientOption) *topic.Client {
	t.Helper()
	cfg := topic.Config{BaseURL: f.web.URL, Token: func(_ context.Context, renew bool) (string, error) {
		if renew {
			return "second", nil
		}
		return "first", nil
	}}
	if old {
		cfg.HTTP = http.DefaultClient
	}
	cfg.Options = options
	c, err := topic.Dial(cfg)
	testkit.Must(t, err)
	return c
}

func (f *fake) do(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

// get returns what a function reads under the lock.
func get[T any](f *fake, read func() T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return read()
}

func (f *fake) store(messages ...*topic.Message) {
	f.do(func() { f.messages = append(f.messages, messages...) })
}

func (f *fake) ackedCount() int { return get(f, func() int { return len(f.acked) }) }

func (f *fake) Publish(_ context.Context, req *topicv1.PublishRequest) (*topicv1.PublishResponse, error) {
	res := &topicv1.PublishResponse{}
	if f.mismatch != nil && slices.ContainsFunc(req.GetMessages(), f.mismatch) {
		return nil, refuse(connect.CodeInvalidArgument, "SCHEMA_MISMATCH")
	}
	f.do(func() {
		of := numberOf{req.GetProducer().GetId(), req.GetProducer().GetNumber()}
		base, replayed := f.numbers[of]
		if !replayed {
			f.requests++
			base = int64(len(f.messages))
			f.numbers[of] = base
			f.messages = append(f.messages, req.GetMessages()...)
		}
		for i := range req.GetMessages() {
			p := base + int64(i)
			res.Results = append(res.Results,
				&topicv1.PublishResult{MessageId: fmt.Sprintf("0-%d", p), Position: p, Replayed: replayed})
		}
	})
	return res, nil
}

func (f *fake) CreateSubscription(
	_ context.Context, req *topicv1.CreateSubscriptionRequest,
) (*topicv1.CreateSubscriptionResponse, error) {
	return &topicv1.CreateSubscriptionResponse{Subscription: f.subscription(), Created: true}, nil
}

func (f *fake) Heartbeat(context.Context, *topicv1.HeartbeatRequest) (*topicv1.HeartbeatResponse, error) {
	return &topicv1.HeartbeatResponse{State: topicv1.SubscriptionState_SUBSCRIPTION_STATE_ACTIVE}, nil
}

func (f *fake) subscription() *topicv1.Subscription {
	cfg := f.config
	if cfg == nil {
		cfg = &topicv1.SubscriptionConfig{}
	}
	return &topicv1.Subscription{Config: cfg, Generation: 1, SubscribedAt: timestamppb.New(time.Unix(1, 0))}
}

// open makes a session.
func (f *fake) open() (id string, a *topicv1.Attached) {
	f.do(func() {
		f.made++
		id = fmt.Sprintf("session-%d", f.made)
		f.sessions[id] = true
	})
	return id, &topicv1.Attached{Session: id, Member: id, Subscription: f.subscription(),
		HeartbeatInterval: durationpb.New(15 * time.Second), Generation: get(f, func() string { return f.generation })}
}

// end gives a session's messages back.
func (f *fake) end(id string) {
	f.do(func() {
		delete(f.sessions, id)
		for p, owner := range f.owner {
			if owner == id {
				delete(f.owner, p)
			}
		}
	})
}

// serve passes messages to a session until its stream ends.
func (f *fake) serve(
	ctx context.Context, id string, a *topicv1.Attach, send func(*topicv1.Delivery) error,
) error {
	f.do(func() { f.attached = append(f.attached, a) })
	var sent int64
	for {
		d := &topicv1.Delivery{}
		f.mu.Lock()
		changed := f.changed
		alive := f.sessions[id]
		var has int64
		for _, owner := range f.owner {
			if owner == id {
				has++
			}
		}
		for p, m := range f.messages {
			p := int64(p)
			if n := int64(len(d.Messages)); max(has, sent)+n >= a.GetCredits().GetMessages() || n == 100 {
				break
			}
			if f.acked[p] || f.owner[p] != "" {
				continue
			}
			f.owner[p] = id
			f.attempts[p]++
			d.Messages = append(d.Messages, m)
			d.Offsets = append(d.Offsets, uint32(p))
			d.Attempts = append(d.Attempts, f.attempts[p])
		}
		if !a.GetRenewCredits() {
			sent += int64(len(d.Messages))
		}
		f.mu.Unlock()
		if !alive {
			return nil
		}
		if len(d.GetMessages()) > 0 {
			if err := send(d); err != nil {
				return err
			}
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fake) Consume(
	ctx context.Context, req *topicv1.ConsumeRequest, stream *connect.ServerStream[topicv1.ConsumeResponse],
) error {
	id, attached := f.open()
	defer f.end(id)
	first := &topicv1.ConsumeResponse{Commit: f.shown(), Body: &topicv1.ConsumeResponse_Attached{Attached: attached}}
	if err := stream.Send(first); err != nil {
		return err
	}
	return f.serve(ctx, id, req.GetAttach(), func(d *topicv1.Delivery) error {
		return stream.Send(&topicv1.ConsumeResponse{Commit: f.shown(), Body: &topicv1.ConsumeResponse_Delivery{Delivery: d}})
	})
}

func (f *fake) ConsumeBidi(
	ctx context.Context, stream *connect.BidiStream[topicv1.ConsumeBidiRequest, topicv1.ConsumeBidiResponse],
) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	id, attached := f.open()
	defer f.end(id)
	var mu sync.Mutex
	over := false
	send := func(m *topicv1.ConsumeBidiResponse) error {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return context.Canceled
		}
		return stream.Send(m)
	}
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
	}()
	answer := &topicv1.ConsumeBidiResponse_Attached{Attached: attached}
	if err := send(&topicv1.ConsumeBidiResponse{Commit: f.shown(), Body: answer}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		for number := int64(2); ; number++ {
			req, err := stream.Receive()
			if err != nil {
				return
			}
			refusals := f.settle(id, req.GetAck(), req.GetNack(), req.GetExtend())
			if send(&topicv1.ConsumeBidiResponse{Body: &topicv1.ConsumeBidiResponse_Settled{
				Settled: &topicv1.Settled{Requests: number, Refusals: refusals}}}) != nil {
				return
			}
		}
	}()
	return f.serve(ctx, id, first.GetAttach(), func(d *topicv1.Delivery) error {
		return send(&topicv1.ConsumeBidiResponse{Commit: f.shown(), Body: &topicv1.ConsumeBidiResponse_Delivery{Delivery: d}})
	})
}

// settle does what a session asks for.
func (f *fake) settle(
	id string, ack *topicv1.AckSet, nack *topicv1.NackSet, extend *topicv1.ExtendSet,
) (refusals []*topicv1.Refusal) {
	f.do(func() {
		if extend != nil {
			f.extensions++
		}
		if nack != nil {
			f.nacks = append(f.nacks, nack)
		}
		for _, p := range append(ack.GetPositions(), nack.GetPositions()...) {
			for at := p.GetBase(); at < p.GetBase()+max(p.GetCount(), 1); at++ {
				if bit := at - p.GetBase(); p.GetBitmap() != nil && p.GetBitmap()[bit/8]&(1<<(bit%8)) == 0 {
					continue
				}
				if f.owner[at] != id {
					refusals = append(refusals, &topicv1.Refusal{Positions: &topicv1.Positions{Base: at},
						Outcome: topicv1.Outcome_OUTCOME_LEASE_LOST})
					continue
				}
				delete(f.owner, at)
				if ack != nil {
					f.acked[at] = true
				}
			}
		}
	})
	return refusals
}

func (f *fake) known(id string) error {
	if get(f, func() bool { return f.sessions[id] }) {
		return nil
	}
	return refuse(connect.CodeNotFound, "SESSION_GONE")
}

func (f *fake) Ack(_ context.Context, req *topicv1.AckRequest) (*topicv1.AckResponse, error) {
	if err := f.known(req.GetSession()); err != nil {
		return nil, err
	}
	return &topicv1.AckResponse{Refusals: f.settle(req.GetSession(), req.GetSet(), nil, nil)}, nil
}

func (f *fake) Nack(_ context.Context, req *topicv1.NackRequest) (*topicv1.NackResponse, error) {
	if err := f.known(req.GetSession()); err != nil {
		return nil, err
	}
	return &topicv1.NackResponse{Refusals: f.settle(req.GetSession(), nil, req.GetSet(), nil)}, nil
}

func (f *fake) Extend(_ context.Context, req *topicv1.ExtendRequest) (*topicv1.ExtendResponse, error) {
	if err := f.known(req.GetSession()); err != nil {
		return nil, err
	}
	f.settle(req.GetSession(), nil, nil, req.GetSet())
	return &topicv1.ExtendResponse{}, nil
}

func (f *fake) Detach(ctx context.Context, req *topicv1.DetachRequest) (*topicv1.DetachResponse, error) {
	f.end(req.GetSession())
	select {
	case <-ctx.Done(): // the caller left when the stream ended
		return nil, ctx.Err()
	case <-time.After(20 * time.Millisecond):
	}
	f.do(func() { f.detached = append(f.detached, req) })
	return &topicv1.DetachResponse{}, nil
}

func durationOf(d time.Duration) *durationpb.Duration { return durationpb.New(d) }
