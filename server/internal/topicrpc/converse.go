package topicrpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/streamwriter"
	"github.com/parley-chat/parley/server/topic/refusal"
)

const (
	maxRefusals  = 1000             // in one response
	maxPositions = 4096             // that are acknowledged together
	maxWaiting   = 256 << 10        // bytes of requests that wait before no more are read
	overloadWait = time.Second / 10 // before what was refused for want of room is tried again
)

// errDone says that the client has sent all that it wanted to.
var errDone = errors.New("topicrpc: the client has ended its requests")

// request is what a client sent on its stream.
type request struct {
	number int64 // from 1, which is the attachment
	*topicv1.ConsumeBidiRequest
}

// converse serves a stream in both directions: one goroutine reads requests, one settles
// them, and the caller's sends what the session receives. Acknowledgements that come while
// others become durable are settled together. A client that ends its requests gets the
// answers to all of them, then the stream ends.
func converse(
	ctx context.Context, in session, out *sender, receive func() (*topicv1.ConsumeBidiRequest, error),
) error {
	own, cancel := context.WithCancelCause(ctx)
	c := &conversation{in: in, out: out, queue: newQueue()}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.read(own, receive); err != nil {
			cancel(err)
		}
		c.queue.close()
	})
	wg.Go(func() { cancel(c.settle(own)) })
	err := out.run(own)
	if cause := context.Cause(own); cause != nil && ctx.Err() == nil && errors.Is(err, context.Canceled) {
		err = cause
	}
	cancel(err)
	streamwriter.CutRead(ctx, time.Unix(1, 0)) // the reader may wait for the client
	wg.Wait()
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

// conversation is one stream in both directions.
type conversation struct {
	in    session
	out   *sender
	queue *queue
	pace  streamwriter.Pace // of answers
}

// read reads requests until the client has sent all, or one is not valid. Credits count
// at once: they must not wait for what becomes durable.
func (c *conversation) read(ctx context.Context, receive func() (*topicv1.ConsumeBidiRequest, error)) error {
	for number := int64(2); ; number++ {
		req, err := receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if req.GetAttach() != nil {
			return api.Invalid("attach", "the stream is attached already")
		}
		for _, positions := range [][]*topicv1.Positions{req.GetAck().GetPositions(), req.GetNack().GetPositions(),
			req.GetExtend().GetPositions()} {
			if err := checkPositions(positions); err != nil {
				return err
			}
		}
		if credits := req.GetCredits(); credits != nil {
			c.in.AddCredits(credits)
		}
		if err := c.queue.put(ctx, request{number, req}); err != nil {
			return err
		}
	}
}

// settle does what was asked for, in order, and answers. It returns errDone once all is
// answered that the client sent.
func (c *conversation) settle(ctx context.Context) error {
	for {
		all, err := c.queue.take(ctx)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return errDone
		}
		refusals, err := c.apply(ctx, all)
		if errors.Is(err, &refusal.Error{Reason: refusal.SessionGone}) {
			<-ctx.Done() // the sender says why, and ends the stream
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		if err := c.answer(all[len(all)-1].number, refusals); err != nil {
			return err
		}
		c.pace.Spend(time.Now())
		if err := c.pace.Gather(ctx); err != nil {
			return err
		}
	}
}

// apply does what requests say, acknowledgements that follow each other at once.
func (c *conversation) apply(ctx context.Context, all []request) (refusals []*topicv1.Refusal, err error) {
	for len(all) > 0 {
		ack := &topicv1.AckSet{}
		n := 0
		for ; n < len(all) && all[n].GetAck() != nil && len(ack.Positions) < maxPositions; n++ {
			ack.Positions = append(ack.Positions, all[n].GetAck().GetPositions()...)
		}
		do := func() ([]*topicv1.Refusal, error) { return c.in.Ack(ctx, ack) }
		if n == 0 {
			n = 1
			switch r := all[0]; {
			case r.GetNack() != nil:
				do = func() ([]*topicv1.Refusal, error) { return c.in.Nack(ctx, r.GetNack()) }
			case r.GetExtend() != nil:
				do = func() ([]*topicv1.Refusal, error) { return c.in.Extend(ctx, r.GetExtend()) }
			default: // credits, which were added when they came
				do = func() ([]*topicv1.Refusal, error) { return nil, nil }
			}
		}
		refused, err := patiently(ctx, do)
		if err != nil {
			return nil, err
		}
		refusals = append(refusals, refused...)
		all = all[n:]
	}
	return refusals, nil
}

// patiently tries again what is refused for want of room. Meanwhile the client's requests
// wait, first here and then with the client.
func patiently(ctx context.Context, do func() ([]*topicv1.Refusal, error)) ([]*topicv1.Refusal, error) {
	for {
		refused, err := do()
		if !errors.Is(err, &refusal.Error{Reason: refusal.Overloaded}) {
			return refused, err
		}
		if err := wait.For(ctx, overloadWait); err != nil {
			return nil, err
		}
	}
}

// answer sends what became of all requests up to a number.
func (c *conversation) answer(number int64, refusals []*topicv1.Refusal) error {
	var responses []any
	for {
		n := min(len(refusals), maxRefusals)
		responses = append(responses, &topicv1.ConsumeBidiResponse{Body: &topicv1.ConsumeBidiResponse_Settled{
			Settled: &topicv1.Settled{Requests: number, Refusals: refusals[:n]}}})
		if refusals = refusals[n:]; len(refusals) == 0 {
			return c.out.send(responses...)
		}
	}
}

// queue holds requests that wait to be settled, bounded by their bytes.
type queue struct {
	mu     sync.Mutex
	all    []request
	size   int // bytes of all
	closed bool
	more   chan struct{} // something came, or the queue was closed
	room   chan struct{} // something went
}

func newQueue() *queue { return &queue{more: make(chan struct{}, 1), room: make(chan struct{}, 1)} }

// put adds a request, and waits as long as there are too many. One goroutine puts.
func (q *queue) put(ctx context.Context, r request) error {
	q.mu.Lock()
	for q.size > maxWaiting {
		q.mu.Unlock()
		select {
		case <-q.room:
		case <-ctx.Done():
			return ctx.Err()
		}
		q.mu.Lock()
	}
	defer q.mu.Unlock()
	q.all, q.size = append(q.all, r), q.size+proto.Size(r.ConsumeBidiRequest)+requestCost
	signal(q.more)
	return nil
}

// requestCost is about what a request takes besides its bytes.
const requestCost = 256

// close says that nothing more comes.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	signal(q.more)
}

// take waits for requests and takes all; none if the queue is closed and empty.
func (q *queue) take(ctx context.Context) ([]request, error) {
	for {
		q.mu.Lock()
		all, closed := q.all, q.closed
		q.all, q.size = nil, 0
		q.mu.Unlock()
		if len(all) > 0 || closed {
			signal(q.room)
			return all, nil
		}
		select {
		case <-q.more:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
