package operations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// Limits and thresholds of the monitors.
const (
	stuckAfter   = time.Hour
	stuckAbove   = 100 // messages of a topic
	idleAfter    = 7 * 24 * time.Hour
	maxFindings  = 1000
	openMonitors = 100 // topics that a call opens
)

type kind = topicv1.MonitorKind

const (
	stuck        = topicv1.MonitorKind_MONITOR_KIND_STUCK
	nearTimeout  = topicv1.MonitorKind_MONITOR_KIND_NEAR_TIMEOUT
	inconsistent = topicv1.MonitorKind_MONITOR_KIND_INCONSISTENT
	zero         = topicv1.MonitorKind_MONITOR_KIND_ZERO_SUBSCRIPTIONS
	idle         = topicv1.MonitorKind_MONITOR_KIND_IDLE
	stalledKind  = topicv1.MonitorKind_MONITOR_KIND_STALLED
)

// monitorScan is one call of Monitors.
type monitorScan struct {
	*Admin
	kinds  []kind // empty: all
	open   int    // topics that it may still open
	answer *topicv1.ListMonitorsResponse
}

// Monitors looks for what needs attention, in one topic or in all.
func (a *Admin) Monitors(
	ctx context.Context, r *topicv1.ListMonitorsRequest,
) (*topicv1.ListMonitorsResponse, error) {
	k := monitorScan{Admin: a, kinds: r.GetKinds(), open: openMonitors, answer: &topicv1.ListMonitorsResponse{}}
	topics := a.engine.Catalog.Topics("", a.engine.Catalog.Count(),
		func(t *storage.Topic) bool { return !t.View().Deleting })
	if r.GetTopic() != "" {
		t, err := a.find(r.GetTopic())
		if err != nil {
			return nil, err
		}
		topics = []*storage.Topic{t}
	}
	for _, t := range topics {
		if len(k.answer.Findings) >= maxFindings {
			k.answer.Truncated = true
			break
		}
		if err := k.topic(ctx, t); err != nil {
			return nil, err
		}
	}
	if len(k.answer.Findings) > maxFindings {
		k.answer.Findings, k.answer.Truncated = k.answer.Findings[:maxFindings], true
	}
	return k.answer, nil
}

func (k *monitorScan) wants(x kind) bool { return len(k.kinds) == 0 || slices.Contains(k.kinds, x) }

// found adds a finding; since may be zero.
func (k *monitorScan) found(f *topicv1.Finding, since time.Time) {
	if !since.IsZero() {
		f.Since, f.Age = timestamppb.New(since), durationpb.New(k.engine.Clock().Sub(since))
	}
	k.answer.Findings = append(k.answer.Findings, f)
}

// topic checks a topic. One that is not in use is opened if it has messages.
func (k *monitorScan) topic(ctx context.Context, t *storage.Topic) error {
	some, err := k.holds(ctx, t)
	if err != nil {
		return err
	}
	l := k.engine.Topics.Hold(t.Number)
	if l == nil && some && k.open == 0 {
		k.answer.Truncated = true
		return nil
	}
	if l == nil && some {
		k.open--
		if l, err = k.engine.Topics.Open(ctx, t); err != nil {
			return err
		}
	}
	if l != nil {
		defer l.Release()
		if err := errors.Join(k.stuck(ctx, l), k.zero(ctx, l)); err != nil {
			return err
		}
	}
	defer t.Reading().End()
	for _, sub := range t.Subscriptions() {
		k.group(t, l, sub)
	}
	return nil
}

// holds reports whether a topic has messages.
func (k *monitorScan) holds(ctx context.Context, t *storage.Topic) (bool, error) {
	for n := range t.View().Config.GetPartitions() {
		start, end, err := k.engine.Sources.Reader(t).Bounds(ctx, commitlog.Partition{Topic: t.Number, Number: n})
		if err != nil || end > start {
			return err == nil, err
		}
	}
	return false, nil
}

// stuck looks for messages that have been pending for long.
func (k *monitorScan) stuck(ctx context.Context, l *serving.OpenTopic) error {
	if !k.wants(stuck) {
		return nil
	}
	var count int64
	first := map[*serving.Partition]int64{}
	for _, p := range l.Parts {
		before, err := k.engine.Sources.Reader(l.Topic).PositionAt(ctx, p.Address, k.engine.Clock().Add(-stuckAfter))
		if err != nil {
			return err
		}
		p.Do(func(m *machine.Machine) {
			waits := waiting(m)
			m.Due(&waits)
			if n := waits.Count(0, before); n > 0 {
				count += n
				first[p], _ = waits.First()
			}
		})
	}
	if count <= stuckAbove {
		return nil
	}
	at, err := k.earliest(ctx, l, first)
	if err != nil {
		return err
	}
	k.found(&topicv1.Finding{Kind: stuck, Topic: l.Name, Count: count,
		Text: fmt.Sprintf("%d messages have been pending for more than %s", count, stuckAfter)}, at)
	return nil
}

// zero looks for messages of a topic of groups that has no active one.
func (k *monitorScan) zero(ctx context.Context, l *serving.OpenTopic) error {
	if !k.wants(zero) || storage.OfChats(l.View().Config) || strings.HasSuffix(l.Name, storage.DeadLetterSuffix) ||
		l.View().Config.GetSemantics() != storage.PubSub {
		return nil
	}
	reading := l.Reading()
	active := l.Active()
	reading.End()
	if active > 0 {
		return nil
	}
	var count int64
	first := map[*serving.Partition]int64{}
	for _, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			_, end := m.Bounds()
			orphans := m.Orphans(end)
			if at, some := orphans.First(); some {
				count += orphans.Count(0, end)
				first[p] = at
			}
		})
	}
	if count == 0 {
		return nil
	}
	at, err := k.earliest(ctx, l, first)
	k.found(&topicv1.Finding{Kind: zero, Topic: l.Name, Count: count,
		Text: fmt.Sprintf("no subscription is active, and no group is to receive %d messages", count)}, at)
	return err
}

// group checks a subscription. Without l the topic has no messages. The caller holds the
// topic's lock.
func (k *monitorScan) group(t *storage.Topic, l *serving.OpenTopic, sub *storage.Subscription) {
	row, members, pending := sub.Row, 0, int64(0)
	fault := ""
	var stalls []*topicv1.Stall
	if l != nil {
		fault = k.fault(l, sub)
		if g := l.Group(sub.Group); g != nil {
			g.Heartbeats.Fill(&row)
			members = g.Members()
			stalls = g.Stalls()
		}
		each(l, sub.Group, func(_ *serving.Partition, _ *machine.Machine, g *machine.GroupState) {
			pending += g.Stats().Pending
		})
	}
	add := func(x kind, since time.Time, format string, args ...any) {
		if k.wants(x) {
			k.found(&topicv1.Finding{Kind: x, Topic: t.Name, Group: sub.Group, Text: fmt.Sprintf(format, args...)}, since)
		}
	}
	for _, stall := range stalls {
		add(stalledKind, stall.GetSince().AsTime(), "%s", stalled(stall))
	}
	if fault != "" {
		add(inconsistent, time.Time{}, "%s", fault)
	}
	if sub.State != storage.Active || sub.Group == storage.QueueGroup || members > 0 {
		return
	}
	silence := k.silence(row)
	since := k.engine.Clock().Add(-silence)
	if counted := k.counted(row); nearsTimeout(sub, counted) {
		add(nearTimeout, since, "silent for %s of the %s after which it is dead", counted.Truncate(time.Second),
			sub.Config.GetHeartbeatTimeout().AsDuration())
	}
	if pending == 0 && silence > idleAfter {
		add(idle, since, "no work, and no member has been heard of")
	}
}

// fault says what of a group is not as its row says; empty if all is.
func (k *monitorScan) fault(l *serving.OpenTopic, sub *storage.Subscription) (text string) {
	for n, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			g := m.Group(sub.Group)
			var wrong string
			switch {
			case g == nil:
				wrong = "the partition does not know it"
			case g.Config().Generation != sub.Row.Generation:
				wrong = fmt.Sprintf("its generation is %d, and that of its row %d", g.Config().Generation, sub.Row.Generation)
			case storage.State(g.State()) != sub.State:
				wrong = fmt.Sprintf("it is %s, and its row says %s", storage.StateName(storage.State(g.State())),
					storage.StateName(sub.State))
			default:
				_, end := m.Bounds()
				wrong = faultOf(storage.Receives(sub.State), g.Missing(), g.Readable(), end)
			}
			if wrong != "" && text == "" {
				text = fmt.Sprintf("partition %d: %s", n, wrong)
			}
		})
	}
	return text
}

// faultOf says what of a group's positions is not as its state wants: one that receives is to
// receive what is published now, and reads what it is to receive; another one holds nothing.
func faultOf(receives bool, missing, readable machine.Set, end int64) string {
	open := missing.Contains(end)
	unread := missing.Clone()
	unread.Subtract(&readable)
	switch n := missing.Count(0, end); {
	case receives && !open:
		return "it is not to receive what is published now"
	case !receives && open:
		return "it is to receive what is published now, although it has ended"
	case !receives && n > 0:
		return fmt.Sprintf("it holds %d messages, although it has ended", n)
	case !unread.Empty():
		return fmt.Sprintf("it is to receive %d messages that are not delivered", unread.Count(0, end))
	}
	return ""
}

// waiting is what groups that receive are to receive and have not acknowledged.
func waiting(m *machine.Machine) (all machine.Set) {
	for _, g := range m.Groups() {
		if storage.Receives(storage.State(g.State())) {
			missing := g.Missing()
			all.Union(&missing)
		}
	}
	return all
}

// published returns when the message at a position was published, or the next one if it is
// gone; zero if that is, too.
func (a *Admin) published(
	ctx context.Context, l *serving.OpenTopic, p *serving.Partition, position int64) (time.Time, error,
) {
	batches, err := a.engine.Sources.Reader(l.Topic).Read(ctx, p.Address, position, 1)
	var corrupt *commitlog.CorruptError
	switch {
	case errors.Is(err, commitlog.ErrTrimmed), errors.Is(err, commitlog.ErrBeyondEnd), errors.As(err, &corrupt):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, err
	case len(batches) == 0:
		return time.Time{}, nil
	}
	return time.UnixMilli(batches[0].Time), nil
}
