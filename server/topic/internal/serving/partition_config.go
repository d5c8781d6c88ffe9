package serving

import (
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// config is how the machine serves a subscription.
func config(s *storage.Subscription, pausePins bool) (machine.Config, error) {
	f, err := machine.CompileFilter(s.Config.GetFilter())
	if err != nil {
		return machine.Config{}, refusal.New(refusal.InvalidFilter, "%v", err)
	}
	r := s.Config.GetRetry()
	c := machine.Config{
		Name: s.Group, Generation: s.Row.Generation, Filter: f,
		KeyOrder:    s.Config.GetOrdering() == topicv1.Ordering_ORDERING_KEY,
		Hash:        s.Config.GetSelection() == topicv1.Selection_SELECTION_HASH,
		MaxAttempts: int(r.GetMaxAttempts()), InitialBackoff: r.GetInitialBackoff().AsDuration(),
		MaxBackoff: r.GetMaxBackoff().AsDuration(), Lease: r.GetLease().AsDuration(),
		HoldsPaused: pausePins,
	}
	switch s.Config.GetExhausted() {
	case topicv1.Exhausted_EXHAUSTED_PARK_KEY:
		c.Exhausted = machine.ParkKey
	case topicv1.Exhausted_EXHAUSTED_DISCARD:
		c.Exhausted = machine.Discard
	default:
		c.Exhausted = machine.DeadLetter
	}
	return c, nil
}
