package gates

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/load/figure"
	"github.com/parley-chat/parley/server/load/gates/rig"
	"github.com/parley-chat/parley/server/load/probe"
)

// Thresholds of heartbeats, acknowledgements and removals.
const (
	heartbeatGroups  = 20
	heartbeatMembers = 100 // of each group; they share its row
	heartbeatEvery   = 30 * time.Second
	heartbeatFaster  = 10 // times, so that a group could die within the time of a gate
	heartbeatLimit   = 100 * time.Millisecond
	ackGroups        = 16
	ackLimit         = 10 * time.Millisecond // p99 from an acknowledgement to the answer that it is stored
	removalTimes     = 1.2                   // by which the p95 from publish to consumer may grow
	removalShare     = 0.95                  // of the rate
	backlogMessages  = 100_000
	backlogTimes     = 1.6
	backlogShare     = 0.8
	backlogTime      = 2 * time.Second
	removalNoise     = time.Millisecond // turns at the processors make a p95 differ by so much
	besideRate       = 10_000.0
)

// heartbeats is the members of many groups beside publishers and consumers that keep the server busy.
func heartbeats(ctx context.Context, b *bench) (v verdict, err error) {
	busy, err := rig.New(ctx, b.server, "busy", &topicv1.TopicConfig{CompletionMode: watermark}, ackGroups, nil)
	if err != nil {
		return v, err
	}
	defer busy.Close()
	u, every := b.server.User(), heartbeatEvery/heartbeatFaster
	defer u.Vanish()
	if err := u.Configure(ctx, "members", &topicv1.TopicConfig{}); err != nil {
		return v, err
	}
	groups := scaled(b, heartbeatGroups, 2)
	name := func(i int) string { return fmt.Sprintf("group-%d", i) }
	for i := range groups {
		if err := u.Subscribe(ctx, "members", name(i), &topicv1.SubscriptionConfig{
			HeartbeatInterval: durationpb.New(every), HeartbeatTimeout: durationpb.New(3 * every)}); err != nil {
			return v, err
		}
	}
	rate, d := scaled(b, besideRate, besideRate/10), scaled(b, max(3*b.opt.Hold, 5*every), 2*b.opt.Hold)
	var took figure.Histogram
	var members errgroup.Group
	ending, end := context.WithCancel(ctx)
	for i := range groups * heartbeatMembers {
		members.Go(func() error {
			for next := every * time.Duration(i) / time.Duration(groups*heartbeatMembers); !pause(ending, next); next = every {
				began := time.Now()
				_, err := u.Subscriptions.Heartbeat(ctx, &topicv1.HeartbeatRequest{Topic: "members", Group: name(i % groups)})
				if err != nil {
					return err
				}
				took.Add(time.Since(began))
			}
			return nil
		})
	}
	p, _, worked := paced(ctx, busy, rate, d)
	end()
	failed := members.Wait()
	_, drained := busy.Drain(ctx, leastLast)
	dead := b.server.Usage(ctx).Died
	p99 := took.Quantile(0.99)
	v.tried = fmt.Sprintf("%d members of %d groups each %v, beside %.0f/s into %d groups, %v", groups*heartbeatMembers,
		groups, every, rate, ackGroups, d)
	v.result = fmt.Sprintf("%d heartbeats: p99 %s; processors busy %.0f %%", took.Count(), ms(p99), 100*worked)
	v.limit = "–"
	v.broke(failed != nil, "%v", failed)
	v.broke(p.Err() != nil, "%v", p.Err())
	v.broke(!drained, "%d messages do not arrive", busy.Lag())
	v.short(p.Hopeless.Load(), worked >= busyShare, worked, "the others do not have their rate")
	v.broke(dead > 0, "%.0f groups died", dead)
	v.short(p99 > heartbeatLimit, worked >= busyShare, worked, "p99 of a heartbeat is %s", ms(p99))
	return v, nil
}

// acknowledgements is many groups that acknowledge the same messages at once.
func acknowledgements(ctx context.Context, b *bench) (v verdict, err error) {
	l, err := rig.New(ctx, b.server, "shared", &topicv1.TopicConfig{CompletionMode: perMessage}, ackGroups, nil)
	if err != nil {
		return v, err
	}
	defer l.Close()
	rate := scaled(b, besideRate, besideRate/10)
	l.Pace(ctx, rate*warmShare, b.opt.Hold/8)
	p, _, worked := paced(ctx, l, rate, b.opt.Hold)
	_, drained := l.Drain(ctx, leastLast)
	p99 := p.Stored.Quantile(0.99)
	v.tried = fmt.Sprintf("%d groups at %.0f/s", ackGroups, rate)
	v.result = fmt.Sprintf("p50 %s, p99 %s; processors busy %.0f %%", ms(p.Stored.Quantile(0.5)), ms(p99), 100*worked)
	v.limit = "–"
	v.broke(p.Err() != nil, "%v", p.Err())
	v.broke(!drained, "%d messages do not arrive", l.Lag())
	v.short(p.Hopeless.Load(), worked >= busyShare, worked, "the groups do not have their rate")
	v.broke(p.Stored.Count() == 0, "no acknowledgement was answered")
	v.short(p99 > ackLimit, worked >= busyShare, worked, "p99 of an acknowledgement is %s", ms(p99))
	return v, nil
}

// removals is a topic whose old messages are removed each second, and then 100,000 at once.
func removals(ctx context.Context, b *bench) (v verdict, err error) {
	l, err := rig.New(ctx, b.server, "trimmed", &topicv1.TopicConfig{}, 2, nil)
	if err != nil {
		return v, err
	}
	defer l.Close()
	rate, d := scaled(b, besideRate, besideRate/10), scaled(b, 2*b.opt.Hold, b.opt.Hold)
	alone := l.Pace(ctx, rate, d)
	removed := int64(0)
	var failed error
	remove := func() {
		n, err := l.User.Purge(ctx, l.Topic)
		if removed += n; err != nil && failed == nil {
			failed = err
		}
	}
	var all sync.WaitGroup
	ending, end := context.WithCancel(ctx)
	all.Go(func() { wait.Every(ending, time.Second, remove) })
	during, n, worked := paced(ctx, l, rate, d)
	end()
	all.Wait()
	cycle := removed
	backlog := scaled(b, backlogMessages, backlogMessages/10)
	if err := l.Flood(ctx, backlog); err != nil {
		return v, err
	}
	_, drained := l.Drain(ctx, leastLast)
	all.Go(remove)
	once, nOnce, atOnce := paced(ctx, l, rate, backlogTime)
	all.Wait()
	_, last := l.Drain(ctx, leastLast)
	v.tried = fmt.Sprintf("%.0f/s into 2 groups, %v alone, as long with removals each second, then %d messages at once",
		rate, d, backlog)
	v.result = fmt.Sprintf("publish to consumer p95 %s alone; %s while %d are removed, and %s while %d are", ms(p95(alone)),
		ms(p95(during)), cycle, ms(p95(once)), removed-cycle)
	v.limit = "–"
	for _, p := range []*rig.Phase{alone, during, once} {
		v.broke(p.Err() != nil, "%v", p.Err())
	}
	v.broke(failed != nil, "%v", failed)
	v.broke(!drained || !last, "%d messages do not arrive", l.Lag())
	v.broke(cycle == 0 || removed-cycle < int64(backlog), "%d and %d messages were removed", cycle, removed-cycle)
	v.slower(alone, during, removalTimes, worked)
	v.fewer(n, removalShare*rate*d.Seconds(), worked)
	v.slower(alone, once, backlogTimes, atOnce)
	v.fewer(nOnce, backlogShare*rate*backlogTime.Seconds(), atOnce)
	return v, nil
}

// paced publishes at a rate for a time, and returns how many messages were published and the part of the processors
// that was used meanwhile.
func paced(ctx context.Context, l *rig.Load, rate float64, d time.Duration) (p *rig.Phase, n int64, busy float64) {
	had, used := l.Published.Load(), probe.ReadBusy()
	p = l.Pace(ctx, rate, d)
	return p, l.Published.Load() - had, probe.ReadBusy().Since(used)
}

func p95(p *rig.Phase) time.Duration { return p.Total.Quantile(0.95) }

// slower records that a phase is slower than one without removals.
func (v *verdict) slower(alone, p *rig.Phase, times, busy float64) {
	limit := time.Duration(times*float64(p95(alone))) + removalNoise
	v.short(p95(p) > limit, busy >= busyShare, busy, "publish to consumer p95 is %s, alone %s", ms(p95(p)), ms(p95(alone)))
}

// fewer records that a phase has fewer messages than it must have.
func (v *verdict) fewer(n int64, least, busy float64) {
	v.short(float64(n) < least, busy >= busyShare, busy, "%d of %.0f messages are published", n, least)
}
