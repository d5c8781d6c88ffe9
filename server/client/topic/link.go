package topic

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/infra/wait"
)

// maxPositions is how many Positions a request holds.
const maxPositions = 1000

// outgoing is something that a session sends. One of the sets is set.
type outgoing struct {
	ack    *topicv1.AckSet
	nack   *topicv1.NackSet
	extend *topicv1.ExtendSet
	items  []*item // that it settles
}

// frame is what a stream carries, however it is carried.
type frame struct {
	attached *topicv1.Attached
	delivery *topicv1.Delivery
	state    topicv1.SubscriptionState
	settled  *topicv1.Settled
	lost     *topicv1.LeaseLost
	gone     *topicv1.Gone
	alive    *topicv1.Alive
}

// link is the connection of a session. One goroutine at a time may call receive, and any
// number send.
type link interface {
	receive() (frame, error)
	// send returns once o is sent; the link has it confirmed when it was answered.
	send(ctx context.Context, o *outgoing) error
	close()
}

// confirm takes what the server refused of something that was sent.
type confirm func(o *outgoing, refusals []*topicv1.Refusal)

// stream is the link of a bidirectional stream.
type stream struct {
	conn    *connect.BidiStreamForClientSimple[topicv1.ConsumeBidiRequest, topicv1.ConsumeBidiResponse]
	confirm confirm

	sending sync.Mutex // so that requests are numbered as they are sent; before mu

	mu         sync.Mutex
	unanswered []*outgoing
	answered   int64 // requests
}

func dialStream(
	ctx context.Context, c topicv1connect.ConsumerServiceClient, a *topicv1.Attach, f confirm,
) (link, error) {
	conn, err := c.ConsumeBidi(ctx)
	if err != nil {
		return nil, err
	}
	s := &stream{conn: conn, confirm: f, unanswered: []*outgoing{{}}} // attach is a request, too
	err = s.conn.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{Attach: a}})
	if err != nil {
		_, err = s.receive() // says why
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stream) receive() (frame, error) {
	m, err := s.conn.Receive()
	if err != nil {
		return frame{}, err
	}
	f := frame{attached: m.GetAttached(), delivery: m.GetDelivery(), state: m.GetState(), settled: m.GetSettled(),
		lost: m.GetLeaseLost(), gone: m.GetGone(), alive: m.GetAlive()}
	if f.settled != nil {
		s.settle(f.settled)
	}
	return f, nil
}

// settle confirms the requests that an answer covers.
func (s *stream) settle(m *topicv1.Settled) {
	s.mu.Lock()
	n := min(max(m.GetRequests()-s.answered, 0), int64(len(s.unanswered)))
	list := s.unanswered[:n]
	s.unanswered = s.unanswered[n:]
	s.answered += n
	s.mu.Unlock()
	for _, o := range list {
		s.confirm(o, m.GetRefusals())
	}
}

func (s *stream) send(_ context.Context, o *outgoing) error {
	m := &topicv1.ConsumeBidiRequest{}
	switch {
	case o.ack != nil:
		m.Body = &topicv1.ConsumeBidiRequest_Ack{Ack: o.ack}
	case o.nack != nil:
		m.Body = &topicv1.ConsumeBidiRequest_Nack{Nack: o.nack}
	default:
		m.Body = &topicv1.ConsumeBidiRequest_Extend{Extend: o.extend}
	}
	s.sending.Lock()
	defer s.sending.Unlock()
	s.mu.Lock()
	s.unanswered = append(s.unanswered, o) // before its answer can come
	s.mu.Unlock()
	return s.conn.Send(m)
}

func (s *stream) close() {
	_ = s.conn.CloseRequest()
	_ = s.conn.CloseResponse()
}

// calls is the link of a stream beside which calls are made.
type calls struct {
	conn    *connect.ServerStreamForClient[topicv1.ConsumeResponse]
	client  topicv1connect.ConsumerServiceClient
	session atomic.Pointer[string]
	confirm confirm
}

func dialCalls(
	ctx context.Context, c topicv1connect.ConsumerServiceClient, a *topicv1.Attach, f confirm,
) (link, error) {
	conn, err := c.Consume(ctx, &topicv1.ConsumeRequest{Attach: a})
	if err != nil {
		return nil, err
	}
	return &calls{conn: conn, client: c, confirm: f}, nil
}

func (s *calls) receive() (frame, error) {
	if !s.conn.Receive() {
		if err := s.conn.Err(); err != nil {
			return frame{}, err
		}
		return frame{}, errEnded
	}
	m := s.conn.Msg()
	if a := m.GetAttached(); a != nil {
		session := a.GetSession()
		s.session.Store(&session)
	}
	return frame{attached: m.GetAttached(), delivery: m.GetDelivery(), state: m.GetState(), lost: m.GetLeaseLost(),
		gone: m.GetGone(), alive: m.GetAlive()}, nil
}

// send repeats a call until it is answered: doing so again changes nothing.
func (s *calls) send(ctx context.Context, o *outgoing) error {
	for again := newRetry(); ; {
		refusals, err := s.call(ctx, o)
		if err == nil {
			s.confirm(o, refusals)
			return nil
		}
		v := again.failed(err)
		if v.final {
			return err
		}
		if err := wait.For(ctx, min(v.pause, time.Second)); err != nil {
			return err
		}
	}
}

func (s *calls) call(ctx context.Context, o *outgoing) ([]*topicv1.Refusal, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	session := *s.session.Load()
	switch {
	case o.ack != nil:
		res, err := s.client.Ack(ctx, &topicv1.AckRequest{Session: session, Set: o.ack})
		return res.GetRefusals(), err
	case o.nack != nil:
		res, err := s.client.Nack(ctx, &topicv1.NackRequest{Session: session, Set: o.nack})
		return res.GetRefusals(), err
	default:
		res, err := s.client.Extend(ctx, &topicv1.ExtendRequest{Session: session, Set: o.extend})
		return res.GetRefusals(), err
	}
}

func (s *calls) close() { _ = s.conn.Close() }

// outgoings writes what was handled and what failed as requests. Failures with the same
// reason and delay share one.
func outgoings(items []*item) (out []*outgoing) {
	type kind struct {
		nack, delayed bool
		delay         time.Duration
		reason        string
	}
	by := map[kind]map[int32][]*item{}
	var order []kind
	for _, it := range items {
		var k kind
		if f := it.failure; f != nil {
			k = kind{nack: true, reason: f.reason}
			if f.delay != nil {
				k.delayed, k.delay = true, *f.delay
			}
		}
		if by[k] == nil {
			by[k] = map[int32][]*item{}
			order = append(order, k)
		}
		by[k][it.partition] = append(by[k][it.partition], it)
	}
	for _, k := range order {
		for at, part := range requests(by[k]) {
			o := &outgoing{items: part}
			if k.nack {
				o.nack = &topicv1.NackSet{Positions: at, Reason: k.reason}
				if k.delayed {
					o.nack.Delay = durationpb.New(k.delay)
				}
			} else {
				o.ack = &topicv1.AckSet{Positions: at}
			}
			out = append(out, o)
		}
	}
	return out
}

// requests cuts items by partition into sets of positions that fit into a request.
func requests(by map[int32][]*item) func(yield func([]*topicv1.Positions, []*item) bool) {
	return func(yield func([]*topicv1.Positions, []*item) bool) {
		for partition, items := range by {
			for len(items) > 0 {
				n := min(len(items), maxPositions)
				at := make([]int64, n)
				for i, it := range items[:n] {
					at[i] = it.position
				}
				if !yield(groupPositions(partition, at), items[:n]) {
					return
				}
				items = items[n:]
			}
		}
	}
}

// versions notes which version of HTTP the server speaks: a stream in both directions needs
// the second.
type versions struct {
	connect.HTTPClient
	major atomic.Int32 // 0: nothing was answered yet
}

// Do implements connect.HTTPClient.
func (v *versions) Do(r *http.Request) (*http.Response, error) {
	res, err := v.HTTPClient.Do(r)
	if err == nil {
		v.major.Store(int32(res.ProtoMajor))
	}
	return res, err
}
