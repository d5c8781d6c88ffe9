package serving

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

const (
	maxMisses   = 5 // writes of a row in turn that fail, after which a backfill has
	firstRepeat = 200 * time.Millisecond
	lastRepeat  = 5 * time.Second
	maxError    = 1000 // bytes
)

// Run lets messages go until the context ends. A backfill that runs at that point continues when
// the topic is opened again.
func (r *Backfills) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(r.round(ctx))
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		}
	}
}

// round checks the backfills that are due, and returns when the next one is.
func (r *Backfills) round(ctx context.Context) time.Duration {
	r.mu.Lock()
	list := make([]*task, 0, len(r.tasks))
	for _, t := range r.tasks {
		list = append(list, t)
	}
	r.mu.Unlock()
	next := time.Hour
	var left int64
	p95 := r.Live.P95(time.Now())
	for _, t := range list {
		if ctx.Err() != nil {
			return next
		}
		if !time.Now().Before(t.due) {
			t.due = time.Now().Add(r.step(ctx, t, p95))
		}
		left += t.left
		next = min(next, max(0, time.Until(t.due)))
	}
	r.Counters.Left.Store(left)
	return next
}

// step checks a backfill, and returns when to check again.
func (r *Backfills) step(ctx context.Context, t *task, p95 time.Duration) time.Duration {
	if t.why != "" {
		return r.settle(ctx, t, t.why)
	}
	if t.l.View().Deleting {
		r.remove(t)
		return backfillTick
	}
	list := histories(t.l, t.group)
	number := t.row.GetNumber()
	for i := range list {
		if list[i].Number != number {
			return r.settle(ctx, t, "the subscription has moved, died or ended meanwhile")
		}
	}
	left, now := leftOf(list), time.Now()
	done := t.row.GetTotal() - left
	r.mu.Lock()
	t.left = left
	t.meter.observe(now, done)
	r.mu.Unlock()
	if left == 0 {
		return r.settle(ctx, t, "")
	}
	if done-t.upTo >= checkpointEvery || now.Sub(t.noted) >= t.row.GetLimits().GetCheckpointInterval().AsDuration() {
		if pause := r.checkpoint(ctx, t, done); pause > 0 {
			return pause
		}
	}
	if r.release(t, list, p95) || left != t.before {
		t.pause = backfillTick
	} else {
		t.pause = min(2*t.pause, longestTick)
	}
	t.before = left
	return min(t.pause, max(backfillTick, t.pace.Due(now)))
}

// release lets the next messages go, if it is time, in the partitions that have delivered
// what they may. It reports whether it did.
func (r *Backfills) release(t *task, list []machine.History, p95 time.Duration) bool {
	limit := make([]int64, len(list))
	var sum int64
	for i := range list {
		if list[i].Allowed == 0 && list[i].Delivers {
			limit[i] = list[i].Untaken
			sum += limit[i]
		}
	}
	r.mu.Lock()
	n := t.pace.Take(time.Now(), p95, sum)
	slow := t.pace.Slow()
	if n > 0 {
		t.batches++
	}
	r.mu.Unlock()
	if n == 0 {
		return false
	}
	r.Counters.Released.Add(n)
	if slow {
		r.Counters.Slowed.Add(1)
	}
	g := t.l.Group(t.group)
	for i, share := range split(n, limit) {
		if share > 0 && g != nil {
			_ = g.DoIn(i, func(h *machine.GroupState) error { // it has no error of its own
				if h.History().Number == t.row.GetNumber() {
					h.Allow(share)
				}
				return nil
			})
		}
	}
	return true
}

// current calls f with the subscription's row under the topic's lock, if the backfill still
// runs.
func (r *Backfills) current(t *task, f func(sub *storage.Subscription, b *topicv1.Backfill) error) error {
	defer t.l.Changing().End()
	sub := t.l.Subscription(t.group)
	if sub == nil || sub.Row.Generation != t.generation || t.l.View().Deleting {
		r.remove(t)
		return nil
	}
	if r.task(t.l.Topic, t.group) != t {
		return nil
	}
	b, err := row(sub)
	if err != nil {
		return err
	}
	return f(sub, b)
}

// checkpoint writes how far the backfill is. It returns for how long to do nothing.
func (r *Backfills) checkpoint(ctx context.Context, t *task, done int64) time.Duration {
	err := r.current(t, func(sub *storage.Subscription, b *topicv1.Backfill) error {
		next := proto.CloneOf(b)
		next.Processed, next.CheckpointAt = max(done, b.GetProcessed()), r.now()
		return r.note(ctx, t.l, sub.Group, next)
	})
	if err == nil {
		t.noted, t.upTo, t.misses = time.Now(), done, 0
		return 0
	}
	t.misses++
	r.engine.Logger.Warn("how far a backfill is cannot be stored", "topic", t.l.Name, "group", t.group, "error", err)
	if t.misses >= maxMisses {
		return r.settle(ctx, t, "its row cannot be stored")
	}
	return wait.Doubled(firstRepeat, lastRepeat, t.misses)
}

// settle ends a backfill that is completed, or that failed for a reason. If that cannot be
// stored it is tried again.
func (r *Backfills) settle(ctx context.Context, t *task, why string) time.Duration {
	status := completed
	if why != "" {
		status, t.why = failed, why
		r.hold(t)
	}
	err := r.current(t, func(sub *storage.Subscription, b *topicv1.Backfill) error {
		if status == completed && leftOf(histories(t.l, t.group)) > 0 {
			return nil
		}
		if err := r.close(ctx, t.l, sub, b, status, why[:min(len(why), maxError)]); err != nil {
			return err
		}
		if status == failed {
			r.Counters.Failed.Add(1)
			return nil
		}
		return r.finish(t)
	})
	if err == nil {
		return backfillTick
	}
	t.misses++
	r.engine.Logger.Warn("the end of a backfill cannot be stored, trying again", "topic", t.l.Name, "group", t.group,
		"error", err)
	return wait.Doubled(firstRepeat, lastRepeat, t.misses)
}

// hold lets nothing more go.
func (r *Backfills) hold(t *task) {
	if g := t.l.Group(t.group); g != nil {
		_ = g.Do(func(_ int, h *machine.GroupState) error { // it has no error of its own
			h.Allow(-h.History().Allowed)
			return nil
		})
	}
}

// finish forgets in the machines what is done.
func (r *Backfills) finish(t *task) error {
	g := t.l.Group(t.group)
	if g == nil {
		return nil
	}
	return g.Do(func(_ int, h *machine.GroupState) error {
		h.FinishBackfill()
		return nil
	})
}
