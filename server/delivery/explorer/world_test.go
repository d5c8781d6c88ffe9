package explorer

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// maxSettle bounds the steps that a world may take to come to rest.
const maxSettle = 20_000

// world is one schedule under way.
type world struct {
	ctx    context.Context
	choose *chooser
	pool   *tasks
	bug    *bug
	trace  []string // nil: no trace
	failed string   // the first thing that was wrong
	kind   string   // of what was wrong

	now        time.Time
	store      *storetest.Memory
	spine      *spine // nil: a network that brings everything in the end
	generation string
	calm       bool // no more trouble
	over       bool // every task ends at its next stop

	// The schedule's own way of being hard, in 1/1,000.
	lossy, faulty, acting int
	tardy                 int
	chunk                 int
	maxReplay             int
	maxFrames, maxRecent  int

	users     []string
	crowd     []string // in large worlds, who is in every group besides
	processes []*process
	phones    []*phone
	conns     []*conn
	items     []item // what may happen next
	labels    map[string]uint64
	current   *running
	tasks     []*running
	made      int
	acts      []func(*world)
	creations int // of chats, begun
	ids       int

	logs    map[string]*chatLog
	chatIDs []string
	commits []commit
	moment  int               // number of commits
	synced  int               // how many of them are on stable storage, and may be shown
	replica *storetest.Memory // what reads answer that need not be consistent; nil: nobody asks
}

// item is something that may happen. It happens again later if run returns true.
type item struct {
	label string
	id    uint64
	run   func() (again bool)
}

// running is a task at work in a process.
type running struct {
	co      *task
	p       *process
	label   string
	busy    string   // chat whose queue the task is in
	created []string // chats that the task created
	rows    map[store.Key]store.Item
	owes    []string  // users whose rows it wrote without telling the hubs
	until   time.Time // with a plan made: when the wait is over at the latest
}

func (w *world) tracef(format string, args ...any) {
	if w.trace != nil {
		w.trace = append(w.trace, fmt.Sprintf("%3d %9s  ", w.choose.steps, w.now.Sub(epoch))+fmt.Sprintf(format, args...))
	}
}

func (w *world) failf(format string, args ...any) {
	if w.failed == "" && !w.over {
		w.failed, w.kind = fmt.Sprintf(format, args...), format
		if w.trace != nil {
			w.tracef("FAILED: %s", w.failed)
		}
	}
}

// trouble is true now and then, until the world is calm.
func (w *world) trouble(perMille int) bool {
	return !w.calm && perMille > 0 && w.choose.chance(perMille)
}

// later has something happen at any time from now on.
func (w *world) later(label string, run func() bool) {
	w.labels[label]++
	id := uint64(14695981039346656037)
	for i := range len(label) {
		id = (id ^ uint64(label[i])) * 1099511628211
	}
	w.items = append(w.items, item{label, id + w.labels[label]*0x9e3779b97f4a7c15, run})
}

// happen lets one of the waiting things happen. A choice names it by what it is
// and not by its place in line, so that a step that is left out when a schedule is
// shrunk does not turn all later choices into others; 0 is the oldest.
func (w *world) happen() {
	i, v := 0, uint64(w.choose.next())
	if v > 0 {
		least := ^uint64(0)
		for j := range w.items {
			if h := (w.items[j].id ^ v) * 0xff51afd7ed558ccd; h < least {
				i, least = j, h
			}
		}
	}
	it := w.items[i]
	w.items = append(w.items[:i], w.items[i+1:]...)
	if it.run() {
		w.items = append(w.items, it)
	}
}

// everyChat stands for the queue of some chat that is not known yet.
const everyChat = "*"

// spawn starts a task in a process. A task that needs the queue of a chat waits
// until it is free: it would stop the world if it waited inside.
func (w *world) spawn(p *process, label, busy string, run func(ctx context.Context)) {
	w.later(label, func() bool {
		if busy != "" && (p.busy[busy] || p.busy[everyChat] || (busy == everyChat && len(p.busy) > 0)) {
			return true
		}
		t := &running{co: w.pool.get(), p: p, label: label, busy: busy}
		if busy != "" {
			p.busy[busy] = true
		}
		t.co.run, t.co.busy = func() { run(w.ctx) }, true
		w.tasks = append(w.tasks, t)
		if w.resume(t) {
			w.later(label, func() bool { return w.resume(t) })
		}
		return false
	})
}

// resume lets a task continue to its next stop; false if it is done.
func (w *world) resume(t *running) (more bool) {
	if !t.co.busy {
		return false
	}
	w.current = t
	t.co.resume()
	w.current = nil
	if t.co.busy {
		return true
	}
	if t.busy != "" {
		delete(t.p.busy, t.busy)
	}
	for _, id := range t.created {
		delete(t.p.busy, id)
	}
	if t.label != "work" { // watermarks are reported to nobody
		w.cutUsers(t.owes)
	}
	w.pool.put(t.co)
	w.tasks = slices.DeleteFunc(w.tasks, func(o *running) bool { return o == t })
	return false
}

// stopAll ends all tasks.
func (w *world) stopAll() {
	w.over = true
	for len(w.tasks) > 0 {
		w.resume(w.tasks[0])
	}
}

// anyServing returns a process that takes streams, nil if there is none.
func (w *world) anyServing() *process {
	p := w.anyProcess()
	if p != nil && p.draining {
		for _, q := range w.processes {
			if !q.draining {
				return q
			}
		}
	}
	return p
}

// anyProcess returns a process that takes calls, nil if there is none.
func (w *world) anyProcess() *process {
	if len(w.processes) == 0 {
		return nil
	}
	return w.processes[w.choose.pick(len(w.processes))]
}

var (
	epoch    = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	allUsers = []string{"ann", "bob", "cyd", "dan"}
)

// newWorld makes the processes, users and first chats of a schedule.
func newWorld(c *chooser, pool *tasks, b *bug, trace bool) *world {
	w := &world{ctx: context.Background(), choose: c, pool: pool, bug: b, now: epoch, logs: map[string]*chatLog{},
		labels: map[string]uint64{}, generation: "g1"}
	if trace {
		w.trace = []string{}
	}
	w.choose.begin()
	w.store = storetest.NewMemory(func() time.Time { return w.now })
	w.lossy = []int{100, 0, 300}[w.choose.pick(3)]
	w.faulty = []int{0, 0, 30}[w.choose.pick(3)]
	w.tardy = []int{0, 100, 400}[w.choose.pick(3)]
	w.acting = []int{80, 40, 160}[w.choose.pick(3)]
	w.enlarge(1 + w.choose.pick(3))
	if durable := w.choose.chance(500); b.spine || (durable && b.name == "") {
		w.spine = newSpine(w)
	}
	w.acts = some(w.choose, acts, 700)
	w.lean()
	if b.tune != nil {
		b.tune(w.spine)
	}
	w.maxReplay = []int{500, 2}[w.choose.pick(2)]
	w.maxFrames = []int{2048, 2048, 12}[w.choose.pick(3)]
	w.maxRecent = []int{32, 2}[w.choose.pick(2)]
	for range 1 + w.choose.pick(3) {
		w.newProcess()
	}
	if s := w.spine; s != nil {
		s.newFanout()
		s.newFanout()
		s.newRelay()
	}
	w.users = allUsers[:2+w.choose.pick(3)]
	first := w.processes[0]
	for _, u := range slices.Concat(w.users, w.crowd) {
		if err := first.chats.EnsureUser(w.ctx, u); err != nil {
			w.failf("user: %v", err)
		}
	}
	for n := 1 + w.choose.pick(2); n > 0; n-- {
		w.creations++
		if b.direct || w.choose.chance(250) {
			_, err := first.chats.CreateDirect(w.ctx,
				chat.CreateDirect{Caller: w.users[0], Other: w.users[1], History: w.history()})
			w.must(err)
			continue
		}
		_, err := first.chats.CreateGroup(w.ctx, chat.CreateGroup{
			Caller: w.users[0], Name: "g", Members: w.firstMembers(), History: w.history(),
		})
		w.must(err)
	}
	for _, id := range w.chatIDs {
		for n := w.choose.pick(7); n > 2; n-- {
			_, err := first.chats.Send(w.ctx,
				chat.Send{Caller: w.users[0], ChatID: id, Content: "before", ContentType: 1, ClientMessageID: fmt.Sprint("b", n)})
			w.must(err)
		}
	}
	for _, p := range w.processes {
		p.repaired = len(w.commits)
	}
	w.synced = w.moment
	if b.weak != nil || seenWeak.Load() {
		w.replica = w.store.Clone()
	}
	w.items = nil
	for i, u := range w.users {
		if i < 2 || w.choose.chance(700) {
			w.newPhone(u, 1)
		}
		if w.choose.chance(300) {
			w.newPhone(u, 2)
		}
	}
	w.crowdPhones()
	for _, d := range w.phones {
		for _, id := range w.chatIDs {
			if w.choose.chance(700) {
				d.m.Open(id)
			}
		}
		d.drain()
	}
	return w
}

func (w *world) must(err error) {
	if err != nil {
		w.failf("beginning: %v", err)
	}
}

func (w *world) history() table.History {
	if w.choose.chance(400) {
		return table.SinceJoined
	}
	return table.All
}

// step lets one thing happen.
func (w *world) step() {
	w.now = w.now.Add(w.pace())
	if w.choose.chance(w.acting) {
		if w.spine != nil && w.choose.chance(w.spine.share) {
			w.spine.act()
			return
		}
		w.act()
		return
	}
	if w.spine != nil && w.choose.chance(200) {
		w.spine.step()
		return
	}
	if len(w.items) > 0 && !w.choose.chance(350) {
		w.happen()
		return
	}
	n := w.choose.pick(len(w.conns) + len(w.phones) + 2*len(w.processes))
	if n < len(w.conns) {
		w.conns[n].pump()
		return
	}
	n -= len(w.conns)
	if n < len(w.phones) {
		w.phones[n].drain()
		return
	}
	n -= len(w.phones)
	if p := w.processes[n/2]; n%2 == 0 {
		p.work()
	} else {
		p.repair()
	}
}

// settle stops all trouble and waits until nothing moves.
func (w *world) settle() {
	w.choose.finish()
	w.tracef("no more trouble")
	w.calm = true
	if len(w.processes) == 0 {
		w.newProcess()
	}
	for _, d := range w.phones {
		if d.m == nil {
			d.start()
		}
	}
	heartbeatAt := w.now
	for range maxSettle {
		if w.failed != "" {
			return
		}
		if len(w.items) > 0 {
			w.now = w.now.Add(time.Millisecond)
			w.happen()
			continue
		}
		if w.poll() || w.reconcile() {
			continue
		}
		if s := w.spine; s != nil && s.rounds < 5 { // so that silence is noticed
			s.rounds++
			s.round()
			continue
		}
		next, ok := w.nextTime()
		if !ok {
			return
		}
		w.now = next
		if w.now.Sub(heartbeatAt) >= 15*time.Second {
			heartbeatAt = w.now
			w.heartbeats()
		}
	}
	w.failf("the world does not come to rest: %d items, the first is %q", len(w.items), append(w.items, item{})[0].label)
}

// poll gives everybody who may have something to do a turn.
func (w *world) poll() (did bool) {
	for _, c := range slices.Clone(w.conns) {
		did = c.pump() || did
	}
	for _, d := range w.phones {
		did = d.drain() || did
	}
	for _, p := range w.processes {
		did = p.work() || did
		did = p.repair() || did
	}
	if w.spine != nil {
		did = w.spine.settle() || did
	}
	return did
}

func (w *world) heartbeats() {
	for _, c := range w.conns {
		if c.opened {
			c.s.Heartbeat()
		}
	}
}

// nextTime is when somebody will want something, unless that is far away.
func (w *world) nextTime() (next time.Time, ok bool) {
	within := func(t time.Time, limit time.Duration) {
		if t.Sub(w.now) <= limit && (!ok || t.Before(next)) {
			next, ok = t, true
		}
	}
	add := func(t time.Time) { within(t, 35*time.Second) }
	for _, p := range w.processes {
		if _, wait, _ := p.hub.Work(w.now.Add(p.skew)); wait > 0 {
			// A clock that was set back by up to 40 s puts off what is due. (The real
			// hub measures its waits by the monotonic clock.)
			within(w.now.Add(wait), 75*time.Second)
		}
	}
	if w.spine != nil && w.spine.rows > 0 {
		add(w.now.Add(700 * time.Millisecond))
	}
	for _, d := range w.phones {
		if at, ok := d.m.Deadline(); ok && d.idle < enoughPolls {
			if !at.After(w.now) {
				at = w.now.Add(time.Millisecond)
			}
			add(at)
		}
	}
	return next, ok
}

// result is what became of a schedule.
type result struct {
	failed string
	kind   string
	tape   [][]uint32
	last   []uint32
	trace  []string
	steps  int
	hash   uint64
}

// explore runs one schedule of at most so many steps.
func explore(c *chooser, pool *tasks, b *bug, steps int, trace bool) (r result) {
	w := newWorld(c, pool, b, trace)
	defer func() {
		if p := recover(); p != nil {
			w.failf("panic: %v\n%s", p, debug.Stack())
		}
		func() {
			defer func() { _ = recover() }() // of a task that was told to end
			w.stopAll()
		}()
		r = result{failed: w.failed, kind: w.kind, tape: c.tape, last: c.last, trace: w.trace, steps: c.steps, hash: w.sum()}
	}()
	for n := 0; n < steps && w.failed == "" && c.begin(); n++ {
		w.step()
	}
	if w.failed == "" {
		w.settle()
	}
	if w.failed == "" {
		w.compare()
	}
	return r
}

// sum is a number by which two runs of the same schedule can be compared.
func (w *world) sum() uint64 {
	h := uint64(14695981039346656037)
	for _, c := range w.commits {
		h = (h ^ uint64(c.version)) * 1099511628211
		h = (h ^ uint64(c.chat[len(c.chat)-1])) * 1099511628211
	}
	return (h ^ uint64(w.ids)) * 1099511628211
}
