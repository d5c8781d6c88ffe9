package machine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
)

// mayBeOpen is small enough to be reached.
const mayBeOpen = 12

// world runs the machine and the model side by side.
type world struct {
	rng     *rand.Rand
	m       *model
	p       *Machine
	now     time.Time
	batches []*commitlog.Batch
	absent  map[int64]bool // batches that are not in memory, by their ends
	state   []byte         // saved state of the machine
	settled map[int64]bool // what it says
	bug     *bug
	failed  string
	trace   *strings.Builder
}

func newWorld(seed uint64, b *bug) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)), m: &model{}, now: time.Unix(1_000_000, 0),
		absent: map[int64]bool{}, settled: map[int64]bool{}, bug: b,
	}
	w.p = w.machine()
	w.state = w.p.AppendState(nil)
	return w
}

func (w *world) machine() *Machine {
	p := New(3, w.m.start, w.m.end, w)
	p.maxOpen = mayBeOpen
	return p
}

// At is the source of batches.
func (w *world) At(position int64) (*commitlog.Batch, Residence) {
	i, _ := slices.BinarySearchFunc(w.batches, position, func(b *commitlog.Batch, p int64) int {
		if b.End() <= p {
			return -1
		}
		return 1
	})
	if i == len(w.batches) {
		return nil, Beyond
	}
	if b := w.batches[i]; !w.absent[b.End()] {
		return b, Resident
	}
	return nil, Missing
}

func (w *world) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf(format, args...)
	}
}

func (w *world) log(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, format+"\n", args...)
	}
}

func (w *world) one(n int) bool { return w.rng.IntN(n) == 0 }

func pick[T any](w *world, list []T) T { return list[w.rng.IntN(len(list))] }

// kindFilter accepts messages of a kind, all if it is empty.
func kindFilter(kind string) *Filter {
	if kind == "" {
		return nil
	}
	f, err := CompileFilter(&topicv1.Filter{Clauses: []*topicv1.FilterClause{
		{Operator: topicv1.FilterClause_OPERATOR_IN, Values: []string{kind}},
	}})
	if err != nil {
		panic(err)
	}
	return f
}

func (w *world) publish() {
	for w.one(12) { // a hole, as a log of others may have
		w.m.publish(&record{void: true})
	}
	base := w.m.end
	var list []*commitlog.Message
	to := ""
	if w.one(6) {
		to = pick(w, []string{"a", "b", "c", "d"})
	}
	for range 1 + w.rng.IntN(6) {
		r := &record{to: to, key: pick(w, []string{"", "k", "l"}), kind: pick(w, []string{"x", "y", "z"})}
		w.m.publish(r)
		message := &commitlog.Message{Key: r.key, Type: r.kind, Payload: make([]byte, w.rng.IntN(30)), Ttl: w.ttl(r)}
		w.postpone(r, message)
		list = append(list, message)
	}
	b, err := commitlog.NewBatch(base, w.now, list)
	if err != nil {
		panic(err)
	}
	if to != "" {
		b.Producer = commitlog.Redriven(to, fmt.Sprint(base))
	}
	w.batches = append(w.batches, b)
	w.absent[b.End()] = w.one(3)
	w.log("publish %d to %d, for %q", base, w.m.end-1, to)
	w.p.Published(w.m.end)
}

// config makes a group of any kind; most are simple.
func (w *world) config(name string, generation int64) (Config, string) {
	c := Config{
		Name: name, Generation: generation, MaxAttempts: 1 + w.rng.IntN(3), Exhausted: Exhausted(w.rng.IntN(3)),
		InitialBackoff: time.Second, MaxBackoff: 3 * time.Second, Lease: 30 * time.Second,
		KeyOrder: w.one(3), Hash: w.one(4), HoldsPaused: !w.one(4),
	}
	kind := ""
	if w.one(4) {
		kind = "x"
	}
	c.Filter = kindFilter(kind)
	return c, kind
}

func (w *world) subscribe() {
	name := pick(w, []string{"a", "b", "c", "d"})
	i := slices.IndexFunc(w.m.groups, func(g *modelGroup) bool { return g.config.Name == name })
	generation := int64(1)
	if i >= 0 {
		generation = w.m.groups[i].config.Generation + int64(w.rng.IntN(2))
	}
	c, kind := w.config(name, generation)
	begin := Begin{Start: w.m.start - 1 + w.rng.Int64N(w.m.end-w.m.start+3), Backfill: w.one(2), Rest: w.one(4)}
	if begin.Start < 0 || w.one(3) {
		begin.Start = w.m.end
	}
	w.log("subscribe %+v %+v", c, begin)
	real, start, gap, err := w.p.Subscribe(c, begin)
	switch {
	case begin.Start > w.m.end:
		w.expect("subscribe", err, ErrOutOfRange)
		return
	case i >= 0 && w.m.groups[i].state != Cancelled:
		w.expect("subscribe", err, ErrState)
		return
	case i >= 0 && generation == w.m.groups[i].config.Generation:
		w.expect("subscribe", err, ErrGeneration)
		return
	}
	w.expect("subscribe", err, nil)
	if i >= 0 {
		w.forget(i)
	}
	g := &modelGroup{
		config: c, kind: kind, state: Active, real: real,
		fails: map[int64]fail{}, leases: map[int64]loan{}, dying: map[int64]bool{}, deadLetters: map[int64]bool{},
		suspects: map[int64]bool{}, bound: newBound(w.anyBound()),
	}
	g.start = max(begin.Start, w.m.start)
	if start != g.start || gap != (begin.Start < w.m.start) {
		w.fail("subscribe: begins at %d with gap %v, asked for %+v", start, gap, begin)
	}
	w.m.claim(g, g.start, begin.Backfill)
	if begin.Rest {
		for _, r := range w.m.records {
			if r.complete() {
				delete(r.readable, g)
			}
		}
	}
	w.m.groups = append(w.m.groups, g)
	slices.SortFunc(w.m.groups, func(a, b *modelGroup) int { return strings.Compare(a.config.Name, b.config.Name) })
	w.after("subscribe", g, nil)
	w.saveState()
	w.m.save(g) // together with the row
}

// forget removes a group.
func (w *world) forget(i int) {
	g := w.m.groups[i]
	w.m.drop(g, 1<<62)
	w.m.settle()
	for _, r := range w.m.records {
		delete(r.required, g)
		delete(r.readable, g)
		delete(r.acked, g)
		delete(r.history, g)
	}
	w.m.groups = slices.Delete(w.m.groups, i, i+1)
}

func (w *world) expect(what string, err, want error) {
	if !errors.Is(err, want) {
		w.fail("%s: error %v, should be %v", what, err, want)
	}
}

func (w *world) saveState() {
	w.state = w.p.AppendState(nil)
	w.settled = map[int64]bool{}
	for _, r := range w.m.records {
		w.settled[r.position] = r.settled
	}
}

// crash loses everything that is not saved. What a log has is saved.
func (w *world) crash() {
	w.log("crash")
	w.p = w.machine()
	if err := w.p.RestoreState(w.state); err != nil {
		w.fail("restore: %v", err)
		return
	}
	for _, r := range w.m.records {
		r.settled = w.settled[r.position]
	}
	for _, g := range w.m.groups {
		real, err := w.p.Restore(g.config, g.state, g.saved.bytes)
		if err != nil {
			w.fail("restore %s: %v", g.config.Name, err)
			return
		}
		g.real = real
		w.m.restore(g)
	}
	for _, g := range w.m.groups {
		if g.state == Dead || g.state == Cancelled {
			w.m.endAgain(g)
		}
	}
	for _, g := range w.m.groups {
		if (g.state == Active || g.state == Paused) && !g.saved.open {
			w.m.resurrect(g, mostOf(g.config.Name), ByBound)
		}
	}
	w.p.Reconcile(func(g *GroupState) int64 { return mostOf(g.config.Name) })
	for _, g := range w.m.groups {
		w.m.dieAgain(g)
	}
	watermark, _, err := decodeState(w.state, maxSettled)
	w.expect("state", err, nil)
	w.m.watermark = max(w.m.start, min(watermark, w.m.end))
}

// transition is a change of state in steps: the row, the machine, its cursor. The process
// may crash after each.
func (w *world) transition(name string, g *modelGroup, to State, legal bool, do func() error, change func()) {
	w.log("%s %s", name, g.config.Name)
	before := g.state
	if legal {
		g.state = to
		if w.one(8) {
			w.crash()
			return
		}
	}
	err := do()
	if !legal {
		w.expect(name, err, ErrState)
		g.state = before
		return
	}
	w.expect(name, err, nil)
	change()
	w.after(name, g, nil)
	if w.one(8) {
		w.crash()
		return
	}
	w.saveState()
	w.m.save(g)
}

// after lets a bug do its work.
func (w *world) after(what string, g *modelGroup, m *modelMember) {
	if w.bug != nil && w.bug.after == what {
		w.bug.do(w, g, m)
	}
}

func (w *world) before(what string, g *modelGroup, m *modelMember) {
	if w.bug != nil && w.bug.before == what {
		w.bug.do(w, g, m)
	}
}

func (w *world) changeState() {
	if len(w.m.groups) == 0 {
		return
	}
	g := pick(w, w.m.groups)
	active, live := g.state == Active, g.state == Active || g.state == Paused
	switch w.rng.IntN(9) {
	case 0:
		w.transition("pause", g, Paused, active, g.real.Pause, func() { g.loseLeases(1 << 62) })
	case 1, 2:
		w.transition("resume", g, Active, g.state == Paused, g.real.Resume, func() {})
	case 3:
		w.transition("die", g, Dead, active, g.real.Die, func() { w.m.leave(g); w.m.owe(g); g.reset() })
	case 4:
		w.transition("cancel", g, Cancelled, g.state != Cancelled, g.real.Cancel, func() {
			w.m.leave(g)
			w.m.cancel(g)
			g.reset()
		})
	case 5, 6:
		w.release(g, live)
	case 7:
		w.resurrect(g)
	case 8:
		w.log("remove %s", g.config.Name)
		err := w.p.Remove(g.real)
		if live {
			w.expect("remove", err, ErrState)
			return
		}
		w.forget(slices.Index(w.m.groups, g))
		w.after("remove", g, nil)
		w.saveState()
	}
}

func (w *world) release(g *modelGroup, live bool) {
	w.log("release %s", g.config.Name)
	n, err := g.real.Release()
	if live {
		w.expect("release", err, ErrState)
		return
	}
	if want := w.m.drop(g, 1<<62); n != want {
		w.fail("release of %s: %d, should be %d", g.config.Name, n, want)
	}
	w.after("release", g, nil)
	if w.one(4) {
		w.crash()
	}
	w.m.save(g)
}

// mostOf is how much of what it has missed a group gets after a crash between its row and its cursor.
func mostOf(name string) int64 { return map[string]int64{"a": -1, "b": -1, "c": 0, "d": 10}[name] }

func (w *world) resurrect(g *modelGroup) {
	dead, limit := g.state == Dead, pick(w, []int64{-1, -1, 0, 10})
	var n, want int64
	// The crash between row and cursor resurrects with what was missed.
	w.transition("resurrect", g, Active, dead, func() (err error) {
		n, err = g.real.Resurrect(limit, ByBound)
		return err
	}, func() {
		if want = w.m.resurrect(g, limit, ByBound); n != want {
			w.fail("resurrection of %s: %d, should be %d", g.config.Name, n, want)
		}
	})
}
