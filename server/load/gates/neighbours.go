package gates

import (
	"context"
	"fmt"
	"sync"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/load/gates/rig"
	"github.com/parley-chat/parley/server/load/probe"
)

// Thresholds for those beside whom something happens.
const (
	isolatedLimit = 50 * time.Millisecond // p95 from publish to consumer
	isolatedLag   = 10 * time.Second      // of messages
	rateShare     = 0.98                  // of its rate that a neighbour must have, to be one
)

// pause waits, and reports whether the context has ended instead.
func pause(ctx context.Context, d time.Duration) bool { return wait.For(ctx, d) != nil }

// isolation is a busy topic beside a quiet one.
func isolation(ctx context.Context, b *bench) (v verdict, err error) {
	busy, err := rig.New(ctx, b.server, "busy", &topicv1.TopicConfig{CompletionMode: watermark}, 10, nil)
	if err != nil {
		return v, err
	}
	defer busy.Close()
	quiet, err := rig.New(ctx, b.server, "quiet", &topicv1.TopicConfig{}, 2, nil)
	if err != nil {
		return v, err
	}
	defer quiet.Close()
	const quietRate = 10
	rate, d := scaled(b, 10_000.0, 1_000.0), scaled(b, 6*b.opt.Hold, 2*b.opt.Hold)
	var all sync.WaitGroup
	had, used := busy.Published.Load(), probe.ReadBusy()
	all.Go(func() { busy.Pace(ctx, rate, d) })
	stop, lag := watch(ctx, quiet.Lag)
	p := quiet.Pace(ctx, quietRate, d)
	all.Wait()
	stop()
	published, worked := float64(busy.Published.Load()-had)/d.Seconds(), probe.ReadBusy().Since(used)
	_, drained := quiet.Drain(ctx, isolatedLag)
	_, busyDrained := busy.Drain(ctx, leastLast)
	v.tried = fmt.Sprintf("A %.0f/s into 10, B %d/s into 2, %v", rate, quietRate, d)
	v.result = fmt.Sprintf("B: fetch p95 %s, publish to consumer p95 %s, at most %d messages behind; A: %.0f/s",
		ms(p.Fetch.Quantile(0.95)), ms(p.Total.Quantile(0.95)), lag(), published)
	v.limit = "–"
	v.broke(p.Err() != nil, "%v", p.Err())
	v.broke(!drained, "B has not got everything")
	v.broke(!busyDrained, "A has not got everything: %d messages", busy.Lag())
	// A neighbour that does not have its rate proves nothing about B. Without a processor left, B's publishes wait for
	// one beside any neighbour.
	scarce, total := worked >= busyShare, p.Total.Quantile(0.95)
	v.short(published < rateShare*rate, scarce, worked, "A has %.0f of %.0f/s", published, rate)
	v.short(total > isolatedLimit, scarce, worked, "publish to consumer p95 of B is %s", ms(total))
	v.broke(p.Fetch.Quantile(0.95) > isolatedLimit, "fetch p95 of B is %s", ms(p.Fetch.Quantile(0.95)))
	v.broke(lag() > int64(quietRate*isolatedLag.Seconds()), "B is %d messages behind", lag())
	return v, nil
}

// watch measures how far groups are behind, until stop is called.
func watch(ctx context.Context, behind func() int64) (stop func(), limit func() int64) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	var n int64
	all.Go(func() {
		for !pause(ctx, rig.PollEvery) {
			n = max(n, behind())
		}
	})
	return func() { cancel(); all.Wait() }, func() int64 { return n }
}
