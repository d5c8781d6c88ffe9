package machine

import (
	"math/rand/v2"
	"testing"
)

// The table has what single positions have, whatever is put in and cut out; sizes are
// neither lost nor made.
func TestLeasesAgainstSinglePositions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		var l leaseTable[int]
		owner := map[int64]int{}
		var size, want int64
		for range 100 {
			p := rng.Int64N(60)
			switch rng.IntN(4) {
			case 0, 1:
				to := p
				for ; to < p+rng.Int64N(6) && owner[to] == 0; to++ {
				}
				if to == p {
					continue
				}
				o := 1 + rng.IntN(3)
				for q := p; q < to; q++ {
					owner[q] = o
				}
				l.Insert(lease[int]{From: p, To: to, Deadline: rng.Int64N(2), Size: 10 * (to - p), Owner: o})
				want += 10 * (to - p)
			case 2:
				i := l.Find(p)
				if !l.Has(p) {
					continue
				}
				to := min(p+1+rng.Int64N(3), l.All()[i].To)
				size += l.Cut(i, p, to)
				for q := p; q < to; q++ {
					delete(owner, q)
				}
			case 3:
				if rng.IntN(5) > 0 {
					continue
				}
				for _, e := range l.Take(nil, func(e *lease[int]) bool { return e.Owner == 2 }) {
					size += e.Size
					for q := e.From; q < e.To; q++ {
						delete(owner, q)
					}
				}
			}
			compare(t, &l, owner)
		}
		for _, e := range l.Take(nil, func(*lease[int]) bool { return true }) {
			size += e.Size
		}
		if size != want || len(l.All()) != 0 {
			t.Fatalf("size %d, should be %d", size, want)
		}
	}
}

func compare(t *testing.T, l *leaseTable[int], owner map[int64]int) {
	t.Helper()
	n := 0
	for i, e := range l.All() {
		if e.From >= e.To || (i > 0 && l.All()[i-1].To > e.From) {
			t.Fatalf("leases %v", l.All())
		}
		for p := e.From; p < e.To; p++ {
			n++
			if owner[p] != e.Owner || !l.Has(p) || l.Find(p) != i {
				t.Fatalf("%d of %v is %d's", p, l.All(), owner[p])
			}
		}
	}
	if n != len(owner) || l.Has(100) {
		t.Fatalf("%v, should be %v", l.All(), owner)
	}
}

// Neighbours that end together are one; what passes through takes no memory.
func TestNeighboursAreOne(t *testing.T) {
	var l leaseTable[string]
	l.Insert(lease[string]{From: 0, To: 2, Deadline: 5, Owner: "a"})
	l.Insert(lease[string]{From: 2, To: 4, Deadline: 5, Owner: "a"})
	l.Insert(lease[string]{From: 4, To: 6, Deadline: 6, Owner: "a"})
	l.Insert(lease[string]{From: 6, To: 8, Deadline: 6, Owner: "b"})
	if n := len(l.All()); n != 3 {
		t.Errorf("%d leases", n)
	}
	next := int64(8)
	for range 100 {
		l.Insert(lease[string]{From: next, To: next + 1, Owner: "c", Deadline: next})
		next++
	}
	if n := testing.AllocsPerRun(1000, func() {
		l.Cut(0, l.All()[0].From, l.All()[0].To)
		l.Insert(lease[string]{From: next, To: next + 1, Owner: "c", Deadline: next})
		next++
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
