package gates

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/load/gates/rig"
	"github.com/parley-chat/parley/server/load/probe"
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
	leastLast    = time.Minute // after which what has not arrived counts as lost
	warmShare    = 0.1         // of the rate, at first
	cleanupEvery = time.Minute
	searchSteps  = 8
	searchRatio  = 1.5 // between the rate that held and the one that broke
	searchShare  = 10  // part of the hold for which rates are held that no claim names
	leastHold    = 5 * time.Second
	leastRate    = 50
	busyShare    = 0.85 // of the processors: with less left for it, a rate has found the machine's limit
)

// held is what came of one rate.
type held struct {
	rate                  float64
	published             float64 // a second
	publish, fetch, total time.Duration
	drain                 time.Duration
	cores                 float64 // of the server
	busy                  float64 // part of all processors, with all other programs of the machine
	writes                float64 // part of what the disk can write
	broken                []string
	lost                  []string // what breaks a gate at any rate and on any machine
}

func (h held) String() string {
	return fmt.Sprintf("%.0f/s: fetch p95 %s, publish p95 %s, %.2f cores, processors busy %.0f %%, %.0f %% of the disk",
		h.published, ms(h.fetch), ms(h.publish), h.cores, 100*h.busy, 100*h.writes)
}

// scarce reports whether the machine had nothing left for a rate: processors or disk.
func (h held) scarce() bool { return h.busy >= busyShare || h.writes > writeLimit }

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
			first := scaled(b, claimed, claimed/20)
			s := search(first, scaled(b, searchSteps, 2), func(rate float64) held {
				d := b.opt.Hold
				if rate != first {
					d = min(d, max(leastHold, d/searchShare))
				}
				h := b.hold(ctx, l, rate, d)
				b.note("%d groups, %.0f/s: %v %s", n, rate, h, strings.Join(append(h.broken, h.lost...), "; "))
				return h
			})
			if ctx.Err() != nil {
				return v, ctx.Err()
			}
			v.judge(fmt.Sprintf("%d groups", n), s, b.gate.fallsShort)
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

// judge decides about a claimed rate, with all rates that were tried. A threshold that breaks at the claimed one breaks
// the gate, unless the machine was the limit or the rate is expected to fall short. A lost message breaks it at any
// rate.
func (v *verdict) judge(what string, s searched, fallsShort bool) {
	h := s.tries[0]
	v.short(len(h.broken) > 0 && !fallsShort, h.scarce(), h.busy, "%s, %.0f/s: %s", what, h.rate,
		strings.Join(h.broken, ", "))
	for _, h := range s.tries {
		for _, l := range h.lost {
			v.broken = append(v.broken, fmt.Sprintf("%s, %.0f/s: %s", what, h.rate, l))
		}
	}
}

// hold warms up at a tenth of a rate, raises it, holds it, and waits for what is left.
func (b *bench) hold(ctx context.Context, l *rig.Load, rate float64, d time.Duration) held {
	part := d / 8
	l.Pace(ctx, rate*warmShare, part)
	for _, share := range []float64{0.25, 0.5, 0.75} {
		l.Pace(ctx, rate*share, part/3)
	}
	before, had, began, busy := b.server.Usage(ctx), l.Published.Load(), time.Now(), probe.ReadBusy()
	p := l.Pace(ctx, rate, d)
	took, after := time.Since(began), b.server.Usage(ctx)
	late := took > d+max(leastLate, d/lateShare) || p.Hopeless.Load()
	h := held{
		rate: rate, published: float64(l.Published.Load()-had) / took.Seconds(),
		cores: after.Cores(before), writes: after.Writes(before) / b.disk, busy: probe.ReadBusy().Since(busy),
	}
	limit := max(leastDrain, d/drainShare)
	var drained bool
	h.drain, drained = l.Drain(ctx, limit)
	h.publish, h.fetch, h.total = p.Publish.Quantile(0.95), p.Fetch.Quantile(0.95), p.Total.Quantile(0.95)
	breaks := func(yes bool, format string, args ...any) {
		if yes {
			h.broken = append(h.broken, fmt.Sprintf(format, args...))
		}
	}
	if err := p.Err(); err != nil {
		h.lost = append(h.lost, err.Error())
	}
	breaks(late, "only %.0f/s are published", h.published)
	breaks(h.fetch > fetchLimit, "fetch p95 is %s", ms(h.fetch))
	breaks(!drained, "not all is acknowledged %v later", limit)
	breaks(h.writes > writeLimit, "%.0f %% of what the disk writes", 100*h.writes)
	if !drained { // the next rate is to begin without a backlog
		if _, drained = l.Drain(ctx, max(leastLast, 10*limit)); !drained {
			h.lost = append(h.lost, fmt.Sprintf("%d messages do not arrive or stay pending", l.Lag()))
		}
	}
	return h
}

// stored checks what the messages leave behind: the next cycle of clean-up must remove all
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
		if err != nil || at.Start == at.End {
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
