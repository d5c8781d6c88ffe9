package modeltest

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	client "github.com/parley-chat/parley/server/client/topic"
)

// settings are those of a group that change, by their names in a mask: each has one value or the other.
var settings = []struct {
	path   string
	toggle func(c *topicv1.SubscriptionConfig)
}{
	{"retry.lease", func(c *topicv1.SubscriptionConfig) {
		c.Retry.Lease = durationpb.New(lease + longLease - c.GetRetry().GetLease().AsDuration())
	}},
	{"ordering", func(c *topicv1.SubscriptionConfig) {
		c.Ordering = topicv1.Ordering_ORDERING_NONE + topicv1.Ordering_ORDERING_KEY - max(1, c.GetOrdering())
	}},
	{"filter", func(c *topicv1.SubscriptionConfig) { // a mask alone takes it away
		if c.Filter != nil {
			c.Filter = nil
		} else {
			c.Filter = filter()
		}
	}},
	{"max_in_flight", func(c *topicv1.SubscriptionConfig) { c.MaxInFlight = few - c.GetMaxInFlight() }},
	{"selection", func(c *topicv1.SubscriptionConfig) {
		c.Selection = topicv1.Selection_SELECTION_ANY + topicv1.Selection_SELECTION_HASH - max(1, c.GetSelection())
	}},
	{"retry.max_attempts", func(c *topicv1.SubscriptionConfig) {
		c.Retry.MaxAttempts = maxAttempts + moreAttempts - c.GetRetry().GetMaxAttempts()
	}},
}

// update changes one or two settings of a group at a time.
func (w *World) update(g *group) {
	ctx := context.WithoutCancel(w.changing.ctx)
	next := g.config
	for sleep(w.changing.ctx, w.around(time.Second)) {
		next = proto.CloneOf(next)
		n := w.chance(len(settings))
		change := settings[n : n+1+w.chance(min(2, len(settings)-n))]
		mask := &fieldmaskpb.FieldMask{}
		for _, s := range change {
			s.toggle(next)
			mask.Paths = append(mask.Paths, s.path)
		}
		kind := update
		if slices.Equal(mask.GetPaths(), []string{"max_in_flight"}) {
			kind = quota
		}
		// A mask names all that changes: other fields of the request do not count.
		_, s, err := until(ctx, w, w.User.Subscriptions.UpdateSubscription, &topicv1.UpdateSubscriptionRequest{
			Topic: g.topic.name, Group: g.name, Config: next, UpdateMask: mask})
		w.record(g, control{span: s, kind: kind, config: next}, err)
	}
}

// backfill asks for what was published before a group. One that asks for all of it cancels the backfill
// in between, and continues it.
func (w *World) backfill(g *group, limit int) {
	ctx := context.WithoutCancel(w.changing.ctx)
	start := func() {
		_, s, err := until(ctx, w, w.User.Backfills.StartBackfill, &topicv1.StartBackfillRequest{Topic: g.topic.name,
			Group: g.name, From: earliest(), Scope: topicv1.BackfillScope_BACKFILL_SCOPE_ALL_RETAINED,
			MaxMessages: int64(limit), Async: true})
		w.record(g, control{span: s, kind: backfill, most: limit}, err)
	}
	sleep(w.changing.ctx, w.around(time.Second))
	start()
	if limit >= 0 {
		return
	}
	sleep(w.changing.ctx, w.around(20*time.Millisecond))
	_, _, err := until(ctx, w, w.User.Backfills.CancelBackfill,
		&topicv1.CancelBackfillRequest{Topic: g.topic.name, Group: g.name})
	if err != nil && client.Reason(err) != "INVALID_TRANSITION" { // it may be completed
		w.find("refused: CancelBackfill of %s: %v", g.name, err)
	}
	sleep(w.changing.ctx, w.around(300*time.Millisecond))
	start()
}

// backfillOpen asks for what is not complete, for a group without members. The backfill waits for these: it neither
// ends nor gets other messages meanwhile.
func (w *World) backfillOpen(g *group) {
	ctx := context.WithoutCancel(w.changing.ctx)
	scope := []topicv1.BackfillScope{topicv1.BackfillScope_BACKFILL_SCOPE_UNSPECIFIED,
		topicv1.BackfillScope_BACKFILL_SCOPE_PENDING}[w.chance(2)]
	res, s, err := until(ctx, w, w.User.Backfills.StartBackfill, &topicv1.StartBackfillRequest{Topic: g.topic.name,
		Group: g.name, Scope: scope, MaxMessages: -1, Async: true})
	w.record(g, control{span: s, kind: backfill, most: -1, open: true}, err)
	sleep(w.changing.ctx, w.around(2*time.Second))
	now, _, err := until(ctx, w, w.User.Backfills.GetBackfill,
		&topicv1.GetBackfillRequest{Topic: g.topic.name, Group: g.name})
	was, is := res.GetBackfill(), now.GetBackfill()
	if running := is.GetStatus() == topicv1.BackfillStatus_BACKFILL_STATUS_IN_PROGRESS; err != nil ||
		is.GetNumber() != was.GetNumber() || is.GetTotal() != was.GetTotal() ||
		!running && (is.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED ||
			is.GetProcessed() != is.GetTotal()) {
		w.find("backfill: that of %s of %s, which waits for members, was %v and is %v, %v", g.name, g.topic.name, was, is, err)
	}
}

// unpark lets a group have what it has parked: now and then all of it, and in between some keys.
func (w *World) unpark(g *group) {
	ctx := context.WithoutCancel(w.changing.ctx)
	for sleep(w.changing.ctx, w.around(time.Second)) {
		w.unparkNow(ctx, g, [][]string{nil, {"k1", "k2"}}[w.chance(2)]...)
	}
}

func (w *World) unparkNow(ctx context.Context, g *group, keys ...string) {
	_, s, err := until(ctx, w, w.User.Subscriptions.UnparkKeys,
		&topicv1.UnparkKeysRequest{Topic: g.topic.name, Group: g.name, Keys: keys})
	w.record(g, control{span: s, kind: unpark}, err)
}

// purge removes messages before a message, before a time, and all that are there.
func (w *World) purge(t *topicState) {
	ctx := context.WithoutCancel(w.changing.ctx)
	for sleep(w.changing.ctx, w.around(2*time.Second)) {
		before := latest()
		switch w.chance(3) {
		case 0:
			before = &topicv1.Position{At: &topicv1.Position_Time{Time: timestamppb.New(time.Now().Add(-time.Second))}}
		case 1:
			if p := w.some(t); p != nil {
				before = &topicv1.Position{At: &topicv1.Position_MessageId{MessageId: p.position.String()}}
			}
		}
		res, s, err := until(ctx, w, w.User.Topics.PurgeMessages,
			&topicv1.PurgeMessagesRequest{Topic: t.name, Before: before})
		if err != nil {
			w.find("refused: PurgeMessages of %s: %v", t.name, err)
		}
		p := &purging{span: s, before: before, ends: map[int32]int64{}}
		for _, x := range res.GetPurges() {
			p.ends[x.GetPartition()] = x.GetTo()
		}
		w.mu.Lock()
		t.purges = append(t.purges, p)
		w.mu.Unlock()
	}
}

// flip changes the completion mode of a topic.
func (w *World) flip(t *topicState) {
	ctx := context.WithoutCancel(w.changing.ctx)
	modes := []topicv1.CompletionMode{topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK,
		topicv1.CompletionMode_COMPLETION_MODE_REFERENCE_COUNTING}
	for n := 0; sleep(w.changing.ctx, w.around(2*time.Second)); n++ {
		mode := modes[n%2]
		res, s, err := until(ctx, w, w.User.Topics.ConfigureTopic, &topicv1.ConfigureTopicRequest{Topic: t.name,
			Config: &topicv1.TopicConfig{CompletionMode: mode}})
		if err != nil || res.GetTopic().GetConfig().GetCompletionMode() != mode {
			w.find("mode: %s becomes %v, %v", t.name, res.GetTopic().GetConfig().GetCompletionMode(), err)
		}
		w.mu.Lock()
		t.flips = append(t.flips, &flipping{s, mode})
		w.mu.Unlock()
	}
}
