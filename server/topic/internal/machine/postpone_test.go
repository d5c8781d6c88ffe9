package machine

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parley-chat/parley/server/commitlog"
)

// postponed publishes a message of a key that waits.
func (r *fixture) postponed(key string, delay time.Duration) {
	r.Helper()
	b, err := commitlog.NewBatch(r.end, r.now, []*commitlog.Message{{Key: key, Delay: durationpb.New(delay)}})
	must(r, err)
	r.batches = append(r.batches, b)
	r.end = b.End()
	r.p.Published(r.end)
}

// A message that becomes due while a later one of its key is under way follows it, whatever becomes of that: it is
// acknowledged, fails, comes back because its member ends or its lease does, or is parked and released.
func TestDueBesideItsKey(t *testing.T) {
	positions := Positions{Base: 1, Count: 1}
	for name, c := range map[string]struct {
		then func(r *fixture, g *GroupState, m *Member) *Member
		want []int64
	}{
		"acknowledged": {func(r *fixture, _ *GroupState, m *Member) *Member { r.ack(m, 1, 2); return m }, []int64{0}},
		"fails at once": {func(r *fixture, _ *GroupState, m *Member) *Member {
			m.Nack(positions, 0, "no", r.now, nil)
			return m
		}, []int64{0, 1}},
		"fails": {func(r *fixture, g *GroupState, m *Member) *Member {
			m.Nack(positions, 10*time.Second, "no", r.now, nil)
			same(r, "during the pause", r.positions(g), []int64{0})
			r.ack(m, 0, 1)
			r.pass(g, 10*time.Second)
			return m
		}, []int64{1}},
		"its member ends": {func(r *fixture, g *GroupState, m *Member) *Member {
			m.Detach(false, r.now)
			return r.member(g, "n")
		}, []int64{0, 1}},
		"its member ends abnormally": {func(r *fixture, g *GroupState, m *Member) *Member {
			m.Detach(true, r.now)
			return r.member(g, "n")
		}, []int64{0, 1}},
		"its lease ends": {func(r *fixture, g *GroupState, m *Member) *Member {
			r.pass(g, time.Minute)
			return m
		}, []int64{0, 1}},
		"pause and resume": {func(r *fixture, g *GroupState, m *Member) *Member {
			must(r, g.Pause())
			must(r, g.Resume())
			return m
		}, []int64{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t)
			config := plain("g")
			config.KeyOrder = true
			g := r.group(config)
			m := r.member(g, "m")
			r.pass(g, 0)
			r.postponed("k", 5*time.Second)
			r.publish("k")
			same(t, "before it is due", r.positions(g), []int64{1})
			r.pass(g, 5*time.Second)
			same(t, "while the other one is under way", r.positions(g), nil)
			m = c.then(r, g, m)
			var got []int64
			for range 4 {
				r.pass(g, 0)
				for _, p := range r.positions(g) {
					got = append(got, p)
					r.ack(m, p, p+1)
				}
			}
			same(t, "then", got, c.want)
			is(t, "pending", g.Lag(), 0)
		})
	}
}

// evicted is a log whose batches are not in memory.
type evicted struct{}

func (evicted) At(int64) (*commitlog.Batch, Residence) { return nil, Missing }

// What has failed does not wait for its time again, when Next comes to it anew while the clock says that it is not
// due: after a start on a server whose clock is behind, for one. It still holds its key, is not delivered after it
// was stored as a dead letter, and is tried again.
func TestFailedDoesNotWaitAgain(t *testing.T) {
	start := func(r *fixture, g *GroupState) *GroupState {
		now := r.p.clock
		r.p = New(0, 0, r.end, r)
		restored, err := r.p.Restore(g.config, Active, g.AppendCursor(nil))
		must(r, err)
		r.p.Elapsed(now)
		r.member(restored, "m")
		return restored
	}
	anew := map[string]func(r *fixture, g *GroupState) *GroupState{
		"in the same process": func(_ *fixture, g *GroupState) *GroupState {
			g.EndBackfill() // there is none: it only makes Next come to all
			return g
		},
		"start": start,
		"start, without the batch in memory": func(r *fixture, g *GroupState) *GroupState {
			g = start(r, g)
			r.p.Note(r.batches[0])
			r.p.source = evicted{}
			pieces, wait := g.Next(r.now, 10, nil)
			is(r, "pieces", len(pieces), 0)
			is(r, "what comes next", wait, Wait{Reason: Fetch, Position: 0})
			r.p.source = r
			return g
		},
	}
	for name, c := range map[string]struct {
		attempts  int
		exhausted Exhausted
		meanwhile []int64
		end       func(r *fixture, g *GroupState)
	}{
		"dead letter": {1, DeadLetter, nil, func(_ *fixture, g *GroupState) { g.MarkDeadLettered(0) }},
		"parked": {1, ParkKey, nil, func(r *fixture, g *GroupState) {
			is(r, "parked", len(g.Parked(nil)), 1)
			is(r, "discarded", g.DiscardAt(0), true)
		}},
		"retry": {2, DeadLetter, []int64{0}, func(r *fixture, g *GroupState) { r.ack(g.Members()[0], 0, 1) }},
	} {
		for how, again := range anew {
			t.Run(name+", "+how, func(t *testing.T) {
				r := newFixture(t)
				config := plain("g")
				config.KeyOrder, config.MaxAttempts, config.Exhausted = true, c.attempts, c.exhausted
				g := r.group(config)
				m := r.member(g, "m")
				r.pass(g, 0)
				r.postponed("k", 5*time.Second)
				r.publish("k")
				r.pass(g, 5*time.Second)
				same(t, "when it is due", r.positions(g), []int64{0})
				r.pass(g, -3*time.Second)
				m.Nack(Positions{Base: 0, Count: 1}, 0, "no", r.now, nil)
				g = again(r, g)
				same(t, "meanwhile", r.positions(g), c.meanwhile)
				c.end(r, g)
				same(t, "once it is done with", r.positions(g), []int64{1})
				r.ack(g.Members()[0], 1, 2)
				r.pass(g, time.Minute)
				same(t, "when it is due again", r.positions(g), nil)
				is(t, "pending", g.Lag(), 0)
			})
		}
	}
}

// The attempts of a message that has failed are spent, by less attempts than before, although the clock says that it
// is not due.
func TestSpentWhileNotDue(t *testing.T) {
	r := newFixture(t)
	config := plain("g")
	config.MaxAttempts = 2
	g := r.group(config)
	m := r.member(g, "m")
	r.pass(g, 0)
	r.postponed("", 5*time.Second)
	r.pass(g, 5*time.Second)
	same(t, "when it is due", r.positions(g), []int64{0})
	m.Nack(Positions{Base: 0, Count: 1}, 0, "no", r.now, nil)
	r.pass(g, -3*time.Second)
	config.MaxAttempts = 1
	g.Configure(config)
	same(t, "delivered", r.positions(g), nil)
	same(t, "dead letters", g.TakeUndeliverable(nil), []Undeliverable{{Position: 0, Attempts: 1}})
}
