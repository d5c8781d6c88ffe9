package machine

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

const (
	usual  = 80    // schedules of a plain go test
	length = 250   // operations of a schedule
	within = 1_000 // schedules must be enough to find a bug
)

// run runs one schedule and returns what failed.
func run(seed uint64, b *bug, trace *strings.Builder) string {
	w := newWorld(seed, b)
	w.trace = trace
	for range length {
		w.step()
		if w.failed == "" {
			w.failed = w.m.compare(w.p)
		}
		if w.failed == "" {
			w.compareBound()
		}
		if w.failed == "" {
			w.lost()
		}
		if w.failed == "" {
			w.wakes()
		}
		if w.failed != "" {
			break
		}
	}
	return w.failed
}

// step does something.
func (w *world) step() {
	switch n := w.rng.IntN(100); {
	case n < 12:
		w.publish()
	case n < 16:
		w.subscribe()
	case n < 22:
		for range 1 + w.rng.IntN(4) {
			w.attach()
		}
	case n < 24:
		if w.detach(); w.one(2) {
			w.elsewhere()
		}
	case n < 52:
		w.next()
	case n < 73:
		w.settle()
	case n < 75:
		w.expire()
	case n < 76:
		w.lapse()
	case n < 78:
		w.backfill()
	case n < 83:
		w.changeState()
	case n < 85:
		w.move()
	case n < 86:
		w.letGo()
	case n < 89:
		w.trim()
	case n < 92:
		w.deadLetters()
	case n < 94:
		w.unpark()
	case n < 96:
		if m := w.member(); m != nil {
			m.real.budget.Add(int64(w.rng.IntN(20)), int64(w.rng.IntN(2000)))
		}
	case n < 97:
		w.configure()
	case n < 99:
		w.save()
	default:
		w.crash()
	}
}

func (w *world) save() {
	if g := w.group(); g != nil {
		w.log("save %s", g.config.Name)
		w.m.save(g)
		w.after("save", g, nil)
	}
	if w.one(2) {
		w.saveState()
	}
}

func (w *world) configure() {
	g := w.group()
	if g == nil {
		return
	}
	g.config, g.kind = w.config(g.config.Name, g.config.Generation)
	w.log("configure %+v", g.config)
	g.real.Configure(g.config)
	g.loseLeases(1 << 62)
	clear(g.dying)
	clear(g.deadLetters)
	g.bound.limit = w.anyBound()
	g.bound.real.Set(int64(g.bound.limit))
}

// move seeks or skips.
func (w *world) move() {
	g := w.group()
	if g == nil {
		return
	}
	to := g.p0(w)
	live := g.state == Active || g.state == Paused
	if w.one(3) {
		w.log("skip %s to %d", g.config.Name, to)
		n, want := g.real.Skip(to, ByZombie), int64(0)
		if live {
			want = w.m.lose(g, to, ByZombie)
			w.m.drop(g, to)
			g.loseLeases(to)
			for p := range g.fails {
				if p < to {
					delete(g.fails, p)
					delete(g.dying, p)
					delete(g.deadLetters, p)
				}
			}
			for p := range g.suspects {
				if p < to {
					delete(g.suspects, p)
				}
			}
		}
		if n != want {
			w.fail("skip: %d, should be %d", n, want)
		}
		if live {
			w.after("skip", g, nil)
		}
		w.m.save(g)
		return
	}
	w.log("seek %s to %d", g.config.Name, to)
	var skipped, again int64
	for _, r := range w.m.records {
		if r.position < to && r.reads(g) && !r.acked[g] {
			skipped++
		}
		if r.position >= to && (r.acked[g] || !r.reads(g)) {
			again++
		}
	}
	move, err := g.real.SeekTo(to)
	switch {
	case !live:
		w.expect("seek", err, ErrState)
		return
	case to > w.m.end:
		w.expect("seek", err, ErrOutOfRange)
		return
	}
	w.expect("seek", err, nil)
	if move.Skipped != skipped || move.Redelivered != again || move.Gap != (to < w.m.start) {
		w.fail("seek: %+v, should be %d skipped, %d again", move, skipped, again)
	}
	w.m.settle()
	w.m.leave(g)
	g.reset()
	w.m.lose(g, to, BySeek)
	w.m.drop(g, to)
	for _, r := range w.m.records {
		if r.position >= to {
			if r.acked[g] {
				delete(r.required, g)
				delete(r.owed, g)
				delete(r.ever, g)
			}
			delete(r.acked, g)
		}
	}
	g.start = max(to, w.m.start)
	g.moves++
	w.m.claim(g, g.start, true)
	w.after("seek", g, nil)
	if w.one(4) {
		w.crash()
		return
	}
	w.saveState()
	w.m.save(g)
}

func (w *world) trim() {
	span := w.m.end - w.m.start + 1
	c := Cutoffs{
		Complete: w.m.start + w.rng.Int64N(span), Unrequired: w.m.start + w.rng.Int64N(span),
	}
	if w.one(6) {
		c.Forced = w.m.start + w.rng.Int64N(span)
	}
	w.before("trim", nil, nil)
	limit := w.p.TrimLimit(c)
	if w.bug != nil && w.bug.limit != nil {
		limit = w.bug.limit(w, c, limit)
	}
	w.log("trim %+v: %d", c, limit)
	if want := w.m.trimLimit(c, false); limit != want {
		w.fail("the log may be trimmed to %d, should be %d, of %+v", limit, want, c)
		return
	}
	if got, want := w.p.TrimLimitOfLiving(c), w.m.trimLimit(c, true); got != want {
		w.fail("without the dead it may be trimmed to %d, should be %d, of %+v", got, want, c)
	}
	w.m.trim(limit)
	w.p.Trimmed(limit)
}

func (w *world) deadLetters() {
	g := w.group()
	if g == nil {
		return
	}
	for _, l := range g.real.TakeUndeliverable(nil) {
		if !g.deadLetters[l.Position] || l.Attempts < g.config.MaxAttempts || l.Moves != g.moves {
			w.fail("%s: a letter of %d, %d attempts after %d moves", g.config.Name, l.Position, l.Attempts, l.Moves)
		}
		delete(g.deadLetters, l.Position)
	}
	if len(g.deadLetters) > 0 {
		w.fail("%s: letters are missing: %v", g.config.Name, g.deadLetters)
	}
	for p := range g.dying {
		if w.rng.IntN(2) == 0 {
			continue
		}
		w.log("buried %d of %s", p, g.config.Name)
		g.real.MarkDeadLettered(p)
		delete(g.dying, p)
		w.m.acknowledge(g, p)
	}
	w.after("letters", g, nil)
}

func (w *world) unpark() {
	g := w.group()
	if g == nil {
		return
	}
	for _, p := range g.real.Parked(nil) {
		if g.fails[p.Position].attempts < g.config.MaxAttempts || g.config.Exhausted != ParkKey {
			w.fail("%s: %d is parked after %d attempts", g.config.Name, p.Position, g.fails[p.Position].attempts)
		}
	}
	if w.one(2) {
		w.unparkOne(g)
		return
	}
	keys, n := [][]string{nil, {"k"}, {"l", ""}}[w.rng.IntN(3)], 0
	for p, f := range g.fails {
		if f.attempts >= g.config.MaxAttempts && g.config.Exhausted == ParkKey &&
			(keys == nil || slices.Contains(keys, w.m.at(p).key)) {
			delete(g.fails, p)
			n++
		}
	}
	w.log("unpark %q of %s", keys, g.config.Name)
	got := 0
	for from := int64(0); from >= 0; {
		some, missing := g.real.Unpark(from, keys...)
		got += some
		for _, b := range w.batches { // what was read replaces others in memory
			w.absent[b.End()] = missing >= 0 && (b.Base > missing || missing >= b.End())
		}
		from = missing
	}
	if got != n {
		w.fail("%s: %d unparked, should be %d", g.config.Name, got, n)
	}
}

// unparkOne delivers one parked message again, or discards it.
func (w *world) unparkOne(g *modelGroup) {
	var want []Parked
	for p, f := range g.fails {
		if f.attempts >= g.config.MaxAttempts && g.config.Exhausted == ParkKey {
			want = append(want, Parked{Position: p, Attempts: f.attempts})
		}
	}
	slices.SortFunc(want, func(a, b Parked) int { return int(a.Position - b.Position) })
	if got := g.real.Stopped(nil); !slices.Equal(got, want) {
		w.fail("%s: %v are parked, should be %v", g.config.Name, got, want)
	}
	at := w.m.start + w.rng.Int64N(w.m.end-w.m.start+1)
	if len(want) > 0 && !w.one(4) {
		at = pick(w, want).Position
	}
	is := slices.ContainsFunc(want, func(p Parked) bool { return p.Position == at })
	if w.one(2) {
		w.log("unpark %d of %s", at, g.config.Name)
		if g.real.UnparkAt(at) != is {
			w.fail("%s: %d was parked: %v", g.config.Name, at, is)
		}
		if is {
			delete(g.fails, at)
		}
		return
	}
	w.log("discard %d of %s", at, g.config.Name)
	if g.real.DiscardAt(at) != is {
		w.fail("%s: %d was parked: %v", g.config.Name, at, is)
	}
	if is {
		w.m.acknowledge(g, at)
		w.after("discard parked", g, nil)
	}
}

// lost checks what is reported to members as lost.
func (w *world) lost() {
	for _, l := range w.p.TakeLost(nil) {
		for _, g := range w.m.groups {
			for _, m := range g.members {
				for p := l.From; m.real == l.Member && p < l.To; p++ {
					if !m.lost[p] && p >= w.m.start {
						w.fail("%s is reported to have lost %d", m.name, p)
					}
				}
			}
		}
	}
}

func explain(seed uint64, b *bug) string {
	var steps strings.Builder
	failed := run(seed, b, &steps)
	return fmt.Sprintf("seed %d: %s\n%s\nPARLEY_EXPLORE_SEED=%d go test ./server/topic/internal/machine -run TestModel",
		seed, failed, &steps, seed)
}

// The machine does what sets of groups for each message do. PARLEY_TOPIC_OPERATIONS is the number of operations or the
// time for them.
func TestModel(t *testing.T) {
	first := testkit.Seed(t, 1)
	rounds := testkit.NewBudget(t, "PARLEY_TOPIC_OPERATIONS", usual, length).Rounds()
	var failing atomic.Pointer[uint64]
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for n := range rounds {
				if seed := first + uint64(n); run(seed, nil, nil) != "" {
					failing.Store(&seed)
				}
				if failing.Load() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if seed := failing.Load(); seed != nil {
		t.Fatal(explain(*seed, nil))
	}
}
