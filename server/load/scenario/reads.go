package scenario

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/gen/parley/chat/v1/chatv1connect"
	"github.com/parley-chat/parley/server/load/figure"
	"github.com/parley-chat/parley/server/load/probe"
)

// reading is callers that read a chat again and again: what a call costs besides its work.
type reading struct {
	*run
	reads  atomic.Pointer[figure.Histogram] // of the round
	failed atomic.Pointer[error]
}

func beginReads(ctx context.Context, r *run) (round, func(), error) {
	return (&reading{run: r}).round, r.world.disconnect, r.world.connect(ctx)
}

func (l *reading) round(ctx context.Context, n int) (figure.Figures, error) {
	l.phase(ctx, fmt.Sprintf("warmup %d", n+1), l.Warmup)
	before, own := l.server.Read(ctx), probe.ProcessorTime()
	took := l.phase(ctx, fmt.Sprintf("round %d", n+1), l.Duration)
	own = probe.ProcessorTime() - own
	if err := l.failed.Load(); err != nil {
		return nil, *err
	}
	var f figure.Figures
	reads := l.reads.Load()
	f.Add("reads", "/s", float64(reads.Count())/took.Seconds())
	f.AddQuantiles("read", reads)
	l.server.Add(&f, before, l.server.Read(ctx), took, "read", reads.Count())
	probe.AddOwn(&f, own, took, "read", reads.Count())
	return f, nil
}

// phase reads for a time, and returns how long that was.
func (l *reading) phase(ctx context.Context, name string, d time.Duration) time.Duration {
	l.reads.Store(&figure.Histogram{})
	stop := l.show.During(name, d, func(ctx context.Context) string {
		reads := l.reads.Load()
		return fmt.Sprintf("%9d read  %s/%s ms%s", reads.Count(), ms(reads.Quantile(0.5)), ms(reads.Quantile(0.99)),
			l.server.Line(ctx))
	})
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, d+callTime)
	defer cancel()
	began := time.Now()
	var callers sync.WaitGroup
	for i := range l.Callers {
		callers.Go(func() {
			for time.Since(began) < d && l.failed.Load() == nil {
				if err := l.read(ctx, i); err != nil {
					l.failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	callers.Wait()
	return time.Since(began)
}

// read reads a chat as one of its members.
func (l *reading) read(ctx context.Context, caller int) error {
	g := l.world.groups[caller%len(l.world.groups)]
	p := g.members[caller%len(g.members)]
	return timed(ctx, p, chatv1connect.ChatServiceGetChatProcedure, &chatv1.GetChatRequest{ChatId: g.id},
		&chatv1.GetChatResponse{}, l.reads.Load())
}
