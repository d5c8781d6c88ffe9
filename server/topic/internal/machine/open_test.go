package machine

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
)

// keyed is an endless log without memory: batches of 1,000 messages, each with the key and the type
// that are given for its position.
type keyed struct {
	of   func(position int64) (key, kind string)
	last *commitlog.Batch
}

func (k *keyed) At(position int64) (*commitlog.Batch, Residence) {
	base := position / 1000 * 1000
	if k.last == nil || k.last.Base != base {
		list := make([]*commitlog.Message, 1000)
		for i := range list {
			key, kind := k.of(base + int64(i))
			list[i] = &commitlog.Message{Key: key, Type: kind, Payload: []byte("x")}
		}
		b, err := commitlog.NewBatch(base, time.Unix(0, 0), list)
		if err != nil {
			panic(err)
		}
		k.last = b
	}
	return k.last, Resident
}

// open is a group whose messages are given by their positions, with one member that has credits for
// as many as can be open.
type open struct {
	*fixture
	g *GroupState
	m *Member
}

func newOpen(t *testing.T, change func(*Config), of func(int64) (key, kind string)) *open {
	o := &open{fixture: newFixture(t)}
	o.p = New(0, 0, 0, &keyed{of: of})
	c := plain("g")
	c.MaxAttempts = 1000
	change(&c)
	o.g = o.group(c)
	o.m = o.worker("m", "")
	return o
}

func (o *open) worker(name, kind string) *Member {
	o.Helper()
	m, err := o.g.Attach(name, kindFilter(kind), NewBudget(MaxMessages, MaxBytes, true))
	must(o, err)
	return m
}

// pass publishes n messages, and acknowledges those that are delivered but for some. It returns
// how many these were and why Next stopped.
func (o *open) pass(n int64, but func(position int64) bool) (done int64, w Wait) {
	o.end += n
	o.p.Published(o.end)
	var pieces []Piece
	for {
		pieces, w = o.g.Next(o.now, 10_000, pieces[:0])
		if len(pieces) == 0 {
			return done, w
		}
		for _, p := range pieces {
			from, to := p.Batch.Base+int64(p.From), p.Batch.Base+int64(p.To)
			for at := from; at < to; at++ {
				if !but(at) && (at+1 == to || but(at+1)) {
					p.Member.Ack(Positions{Base: from, Count: at + 1 - from}, nil)
					done += at + 1 - from
				}
				if but(at) {
					from = at + 1
				}
			}
		}
	}
}

// A million messages pass one that stays, for any reason, and no more is kept for that than
// for a few; so the cursor is small.
func TestMillionPassOne(t *testing.T) {
	const million = 1_000_000
	first := func(p int64) bool { return p == 0 }
	for name, stay := range map[string]func(o *open){
		"parked": func(o *open) {
			for range 2 {
				o.m.Nack(Positions{Base: 0}, 0, "", o.now, nil)
				o.next(o.g)
			}
			is(o, "parked", o.g.Stats().Parked, 1)
		},
		"delayed": func(o *open) { o.m.Nack(Positions{Base: 0}, 24*time.Hour, "", o.now, nil) },
		"extended": func(o *open) {
			o.wait(time.Second)
			o.m.Extend(Positions{Base: 0}, o.now, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOpen(t, func(c *Config) { c.Exhausted, c.MaxAttempts = ParkKey, 2 },
				func(p int64) (string, string) { return strconv.FormatInt(p, 10), "" })
			o.pass(1000, first)
			stay(o)
			for range 100 {
				o.pass(million/100, first)
				if n := len(o.g.AppendCursor(nil)); n > 100 || o.p.Tracked() > 10 {
					t.Fatalf("a cursor of %d bytes, %d entries", n, o.p.Tracked())
				}
			}
			is(t, "done", o.g.processed, million+999)
			is(t, "open", o.g.open, 1)
			is(t, "floor", o.g.Floor(), 0)
		})
	}
}

// As many messages may be open as MaxOpen says, for any reason: then the group gets nothing new,
// its cursor has room for what becomes of them, and it continues once one is done.
func TestOpenIsBounded(t *testing.T) {
	none := func(p int64) (string, string) { return "", "" }
	unique := func(p int64) (string, string) { return strconv.FormatInt(p, 10), "" }
	all := func(int64) bool { return true }
	for _, c := range []struct {
		what   string
		change func(*Config)
		of     func(int64) (string, string)
		fill   func(o *open) // makes MaxOpen messages open
		done   func(o *open) // is done with one of them, or more
	}{
		{"leased", func(*Config) {}, none, func(o *open) { o.pass(MaxOpen, all) },
			func(o *open) { o.ack(o.m, 5, 6) }},
		{"delayed", func(*Config) {}, none, func(o *open) {
			o.pass(MaxOpen, all)
			o.m.Nack(Positions{Count: maxNamed}, time.Hour, "", o.now, nil)
			o.pass(0, all)
		}, func(o *open) {
			o.wait(2 * time.Hour)
			o.next(o.g)
			o.ack(o.m, 5, 6)
		}},
		{"parked", func(c *Config) { c.Exhausted, c.MaxAttempts = ParkKey, 1 }, unique, func(o *open) {
			o.pass(MaxOpen, all)
			o.m.Nack(Positions{Count: maxNamed}, 0, "", o.now, nil)
			o.pass(0, all)
			is(o, "parked", o.g.Stats().Parked, MaxOpen)
		}, func(o *open) { is(o, "discarded", o.g.DiscardAt(5), true) }},
		{"dying", func(c *Config) { c.MaxAttempts = 1 }, none, func(o *open) {
			o.pass(MaxOpen, all)
			o.m.Nack(Positions{Count: maxNamed}, 0, "", o.now, nil)
			o.pass(0, all)
			is(o, "undeliverable", o.g.Stats().Undeliverable, MaxOpen)
		}, func(o *open) { o.g.MarkDeadLettered(5) }},
		{"waiting for a key", func(c *Config) { c.KeyOrder = true }, func(int64) (string, string) { return "k", "" },
			func(o *open) {
				o.pass(MaxOpen, all)
				is(o, "with the member", o.m.InFlight(), 1)
			}, func(o *open) { o.ack(o.m, 0, 1) }},
		{"set aside for a member", func(*Config) {}, func(int64) (string, string) { return "", "x" }, func(o *open) {
			o.m.Detach(false, o.now)
			o.m = o.worker("y", "y")
			slow, err := o.g.Attach("x", kindFilter("x"), NewBudget(0, 0, true))
			must(o, err)
			o.pass(MaxOpen, all)
			is(o, "aside", slow.aside.Count(0, NoEnd), MaxOpen)
			slow.budget.Add(1, MaxBytes)
			o.next(o.g)
			o.m = slow
		}, func(o *open) { o.ack(o.m, 0, 1) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			o := newOpen(t, c.change, c.of)
			c.fill(o)
			is(t, "open", o.g.open, MaxOpen)
			_, w := o.pass(10, all)
			is(t, "at the bound", w.Reason, Full)
			is(t, "still open", o.g.open, MaxOpen)
			is(t, "why nothing comes", o.g.Stalled(false), AtBound)
			if n := len(o.g.AppendCursor(nil)); n > MaxCursor {
				t.Errorf("a cursor of %d bytes", n)
			}
			c.done(o)
			is(t, "after one is done", o.g.open, MaxOpen-1)
			o.pass(0, all)
			is(t, "another one is open", o.g.open, MaxOpen)
			is(t, "another one waits", o.g.Stalled(false), AtBound)
		})
	}
}

// Messages that stay open scattered among others, each of which ends a run, are fewer than MaxOpen,
// and their cursor stays within its size when they fail as well. Discarding some makes room.
func TestScatteredOpenIsBounded(t *testing.T) {
	o := newOpen(t, func(c *Config) { c.Exhausted, c.MaxAttempts = ParkKey, 1 },
		func(p int64) (string, string) { return strconv.FormatInt(p, 10), "" })
	odd := func(p int64) bool { return p%2 == 1 }
	var w Wait
	for range 10 {
		_, w = o.pass(10_000, odd)
		for p := o.end - 10_000; p < o.end; p++ {
			if o.g.leases.Has(p) {
				o.m.Nack(Positions{Base: p}, time.Duration(p%2400)*time.Minute, "", o.now, nil)
			}
		}
	}
	is(t, "why it stops", w.Reason, Full)
	before := o.g.open
	if n := len(o.g.AppendCursor(nil)); n > MaxCursor || before < maxAckedRuns-2 {
		t.Errorf("%d are open, a cursor of %d bytes", before, n)
	}
	for p := int64(1); p < 200; p += 2 {
		if !o.g.DiscardAt(p) {
			t.Fatal(fmt.Sprint("not parked: ", p))
		}
	}
	left := o.g.open
	o.pass(0, odd)
	if o.g.open <= left {
		t.Errorf("%d are open after %d are discarded, %d before", o.g.open, before-left, left)
	}
}
