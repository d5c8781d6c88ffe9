package serving

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/pace"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Limits of backfills.
const (
	DefaultMessages = 1_000_000
	// SmallBackfill is the largest number of messages for which the caller that starts a
	// backfill waits for its end.
	SmallBackfill = 100_000

	maxRunning      = 1000
	checkpointEvery = 100_000 // messages
	backfillTick    = 20 * time.Millisecond
	longestTick     = time.Second
)

// Statuses.
const (
	notStarted = topicv1.BackfillStatus_BACKFILL_STATUS_NOT_STARTED
	inProgress = topicv1.BackfillStatus_BACKFILL_STATUS_IN_PROGRESS
	completed  = topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED
	cancelled  = topicv1.BackfillStatus_BACKFILL_STATUS_CANCELLED
	failed     = topicv1.BackfillStatus_BACKFILL_STATUS_FAILED
)

// BackfillCounters count since the start, for metrics.
type BackfillCounters struct {
	Released atomic.Int64 // messages that were let go
	Slowed   atomic.Int64 // batches before a pause because others were slow
	Failed   atomic.Int64 // backfills
	Left     atomic.Int64 // messages of those that run, now
}

// Backfills runs backfills.
type Backfills struct {
	engine   *Engine
	Live     pace.Window // publishes
	Counters BackfillCounters
	wake     chan struct{}

	mu    sync.Mutex
	tasks map[key]*task
}

type key struct {
	topic uint64
	group string
}

// task is a backfill that runs.
type task struct {
	l          *OpenTopic
	group      string
	generation int64
	ended      chan struct{} // closed once it does not run any more

	// Used by Run alone.
	due    time.Time
	pause  time.Duration // until it is checked again, when nothing happens
	before int64         // left when it was checked last
	misses int           // writes of the row in turn that failed
	noted  time.Time     // when the row was written last
	upTo   int64         // processed then
	why    string        // it has failed, and its row does not say so yet

	// Guarded by the lock of Backfills.
	row     *topicv1.Backfill // is not written to
	pace    pace.Pace
	meter   meter
	batches int64
	left    int64
}

func newBackfills(e *Engine) *Backfills {
	return &Backfills{engine: e, wake: make(chan struct{}, 1), tasks: map[key]*task{}}
}

// Running is the number of backfills that run.
func (r *Backfills) Running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tasks)
}

// Published says how long a publish took until it was durable.
func (r *Backfills) Published(begin time.Time) {
	now := time.Now()
	r.Live.Observe(now, now.Sub(begin))
}

func (r *Backfills) task(t *storage.Topic, group string) *task {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tasks[key{t.Number, group}]
}

// row reads a subscription's row. Without a backfill it says so.
func row(sub *storage.Subscription) (*topicv1.Backfill, error) {
	b := &topicv1.Backfill{Status: notStarted}
	if sub.Row.Backfill == "" {
		return b, nil
	}
	return b, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal([]byte(sub.Row.Backfill), b)
}

// note writes the row. The caller holds the topic's lock for writing.
func (r *Backfills) note(ctx context.Context, l *OpenTopic, group string, b *topicv1.Backfill) error {
	text, err := protojson.Marshal(b)
	if err != nil {
		return err
	}
	return r.engine.Catalog.Note(ctx, l.Topic, group, string(text))
}

// histories returns how far a group is in each partition.
func histories(l *OpenTopic, group string) []machine.History {
	list := make([]machine.History, len(l.Parts))
	for n, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			if g := m.Group(group); g != nil {
				list[n] = g.History()
			}
		})
	}
	return list
}

func leftOf(list []machine.History) (left int64) {
	for i := range list {
		left += list[i].Left
	}
	return left
}

// Show returns how far the backfill of a subscription is. The caller holds the topic's
// lock.
func (r *Backfills) Show(l *OpenTopic, sub *storage.Subscription) (*topicv1.Backfill, error) {
	b, err := row(sub)
	if err != nil {
		return nil, err
	}
	b.Topic, b.Group = l.Name, sub.Group
	now := time.Now()
	if p95 := r.Live.P95(now); p95 > 0 {
		b.LiveP95 = durationpb.New(p95)
	}
	if t := r.task(l.Topic, sub.Group); t != nil {
		left := leftOf(histories(l, sub.Group))
		b.Processed = max(b.GetProcessed(), b.GetTotal()-left)
		r.mu.Lock()
		b.Rate, b.Throttled, b.Batches = t.meter.rate(now, b.GetProcessed()), t.pace.Slow(), t.batches
		r.mu.Unlock()
		if b.GetRate() > 0 {
			b.Eta = durationpb.New(time.Duration(float64(left) / b.GetRate() * float64(time.Second)).Round(time.Second))
		}
	}
	if b.GetTotal() > 0 {
		b.Percent = float64(b.GetProcessed()) / float64(b.GetTotal()) * 100
	}
	if b.GetStatus() == completed {
		b.Percent = 100
	}
	return b, nil
}

// Resume continues with a subscription of a topic that was opened. The caller holds the
// topic's lock for writing.
func (r *Backfills) Resume(l *OpenTopic, sub *storage.Subscription) error {
	b, err := row(sub)
	if err != nil {
		return err
	}
	runs := b.GetStatus() == inProgress || b.GetStatus() == failed
	for _, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			g := m.Group(sub.Group)
			if g == nil || g.History().Number == 0 || runs && g.History().Number == b.GetNumber() {
				return
			}
			if b.GetStatus() == completed && g.FinishBackfill() {
				return
			}
			g.EndBackfill() // its progress is kept for when it continues
		})
		p.Mark(sub.Group)
	}
	if b.GetStatus() == inProgress {
		r.add(l, sub, b)
	}
	return nil
}

// add makes a backfill run. Its topic stays open until it does not any more.
func (r *Backfills) add(l *OpenTopic, sub *storage.Subscription, b *topicv1.Backfill) {
	t := &task{
		l: l, group: sub.Group, generation: sub.Row.Generation, ended: make(chan struct{}), row: b,
		pace: newPace(b.GetLimits()), noted: time.Now(), upTo: b.GetProcessed(), pause: backfillTick,
	}
	l.Hold()
	k := key{l.Number, sub.Group}
	r.mu.Lock()
	if old := r.tasks[k]; old != nil { // of a topic whose opening failed later
		r.drop(k, old)
	}
	r.tasks[k] = t
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// remove takes a backfill out, if it is still there.
func (r *Backfills) remove(t *task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k := (key{t.l.Number, t.group}); r.tasks[k] == t {
		r.drop(k, t)
	}
}

// drop takes a backfill out. The caller holds the lock of Backfills.
func (r *Backfills) drop(k key, t *task) {
	delete(r.tasks, k)
	close(t.ended)
	t.l.Release()
}

// Await returns when the backfill of a group does not run any more, when no member takes
// its messages, after a time, or with the context.
func (r *Backfills) Await(ctx context.Context, l *OpenTopic, group string, limit time.Duration) {
	t := r.task(l.Topic, group)
	if t == nil {
		return
	}
	over := time.NewTimer(limit)
	defer over.Stop()
	ticker := time.NewTicker(5 * backfillTick)
	defer ticker.Stop()
	for {
		select {
		case <-t.ended:
			return
		case <-over.C:
			return
		case <-ctx.Done():
			return
		case <-ticker.C:
			if g := l.Group(group); g == nil || g.Members() == 0 ||
				g.State() != topicv1.SubscriptionState_SUBSCRIPTION_STATE_ACTIVE {
				return
			}
		}
	}
}

// Ended returns a channel that is closed once the backfill of a group does not run any more,
// nil if none does.
func (r *Backfills) Ended(t *storage.Topic, group string) <-chan struct{} {
	if x := r.task(t, group); x != nil {
		return x.ended
	}
	return nil
}

func (r *Backfills) now() *timestamppb.Timestamp {
	return timestamppb.New(r.engine.Clock().Truncate(time.Millisecond))
}

func noBackfill(group, status string) error {
	return refusal.New(refusal.InvalidTransition, "the backfill of %q %s", group, status)
}
