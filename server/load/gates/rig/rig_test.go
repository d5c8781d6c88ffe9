package rig

import (
	"errors"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

func TestStamps(t *testing.T) {
	b := make([]byte, payloadSize)
	for _, first := range []bool{true, false} {
		putStamp(b, time.Minute, 7, 9, first)
		if due, phase, call, f := stamp(b); due != time.Minute || phase != 7 || call != 9 || f != first {
			t.Errorf("%v %d %d %t", due, phase, call, f)
		}
	}
	if _, phase, _, _ := stamp([]byte("short")); phase != 0 { // phases begin with 1
		t.Errorf("phase %d of what bears no stamp", phase)
	}
}

// A high rate is made of larger calls, not of more than the machine can pace.
func TestShape(t *testing.T) {
	for _, c := range []struct {
		rate, calls float64
		batch       int
	}{{10, 10, 1}, {1_000, 1_000, 1}, {1_500, 750, 2}, {30_000, 1_000, 30}} {
		if calls, batch := shape(c.rate); calls != c.calls || batch != c.batch {
			t.Errorf("%.0f/s: %v calls/s of %d", c.rate, calls, batch)
		}
	}
}

// Messages of an earlier phase are counted and not timed; of a call, its first one is timed.
func TestTake(t *testing.T) {
	l := &Load{base: time.Now().Add(-time.Second)}
	old, p := l.Begin(1), l.Begin(2)
	g := &Group{}
	p.answered[1].Store(int64(500 * time.Millisecond))
	d := &topicv1.Delivery{}
	for _, m := range []struct {
		phase, call uint32
		first       bool
	}{{old.number, 0, true}, {p.number, 0, true}, {p.number, 1, true}, {p.number, 1, false}, {p.number, 2, true}} {
		b := make([]byte, payloadSize)
		putStamp(b, 0, m.phase, m.call, m.first)
		d.Messages = append(d.Messages, &topicv1.TopicMessage{Payload: b})
	}
	l.take(g, d)
	if g.Delivered.Load() != 5 || g.Old.Load() != 1 || p.Fetch.Count() != 2 || old.Fetch.Count() != 0 {
		t.Errorf("%d delivered, %d old, %d timed", g.Delivered.Load(), g.Old.Load(), p.Fetch.Count())
	}
	// One came before its publish was answered, the other half a second after that.
	if p.Fetch.Quantile(0) != 0 || p.Fetch.Max() < 400*time.Millisecond || p.Total.Quantile(0) < 900*time.Millisecond {
		t.Errorf("fetched in %v to %v, after %v in all", p.Fetch.Quantile(0), p.Fetch.Max(), p.Total.Quantile(0))
	}
	p.fail(errors.New("first"))
	p.fail(errors.New("second"))
	if p.Err().Error() != "first" || old.Err() != nil {
		t.Errorf("%v, %v", p.Err(), old.Err())
	}
}

// Messages count once however often they come, and between the ends of partitions (HQ-W04).
func TestSeen(t *testing.T) {
	ends := func(list ...int64) (all []*topicv1.PartitionBounds) {
		for i, end := range list {
			all = append(all, &topicv1.PartitionBounds{Partition: int32(i), End: end})
		}
		return all
	}
	var s Seen
	s.add(&topicv1.Positions{Partition: 0, Base: 5, Count: 3})
	s.add(&topicv1.Positions{Partition: 0, Base: 6}) // again
	s.add(&topicv1.Positions{Partition: 1, Base: 2})
	for _, c := range []struct {
		from, to []*topicv1.PartitionBounds
		got, all int64
	}{
		{ends(0, 0), ends(8, 3), 4, 11}, {ends(5, 0), ends(8, 2), 3, 5}, {ends(8, 3), ends(9, 4), 0, 2},
		{ends(0, 0), ends(0, 0), 0, 0},
	} {
		if got, all := s.Between(c.from, c.to); got != c.got || all != c.all {
			t.Errorf("from %v to %v: %d of %d, want %d of %d", c.from, c.to, got, all, c.got, c.all)
		}
	}
}
