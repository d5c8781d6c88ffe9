package owner

import (
	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/catalog"
	"github.com/parley-chat/parley/server/topic/filter"
	"github.com/parley-chat/parley/server/topic/partition"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// config is how the machine serves a subscription.
func config(s *catalog.Subscription, pausePins bool) (partition.Config, error) {
	f, err := filter.Compile(s.Config.GetFilter())
	if err != nil {
		return partition.Config{}, refusal.New(refusal.InvalidFilter, "%v", err)
	}
	r := s.Config.GetRetry()
	c := partition.Config{
		Name: s.Group, Generation: s.Row.Generation, Filter: f,
		KeyOrder:    s.Config.GetOrdering() == topicv1.Ordering_ORDERING_KEY,
		Hash:        s.Config.GetSelection() == topicv1.Selection_SELECTION_HASH,
		MaxAttempts: int(r.GetMaxAttempts()), InitialBackoff: r.GetInitialBackoff().AsDuration(),
		MaxBackoff: r.GetMaxBackoff().AsDuration(), Lease: r.GetLease().AsDuration(),
		HoldsPaused: pausePins, MaxBackfill: s.Config.GetMaxBackfillMessages(),
	}
	switch s.Config.GetExhausted() {
	case topicv1.Exhausted_EXHAUSTED_PARK_KEY:
		c.Exhausted = partition.ParkKey
	case topicv1.Exhausted_EXHAUSTED_DISCARD:
		c.Exhausted = partition.Discard
	default:
		c.Exhausted = partition.DeadLetter
	}
	return c, nil
}
