package operations

import (
	"context"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

const (
	meterEvery = 5 * time.Second // at which it is looked how fast groups with members are
	surveyEach = 3               // such checks all topics are surveyed
)

// runSurvey checks all topics for metrics: a scrape must not wait for a topic that is being
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

// surveyOpens is how many topics a survey opens, and surveyReads how many batches it reads, at most.
const surveyOpens, surveyReads = 20, 500

// survey counts subscriptions, measures how far groups are behind and what is kept in
// memory.
func (j *Jobs) survey(ctx context.Context) {
	states := map[storage.State]int64{}
	opens := surveyOpens
	for _, t := range j.topics() {
		reading := t.Reading()
		t.Each(func(s storage.State) { states[s]++ })
		reading.End()
		if opens > 0 && j.unseen(t) {
			opens--
			if !j.openOnce(ctx, t) {
				opens = 0 // the log does not answer, perhaps: the rest of the survey does not wait for it
			}
		}
	}
	g := &j.engine.Counters.Gauges
	g.Active.Store(states[storage.Active])
	g.Paused.Store(states[storage.Paused])
	g.Dead.Store(states[storage.Dead])
	g.Cancelled.Store(states[storage.Cancelled])
	var tracked int64
	var overdue time.Duration
	o := oldest{jobs: j, seen: map[partitionPosition]time.Time{}, reads: surveyReads}
	j.each(func(l *serving.OpenTopic) {
		for _, p := range l.Parts {
			p.Do(func(m *machine.Machine) { tracked += m.Tracked() })
			overdue = max(overdue, p.Overdue(""))
		}
		for _, group := range l.Groups() {
			o.observe(ctx, l, group)
		}
	})
	j.seen = o.seen
	g.Tracked.Store(tracked)
	g.Overdue.Store(int64(overdue))
}

// openOnce opens a topic, so that its groups have metrics. An error is reported when the topic is used; until the next
// attempt, the others have their turn.
func (j *Jobs) openOnce(ctx context.Context, t *storage.Topic) bool {
	ctx, cancel := context.WithTimeout(ctx, meterEvery)
	defer cancel()
	l, err := j.engine.Topics.Open(ctx, t)
	if err != nil {
		j.unopened[t.Number] = j.engine.Steady().Add(reopenEvery)
		return false
	}
	l.Release()
	delete(j.unopened, t.Number)
	return true
}

// reopenEvery is when a topic is tried again that could not be opened.
const reopenEvery = 10 * time.Minute

// unseen reports whether a topic has a group that receives, and that has no metrics because the topic
// was not in use since the process began.
func (j *Jobs) unseen(t *storage.Topic) bool {
	if j.engine.Steady().Before(j.unopened[t.Number]) {
		return false
	}
	defer t.Reading().End()
	for _, sub := range t.Subscriptions() {
		if storage.Receives(sub.State) && !j.engine.Groups.Knows(t.Name, sub.Group) {
			return true
		}
	}
	return false
}

// partitionPosition is a position of a partition.
type partitionPosition struct {
	*serving.Partition
	position int64
}

// oldest finds when the oldest messages were stored that groups have to do. A batch that is not in
// memory is read once.
type oldest struct {
	jobs  *Jobs
	seen  map[partitionPosition]time.Time
	reads int // that are left
}

// observe measures how far a group is behind. If that takes more reads than are left, its metrics
// stay as they are until the next survey, which checks the groups in another order.
func (o *oldest) observe(ctx context.Context, l *serving.OpenTopic, g *serving.Group) {
	var lag int64
	var first time.Time
	for _, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			if h := m.Group(g.Name()); h != nil {
				lag += h.Lag()
			}
		})
		at, known := o.of(ctx, l, p, g.Name())
		if !known {
			return
		}
		if first.IsZero() || !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	g.Metric.Observe(lag, first, g.Members() > 0)
}

// of returns since when the oldest message that is due to a group in a partition can be delivered; zero if there is
// none. It returns false if no read is left: a message that it reads and that is not due is passed over.
func (o *oldest) of(ctx context.Context, l *serving.OpenTopic, p *serving.Partition, group string) (time.Time, bool) {
	for {
		position, at, ok := p.OldestDue(group)
		if !ok || !at.IsZero() {
			return at, true
		}
		at, known := o.stored(ctx, l, partitionPosition{p, position})
		if !known || !at.After(o.jobs.engine.Clock()) {
			return at, known
		}
	}
}

// stored returns when a message could be delivered first, zero if the log does not say; false if no read is left.
func (o *oldest) stored(ctx context.Context, l *serving.OpenTopic, at partitionPosition) (time.Time, bool) {
	when, known := o.seen[at]
	if !known {
		when, known = o.jobs.seen[at]
	}
	if !known {
		if o.reads == 0 {
			return when, false
		}
		o.reads--
		batches, err := o.jobs.engine.Sources.Reader(l.Topic).Read(ctx, at.Address, at.position, 1)
		if err != nil || len(batches) == 0 { // it has been trimmed meanwhile, or cannot be read, which others say
			return when, true
		}
		if when = batches[0].Since(at.position); when.After(o.jobs.engine.Clock()) {
			at.Note(batches[0])
			return when, true
		}
	}
	o.seen[at] = when
	return when, true
}

// rate measures a counter, over about the last minute.
type rate struct {
	mu    sync.Mutex
	at    time.Time
	count int64
	now   float64 // a second
}

func (r *rate) observe(at time.Time, count int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	took := at.Sub(r.at)
	if !r.at.IsZero() && took < checkEvery/2 {
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

// measure samples the speed of a group. A group without members rests, and its rates are
// computed when a caller asks for them.
func measure(now time.Time, l *serving.OpenTopic, g *serving.Group) {
	if g.Members() == 0 {
		return
	}
	var processed, answers, inFlight int64
	var lease time.Duration
	for _, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			if h := m.Group(g.Name()); h != nil {
				done, filtered, failed, away := h.Counts()
				lease = h.Config().Lease
				processed, answers, inFlight = processed+done, answers+done-filtered+failed, inFlight+away
			}
		})
	}
	g.Meter.Sample(now, processed, answers, inFlight, g.Metric.LeasesExpired.Load(), lease)
}
