package explorer

import (
	"iter"
	"math/rand/v2"
	"slices"
)

// chooser makes all choices of a schedule. One that records keeps them step by step;
// one that repeats makes those of a record, and where the record has none, 0, which
// stands for the simplest choice everywhere.
type chooser struct {
	rnd    *rand.Rand // nil: repeat
	record bool
	tape   [][]uint32 // by step
	last   []uint32   // after all steps
	steps  int        // that were begun
	over   bool       // all steps are done
	at     int        // in the present step
}

func newChooser(seed uint64) *chooser { return &chooser{rnd: rand.New(rand.NewPCG(seed, 1))} }

func newRecorder(seed uint64) *chooser {
	c := newChooser(seed)
	c.record = true
	return c
}

// begin starts a step; false if a repeated schedule has no more.
func (c *chooser) begin() bool {
	if c.rnd == nil && c.steps >= len(c.tape) {
		return false
	}
	c.at = 0
	c.steps++
	if c.record {
		c.tape = append(c.tape, nil)
	}
	return true
}

// finish ends the last step.
func (c *chooser) finish() { c.over, c.at = true, 0 }

func (c *chooser) next() uint32 {
	if c.rnd != nil && !c.record {
		return c.rnd.Uint32()
	}
	now := &c.last
	if !c.over {
		if c.steps == 0 { // a schedule of which nothing is left
			return 0
		}
		now = &c.tape[c.steps-1]
	}
	c.at++
	if c.rnd != nil {
		*now = append(*now, c.rnd.Uint32())
	} else if c.at > len(*now) {
		return 0
	}
	return (*now)[c.at-1]
}

// pick chooses one of n.
func (c *chooser) pick(n int) int {
	if n <= 1 {
		return 0
	}
	return int(c.next() % uint32(n))
}

// chance is true in so many of 1,000 cases.
func (c *chooser) chance(perMille int) bool { return int(c.next()%1000) >= 1000-perMille }

// shrink makes a failing tape shorter and simpler for as long as it fails. It
// runs at most limit schedules.
func shrink(tape [][]uint32, limit int, fails func([][]uint32) bool) [][]uint32 {
	try := func(t [][]uint32) bool {
		if limit--; limit < 0 || !fails(t) {
			return false
		}
		tape = t
		return true
	}
	for again := true; again && limit > 0; {
		again = false
		for size := max(len(tape)/2, 1); size >= 1; size /= 2 {
			for from := 0; from+size <= len(tape); {
				if try(slices.Concat(tape[:from], tape[from+size:])) {
					again = true
				} else {
					from += size
				}
			}
		}
		for i := range tape {
			for j := len(tape[i]) - 1; j >= 0; j-- {
				for _, v := range []uint32{0, 1, tape[i][j] % 16, tape[i][j] % 1000} {
					if tape[i][j] <= v {
						continue
					}
					t := slices.Clone(tape)
					t[i] = slices.Clone(t[i])
					t[i][j] = v
					if try(t) {
						again = again || v == 0
						break
					}
				}
			}
		}
	}
	return tape
}

// task is a coroutine that runs functions one after another, each until it ends
// or pauses.
type task struct {
	resume func() (struct{}, bool)
	stop   func()
	pause  func(struct{}) bool
	run    func()
	busy   bool
}

func newTask() *task {
	t := &task{}
	t.resume, t.stop = iter.Pull(func(pause func(struct{}) bool) {
		t.pause = pause
		for pause(struct{}{}) {
			t.run()
			t.run, t.busy = nil, false
		}
	})
	t.resume() // up to where it waits for its first function
	return t
}

// tasks are coroutines that one world after another uses.
type tasks struct{ free []*task }

func (p *tasks) get() *task {
	if n := len(p.free); n > 0 {
		t := p.free[n-1]
		p.free = p.free[:n-1]
		return t
	}
	return newTask()
}

func (p *tasks) put(t *task) { p.free = append(p.free, t) }

func (p *tasks) close() {
	for _, t := range p.free {
		t.stop()
	}
	p.free = nil
}
