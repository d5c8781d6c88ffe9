package operations

import (
	"context"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/wait"
)

const (
	meterEvery = 5 * time.Second // at which it is looked how fast groups with members are
	surveyEach = 3               // such looks all topics are surveyed
)

// runSurvey looks at all topics for metrics: a scrape must not wait for a topic that is being
// changed.
func (j *Jobs) runSurvey(ctx context.Context) {
	for n := 1; wait.For(ctx, meterEvery) == nil; n++ {
		now := j.engine.Clock()
		for _, l := range j.engine.Topics.All() {
			for _, g := range l.Busy() {
				measure(now, l, g)
			}
		}
		if n%surveyEach == 0 {
			j.survey(ctx)
		}
	}
}

// pending is the oldest message that an active group has to do in a partition.
type pending struct {
	position int64
	at       time.Time
}

// survey counts subscriptions, looks for the oldest message that waits, and for what is
// kept in memory.
func (j *Jobs) survey(ctx context.Context) {
	states := map[storage.State]int64{}
	for _, t := range j.topics() {
		reading := t.Reading()
		t.Each(func(s storage.State) { states[s]++ })
		reading.End()
	}
	g := &j.engine.Counters.Gauges
	g.Active.Store(states[storage.Active])
	g.Paused.Store(states[storage.Paused])
	g.Dead.Store(states[storage.Dead])
	g.Cancelled.Store(states[storage.Cancelled])
	seen := map[*serving.Partition]pending{}
	var tracked int64
	var overdue time.Duration
	j.each(func(l *serving.OpenTopic) {
		for _, p := range l.Parts {
			p.Do(func(m *machine.Machine) { tracked += m.Tracked() })
			overdue = max(overdue, p.Overdue(""))
			if oldest, ok := j.oldest(ctx, l, p); ok {
				seen[p] = oldest
			}
		}
	})
	j.seen = seen
	g.Tracked.Store(tracked)
	g.Overdue.Store(int64(overdue))
	var most time.Duration
	now := j.engine.Clock()
	for _, x := range seen {
		most = max(most, now.Sub(x.at))
	}
	g.Oldest.Store(int64(most))
}

// oldest returns the oldest message that an active group has to do in a partition. The log
// is read if it is not the one of the last time.
func (j *Jobs) oldest(ctx context.Context, l *serving.OpenTopic, p *serving.Partition) (pending, bool) {
	var position, end int64
	p.Do(func(m *machine.Machine) {
		_, end = m.Bounds()
		position = end
		for _, g := range m.Groups() {
			if g.State() == machine.Active {
				position = min(position, g.Oldest())
			}
		}
	})
	if position >= end {
		return pending{}, false
	}
	if x, known := j.seen[p]; known && x.position == position {
		return x, true
	}
	batches, err := j.engine.Sources.Reader(l.Topic).Read(ctx, p.Address, position, 1)
	if err != nil || len(batches) == 0 { // it has been trimmed meanwhile, or cannot be read, which others say
		return pending{}, false
	}
	return pending{position, time.UnixMilli(batches[0].Time)}, true
}

// rate measures a counter, over about the last minute.
type rate struct {
	mu    sync.Mutex
	at    time.Time
	count int64
	now   float64 // a second
}

func (r *rate) look(at time.Time, count int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	took := at.Sub(r.at)
	if !r.at.IsZero() && took < lookEvery/2 {
		return
	}
	if !r.at.IsZero() {
		r.now = float64(count-r.count) / took.Seconds()
	}
	r.at, r.count = at, count
}

func (r *rate) value() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// measure looks how fast a group is. One without members rests, which counts when somebody
// asks.
func measure(now time.Time, l *serving.OpenTopic, g *serving.Group) {
	if g.Members() == 0 {
		return
	}
	var processed, answers, inFlight int64
	for _, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			if h := m.Group(g.Name()); h != nil {
				done, filtered, failed, away := h.Counts()
				processed, answers, inFlight = processed+done, answers+done-filtered+failed, inFlight+away
			}
		})
	}
	g.Meter.Sample(now, processed, answers, inFlight)
}
