package topicrpc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/internal/streamwriter"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic"
)

const (
	maxDelivery = 1000      // messages in one response
	maxPiece    = 256 << 10 // bytes of responses that leave together, unless one is larger
)

// sender sends what a session receives on its stream. Responses of both streaming
// procedures have the same fields, so that one type serves both.
type sender struct {
	in             session
	history        store.History // may be nil
	every          time.Duration // of heartbeats
	untilHeartbeat context.Context
	cancel         context.CancelFunc // of untilHeartbeat
	pace           streamwriter.Pace  // of events

	mu   sync.Mutex
	out  *streamwriter.Writer
	sent time.Time // of the last response
}

func newSender(ctx context.Context, in session, conn streamwriter.Sender, history store.History) *sender {
	return &sender{in: in, history: history, every: heartbeat, out: streamwriter.New(ctx, conn)}
}

// close releases what the sender holds. Nothing is sent afterwards.
func (p *sender) close() {
	if p.cancel != nil {
		p.cancel()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Close()
}

// detached is the reason of a session that its own client has ended by a call.
const detached = "DETACHED"

// run sends until the session or the context ends, and returns why.
func (p *sender) run(ctx context.Context) error {
	attached := proto.CloneOf(p.in.Attached())
	if p.history != nil {
		attached.Generation = p.history.Generation()
	}
	first := &topicv1.ConsumeBidiResponse_Attached{Attached: attached}
	if err := p.send(&topicv1.ConsumeBidiResponse{Body: first}); err != nil {
		return err
	}
	for {
		event, err := p.receive(ctx)
		if err != nil {
			return err
		}
		if err := p.pass(event); err != nil {
			return err
		}
		switch event.Gone {
		case "":
		case detached: // as the client asked for
			return nil
		default:
			return goneWith(event.Gone)
		}
		p.pace.Spend(time.Now())
		if err := p.pace.Gather(ctx); err != nil {
			return err
		}
	}
}

// receive waits for an event, and sends a heartbeat when there was nothing for a time.
func (p *sender) receive(ctx context.Context) (topic.Event, error) {
	for {
		if p.untilHeartbeat == nil || p.untilHeartbeat.Err() != nil {
			if err := p.await(ctx); err != nil {
				return topic.Event{}, err
			}
		}
		event, err := p.in.Receive(p.untilHeartbeat, maxDelivery)
		switch {
		case err == nil:
			return event, nil
		case ctx.Err() != nil:
			return topic.Event{}, ctx.Err()
		case p.untilHeartbeat.Err() == nil: // it is not the heartbeat's time
			return topic.Event{}, err
		}
	}
}

// await sets the time at which the next heartbeat is due, and sends one that is.
func (p *sender) await(ctx context.Context) error {
	p.mu.Lock()
	left := p.every - time.Since(p.sent)
	p.mu.Unlock()
	if left <= 0 {
		alive := &topicv1.ConsumeBidiResponse_Alive{Alive: &topicv1.Alive{Stalls: p.in.Stalls()}}
		if err := p.send(&topicv1.ConsumeBidiResponse{Body: alive}); err != nil {
			return err
		}
		left = p.every
	}
	if p.cancel != nil {
		p.cancel()
	}
	p.untilHeartbeat, p.cancel = context.WithTimeout(ctx, left)
	return nil
}

// pass sends an event.
func (p *sender) pass(e topic.Event) error {
	var responses []any
	size := 0
	for _, d := range e.Deliveries {
		parts, err := frames(d)
		if err != nil {
			return err
		}
		for _, f := range parts {
			if n := f.bytes(); size > 0 && size+n > maxPiece {
				if err := p.send(responses...); err != nil {
					return err
				}
				responses, size = responses[:0], 0
			}
			responses, size = append(responses, f), size+f.bytes()
		}
	}
	for _, m := range other(e) {
		responses = append(responses, m)
	}
	return p.send(responses...)
}

// other are the responses of an event that are not deliveries.
func other(e topic.Event) (all []proto.Message) {
	if e.State != topicv1.SubscriptionState_SUBSCRIPTION_STATE_UNSPECIFIED {
		all = append(all, &topicv1.ConsumeBidiResponse{Body: &topicv1.ConsumeBidiResponse_State{State: e.State}})
	}
	for lost := e.LeaseLost; len(lost) > 0; {
		n := min(len(lost), maxRefusals)
		all = append(all, &topicv1.ConsumeBidiResponse{Body: &topicv1.ConsumeBidiResponse_LeaseLost{
			LeaseLost: &topicv1.LeaseLost{Positions: lost[:n]}}})
		lost = lost[n:]
	}
	if e.Gone != "" {
		all = append(all, &topicv1.ConsumeBidiResponse{Body: &topicv1.ConsumeBidiResponse_Gone{
			Gone: &topicv1.Gone{Reason: e.Gone}}})
	}
	return all
}

// send sends responses in one piece.
func (p *sender) send(responses ...any) error {
	if len(responses) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.history != nil {
		commit := p.history.Shown() // messages that a session receives are on the disk, and so count already
		for _, r := range responses {
			switch r := r.(type) {
			case *topicv1.ConsumeBidiResponse:
				r.Commit = commit
			case *deliveryFrame:
				r.commit = commit
			}
		}
	}
	if err := p.out.Send(responses...); err != nil {
		return err
	}
	p.sent = time.Now()
	return nil
}
