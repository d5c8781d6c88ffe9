package faulty

import (
	"math/rand/v2"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// Script gives the first calls these fates, one each, and lets the rest pass.
func Script(fates ...Fault) Policy {
	return func(c Call) Fault {
		if c.Number > len(fates) {
			return Fault{}
		}
		return fates[c.Number-1]
	}
}

// On asks a policy about the calls of some methods only, numbered among themselves,
// and lets the others pass.
func On(p Policy, methods ...Method) Policy {
	n := 0
	return func(c Call) Fault {
		for _, m := range methods {
			if c.Method == m {
				n++
				c.Number = n
				return p(c)
			}
		}
		return Fault{}
	}
}

// Rates are the probabilities of the fates of a call, and the longest delay. A rate that
// does not apply to a method counts as passing.
type Rates struct {
	Unavailable float64 // before: nothing happened
	Throttled   float64 // before: nothing happened
	Conflict    float64 // before, of writes: nothing happened
	Applied     float64 // of writes: ambiguous, and it was done
	NotApplied  float64 // of writes: ambiguous, and it was not done
	Lost        float64 // no answer; only for callers whose contexts end
	Delay       time.Duration
}

// Random draws fates from a seed.
func Random(seed uint64, r Rates) Policy {
	rng := rand.New(rand.NewPCG(seed, seed^0x9e3779b97f4a7c15))
	type fate struct {
		rate   float64
		writes bool // happens to writes only
		fault  Fault
	}
	fates := []fate{
		{r.Unavailable, false, Fault{When: Before, Err: store.ErrUnavailable}},
		{r.Throttled, false, Fault{When: Before, Err: store.ErrThrottled}},
		{r.Conflict, true, Fault{When: Before, Err: store.ErrConflict}},
		{r.Applied, true, Fault{When: After, Err: store.ErrAmbiguous}},
		{r.NotApplied, true, Fault{When: Before, Err: store.ErrAmbiguous}},
		{r.Lost, false, Fault{When: Lost}},
	}
	return func(c Call) Fault {
		// The same draws for each call, so that a fate does not shift those after it.
		at, delay, late := rng.Float64(), rng.Float64(), rng.Float64()
		var f Fault
		for _, x := range fates {
			if at < x.rate {
				if !x.writes || c.Method.Writes() {
					f = x.fault
				}
				break
			}
			at -= x.rate
		}
		f.Delay = time.Duration(delay * float64(r.Delay))
		f.Late = time.Duration(late * float64(r.Delay))
		return f
	}
}

// Full refuses writes as a store whose storage is full does: deletes, checks, and writes that
// have Frees pass.
func Full(c Call) Fault {
	for _, w := range c.Writes {
		if w.Op != store.OpDelete && w.Op != store.OpCheck && !w.Frees {
			return Fault{When: Before, Err: store.ErrFull}
		}
	}
	return Fault{}
}
