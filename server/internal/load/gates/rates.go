package gates

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/internal/load/gates/rig"
)

// Shorter names of what the contract calls at length.
const (
	perMessage = topicv1.CompletionMode_COMPLETION_MODE_REFERENCE_COUNTING
	watermark  = topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK
)

// Thresholds of a rate.
const (
	fetchLimit   = 10 * time.Millisecond // p95 from the answer of a publish to a consumer
	lateShare    = 20                    // part of the hold in which the last publishes must be answered
	leastLate    = time.Second
	bloatLimit   = 0.20 // of the tables that may be something else than messages
	writeLimit   = 0.50 // of what the disk can write
	drainShare   = 5    // part of the hold in which the rest must be delivered
	leastDrain   = 2 * time.Second
	warmShare    = 0.1 // of the rate, at first
	cleanupEvery = time.Minute
	searchSteps  = 8
	searchRatio  = 1.5 // between the rate that held and the one that broke
	leastRate    = 50
)

// held is what came of one rate.
type held struct {
	rate                  float64
	published             float64 // a second
	publish, fetch, total time.Duration
	drain                 time.Duration
	cores                 float64 // of the server
	writes                float64 // part of what the disk can write
	broken                []string
}

func (h held) String() string {
	return fmt.Sprintf("%.0f/s: fetch p95 %s, publish p95 %s, %.2f cores, %.0f %% of the disk", h.published,
		ms(h.fetch), ms(h.publish), h.cores, 100*h.writes)
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// rates is a gate of a rate, for each number of groups.
func rates(mode topicv1.CompletionMode, claimed float64, groups ...int) func(context.Context, *bench) (verdict, error) {
	return func(ctx context.Context, b *bench) (v verdict, err error) {
		var tried, result, limit []string
		for _, n := range groups {
			l, err := rig.New(ctx, b.server, fmt.Sprintf("groups-%d", n), &topicv1.TopicConfig{CompletionMode: mode,
				MessageRetention: durationpb.New(0)}, n, nil)
			if err != nil {
				return v, err
			}
			s := search(scaled(b, claimed, claimed/20), scaled(b, searchSteps, 2), func(rate float64) held {
				h := b.hold(ctx, l, rate)
				b.note("%d groups, %.0f/s: %v %s", n, rate, h, strings.Join(h.broken, "; "))
				return h
			})
			if ctx.Err() != nil {
				return v, ctx.Err()
			}
			tried = append(tried, fmt.Sprintf("%d groups: %s msgs/s", n, s.rates()))
			result = append(result, s.atClaim())
			limit = append(limit, fmt.Sprintf("%d groups: %s", n, s.limit()))
			v.broken = append(v.broken, b.stored(ctx, l)...)
			l.Close()
		}
		v.tried, v.result, v.limit = strings.Join(tried, "<br>"), strings.Join(result, "<br>"), strings.Join(limit, "<br>")
		return v, nil
	}
}

// hold warms up at a tenth of a rate, raises it, holds it, and waits for what is left.
func (b *bench) hold(ctx context.Context, l *rig.Load, rate float64) held {
	part := b.opt.Hold / 8
	l.Pace(ctx, rate*warmShare, part)
	for _, share := range []float64{0.25, 0.5, 0.75} {
		l.Pace(ctx, rate*share, part/3)
	}
	before, had, began := b.server.Usage(ctx), l.Published.Load(), time.Now()
	p := l.Pace(ctx, rate, b.opt.Hold)
	took, after := time.Since(began), b.server.Usage(ctx)
	late := took > b.opt.Hold+max(leastLate, b.opt.Hold/lateShare) || p.Hopeless.Load()
	h := held{
		rate: rate, published: float64(l.Published.Load()-had) / took.Seconds(),
		cores: after.Cores(before), writes: after.Writes(before) / b.disk,
	}
	most := max(leastDrain, b.opt.Hold/drainShare)
	var drained bool
	h.drain, drained = l.Drain(ctx, most)
	h.publish, h.fetch, h.total = p.Publish.Quantile(0.95), p.Fetch.Quantile(0.95), p.Total.Quantile(0.95)
	breaks := func(yes bool, format string, args ...any) {
		if yes {
			h.broken = append(h.broken, fmt.Sprintf(format, args...))
		}
	}
	breaks(p.Err() != nil, "%v", p.Err())
	breaks(late, "only %.0f/s are published", h.published)
	breaks(h.fetch > fetchLimit, "fetch p95 is %s", ms(h.fetch))
	breaks(!drained, "not all is acknowledged %v later", most)
	breaks(h.writes > writeLimit, "%.0f %% of what the disk writes", 100*h.writes)
	if !drained { // the next rate is to begin without a backlog
		l.Drain(ctx, 10*most)
	}
	return h
}

// stored looks at what the messages leave behind: the next cycle of clean-up must remove all
// of them, and then there is little else.
func (b *bench) stored(ctx context.Context, l *rig.Load) (broken []string) {
	before, n := b.server.Usage(ctx), l.Published.Load()
	live, tables := float64(n)*rig.MessageBytes, float64(b.server.Tables())
	if bloat := (tables - live) / max(tables, live); bloat > bloatLimit {
		broken = append(broken, fmt.Sprintf("%.0f %% of the tables are not messages", 100*bloat))
	}
	if b.opt.Short {
		return broken
	}
	for began := time.Now(); time.Since(began) < cleanupEvery+10*time.Second; {
		at, err := l.User.Bounds(ctx, l.Topic)
		if err != nil || at.GetStart() == at.GetEnd() {
			b.note("all is removed %v later: %.0f messages", time.Since(began).Round(time.Millisecond),
				b.server.Usage(ctx).Trimmed-before.Trimmed)
			return broken
		}
		if pause(ctx, 100*time.Millisecond) {
			return broken
		}
	}
	return append(broken, "clean-up is slower than publishers")
}
