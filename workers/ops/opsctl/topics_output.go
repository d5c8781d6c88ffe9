package opsctl

import (
	"fmt"
	"io"
	"slices"
	"strings"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

func (c *call) printTopic(t *topicv1.Topic) error {
	cfg := t.GetConfig()
	err := c.table(func(w io.Writer) {
		row := rowsOf(w)
		row("topic", safe(t.GetName()))
		row("semantics", flagWord(cfg.GetSemantics(), "SEMANTICS_"))
		row("completion mode", flagWord(cfg.GetCompletionMode(), "COMPLETION_MODE_"))
		row("message retention", formatDuration(cfg.GetMessageRetention()))
		row("max retention", formatDuration(cfg.GetMaxRetention()))
		row("zero-subscription retention", formatDuration(cfg.GetZeroSubscriptionRetention()))
		row("zombie subscription TTL", formatDuration(cfg.GetZombieSubscriptionTtl()))
		row("dead retention", deadRetention(cfg))
		row("schema", schemaText(cfg.GetSchema()))
		row("block writes", cfg.GetBlockWritesOnZeroSubscriptions())
		row("pause holds messages", cfg.GetPausePins())
		row("active subscriptions", t.GetActiveSubscriptions())
		row("made", formatTime(t.GetCreatedAt()))
		row("changed", formatTime(t.GetUpdatedAt()))
		row("etag", safe(t.GetEtag()))
		if len(t.GetPartitions()) > 0 {
			fmt.Fprintln(w, "\nPARTITION\tSTART\tEND\tKEPT\tNOT HELD BELOW")
		}
		for _, p := range t.GetPartitions() {
			fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\n", p.GetPartition(), p.GetStart(), p.GetEnd(), p.GetEnd()-p.GetStart(),
				p.GetWatermark())
		}
	})
	if err != nil {
		return err
	}
	return c.warn(t.GetWarnings())
}

func (c *call) warn(warnings []string) error {
	for _, text := range warnings {
		if err := c.say("warning: %s", safe(text)); err != nil {
			return err
		}
	}
	return nil
}

// deadRetention says what a topic keeps for dead groups.
func deadRetention(cfg *topicv1.TopicConfig) string {
	if cfg.GetDeadRetention() == nil {
		return "-"
	}
	return fmt.Sprintf("%s, at most %d bytes", formatDuration(cfg.GetDeadRetention()), cfg.GetDeadRetentionBytes())
}

// releasedOf says how many messages a group does not get and why; empty without any.
func releasedOf(r *topicv1.ReleasedMessages) string {
	var list []string
	for _, of := range []struct {
		n    int64
		what string
	}{
		{r.GetDeath(), "after its death"}, {r.GetBound(), "beyond a bound"}, {r.GetRetention(), "removed before"},
		{r.GetZombie(), "as it did not move"}, {r.GetForced(), "forced past"}, {r.GetSought(), "moved past on request"},
		{r.GetExpired(), "expired"},
	} {
		if of.n > 0 {
			list = append(list, fmt.Sprintf("%d %s", of.n, of.what))
		}
	}
	return strings.Join(list, ", ")
}

// released adds up what a group does not get.
func released(r *topicv1.ReleasedMessages) int64 {
	return r.GetDeath() + r.GetBound() + r.GetRetention() + r.GetZombie() + r.GetForced() + r.GetSought() +
		r.GetExpired()
}

// places adds up what a subscription has before it.
func places(s *topicv1.Subscription) (pending, inFlight, retrying, parked int64) {
	for _, p := range s.GetPartitions() {
		pending += p.GetPending()
		inFlight += p.GetInFlight()
		retrying += p.GetRetrying()
		parked += p.GetParked()
	}
	return pending, inFlight, retrying, parked
}

func stateOf(s *topicv1.Subscription) string {
	state := flagWord(s.GetState(), "SUBSCRIPTION_STATE_")
	if s.GetFlapping() {
		state += ", flapping"
	}
	return state
}

func (c *call) printGroups(list []*topicv1.Subscription) error {
	return c.table(func(w io.Writer) {
		fmt.Fprintln(w, "GROUP\tSTATE\tMEMBERS\tPENDING\tIN FLIGHT\tRETRYING\tPARKED\tPROCESSED\tFAILED\tRELEASED\tHEARD FROM")
		for _, s := range list {
			pending, inFlight, retrying, parked := places(s)
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", safe(s.GetGroup()), stateOf(s), s.GetMembers(),
				pending, inFlight, retrying, parked, s.GetProcessed(), s.GetFailed(), released(s.GetReleased()),
				formatTime(s.GetLastHeartbeatAt()))
		}
	})
}

// atRest reports whether a group has nothing to do in a partition.
func atRest(p *topicv1.SubscriptionPartition) bool {
	return p.GetPending() == 0 && p.GetInFlight() == 0 && p.GetRetrying() == 0 && p.GetParked() == 0
}

// printGroup prints a subscription, and the partitions in which something is to be done.
func (c *call) printGroup(s *topicv1.Subscription) error {
	cfg, retry := s.GetConfig(), s.GetConfig().GetRetry()
	return c.table(func(w io.Writer) {
		row := rowsOf(w)
		row("topic", safe(s.GetTopic()))
		row("group", safe(s.GetGroup()))
		row("generation", s.GetGeneration())
		row("state", stateOf(s))
		row("members", s.GetMembers())
		row("ordering", flagWord(cfg.GetOrdering(), "ORDERING_"))
		row("selection", flagWord(cfg.GetSelection(), "SELECTION_"))
		row("lease", formatDuration(retry.GetLease()))
		row("attempts", fmt.Sprintf("%d, %s to %s apart, then %s", retry.GetMaxAttempts(),
			formatDuration(retry.GetInitialBackoff()), formatDuration(retry.GetMaxBackoff()),
			flagWord(cfg.GetExhausted(), "EXHAUSTED_")))
		row("heartbeats", fmt.Sprintf("every %s, dead after %s", formatDuration(cfg.GetHeartbeatInterval()),
			formatDuration(cfg.GetHeartbeatTimeout())))
		if n := cfg.GetMaxInFlight(); n > 0 {
			row("in flight", fmt.Sprintf("at most %d", n))
		}
		pushRows(row, s)
		row("processed", fmt.Sprintf("%d, of which %d did not pass the filter", s.GetProcessed(), s.GetFiltered()))
		row("failed", s.GetFailed())
		row("subscribed", formatTime(s.GetSubscribedAt()))
		row("heard from", formatTime(s.GetLastHeartbeatAt()))
		if s.GetGap() {
			row("gap", "it does not get all messages that it was to receive")
		}
		if text := releasedOf(s.GetReleased()); text != "" {
			row("released", text)
		}
		for _, stall := range s.GetStalls() {
			row("stalled", fmt.Sprintf("partition %d since %s: %s", stall.GetPartition(), formatTime(stall.GetSince()),
				safe(stall.GetText())))
		}
		busy := slices.DeleteFunc(slices.Clone(s.GetPartitions()), atRest)
		if n := len(s.GetPartitions()); n > 0 {
			row("partitions", fmt.Sprintf("%d, %d at rest", n, n-len(busy)))
		}
		if len(busy) > 0 {
			fmt.Fprintln(w, "\nPARTITION\tSTART\tFLOOR\tEND\tPENDING\tIN FLIGHT\tRETRYING\tPARKED\tDELAYED")
		}
		for _, p := range busy {
			fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", p.GetPartition(), p.GetStart(), p.GetFloor(), p.GetEnd(),
				p.GetPending(), p.GetInFlight(), p.GetRetrying(), p.GetParked(), p.GetDelayed())
		}
	})
}
