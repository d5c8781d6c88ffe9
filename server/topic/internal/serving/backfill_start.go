package serving

import (
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Start starts a backfill or continues it, and returns of how many messages; started is
// false if it runs or is completed. Cursors are stored before the row is: without it they are
// nothing. The caller holds the topic's lock for writing.
func (r *Backfills) Start(
	ctx context.Context, l *OpenTopic, sub *storage.Subscription, q *topicv1.StartBackfillRequest,
) (messages int64, started bool, err error) {
	old, err := row(sub)
	if err != nil {
		return 0, false, err
	}
	switch s := old.GetStatus(); {
	case s == inProgress, s == completed && !q.GetAgain():
		return 0, false, nil
	case !storage.Receives(sub.State) || l.Group(sub.Group) == nil:
		return 0, false, refusal.New(refusal.InvalidTransition,
			"a subscription that is %s cannot be backfilled: it must be active or paused", storage.StateName(sub.State))
	case r.Running() >= maxRunning:
		return 0, false, refusal.New(refusal.TooMany, "%d backfills run, which is as many as can", maxRunning)
	}
	b := r.plan(old, q)
	if b.GetNumber() == old.GetNumber() { // what members had when it was cancelled may be done since
		var done int64
		for _, h := range histories(l, sub.Group) {
			done += h.Done
		}
		b.Processed = max(b.GetProcessed(), done)
	}
	if err := r.begin(ctx, l, sub, b); err != nil {
		return 0, false, r.undo(ctx, l, sub, err)
	}
	if b.GetStatus() == inProgress {
		r.add(l, sub, b)
	}
	messages = b.GetTotal() - b.GetProcessed()
	r.engine.Logger.Info("backfill started", "topic", l.Name, "group", sub.Group, "number", b.GetNumber(),
		"messages", messages, "limit_reached", b.GetLimitReached())
	return messages, true, nil
}

// plan is the row of a backfill that is asked for. One that is continued keeps what it is
// about; its limits are those of the request.
func (r *Backfills) plan(old *topicv1.Backfill, q *topicv1.StartBackfillRequest) *topicv1.Backfill {
	b := &topicv1.Backfill{
		Number: old.GetNumber() + 1, Scope: q.GetScope(), From: q.GetFrom(), MaxMessages: q.GetMaxMessages(),
		StartedAt: r.now(),
	}
	if s := old.GetStatus(); (s == cancelled || s == failed) && !q.GetAgain() {
		b = proto.CloneOf(old)
		b.CompletedAt, b.Error = nil, ""
	}
	if b.GetScope() == 0 {
		b.Scope = topicv1.BackfillScope_BACKFILL_SCOPE_PENDING
	}
	if b.GetFrom().GetAt() == nil {
		b.From = &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}
	}
	if b.GetMaxMessages() == 0 {
		b.MaxMessages = DefaultMessages
	}
	b.Status, b.Limits = inProgress, Limits(q.GetPreset(), q.GetLimits())
	return b
}

// Differences are what a request asks for and the backfill of a subscription has with another
// value. The caller holds the topic's lock.
func (r *Backfills) Differences(
	sub *storage.Subscription, q *topicv1.StartBackfillRequest,
) ([]*topicv1.SettingDifference, error) {
	is, err := row(sub)
	if err != nil {
		return nil, err
	}
	asked := &topicv1.Backfill{
		Scope: q.GetScope(), From: q.GetFrom(), MaxMessages: q.GetMaxMessages(), Limits: q.GetLimits(),
	}
	if q.GetPreset() != 0 {
		asked.Limits = Limits(q.GetPreset(), q.GetLimits())
	}
	return storage.Differences(is, asked)
}

// begin gives the group its messages in all partitions, and stores that.
func (r *Backfills) begin(ctx context.Context, l *OpenTopic, sub *storage.Subscription, b *topicv1.Backfill) error {
	from := make([]int64, len(l.Parts))
	wanted := make([]int64, len(l.Parts))
	all := b.GetScope() == topicv1.BackfillScope_BACKFILL_SCOPE_ALL_RETAINED
	for n, p := range l.Parts {
		position, err := r.engine.Subscriptions.Resolve(ctx, l, n, b.GetFrom())
		if err != nil {
			return err
		}
		from[n] = position
		p.Do(func(m *machine.Machine) {
			if g := m.Group(sub.Group); g != nil {
				wanted[n] = g.Wanted(position, all)
			}
		})
	}
	limit := b.GetMaxMessages()
	if limit >= 0 { // of those that a backfill has that is continued, some are done or under way
		limit = max(0, limit-b.GetProcessed()-leftOf(histories(l, sub.Group)))
	}
	shares := split(limit, wanted)
	var got, sum int64
	err := l.Group(sub.Group).Do(func(n int, h *machine.GroupState) error {
		given, err := h.BeginBackfill(machine.Backfill{
			Number: b.GetNumber(), From: from[n], All: all, Limit: shares[n],
		})
		got, sum = got+given, sum+wanted[n]
		return err
	})
	if err != nil {
		return err
	}
	b.LimitReached = b.GetLimitReached() || sum > got
	b.Total = b.GetProcessed() + leftOf(histories(l, sub.Group))
	if err := r.engine.Flusher.Wait(ctx, sub.Group, l.Parts...); err != nil {
		return err
	}
	b.CheckpointAt = r.now()
	if b.GetTotal() == b.GetProcessed() {
		b.Status, b.CompletedAt = completed, b.GetCheckpointAt()
	}
	return r.note(ctx, l, sub.Group, b)
}

// undo takes back what begin did. The stored parts of the backfill have no effect without
// the row.
func (r *Backfills) undo(ctx context.Context, l *OpenTopic, sub *storage.Subscription, why error) error {
	old, err := row(sub)
	if err == nil && old.GetStatus() == failed { // it keeps what it has
		return why
	}
	if g := l.Group(sub.Group); g != nil {
		err = g.Do(func(_ int, h *machine.GroupState) error {
			h.EndBackfill()
			return nil
		})
	}
	if err != nil {
		r.engine.Logger.WarnContext(ctx, "a backfill that did not start is not taken back", "topic", l.Name,
			"group", sub.Group, "error", err)
	}
	return why
}

// Cancel cancels the backfill of a subscription. One that is cancelled stays so. The caller
// holds the topic's lock for writing, and waits for the flusher after it.
func (r *Backfills) Cancel(ctx context.Context, l *OpenTopic, sub *storage.Subscription) error {
	old, err := row(sub)
	if err != nil {
		return err
	}
	switch old.GetStatus() {
	case cancelled:
		return nil
	case completed:
		return noBackfill(sub.Group, "is completed")
	case notStarted:
		return noBackfill(sub.Group, "was not started")
	}
	if err := r.close(ctx, l, sub, old, cancelled, ""); err != nil {
		return err
	}
	g := l.Group(sub.Group)
	if g == nil {
		return nil
	}
	return g.Do(func(_ int, h *machine.GroupState) error {
		h.EndBackfill()
		return nil
	})
}

// close writes that a backfill does not run any more, and why. The caller holds the topic's
// lock for writing.
func (r *Backfills) close(
	ctx context.Context, l *OpenTopic, sub *storage.Subscription, old *topicv1.Backfill,
	s topicv1.BackfillStatus, why string,
) error {
	b := proto.CloneOf(old)
	b.Status, b.Error, b.CheckpointAt = s, why, r.now()
	b.CompletedAt = timestamppb.New(b.GetCheckpointAt().AsTime())
	if s == completed {
		b.Processed = b.GetTotal()
	} else {
		b.Processed = r.processed(l, sub, old)
	}
	if err := r.note(ctx, l, sub.Group, b); err != nil {
		return err
	}
	if t := r.task(l.Topic, sub.Group); t != nil {
		r.remove(t)
	}
	r.engine.Logger.Info("backfill ended", "topic", l.Name, "group", sub.Group, "number", b.GetNumber(),
		"status", s.String(), "processed", b.GetProcessed(), "total", b.GetTotal(), "error", why)
	return nil
}

// processed is how many messages of a backfill its group is done with. Messages that it does
// not have any more because it has moved or died are not done.
func (r *Backfills) processed(l *OpenTopic, sub *storage.Subscription, b *topicv1.Backfill) int64 {
	list := histories(l, sub.Group)
	for i := range list {
		if list[i].Number != b.GetNumber() {
			return b.GetProcessed()
		}
	}
	return max(b.GetProcessed(), b.GetTotal()-leftOf(list))
}
