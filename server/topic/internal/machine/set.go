package machine

import (
	"math"
	"slices"
	"sort"
)

// NoEnd is the end of a run that has none: it holds all positions from its first one on.
// No position is that high.
const NoEnd int64 = math.MaxInt64

// Run is the positions from From up to, not including, To.
type Run struct{ From, To int64 }

// Set is a set of positions that are 0 or more. The empty value is an empty set. A Set
// is used by one goroutine at a time; copies made by assignment share what they hold,
// Clone does not.
type Set struct {
	runs []Run // sorted, not empty, neither overlapping nor touching
}

// SetOf returns the set of some runs, in any order; empty runs count for nothing.
func SetOf(runs ...Run) Set {
	var s Set
	for _, r := range runs {
		s.Add(r.From, r.To)
	}
	return s
}

// Runs returns the runs in order. They are the set's own: they hold until it changes,
// and are not written to.
func (s *Set) Runs() []Run { return s.runs }

// Len returns the number of runs.
func (s *Set) Len() int { return len(s.runs) }

// Empty reports whether no position is in the set.
func (s *Set) Empty() bool { return len(s.runs) == 0 }

// Clone returns a set of the same positions that shares nothing with s.
func (s *Set) Clone() Set { return Set{slices.Clone(s.runs)} }

// Equal reports whether the sets hold the same positions.
func (s *Set) Equal(o *Set) bool { return slices.Equal(s.runs, o.runs) }

// Clear takes all positions out.
func (s *Set) Clear() { s.runs = s.runs[:0] }

// find returns the index of the first run that ends after p: the one that holds p or,
// if none does, the next one.
func (s *Set) find(p int64) int {
	if n := len(s.runs); n == 0 || s.runs[0].To > p {
		return 0
	} else if s.runs[n-1].From <= p { // the end is where most of the work is
		if s.runs[n-1].To > p {
			return n - 1
		}
		return n
	}
	return sort.Search(len(s.runs), func(i int) bool { return s.runs[i].To > p })
}

// Contains reports whether p is in the set.
func (s *Set) Contains(p int64) bool {
	i := s.find(p)
	return i < len(s.runs) && s.runs[i].From <= p
}

// Covers reports whether all positions from from to to are in the set; of none it is
// true.
func (s *Set) Covers(from, to int64) bool {
	if from >= to {
		return true
	}
	i := s.find(from)
	return i < len(s.runs) && s.runs[i].From <= from && s.runs[i].To >= to
}

// First returns the lowest position; false if there is none.
func (s *Set) First() (int64, bool) {
	if len(s.runs) == 0 {
		return 0, false
	}
	return s.runs[0].From, true
}

// Next returns the lowest position that is p or higher; false if there is none.
func (s *Set) Next(p int64) (int64, bool) {
	i := s.find(p)
	if i == len(s.runs) {
		return 0, false
	}
	return max(p, s.runs[i].From), true
}

// NextRun returns what is left, from p on, of the first run that ends after p; false if
// there is none.
func (s *Set) NextRun(p int64) (Run, bool) {
	i := s.find(p)
	if i == len(s.runs) {
		return Run{}, false
	}
	return Run{max(p, s.runs[i].From), s.runs[i].To}, true
}

// NextAbsent returns the lowest position that is p or higher and not in the set, NoEnd if
// there is none.
func (s *Set) NextAbsent(p int64) int64 {
	i := s.find(p)
	if i == len(s.runs) || s.runs[i].From > p {
		return p
	}
	return s.runs[i].To
}

// NextWithout returns the lowest position that is p or higher, in the set and not in another
// one, NoEnd if there is none.
func (s *Set) NextWithout(other *Set, p int64) int64 {
	for {
		r, ok := s.NextRun(p)
		if !ok {
			return NoEnd
		}
		if p = other.NextAbsent(r.From); p < r.To {
			return p
		}
	}
}

// Count returns how many positions from from to to are in the set.
func (s *Set) Count(from, to int64) int64 {
	var n int64
	for i := s.find(from); i < len(s.runs) && s.runs[i].From < to; i++ {
		n += min(to, s.runs[i].To) - max(from, s.runs[i].From)
	}
	return n
}

// Nth returns the position that n others of the set lie before, NoEnd if there are no
// more.
func (s *Set) Nth(n int64) int64 {
	for _, r := range s.runs {
		if n < r.To-r.From {
			return r.From + n
		}
		n -= r.To - r.From
	}
	return NoEnd
}

// Add puts in the positions from from to to. NoEnd as to leaves no end.
func (s *Set) Add(from, to int64) {
	if from >= to {
		return
	}
	i := s.find(from - 1) // a run that ends at from is one with it
	if i == len(s.runs) {
		s.runs = append(s.runs, Run{from, to})
		return
	}
	j := i
	for ; j < len(s.runs) && s.runs[j].From <= to; j++ {
		from, to = min(from, s.runs[j].From), max(to, s.runs[j].To)
	}
	if i == j {
		s.runs = slices.Insert(s.runs, i, Run{from, to})
		return
	}
	s.runs[i] = Run{from, to}
	s.runs = slices.Delete(s.runs, i+1, j)
}

// Remove takes out the positions from from to to.
func (s *Set) Remove(from, to int64) {
	if from >= to {
		return
	}
	i := s.find(from)
	if i == len(s.runs) || s.runs[i].From >= to {
		return
	}
	if r := s.runs[i]; r.From < from {
		s.runs[i].To = from
		i++
		if r.To > to {
			s.runs = slices.Insert(s.runs, i, Run{to, r.To})
			return
		}
	}
	j := i
	for j < len(s.runs) && s.runs[j].To <= to {
		j++
	}
	if j < len(s.runs) && s.runs[j].From < to {
		s.runs[j].From = to
	}
	if i == 0 { // the front is where things end
		s.runs = s.runs[j:]
	} else if i < j {
		s.runs = slices.Delete(s.runs, i, j)
	}
}

// Union puts in what is in o.
func (s *Set) Union(o *Set) {
	if len(o.runs) == 0 {
		return
	}
	out := make([]Run, 0, len(s.runs)+len(o.runs))
	a, b := s.runs, o.runs
	for len(a) > 0 || len(b) > 0 {
		var r Run
		if len(b) == 0 || (len(a) > 0 && a[0].From <= b[0].From) {
			r, a = a[0], a[1:]
		} else {
			r, b = b[0], b[1:]
		}
		if n := len(out); n > 0 && r.From <= out[n-1].To {
			out[n-1].To = max(out[n-1].To, r.To)
		} else {
			out = append(out, r)
		}
	}
	s.runs = out
}

// Subtract takes out what is in o.
func (s *Set) Subtract(o *Set) {
	if len(s.runs) == 0 || len(o.runs) == 0 {
		return
	}
	out := make([]Run, 0, len(s.runs)+len(o.runs))
	i := 0
	for _, r := range s.runs {
		for i < len(o.runs) && o.runs[i].To <= r.From {
			i++
		}
		for j := i; j < len(o.runs) && o.runs[j].From < r.To && r.From < r.To; j++ {
			if r.From < o.runs[j].From {
				out = append(out, Run{r.From, o.runs[j].From})
			}
			r.From = o.runs[j].To
		}
		if r.From < r.To {
			out = append(out, r)
		}
	}
	s.runs = out
}

// Intersect keeps what is in o, too.
func (s *Set) Intersect(o *Set) {
	out := make([]Run, 0, len(s.runs)+len(o.runs))
	a, b := s.runs, o.runs
	for len(a) > 0 && len(b) > 0 {
		if from, to := max(a[0].From, b[0].From), min(a[0].To, b[0].To); from < to {
			out = append(out, Run{from, to})
		}
		if a[0].To <= b[0].To {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	s.runs = out
}
