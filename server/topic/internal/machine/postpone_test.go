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
