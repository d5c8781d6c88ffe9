package gates

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/load/gates/rig"
)

// A backlog that is caught up beside others.
const (
	besideLimit   = 100 * time.Millisecond // p95 of the calls of others
	catchUpWithin = 5 * time.Minute
	cancelAt      = 1.0 / 3 // of the backlog, where the backfill is cancelled and continued
)

// catchUp is a backfill under way.
type catchUp struct {
	*rig.Load
	group     string
	cancelled bool
	slowed    int // polls at which it was slowed down
	polls     int
	took      time.Duration
	last      *topicv1.Backfill
}

// start starts the backfill, or continues it.
func (c *catchUp) start(ctx context.Context) error {
	_, err := c.User.Backfills.StartBackfill(ctx, &topicv1.StartBackfillRequest{
		Topic: c.Topic, Group: c.group, Scope: topicv1.BackfillScope_BACKFILL_SCOPE_ALL_RETAINED, MaxMessages: -1,
		Preset: topicv1.BackfillPreset_BACKFILL_PRESET_AGGRESSIVE, Async: true,
	})
	return err
}

// run starts the backfill, cancels it on its way, continues it, and returns when it is over.
func (c *catchUp) run(ctx context.Context) error {
	began := time.Now()
	if err := c.start(ctx); err != nil {
		return err
	}
	for {
		res, err := c.User.Backfills.GetBackfill(ctx, &topicv1.GetBackfillRequest{Topic: c.Topic, Group: c.group})
		if err != nil {
			return err
		}
		c.last, c.took = res.GetBackfill(), time.Since(began)
		if c.last.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_IN_PROGRESS || c.took > catchUpWithin {
			return nil
		}
		if c.polls++; c.last.GetThrottled() {
			c.slowed++
		}
		if !c.cancelled && float64(c.last.GetProcessed()) > cancelAt*float64(c.last.GetTotal()) {
			c.cancelled = true
			_, err := c.User.Backfills.CancelBackfill(ctx, &topicv1.CancelBackfillRequest{Topic: c.Topic, Group: c.group})
			if err == nil {
				err = c.start(ctx)
			}
			if err != nil {
				return err
			}
		}
		if pause(ctx, rig.PollEvery) {
			return ctx.Err()
		}
	}
}

// backfill is a backlog that a group catches up beside live groups and calls of others.
func backfill(ctx context.Context, b *bench) (v verdict, err error) {
	l, err := rig.New(ctx, b.server, "orders", &topicv1.TopicConfig{}, 2, nil)
	if err != nil {
		return v, err
	}
	defer l.Close()
	others, err := rig.New(ctx, b.server, "others", &topicv1.TopicConfig{}, 1, nil)
	if err != nil {
		return v, err
	}
	defer others.Close()
	backlog, rate, calls := scaled(b, 1_000_000, 100_000), scaled(b, 1_000.0, 200.0), scaled(b, 500.0, 100.0)
	if err := l.Flood(ctx, backlog); err != nil {
		return v, err
	}
	l.Drain(ctx, time.Minute)
	b.note("%d messages wait", backlog)
	before := others.Pace(ctx, calls, b.opt.Hold).Publish.Quantile(0.95)
	late := &rig.Group{Name: "late"}
	if err := l.User.Subscribe(ctx, l.Topic, late.Name, nil); err != nil {
		return v, err
	}
	until, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { stop(); all.Wait() }()
	l.Begin(0) // from here on the backlog is of an earlier phase
	if err := l.Follow(ctx, late); err != nil {
		return v, err
	}
	defer late.Leave()
	all.Go(func() { l.Pace(until, rate, 2*catchUpWithin) })
	c := &catchUp{Load: l, group: late.Name}
	over := make(chan error, 1)
	all.Go(func() { over <- c.run(until) })
	publish, fetch, failed := b.meanwhile(ctx, others, calls, over)
	v.tried = fmt.Sprintf("a backfill of %d, preset aggressive, cancelled and continued; 2 groups at %.0f/s, %.0f calls/s "+
		"of others", backlog, rate, calls)
	v.result = fmt.Sprintf("caught up in %.1f s, %.0f/s, slowed down for %d %% of it; p95 of others %s before, at most %s "+
		"during; fetch p95 of others %s", c.took.Seconds(), float64(c.last.GetProcessed())/c.took.Seconds(),
		100*c.slowed/max(c.polls, 1), ms(before), ms(publish), ms(fetch))
	v.limit = "–"
	v.broke(failed != nil, "%v", failed)
	v.broke(publish > besideLimit, "p95 of others is %s", ms(publish))
	v.broke(c.last.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED, "it is %v at %d of %d",
		c.last.GetStatus(), c.last.GetProcessed(), c.last.GetTotal())
	v.broke(!c.cancelled, "it was over before it could be cancelled")
	v.broke(late.Old.Load() != int64(backlog), "%d messages came, of %d", late.Old.Load(), backlog)
	return v, nil
}

// meanwhile has others call until something is over, and returns the longest p95 of a while.
func (b *bench) meanwhile(
	ctx context.Context, others *rig.Load, calls float64, over <-chan error,
) (publish, fetch time.Duration, err error) {
	for {
		p := others.Pace(ctx, calls, b.opt.Hold)
		publish, fetch = max(publish, p.Publish.Quantile(0.95)), max(fetch, p.Fetch.Quantile(0.95))
		err = cmp.Or(err, p.Err())
		select {
		case failed := <-over:
			return publish, fetch, cmp.Or(err, failed)
		default:
		}
	}
}
