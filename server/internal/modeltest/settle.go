package modeltest

import (
	"context"
	"slices"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// Settle ends the run: the publishers stop, the groups get what there is for them until nothing is
// pending, and all that was seen is held against the contract. It returns what the server broke. It
// is not called while the server is away.
func (w *World) Settle(ctx context.Context) []string {
	w.publishing.end()
	w.changing.end()
	close(w.calm)
	w.drain(ctx)
	w.consuming.stop()
	for _, g := range w.tenures {
		if g.members != nil {
			g.members.end()
		}
	}
	for _, t := range w.topics {
		w.readDeadLetters(ctx, t)
		if slices.ContainsFunc(t.groups, func(g *group) bool { return g.buried }) {
			w.readBacks(ctx, t)
		}
		w.bounds(ctx, t)
		if t.trims() {
			w.room(ctx, t)
		}
	}
	w.readStatuses(ctx)
	w.check()
	return w.findings
}

// drain waits until no group has anything pending.
func (w *World) drain(ctx context.Context) {
	since, unparked := time.Now(), time.Time{}
	for _, g := range w.tenures {
		for !g.ended {
			res, _, err := until(ctx, w, w.User.Subscriptions.GetSubscription,
				&topicv1.GetSubscriptionRequest{Topic: g.topic.name, Group: g.name})
			if err != nil {
				w.find("refused: GetSubscription of %s: %v", g.name, err)
				break
			}
			open := int64(0)
			for _, p := range res.GetSubscription().GetPartitions() {
				open += p.GetPending() + p.GetInFlight() + p.GetRetrying() + p.GetParked()
			}
			g.released = res.GetSubscription().GetReleased()
			if open == 0 && res.GetSubscription().GetState() == topicv1.SubscriptionState_SUBSCRIPTION_STATE_ACTIVE {
				break
			}
			if g.parks() && time.Since(unparked) > time.Second {
				w.unparkNow(ctx, g)
				unparked = time.Now()
			}
			if time.Since(since) > w.Patience {
				w.find("stuck: %s of %s is %v", g.name, g.topic.name, res.GetSubscription())
				break
			}
			sleep(ctx, 50*time.Millisecond)
		}
		w.backfilled(ctx, g)
		if !g.ended && g.mortal {
			res, _, err := until(ctx, w, w.Operator.Admin.GetGroupMetrics,
				&topicv1.GetGroupMetricsRequest{Topic: g.topic.name, Group: g.name})
			if err != nil {
				w.find("refused: GetGroupMetrics of %s: %v", g.name, err)
			}
			g.missed = res.GetMissed()
		}
	}
}

// noticed is how long the server may take to see that a backfill has nothing left. It looks once a second at
// least; a busy machine needs longer.
const noticed = 10 * time.Second

// backfilled holds that a backfill that a group asked for is completed soon after nothing is pending.
func (w *World) backfilled(ctx context.Context, g *group) {
	if g.ended || !slices.ContainsFunc(g.controls, func(c *control) bool { return c.kind == backfill }) {
		return
	}
	for since := time.Now(); ; sleep(ctx, 50*time.Millisecond) {
		res, _, err := until(ctx, w, w.User.Backfills.GetBackfill,
			&topicv1.GetBackfillRequest{Topic: g.topic.name, Group: g.name})
		b := res.GetBackfill()
		ended := b.GetStatus() == topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED
		if err == nil && ended && b.GetProcessed() == b.GetTotal() {
			return
		}
		if err != nil || ended || time.Since(since) > noticed {
			w.find("backfill: that of %s of %s ends as %v, %v", g.name, g.topic.name, b, err)
			return
		}
	}
}

// bounds holds the positions of a topic against those that were answered: from 0 on, without a gap.
func (w *World) bounds(ctx context.Context, t *topicState) {
	res, _, err := until(ctx, w, w.User.Topics.GetTopic, &topicv1.GetTopicRequest{Topic: t.name})
	if err != nil {
		w.find("refused: GetTopic of %s: %v", t.name, err)
		return
	}
	taken := map[position]*publication{}
	count := map[int32]int64{}
	for _, p := range t.order {
		if other := taken[p.position]; other != nil {
			w.find("positions: %.60s and %.60s stand at %v of %s", other.message.GetPayload(), p.message.GetPayload(),
				p.position, t.name)
		}
		taken[p.position] = p
		count[p.position.partition]++
	}
	for _, b := range res.GetTopic().GetPartitions() {
		if b.GetEnd() != count[b.GetPartition()] {
			w.find("positions: partition %d of %s ends at %d, %d messages were published", b.GetPartition(), t.name,
				b.GetEnd(), count[b.GetPartition()])
		}
	}
}

// room publishes to a topic whose messages are all acknowledged and trimmed: it is not full.
func (w *World) room(ctx context.Context, t *topicState) {
	w.runTrim(ctx)
	req := w.request(t, "last", 1)
	if _, _, err := until(ctx, w, w.User.Topics.Publish, req); err != nil {
		w.find("room: %s has no room, though nothing is pending: %v", t.name, err)
	}
	w.forget(t, req)
}
