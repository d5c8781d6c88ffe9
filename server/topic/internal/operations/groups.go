package operations

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Limits of pages and calls.
const (
	defaultPage = 100
	maxPage     = 1000
	defaultWait = 10 * time.Second
	waitStep    = 20 * time.Millisecond

	overdueAfter = time.Minute // of a deadline, with which a timer of a busy process is not excused
)

// Groups returns a page of a topic's groups and how they are, by name.
func (a *Admin) Groups(ctx context.Context, r *topicv1.ListGroupsRequest) (*topicv1.ListGroupsResponse, error) {
	l, err := a.open(ctx, r.GetTopic())
	if err != nil {
		return nil, err
	}
	defer l.Release()
	size := int(min(r.GetPageSize(), maxPage))
	if size == 0 {
		size = defaultPage
	}
	defer l.Reading().End()
	answer := &topicv1.ListGroupsResponse{}
	for _, sub := range l.Subscriptions() {
		if sub.Group <= r.GetPageToken() {
			continue
		}
		if len(answer.Groups) == size {
			answer.NextPageToken = answer.Groups[size-1].GetGroup()
			break
		}
		answer.Groups = append(answer.Groups, a.health(l, sub))
	}
	return answer, nil
}

// health is how a group is. The caller holds the topic's lock.
func (a *Admin) health(l *serving.OpenTopic, sub *storage.Subscription) *topicv1.GroupHealth {
	g := l.Group(sub.Group)
	row := sub.Row
	h := &topicv1.GroupHealth{Topic: l.Name, Group: sub.Group, State: sub.State}
	if g != nil {
		g.Heartbeats.Fill(&row)
		h.Members = int32(g.Members())
	}
	if row.HeartbeatAt > 0 {
		h.LastHeartbeatAt = timestamppb.New(time.UnixMilli(row.HeartbeatAt))
	}
	if sub.Group != storage.QueueGroup {
		h.SinceHeartbeat = durationpb.New(a.silence(row))
	}
	var lost machine.Ledger
	each(l, sub.Group, func(_ *serving.Partition, _ *machine.Machine, m *machine.GroupState) {
		st := m.Stats()
		lost.Add(m.Ledger())
		h.Pending, h.Processed, h.InFlight = h.Pending+st.Pending, h.Processed+st.Processed, h.InFlight+st.InFlight
	})
	h.Problems = a.problems(sub, row, h)
	if overdue := overdue(l, sub.Group); overdue > overdueAfter {
		h.Problems = append(h.Problems, fmt.Sprintf("its leases do not end and its retries do not come, for %s: "+
			"restart the server that has the topic, and report this", overdue.Truncate(time.Second)))
	}
	if text := released(lost); text != "" {
		h.Problems = append(h.Problems, text)
	}
	if g != nil {
		for _, stall := range g.Stalls() {
			h.Problems = append(h.Problems, stalled(stall))
		}
	}
	h.Healthy = sub.State == storage.Active && len(h.Problems) == 0
	return h
}

// released says which messages a group does not get although it was to receive them and nothing asked
// for that; empty if there are none.
func released(lost machine.Ledger) string {
	n := lost.Unasked()
	if n == 0 {
		return ""
	}
	var of []string
	for c, n := range lost {
		if c := machine.Cause(c); n > 0 && !c.Asked() {
			of = append(of, fmt.Sprintf("%d by %s", n, c))
		}
	}
	return fmt.Sprintf("it does not get %d messages that were due to it: %s", n, strings.Join(of, ", "))
}

// stalled is what operators read of a partition in which a group gets nothing.
func stalled(s *topicv1.Stall) string {
	return fmt.Sprintf("STALLED in partition %d: %s", s.GetPartition(), s.GetText())
}

// silence is how long the server has received no heartbeat from a group.
func (a *Admin) silence(row table.Subscription) time.Duration {
	return max(0, a.engine.Clock().Sub(time.UnixMilli(max(row.HeartbeatAt, row.SubscribedAt))))
}

// counted is the part of a silence that counts for the timeout: detection hears of members from when
// this process took the topics over.
func (a *Admin) counted(row table.Subscription) time.Duration {
	return min(a.silence(row), max(0, a.engine.Clock().Sub(a.engine.Began)))
}

// overdue is for how long something of a group has been due without being done.
func overdue(l *serving.OpenTopic, group string) (highest time.Duration) {
	for _, p := range l.Parts {
		highest = max(highest, p.Overdue(group))
	}
	return highest
}

// nearsTimeout reports whether a silence has lasted for four fifths of a group's timeout.
func nearsTimeout(sub *storage.Subscription, silence time.Duration) bool {
	return silence >= sub.Config.GetHeartbeatTimeout().AsDuration()*4/5
}

// problems says what is wrong with a group, for people.
func (a *Admin) problems(sub *storage.Subscription, row table.Subscription, h *topicv1.GroupHealth) (list []string) {
	alone := sub.State == storage.Active && h.GetMembers() == 0
	if alone && sub.Group != storage.QueueGroup && nearsTimeout(sub, a.counted(row)) {
		list = append(list, fmt.Sprintf("silent for %s of the %s after which it is dead",
			a.counted(row).Truncate(time.Second), sub.Config.GetHeartbeatTimeout().AsDuration()))
	}
	if alone && h.GetPending() > 0 {
		list = append(list, "it has messages to do, and no member")
	}
	if storage.Flaps(row.Restarts) {
		list = append(list, "its members come and go without acknowledging anything")
	}
	if sub.Row.Gap {
		list = append(list, "some of what it asked for was no longer kept when it began")
	}
	return list
}

// each calls f with the machine's group in each partition, under its lock.
func each(l *serving.OpenTopic, group string, f func(*serving.Partition, *machine.Machine, *machine.GroupState)) {
	for _, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			if g := m.Group(group); g != nil {
				f(p, m, g)
			}
		})
	}
}

// Metrics returns what a group has done, and how fast it is.
func (a *Admin) Metrics(ctx context.Context, topic, group string) (*topicv1.GetGroupMetricsResponse, error) {
	l, err := a.open(ctx, topic)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	sub, err := subscribed(l, group)
	if err != nil {
		return nil, err
	}
	answer := &topicv1.GetGroupMetricsResponse{}
	first := map[*serving.Partition]int64{} // oldest pending position
	each(l, group, func(p *serving.Partition, m *machine.Machine, g *machine.GroupState) {
		st := g.Stats()
		_, end := m.Bounds()
		answer.Processed, answer.Failed = answer.Processed+st.Processed, answer.Failed+st.Failed
		answer.Filtered, answer.Missed = answer.Filtered+st.Filtered, answer.Missed+st.Missed
		answer.Pending, answer.Lag = answer.Pending+st.Pending, answer.Lag+max(0, end-st.Floor)
		if st.Pending > 0 {
			first[p] = g.Oldest()
		}
	})
	if !storage.Receives(sub.State) {
		answer.Lag = 0 // nothing waits for it
	}
	oldest, err := a.earliest(ctx, l, first)
	if err != nil {
		return nil, err
	}
	if !oldest.IsZero() {
		answer.OldestPendingAt = timestamppb.New(oldest)
	}
	if g := l.Group(group); g != nil {
		if g.Members() == 0 {
			g.Meter.Rest(a.engine.Clock())
		}
		perSecond, processing := g.Meter.Speed()
		answer.MessagesPerSecond = perSecond
		if processing > 0 {
			answer.AverageProcessing = durationpb.New(processing)
		}
	}
	return answer, nil
}

// earliest returns when the oldest of some messages was published; zero if they are gone.
func (a *Admin) earliest(
	ctx context.Context, l *serving.OpenTopic, first map[*serving.Partition]int64,
) (at time.Time, err error) {
	for p, position := range first {
		t, err := a.published(ctx, l, p, position)
		if err != nil {
			return at, err
		}
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at, nil
}

// Remove ends a group and forgets it, in four steps. The first two are undone if the call
// ends before the third: then nothing has changed. The third is durable; another call
// completes the rest.
func (a *Admin) Remove(
	ctx context.Context, by string, r *topicv1.RemoveGroupRequest,
) (*topicv1.RemoveGroupResponse, error) {
	l, err := a.open(ctx, r.GetTopic())
	if err != nil {
		return nil, err
	}
	defer l.Release()
	if r.GetGroup() == storage.QueueGroup && l.View().Config.GetSemantics() == storage.Queue {
		return nil, refusal.New(refusal.InvalidTransition, "the group of a queue ends with the queue")
	}
	if _, err := subscribed(l, r.GetGroup()); err != nil {
		return nil, err
	}
	answer := &topicv1.RemoveGroupResponse{}
	err = a.audited(ctx, by, "RemoveGroup", r, func() (string, error) {
		if g := l.Group(r.GetGroup()); g != nil {
			defer g.Hold()()
			limit := defaultWait
			if r.GetWait() != nil {
				limit = r.GetWait().AsDuration()
			}
			if answer.Abandoned, err = drain(ctx, l, r.GetGroup(), limit); err != nil {
				return "", err
			}
		}
		each(l, r.GetGroup(), func(_ *serving.Partition, _ *machine.Machine, g *machine.GroupState) {
			answer.Released += g.Stats().Pending
		})
		if _, err := a.engine.Subscriptions.Transition(ctx, l, r.GetGroup(), storage.Cancel, by); err != nil {
			return "", err
		}
		err := a.drop(ctx, l, r.GetGroup())
		return fmt.Sprintf("%d messages released, %d of them with members", answer.Released, answer.Abandoned), err
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// drain waits until members have answered for all they have, and returns how many messages
// they still have if they do not in time.
func drain(ctx context.Context, l *serving.OpenTopic, group string, limit time.Duration) (away int64, err error) {
	for begin := time.Now(); ; {
		away = 0
		each(l, group, func(_ *serving.Partition, _ *machine.Machine, g *machine.GroupState) {
			_, _, _, n := g.Counts()
			away += n
		})
		if away == 0 || time.Since(begin) >= limit {
			return away, nil
		}
		if err := wait.For(ctx, waitStep); err != nil {
			return away, err
		}
	}
}

// drop deletes a subscription that is cancelled. Another call may have been faster, or it was
// created again.
func (a *Admin) drop(ctx context.Context, l *serving.OpenTopic, group string) error {
	_, err := a.jobs.Drop(ctx, l, func(sub *storage.Subscription) bool {
		return sub.Group == group && sub.State == storage.Cancelled
	})
	return err
}

// Resurrect makes a dead group active, with what it missed or without.
func (a *Admin) Resurrect(
	ctx context.Context, by string, r *topicv1.ResurrectRequest,
) (*topicv1.ResurrectResponse, error) {
	l, err := a.open(ctx, r.GetTopic())
	if err != nil {
		return nil, err
	}
	defer l.Release()
	tr := storage.Continue
	if r.GetBackfill() {
		tr = storage.Resurrect
	}
	answer := &topicv1.ResurrectResponse{}
	err = a.audited(ctx, by, "Resurrect", r, func() (string, error) {
		if _, err := a.engine.Subscriptions.Transition(ctx, l, r.GetGroup(), tr, by); err != nil {
			return "", err
		}
		defer l.Reading().End()
		if sub := l.Subscription(r.GetGroup()); sub != nil {
			answer.Subscription = serving.ShowSubscription(l, sub, true)
		}
		return "", nil
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}
