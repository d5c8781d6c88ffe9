package machine

import (
	"fmt"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
)

// tail is a source whose last batch is in memory.
type tail struct{ batch *commitlog.Batch }

func (s *tail) At(p int64) (*commitlog.Batch, Residence) {
	if p >= s.batch.End() {
		return nil, Beyond
	}
	return s.batch, Resident
}

// batches returns n batches of a size, one behind the other.
func batches(b testing.TB, n, size int) []*commitlog.Batch {
	b.Helper()
	list := make([]*commitlog.Message, size)
	for i := range list {
		list[i] = &commitlog.Message{Key: fmt.Sprint("key ", i), Type: "t", Payload: make([]byte, 200)}
	}
	first, err := commitlog.NewBatch(0, time.Unix(1, 0), list)
	if err != nil {
		b.Fatal(err)
	}
	out := make([]*commitlog.Batch, n)
	for i := range out {
		copied := *first
		copied.Base = int64(i * size)
		out[i] = &copied
	}
	return out
}

// BenchmarkDeliver delivers and acknowledges batches, each to all groups. An operation
// is one message of one group.
func BenchmarkDeliver(b *testing.B) {
	for _, groups := range []int{1, 4, 16, 64} {
		for _, size := range []int{1, 10, 100, 500} {
			b.Run(fmt.Sprintf("groups=%d/batch=%d", groups, size), func(b *testing.B) {
				benchDeliver(b, groups, size, func(*Config) {}, nil)
			})
		}
	}
	b.Run("keyed/batch=100", func(b *testing.B) {
		benchDeliver(b, 1, 100, func(c *Config) { c.KeyOrder = true }, nil)
	})
	b.Run("hash/batch=100", func(b *testing.B) {
		benchDeliver(b, 1, 100, func(c *Config) { c.Hash = true }, nil)
	})
	b.Run("filtered/groups=16/batch=100", func(b *testing.B) {
		benchDeliver(b, 16, 100, func(c *Config) { c.Filter = kindFilter("t") }, nil)
	})
	b.Run("late/batch=100", func(b *testing.B) { // one message stays away
		benchDeliver(b, 1, 100, func(*Config) {}, func(s Positions) Positions {
			if s.Base%50_000 == 0 {
				s.Base++
				s.Count--
			}
			return s
		})
	})
}

func benchDeliver(b *testing.B, groups, size int, change func(*Config), ack func(Positions) Positions) {
	s := &tail{}
	p := New(0, 0, 0, s)
	members := make([]*Member, groups)
	for i := range members {
		c := plain(fmt.Sprintf("g%02d", i))
		change(&c)
		g, _, _, err := p.Subscribe(c, Begin{})
		must(b, err)
		members[i], err = g.Attach("m", nil, NewBudget(MaxMessages, MaxBytes, true))
		must(b, err)
	}
	list := batches(b, 64, size)
	now := time.Unix(1_000_000, 0)
	var pieces []Piece
	var refused []Refusal
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += size * groups {
		n := int64(done / (size * groups))
		if s.batch = list[n%64]; n >= 64 {
			s.batch.Base += int64(64 * size)
		}
		p.Published(s.batch.End())
		for _, m := range members {
			pieces, _ = m.g.Next(now, 1000, pieces[:0])
			for i := range pieces {
				set := Positions{Base: s.batch.Base + int64(pieces[i].From), Count: int64(pieces[i].To - pieces[i].From)}
				if ack != nil {
					set = ack(set)
				}
				_, refused = m.Ack(set, refused[:0])
			}
		}
		if ack != nil && n%400 == 399 { // before the window is full
			members[0].Ack(Positions{Base: members[0].g.Floor(), Count: s.batch.End()}, refused[:0])
		}
	}
}

// BenchmarkTransition changes the state of a group with a backlog of 10^6 messages of
// which it has acknowledged every second one of a window.
func BenchmarkTransition(b *testing.B) {
	for _, fragmented := range []bool{false, true} {
		b.Run(fmt.Sprintf("fragmented=%v", fragmented), func(b *testing.B) {
			cursor, end := backlog(b, fragmented)
			run := func(name string, f func(*testing.B, *GroupState)) {
				b.Run(name, func(b *testing.B) {
					var took time.Duration // without Restore
					for range b.N {
						p := New(0, 0, end, nil)
						g, err := p.Restore(plain("g"), Active, cursor)
						must(b, err)
						began := time.Now()
						f(b, g)
						took += time.Since(began)
					}
					b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/change")
				})
			}
			run("pause", func(b *testing.B, g *GroupState) { must(b, g.Pause()) })
			run("die", func(b *testing.B, g *GroupState) { must(b, g.Die()) })
			run("die and release", func(b *testing.B, g *GroupState) {
				must(b, g.Die())
				_, err := g.Release()
				must(b, err)
			})
			run("die and resurrect", func(b *testing.B, g *GroupState) {
				must(b, g.Die())
				_, err := g.Resurrect(-1, ByBound)
				must(b, err)
			})
			run("cursor", func(b *testing.B, g *GroupState) { b.ReportMetric(float64(len(g.AppendCursor(nil))), "bytes") })
		})
	}
}

func backlog(b *testing.B, fragmented bool) (cursor []byte, end int64) {
	r := newFixture(b)
	g := r.group(plain("g"))
	m, err := g.Attach("m", nil, NewBudget(MaxMessages, MaxBytes, true))
	must(b, err)
	r.messages(1_000_000)
	r.next(g)
	if fragmented {
		for p := int64(1); p < MaxOpen; p += 2 {
			r.ack(m, p, p+1)
		}
	}
	return g.AppendCursor(nil), r.end
}

// The usual way takes no memory for a message.
func TestDeliveryTakesNoMemory(t *testing.T) {
	s := &tail{batch: batches(t, 1, 500)[0]}
	p := New(0, 0, 0, s)
	g, _, _, err := p.Subscribe(plain("g"), Begin{})
	must(t, err)
	m, err := g.Attach("m", nil, NewBudget(MaxMessages, MaxBytes, true))
	must(t, err)
	var pieces []Piece
	now := time.Unix(1_000_000, 0)
	if n := testing.AllocsPerRun(1000, func() {
		p.Published(s.batch.End())
		pieces, _ = g.Next(now, 1000, pieces[:0])
		if _, refused := m.Ack(Positions{Base: s.batch.Base, Count: 500}, nil); len(refused) > 0 || len(pieces) != 1 {
			t.Fatal(refused, pieces)
		}
		s.batch.Base += 500
	}); n > 0 {
		t.Errorf("%v allocations for each batch", n)
	}
}
