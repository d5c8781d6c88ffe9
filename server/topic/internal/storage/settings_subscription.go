package storage

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Defaults of subscriptions.
const (
	DefaultBackfill = 1_000_000 // messages
	Unlimited       = -1        // of max_backfill_messages
	defaultAttempts = 5
	defaultBackoff  = time.Second
	longestBackoff  = 5 * time.Minute
	defaultLease    = 30 * time.Second
	maxClauses      = 16
)

// SubscriptionConfig returns the settings of a subscription, all of them set. p is the topic's
// preset. warnings are for people.
func SubscriptionConfig(
	c *topicv1.SubscriptionConfig, p topicv1.Preset) (*topicv1.SubscriptionConfig, []string, error,
) {
	next := &topicv1.SubscriptionConfig{}
	if c != nil {
		next = proto.CloneOf(c)
	}
	if next.GetStart().GetAt() == nil {
		next.Start = &topicv1.Position{At: &topicv1.Position_Latest{Latest: true}}
	}
	if next.GetMaxBackfillMessages() == 0 {
		next.MaxBackfillMessages = DefaultBackfill
	}
	if len(next.GetFilter().GetClauses()) > maxClauses {
		return nil, nil, refusal.New(refusal.InvalidFilter, "a filter has at most %d clauses", maxClauses)
	}
	if next.GetOrdering() == 0 {
		next.Ordering = topicv1.Ordering_ORDERING_NONE
	}
	if next.GetSelection() == 0 {
		next.Selection = topicv1.Selection_SELECTION_ANY
	}
	ordered := next.GetOrdering() == topicv1.Ordering_ORDERING_KEY
	switch {
	case next.GetExhausted() != 0:
	case ordered:
		next.Exhausted = topicv1.Exhausted_EXHAUSTED_PARK_KEY
	default:
		next.Exhausted = topicv1.Exhausted_EXHAUSTED_DEAD_LETTER
	}
	if err := retry(next); err != nil {
		return nil, nil, err
	}
	if next.GetPush() != nil && next.GetPush().GetUrl() == "" {
		return nil, nil, refusal.New(refusal.InvalidArgument, "push needs a url")
	}
	warning, err := heartbeats(next, p)
	if err != nil || warning == "" {
		return next, nil, err
	}
	return next, []string{warning}, nil
}

func retry(c *topicv1.SubscriptionConfig) error {
	if c.GetRetry() == nil {
		c.Retry = &topicv1.RetryPolicy{}
	}
	r := c.GetRetry()
	if r.GetMaxAttempts() == 0 {
		r.MaxAttempts = defaultAttempts
	}
	orElse(&r.InitialBackoff, defaultBackoff)
	orElse(&r.MaxBackoff, max(longestBackoff, r.GetInitialBackoff().AsDuration()))
	orElse(&r.Lease, defaultLease)
	if r.GetMaxBackoff().AsDuration() < r.GetInitialBackoff().AsDuration() {
		return refusal.New(refusal.InvalidArgument, "max_backoff must not be less than initial_backoff")
	}
	return nil
}

func heartbeats(c *topicv1.SubscriptionConfig, p topicv1.Preset) (warning string, err error) {
	interval, timeout := DefaultHeartbeatInterval, DefaultHeartbeatTimeout
	if p == topicv1.Preset_PRESET_HIGH_SCALE {
		interval, timeout = 30*time.Second, 120*time.Second
	}
	switch given := c.GetHeartbeatTimeout(); {
	case c.GetHeartbeatInterval() != nil && given == nil: // the usual ratio
		timeout = 5 * c.GetHeartbeatInterval().AsDuration()
	case c.GetHeartbeatInterval() == nil && given != nil:
		interval = max(time.Second, given.AsDuration()/5)
	}
	orElse(&c.HeartbeatInterval, interval)
	orElse(&c.HeartbeatTimeout, timeout)
	problem, warning := CheckHeartbeats(c.GetHeartbeatInterval().AsDuration(), c.GetHeartbeatTimeout().AsDuration())
	if problem != "" {
		return "", refusal.New(refusal.InvalidArgument, "%s", problem)
	}
	return warning, nil
}

func orElse(d **durationpb.Duration, otherwise time.Duration) {
	if *d == nil {
		*d = durationpb.New(otherwise)
	}
}
