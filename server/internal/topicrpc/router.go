package topicrpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Times for which a call waits for an owner, within its own. A publisher is spared the time
// of a failover; others see a handover at most.
const (
	publishPatience = 20 * time.Second
	patience        = 2 * time.Second
	pause           = 100 * time.Millisecond // between two tries
)

// Slots are the slots as this process knows them; *topic.SlotManager implements them.
type Slots interface {
	// Slots is how many there are.
	Slots() int
	// Enter returns the service of a slot that this process has.
	Enter(slot int) (s *topic.Service, leave func(), ok bool)
	// Owner is the process that has a slot, as far as this one knows; empty if none has.
	Owner(slot int) string
	// Refresh looks the owners up again.
	Refresh(ctx context.Context) error
}

// RouterConfig is what a Router works with. All of it is required.
type RouterConfig struct {
	Slots   Slots
	Process string // this one
	// Remote returns how another process is called, and the address that calls begin with.
	Remote func(ctx context.Context, process string) (connect.HTTPClient, string, error)
	// Identify returns the caller.
	Identify func(ctx context.Context) Identity
	Streams  *Streams
}

// Router is an interceptor, inside of all others, that routes calls.
type Router struct{ cfg RouterConfig }

var _ connect.Interceptor = (*Router)(nil)

// NewRouter makes a Router.
func NewRouter(c RouterConfig) *Router { return &Router{c} }

// errNoOwner reports that a call did nothing, because no process has the slot.
var errNoOwner = errors.New("topicrpc: no server owns the slot")

// slotKey is where a request belongs.
type slotKey struct {
	slot int
	all  merger // not nil: in all slots
}

// slotKeyOf is where a request belongs: to a session, to a topic, to a slot that it names, or
// to none in particular.
func (r *Router) slotKeyOf(m any) (slotKey, error) {
	if of, ok := m.(interface{ GetSlot() int32 }); ok {
		if of.GetSlot() < 0 || int(of.GetSlot()) >= r.cfg.Slots.Slots() {
			return slotKey{}, refusal.New(refusal.InvalidArgument, "there is no slot %d", of.GetSlot())
		}
		return slotKey{slot: int(of.GetSlot())}, nil
	}
	if of, ok := m.(interface{ GetSession() string }); ok && of.GetSession() != "" {
		n, ok := topic.SessionSlot(of.GetSession())
		if !ok || n >= r.cfg.Slots.Slots() {
			return slotKey{}, refusal.New(refusal.SessionGone, "there is no such session, or it has ended")
		}
		return slotKey{slot: n}, nil
	}
	if of, ok := m.(interface{ GetAttach() *topicv1.Attach }); ok {
		return r.topic(of.GetAttach().GetTopic()), nil
	}
	if of, ok := m.(interface{ GetTopic() string }); ok && of.GetTopic() != "" {
		return r.topic(of.GetTopic()), nil
	}
	return slotKey{all: mergerOf(m)}, nil
}

func (r *Router) topic(name string) slotKey {
	return slotKey{slot: topic.SlotOf(name, r.cfg.Slots.Slots())}
}

// patienceOf is how long a request waits for an owner.
func patienceOf(m any) time.Duration {
	if _, ok := m.(*topicv1.PublishRequest); ok {
		return publishPatience
	}
	return patience
}

// repeatable reports whether a request may be made again when it is not known what became of it.
func repeatable(m any) bool {
	publish, ok := m.(*topicv1.PublishRequest)
	return ok && publish.GetProducer() != nil
}

// until tries a call until it finds an owner, or for long enough.
func (r *Router) until(ctx context.Context, within time.Duration, try func(ctx context.Context) error) error {
	waiting, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := try(ctx)
		if !errors.Is(err, errNoOwner) {
			return err
		}
		// The error of either is that there is no more time, or that the process stops.
		_ = r.cfg.Slots.Refresh(waiting)
		if wait.For(waiting, pause) != nil {
			if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return ctx.Err()
			}
			return refusal.New(refusal.NoOwner, "no server has the topic just now")
		}
	}
}

// owner is the other process that has a slot.
func (r *Router) owner(ctx context.Context, slot int) (client connect.HTTPClient, base string, err error) {
	process := r.cfg.Slots.Owner(slot)
	if process == "" || process == r.cfg.Process { // no owner, or this process has not begun, or just ended
		return nil, "", errNoOwner
	}
	if client, base, err = r.cfg.Remote(ctx, process); err != nil {
		return nil, "", fmt.Errorf("%w: %w", errNoOwner, err)
	}
	return client, base, nil
}

// judge says what an error of a call to another process is: of that process, for the client
// as it is; errNoOwner if the call did nothing; otherwise its outcome is not known.
func judge(ctx context.Context, err error) error {
	var ce *connect.Error
	if connect.IsWireError(err) && errors.As(err, &ce) {
		switch reasonOf(ce) {
		case "", string(refusal.NoOwner): // the link's own refusal, or the owner's
			return fmt.Errorf("%w: %s", errNoOwner, ce.Message())
		case "OUTCOME_UNKNOWN":
			return fmt.Errorf("%w: %s", store.ErrAmbiguous, ce.Message())
		}
		return passed(ce)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w: %w", errNoOwner, err)
	}
	return fmt.Errorf("%w: the owner of the topic does not answer: %s", store.ErrAmbiguous, err.Error())
}

// local judges an error of a handler of this process.
func local(err error) error {
	if errors.Is(err, topic.ErrFenced) || errors.Is(err, commitlog.ErrFenced) {
		return fmt.Errorf("%w: %w", store.ErrAmbiguous, err)
	}
	return err
}

// WrapStreamingClient implements connect.Interceptor; there are no clients here.
func (r *Router) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}
