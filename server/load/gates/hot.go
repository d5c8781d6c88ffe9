package gates

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/load/figure"
	"github.com/parley-chat/parley/server/load/gates/rig"
	"github.com/parley-chat/parley/server/load/probe"
)

// A hot topic among cold ones.
const (
	hotTimes    = 2 // by which the p99 of the cold ones may grow
	hotShare    = 0.99
	coldTopics  = 10
	coldSamples = 300 // messages of the cold ones that a p99 is of, at least
)

// hotRates are the rates of all topics together that are tried.
var hotRates = []float64{500, 1_000, 2_000, 5_000, 10_000}

// beside is what became of the cold topics at a rate.
type beside struct {
	rate         float64
	alone, p99   time.Duration
	published    float64 // of the hot one, a second
	server, load float64 // processors that were used
	busy         float64 // part of all processors, with all other programs of the machine
	err          error
}

func (h *beside) times() float64 { return h.p99.Seconds() / max(h.alone.Seconds(), 1e-6) }

// holds reports whether the cold topics hardly suffer, and the hot one has its rate.
func (h *beside) holds() bool {
	return h.err == nil && h.times() <= hotTimes && h.published >= hotShare*hotShare*h.rate
}

func (h *beside) String() string {
	text := fmt.Sprintf("%.0f/s: p99 %s → %s, %.1f×; server %.2f and load %.2f processors", h.published, ms(h.alone),
		ms(h.p99), h.times(), h.server, h.load)
	if h.err != nil {
		text += ": " + h.err.Error()
	}
	return text
}

// hotTopic is ten topics with one per cent of the traffic, at several rates without and with
// the rest of it. Clients and server share the machine, which limits the rate, too: so it is
// said how busy both were.
func hotTopic(ctx context.Context, b *bench) (v verdict, err error) {
	var cold []*rig.Load
	for i := range coldTopics {
		l, err := rig.New(ctx, b.server, fmt.Sprint("cold-", i), &topicv1.TopicConfig{}, 1, nil)
		if err != nil {
			return v, err
		}
		defer l.Close()
		cold = append(cold, l)
	}
	hot, err := rig.New(ctx, b.server, "hot", &topicv1.TopicConfig{}, 1, nil)
	if err != nil {
		return v, err
	}
	defer hot.Close()
	var tried, results []string
	best, worst := (*beside)(nil), (*beside)(nil)
	for _, rate := range scaled(b, hotRates, hotRates[:2]) {
		h := b.beside(ctx, cold, hot, rate)
		if ctx.Err() != nil {
			return v, ctx.Err()
		}
		b.note("%v", h)
		tried, results = append(tried, fmt.Sprintf("%.0f", rate)), append(results, h.String())
		if h.holds() && worst == nil {
			best = h
		} else if worst == nil {
			worst = h
		}
	}
	v.tried = fmt.Sprintf("%d topics with 1 %% and a hot one with the rest of %s msgs/s", coldTopics,
		strings.Join(tried, ", "))
	v.result = strings.Join(results, "<br>")
	switch {
	case worst == nil:
		v.limit = fmt.Sprintf("above %.0f/s", best.rate)
	case best == nil:
		v.limit = fmt.Sprintf("below %.0f/s", worst.rate)
	default:
		v.limit = fmt.Sprintf("%.0f/s", best.rate)
	}
	if worst != nil {
		v.short(true, worst.busy >= busyShare, worst.busy, "does not hold at %.0f/s", worst.rate)
	}
	return v, nil
}

// beside has the cold topics work alone, then beside the hot one, then alone again: the other
// load of the machine changes with time.
func (b *bench) beside(ctx context.Context, cold []*rig.Load, hot *rig.Load, rate float64) *beside {
	h := &beside{rate: rate}
	slow := rate * (1 - hotShare)
	d := scaled(b, max(3*b.opt.Hold, time.Duration(coldSamples/slow*float64(time.Second))), 2*b.opt.Hold)
	var alone, both figure.Histogram
	h.err = pace(ctx, cold, slow, d/2, &alone)
	var all sync.WaitGroup
	had, used, own, began := hot.Published.Load(), b.server.Usage(ctx), probe.ProcessorTime(), time.Now()
	busy := probe.ReadBusy()
	var p *rig.Phase
	all.Go(func() {
		p = hot.Pace(ctx, hotShare*rate, d)
		took := time.Since(began).Seconds()
		h.published = float64(hot.Published.Load()-had) / took
		h.busy = probe.ReadBusy().Since(busy)
		h.server, h.load = b.server.Usage(ctx).Cores(used), (probe.ProcessorTime()-own).Seconds()/took
	})
	err := pace(ctx, cold, slow, d, &both)
	all.Wait()
	hot.Drain(ctx, isolatedLag)
	h.err = cmp.Or(h.err, err, p.Err(), pace(ctx, cold, slow, d/2, &alone))
	h.alone, h.p99 = alone.Quantile(0.99), both.Quantile(0.99)
	return h
}

// pace publishes to topics in turns, at a rate of all together, and adds how long messages
// took. It returns what went wrong first.
func pace(ctx context.Context, topics []*rig.Load, rate float64, d time.Duration, total *figure.Histogram) error {
	var all sync.WaitGroup
	phases := make([]*rig.Phase, len(topics))
	for i, l := range topics {
		all.Go(func() {
			_ = pause(ctx, time.Duration(float64(i)/rate*float64(time.Second))) // not all at once
			phases[i] = l.Pace(ctx, rate/float64(len(topics)), d)
			l.Drain(ctx, isolatedLag)
		})
	}
	all.Wait()
	var err error
	for _, p := range phases {
		total.Join(&p.Total)
		err = cmp.Or(err, p.Err())
	}
	return err
}
