package explorer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// scale is how large a world is.
type scale struct {
	people int
	size   int64 // of a group
	chunk  int   // members that a plan adds
}

// In small worlds groups are often full; in large ones they are so large that a creation
// takes many plans.
var (
	small = scale{people: 6, size: groupSize, chunk: 1}
	large = scale{people: maxPeople, size: 300}
)

const (
	maxPeople = 330
	groupSize = 4
	processes = 3
	maxSteps  = 2000

	epoch = int64(1_767_225_600_000) // unix ms
)

// names are those of all people: a to f, then u6 and so on.
var names = func() (names [maxPeople]string) {
	for i := range names {
		if names[i] = string(rune('a' + i)); i > 5 {
			names[i] = fmt.Sprint("u", i)
		}
	}
	return names
}()

// world is one schedule.
type world struct {
	scale
	rng    *rand.Rand
	store  *storetest.Memory
	now    int64 // unix ms
	ids    int
	fixed  []string // ids of the next chats
	procs  [processes]*process
	old    store.Store // as it was when the schedule began: what weak reads may show
	ops    []*op
	queue  []*op // to be taken by a process
	late   []flight
	faults int // that may still happen
	// crowded schedules have more faults, and all ops in one chat: they find what
	// needs several chances at once.
	crowded bool
	// slow schedules have clocks that differ and jump, calls that take too long, and a
	// store that puts requests off.
	slow   bool
	issued int // commits that can be seen
	synced int // of these, from the first on, those that are on disk
	bug    *bug
	rooms  []*room
	pairs  map[string]string  // of direct chats: pair → chat
	blocks map[[2]string]bool // who blocks whom
	// when a block ended last
	unblocked int64
	failed    string
	trace     *strings.Builder
}

// flight is a plan that is under way, and may arrive any time.
type flight struct {
	op   *op
	p    store.Plan
	sent int64
}

// process runs one op at a time, in a coroutine that lives on from world to world.
type process struct {
	w      *world
	n      int
	svc    *chat.Service
	people *people.Service
	op     *op
	next   func() (call, bool)
	stop   func()
	yield  func(call) bool
	call   call // that waits
	fate   fate
	dead   bool
	alone  bool // calls do not wait for the scheduler
	times
	plans int // that it may still commit; 0: any number, -1: none
}

// newProcess makes a process that belongs to no world yet.
func newProcess(n int) *process {
	p := &process{n: n}
	p.next, p.stop = iter.Pull(func(yield func(call) bool) {
		p.yield = yield
		for {
			err := p.op.run(p)
			if !p.dead {
				p.promise(err)
				p.w.answer(p.op, err)
			}
			if !yield(call{done: true}) {
				return
			}
		}
	})
	return p
}

type call struct {
	done     bool // no call: the op is
	transact bool
	plan     store.Plan
	what     store.Table
}

type fate uint8

const (
	pass      fate = iota
	refused        // an error that promises that nothing was written
	lostReply      // it is written, the reply is lost
	underWay       // it may arrive later, the reply is lost
	tooLate        // the call's time is over: not written, which nobody knows
)

func (w *world) clock() time.Time { return time.UnixMilli(w.now) }

func (w *world) newID(prefix string) string {
	if prefix == "chat_" && len(w.fixed) > 0 {
		id := w.fixed[0]
		w.fixed = w.fixed[1:]
		return id
	}
	w.ids++
	return prefix + strconv.Itoa(w.ids)
}

func (w *world) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf(format, args...)
		w.say("FAILED: %s", w.failed)
	}
}

func (w *world) say(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, format+"\n", args...)
	}
}

// boot gives a process a new service, without memory.
func (p *process) boot() {
	w := p.w
	alone := p.alone
	p.alone, p.fate = true, pass
	sleep := func(ctx context.Context, d time.Duration) error { w.now += max(5, d.Milliseconds()); return ctx.Err() }
	svc, err := chat.New(context.Background(), chat.Config{
		Store: p, Clock: p.clock, Generation: "g", Producer: names[p.n], NewID: w.newID, Members: int(w.size), Chunk: w.chunk,
		Heads: 64,
		Sleep: sleep,
	})
	if err != nil {
		w.fail("boot: %v", err)
	}
	p.svc, p.alone = svc, alone
	p.people = people.New(people.Config{Store: p, Clock: p.clock, NewID: w.newID, Sleep: sleep})
}

// run takes steps until nothing is left to do.
func (w *world) run() {
	for step := 0; w.failed == ""; step++ {
		w.now++
		if w.slow && w.rng.IntN(8) == 0 {
			w.pause()
		}
		if step == maxSteps {
			w.fail("no end after %d steps", step)
			return
		}
		var ready [processes]*process
		n := 0
		for _, p := range w.procs {
			if p.op != nil || len(w.queue) > 0 {
				ready[n] = p
				n++
			}
		}
		if n == 0 {
			break
		}
		if len(w.late) > 0 && w.rng.IntN(6) == 0 {
			w.arrive()
		}
		ready[w.rng.IntN(n)].step()
	}
	for len(w.late) > 0 && w.failed == "" {
		w.arrive()
	}
}

// arrive lets a plan that was under way arrive, or be lost.
func (w *world) arrive() {
	i := w.rng.IntN(len(w.late))
	l := w.late[i]
	w.late = append(w.late[:i], w.late[i+1:]...)
	if w.rng.IntN(4) > 0 {
		w.say("late plan of %v", l.op)
		_ = w.execute(l.op, l.p)
	}
}

// step lets a process begin an op or make its next store call, or die.
func (p *process) step() {
	w := p.w
	if p.op == nil {
		p.op = w.queue[0]
		w.queue = w.queue[1:]
		if p.op.attempts++; p.op.since == 0 {
			p.op.since = w.now
		}
		p.begin()
		if p.svc == nil {
			p.boot()
		}
		w.say("%s begins %v", names[p.n], p.op)
	} else {
		p.fate = pass
		if w.faults > 0 && w.rng.IntN(8) == 0 {
			w.faults--
			switch n := w.rng.IntN(6); {
			case n == 0:
				p.crash()
				return
			case n == 1:
				p.fate = refused
			case n <= 3 && p.call.transact:
				p.fate = lostReply
			case p.call.transact:
				p.fate = underWay
			}
		}
		if w.now-p.called > callTime {
			p.fate = tooLate
		}
		w.say("%s calls for %v: transact %v %s, fate %d", names[p.n], p.op, p.call.transact, p.call.what, p.fate)
	}
	if p.call, _ = p.next(); p.call.done {
		p.op = nil
	}
	p.called = w.now
}

// crash ends a process in front of its call, with the call's plan written, under
// way or lost. The client asks again.
func (p *process) crash() {
	w, o := p.w, p.op
	w.say("%s dies in %v", names[p.n], o)
	if p.call.transact && w.now-p.called <= callTime {
		switch w.rng.IntN(3) {
		case 0:
			_ = w.execute(o, p.call.plan)
		case 1:
			w.late = append(w.late, flight{o, p.call.plan, p.called})
		}
	}
	p.kill()
	w.again(o)
}

// kill ends what a process does, and its memory.
func (p *process) kill() {
	if p.op != nil {
		p.dead = true
		p.call, _ = p.next() // dead processes make no calls
	}
	p.dead, p.op, p.svc = false, nil, nil
	p.w.synced = p.w.issued // what it had not waited for is taken to have got there
}

// again queues an op whose outcome its client does not know.
func (w *world) again(o *op) {
	if o.attempts < 3 {
		at := w.rng.IntN(len(w.queue) + 1)
		w.queue = append(w.queue[:at], append([]*op{o}, w.queue[at:]...)...)
	}
}

// execute runs a plan on the store and holds what it did against the rules.
func (w *world) execute(o *op, p store.Plan) error {
	if b := w.bug; b != nil && b.drop != "" {
		p = without(p, b.drop)
	}
	if b := w.bug; b != nil && b.forgets {
		p = forgetful(p)
	}
	if b := w.bug; b != nil && b.barred {
		p = unbarred(p)
	}
	if b := w.bug; b != nil && b.plan != nil {
		p = b.plan(p)
	}
	if b := w.bug; b != nil && b.back {
		p = w.backward(o, p)
	}
	before := w.ownRows(p)
	err := w.store.Transact(context.Background(), p)
	if err == nil {
		w.issued++
		w.observe(o, p)
		w.own(o, before)
		w.barriers(o, p)
	}
	return err
}

var errDead = fmt.Errorf("%w (injected)", store.ErrClosed)

var errLost = fmt.Errorf("%w (injected)", store.ErrAmbiguous)

// wait passes the call to the scheduler and reports whether the process lives on.
func (p *process) wait(c call) bool {
	if p.alone {
		return true
	}
	return !p.dead && p.yield(c) && !p.dead
}

func (p *process) read(t store.Table) error {
	if !p.wait(call{what: t}) {
		return store.ErrClosed
	}
	if p.fate == refused || p.fate == tooLate {
		return store.ErrUnavailable
	}
	p.sees(t)
	return nil
}

// Get implements store.Store.
func (p *process) Get(ctx context.Context, key store.Key, c store.Consistency) (store.Item, error) {
	if err := p.read(key.Table); err != nil {
		return nil, err
	}
	return p.from(key.Table, c).Get(ctx, key, c)
}

// BatchGet implements store.Store. The items are read one by one, with a step of
// others in between now and then.
func (p *process) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) ([]store.Item, error) {
	items := make([]store.Item, len(keys))
	if err := p.read(keys[0].Table); err != nil {
		return nil, err
	}
	backward := p.w.rng.IntN(2) == 0
	for i := range keys {
		if i > 0 && p.w.rng.IntN(5) == 0 {
			if err := p.read(keys[i].Table); err != nil {
				return nil, err
			}
		}
		j := i
		if backward {
			j = len(keys) - 1 - i
		}
		it, err := p.from(keys[j].Table, c).Get(ctx, keys[j], c)
		if err != nil {
			return nil, err
		}
		items[j] = it
	}
	return items, nil
}

// Query implements store.Store.
func (p *process) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := p.read(q.Table); err != nil {
		return store.Page{}, err
	}
	return p.from(q.Table, q.Consistency).Query(ctx, q)
}

// Scan implements store.Store.
func (p *process) Scan(ctx context.Context, s store.Scan) (store.Page, error) {
	if err := p.read(s.Table); err != nil {
		return store.Page{}, err
	}
	return p.w.store.Scan(ctx, s)
}

// Transact implements store.Store.
func (p *process) Transact(ctx context.Context, pl store.Plan) error {
	if pl.Writes[0].Key.Table == store.Meta {
		return nil // the clock's stamp concerns no chat
	}
	switch {
	case p.plans < 0:
		return errDead
	case p.plans > 0:
		if p.plans--; p.plans == 0 {
			p.plans = -1
		}
	}
	if !p.wait(call{transact: true, plan: pl, what: pl.Writes[0].Key.Table}) {
		return store.ErrClosed
	}
	if p.fate != tooLate && p.putOff() {
		return store.ErrThrottled
	}
	switch p.fate {
	case tooLate: // whether it arrives is open to the caller; it does not
		return errLost
	case refused:
		if p.w.rng.IntN(2) == 0 {
			return store.ErrConflict
		}
		return store.ErrUnavailable
	case lostReply:
		_ = p.w.execute(p.op, pl)
		return errLost
	case underWay:
		p.w.late = append(p.w.late, flight{p.op, pl, p.called})
		return errLost
	}
	return p.sync(p.w.execute(p.op, pl))
}

// BatchWrite implements store.Store.
func (p *process) BatchWrite(ctx context.Context, writes []store.Write) error {
	for _, wr := range writes {
		if err := p.Transact(ctx, store.Plan{Writes: []store.Write{wr}}); err != nil {
			return err
		}
	}
	return nil
}

// Close implements store.Store.
func (p *process) Close() error { return nil }

// definite are the answers that say that nothing was and will be done.
var definite = []error{
	chat.ErrNotAMember, chat.ErrForbidden, chat.ErrChatFull, chat.ErrInvalidOperation, chat.ErrAlreadyMember,
	chat.ErrMemberNotFound, chat.ErrUserNotFound, chat.ErrInvalidArgument,
}

// transient are the answers after which a client asks again.
var transient = []error{store.ErrAmbiguous, store.ErrConflict, store.ErrThrottled, store.ErrUnavailable,
	store.ErrClosed}

func isOne(err error, of []error) bool {
	for _, e := range of {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// answer takes what an attempt of an op came to.
func (w *world) answer(o *op, err error) {
	w.say("%v answers %v", o, err)
	switch {
	case err == nil:
		if o.commits == 0 && o.kind.mustCommit() {
			w.fail("%v: success, and nothing was committed", o)
		}
	case isOne(err, definite):
		// Whoever asks again after leaving has no row to be shown.
		if own := o.kind == mute || o.kind == archive; o.commits > 0 && !(own && errors.Is(err, chat.ErrNotAMember)) {
			w.fail("%v: %v, but it was carried out", o, err)
		}
		// A block ends without the chat's head: what a dead process has sent may arrive after it.
		if !barrier(err) || o.attempts == 1 {
			o.refused = err
		}
	case isOne(err, transient):
		w.again(o)
	default:
		w.fail("%v: %v", o, err)
	}
}
