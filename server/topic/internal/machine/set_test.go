package machine

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

const top = 200 // positions below it are compared; from there on sets are open or not

// naive is a set of positions, one by one.
type naive [top + 1]bool

func (n *naive) set(from, to int64, yes bool) {
	for p := max(from, 0); p < min(to, top+1); p++ {
		n[p] = yes
	}
}

func (n *naive) next(p int64, yes bool) int64 {
	for ; p <= top; p++ {
		if n[p] == yes {
			return p
		}
	}
	return NoEnd
}

func checkSet(t *testing.T, s *Set, n *naive) {
	t.Helper()
	runs := s.Runs()
	for i, r := range runs {
		if r.From >= r.To || (i > 0 && runs[i-1].To >= r.From) {
			t.Fatalf("runs %v", runs)
		}
	}
	for p := range int64(top) {
		if s.Contains(p) != n[p] {
			t.Fatalf("%v contains %d: %v", runs, p, s.Contains(p))
		}
	}
	if s.Contains(1<<40) != n[top] {
		t.Fatalf("%v is open: %v", runs, !n[top])
	}
}

// Sets do what a set of single positions does.
func TestSetAgainstSinglePositions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	span := func() (int64, int64) {
		from := rng.Int64N(top)
		if rng.IntN(20) == 0 {
			return from, NoEnd
		}
		return from, min(from+rng.Int64N(12), top)
	}
	for range 300 {
		var s, o Set
		var n, m naive
		for range 40 {
			from, to := span()
			switch rng.IntN(7) {
			case 0, 1:
				s.Add(from, to)
				n.set(from, to, true)
			case 2:
				s.Remove(from, to)
				n.set(from, to, false)
			case 3:
				o.Add(from, to)
				m.set(from, to, true)
			case 4:
				s.Union(&o)
				for p := range n {
					n[p] = n[p] || m[p]
				}
			case 5:
				s.Subtract(&o)
				for p := range n {
					n[p] = n[p] && !m[p]
				}
			case 6:
				if c := s.Clone(); rng.IntN(4) == 0 {
					c.Intersect(&o)
					s = c
					for p := range n {
						n[p] = n[p] && m[p]
					}
				}
			}
			checkSet(t, &s, &n)
			checkSet(t, &o, &m)
			queries(t, &s, &n, rng.Int64N(top), rng.Int64N(top))
			without := n
			for p := range m {
				without[p] = without[p] && !m[p]
			}
			p := rng.Int64N(top)
			if got, want := s.NextWithout(&o, p), without.next(p, true); got != want && min(got, want) < top {
				t.Fatalf("%v without %v: next of %d is %d, should be %d", s.Runs(), o.Runs(), p, got, want)
			}
		}
	}
}

func queries(t *testing.T, s *Set, n *naive, p, q int64) {
	t.Helper()
	next, ok := s.Next(p)
	if want := n.next(p, true); (ok && next != want && want < top) || (!ok && want != NoEnd) {
		t.Fatalf("%v: next of %d is %d, %v, should be %d", s.Runs(), p, next, ok, want)
	}
	if got, want := s.NextAbsent(p), n.next(p, false); got != want && want < top {
		t.Fatalf("%v: next absent of %d is %d, should be %d", s.Runs(), p, got, want)
	}
	if r, ok := s.NextRun(p); ok && (r.From != next || r.To != s.NextAbsent(next)) {
		t.Fatalf("%v: next run of %d is %v", s.Runs(), p, r)
	}
	if first, ok := s.First(); ok && first < top && first != n.next(0, true) {
		t.Fatalf("%v: first is %d", s.Runs(), first)
	}
	p, q = min(p, q), max(p, q)
	count := int64(0)
	for _, in := range n[p:q] {
		if in {
			count++
		}
	}
	if got := s.Count(p, q); got != count {
		t.Fatalf("%v: %d from %d to %d, should be %d", s.Runs(), got, p, q, count)
	}
	if got := s.Covers(p, q); got != (count == q-p) {
		t.Fatalf("%v covers %d to %d: %v", s.Runs(), p, q, got)
	}
}

// A set in order takes no memory for each position, and work at its end none.
func TestOrderCostsNothing(t *testing.T) {
	var s Set
	s.Add(0, 1)
	p := int64(1)
	if n := testing.AllocsPerRun(1000, func() {
		s.Add(p, p+1)
		p++
	}); n != 0 || s.Len() != 1 {
		t.Errorf("%v allocations, %d runs", n, s.Len())
	}
	s.Clear()
	if !s.Empty() || s.Equal(&Set{runs: []Run{{1, 2}}}) {
		t.Error("not empty")
	}
}

// What is encoded is what is decoded, or an error.
func FuzzDecode(f *testing.F) {
	for _, s := range []Set{{}, SetOf(Run{0, NoEnd}), SetOf(Run{3, 9}, Run{12, 1 << 50}, Run{1 << 60, NoEnd})} {
		f.Add(append(s.AppendBinary(nil), 7))
	}
	f.Add([]byte{255, 255, 255, 255, 15, 1, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, rest, err := DecodeSet(b, 100)
		if err != nil {
			if !errors.Is(err, ErrSetEncoding) {
				t.Error(err)
			}
			return
		}
		if s.Len() > 100 || cap(s.runs) > len(b) {
			t.Errorf("%d runs from %d bytes", cap(s.runs), len(b))
		}
		for i, r := range s.runs {
			if r.From < 0 || r.From >= r.To || (i > 0 && s.runs[i-1].To >= r.From) {
				t.Fatalf("runs %v", s.runs)
			}
		}
		again := s.AppendBinary(nil)
		o, none, err := DecodeSet(again, 100)
		if err != nil || !o.Equal(&s) || len(none) != 0 || !bytes.HasSuffix(b, rest) {
			t.Errorf("%v, then %v: %v", s.runs, o.runs, err)
		}
	})
}

// More runs than are allowed are refused.
func TestDecodeLimit(t *testing.T) {
	s := SetOf(Run{1, 2}, Run{3, 4}, Run{5, 6})
	b := s.AppendBinary(nil)
	if _, _, err := DecodeSet(b, 2); !errors.Is(err, ErrSetEncoding) {
		t.Errorf("error %v", err)
	}
	got, rest, err := DecodeSet(append(b, 1, 2), 3)
	if err != nil || !got.Equal(&s) || !slices.Equal(rest, []byte{1, 2}) {
		t.Errorf("%v, %v, %v", got, rest, err)
	}
}
