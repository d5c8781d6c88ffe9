package explorer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// Read positions of one member are merged while they wait for each other, so they need
// schedules in which a process has many calls under way. Here every call is a goroutine of
// a bubble, that stops before each of its calls of the store, before it joins its lane, and
// before what it wrote is on the disk. One of them continues at a time.

const readProcesses = 2

// readWorld is one schedule of read positions in one chat.
type readWorld struct {
	rng   *rand.Rand
	bug   *readBug
	clock atomic.Int64 // unix ms
	trace strings.Builder
	other *chat.Service // of another server: what it does, it does at once
	chat  string
	// direct: it is one of a and b, otherwise a group of c, its owner, and both.
	direct bool

	mu      sync.Mutex
	store   *storetest.Memory
	procs   [readProcesses]*readProcess
	ops     []*readOp
	stopped []*stop
	late    []store.Plan
	faults  int
	over    bool
	failed  string
	merged  bool // a plan held the positions of several calls
	readRules
}

// readProcess is a process from its start to its end.
type readProcess struct {
	store.Store
	w    *readWorld
	n    int
	svc  *chat.Service
	dead bool
}

// readOp is a position that a client reports until it is answered.
type readOp struct {
	n        int
	user     string
	sequence int64
	request  string
	cancel   context.CancelFunc // of the attempt under way
	p        *readProcess       // that has it
	done     bool
}

func (o *readOp) String() string {
	return fmt.Sprintf("op %d (%s read %d %s)", o.n, o.user, o.sequence, o.request)
}

// stop is where a goroutine waits to be continued.
type stop struct {
	op   *readOp
	p    *readProcess // nil: the client
	what string
	plan *store.Plan
	fate chan fate
}

const (
	begin    = "begin"
	joins    = "joins"
	read     = "read"
	transact = "transact"
	disk     = "disk"
	answers  = "answers"
)

const gone fate = 255 // the process has died

// stop waits for the scheduler. Callers hold no lock.
func (w *readWorld) stop(o *readOp, p *readProcess, what string, plan *store.Plan) fate {
	w.mu.Lock()
	if w.over || p != nil && p.dead {
		w.mu.Unlock()
		return gone
	}
	s := &stop{op: o, p: p, what: what, plan: plan, fate: make(chan fate, 1)}
	w.stopped = append(w.stopped, s)
	w.mu.Unlock()
	return <-s.fate
}

// callCtx is the context of a call: it knows whose call it is, and stops where package
// groupcommit asks whether it has ended.
type callCtx struct {
	context.Context
	op *readOp
	p  *readProcess
}

type opKey struct{}

func (c callCtx) Value(key any) any {
	if key == (opKey{}) {
		return c.op
	}
	return c.Context.Value(key)
}

// Err implements context.Context. One that has ended is asked under locks, too.
func (c callCtx) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	c.p.w.stop(c.op, c.p, joins, nil)
	return c.Context.Err()
}

// client reports a position until it is answered.
func (w *readWorld) client(o *readOp) {
	for w.stop(o, nil, begin, nil) != gone {
		ctx, cancel := context.WithCancel(context.Background())
		w.mu.Lock()
		p := o.p
		o.cancel = cancel
		w.mu.Unlock()
		out, err := p.svc.MarkRead(callCtx{ctx, o, p},
			chat.MarkRead{Caller: o.user, ChatID: w.chat, Sequence: o.sequence, RequestID: o.request})
		w.mu.Lock()
		cancelled, lost := ctx.Err() != nil, p.dead
		o.p, o.cancel = nil, nil
		w.mu.Unlock()
		cancel()
		if w.stop(o, nil, answers, nil) == gone {
			return
		}
		w.mu.Lock()
		again := lost || w.answered(o, out, err, cancelled)
		w.mu.Unlock()
		if !again {
			return
		}
	}
}

// boot starts a process. Callers hold the lock.
func (w *readWorld) boot(n int) {
	p := &readProcess{Store: w.store, w: w, n: n}
	p.svc = w.service(p, names[n], func(row table.UserChat, _ table.Head) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !p.dead && !w.over {
			w.reported(row)
		}
	})
	w.procs[n] = p
}

func (w *readWorld) service(st store.Store, producer string, receipt func(table.UserChat, table.Head)) *chat.Service {
	svc, err := chat.New(context.Background(), chat.Config{
		Store: st, Clock: w.now, Generation: "g", Producer: producer, Shared: true, Receipt: receipt,
		Sleep: func(ctx context.Context, d time.Duration) error { w.clock.Add(d.Milliseconds()); return ctx.Err() },
	})
	if err != nil {
		w.fail("boot: %v", err)
	}
	return svc
}

func (w *readWorld) now() time.Time { return time.UnixMilli(w.clock.Load()) }

// opOf is whose call of the store it is; nil: of a process that starts.
func opOf(ctx context.Context) *readOp {
	o, _ := ctx.Value(opKey{}).(*readOp)
	return o
}

func (p *readProcess) read(ctx context.Context, k store.Key) (store.Item, error) {
	if o := opOf(ctx); o != nil {
		switch p.w.stop(o, p, read, nil) {
		case gone:
			return nil, store.ErrClosed
		case refused:
			return nil, store.ErrUnavailable
		}
		p.w.mu.Lock()
		defer p.w.mu.Unlock()
	}
	return p.w.store.Get(context.Background(), k, store.Strong)
}

// Get implements store.Store.
func (p *readProcess) Get(ctx context.Context, k store.Key, _ store.Consistency) (store.Item, error) {
	return p.read(ctx, k)
}

// BatchGet implements store.Store. Anything may happen between two of its items.
func (p *readProcess) BatchGet(ctx context.Context, keys []store.Key, _ store.Consistency) ([]store.Item, error) {
	items := make([]store.Item, len(keys))
	var err error
	for i, k := range keys {
		if items[i], err = p.read(ctx, k); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// Transact implements store.Store.
func (p *readProcess) Transact(ctx context.Context, pl store.Plan) error {
	if pl.Writes[0].Key.Table == store.Meta {
		return nil // the clock's stamp concerns no chat
	}
	w, o := p.w, opOf(ctx)
	f := w.stop(o, p, transact, &pl)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch f {
	case gone:
		return store.ErrClosed
	case refused:
		return store.ErrConflict
	case lostReply:
		_ = w.execute(pl)
	case underWay:
		w.late = append(w.late, pl)
	}
	if f != pass {
		if w.bug != nil && w.bug.hopeful {
			return nil
		}
		return errLost
	}
	if err := w.execute(pl); err != nil {
		return err
	}
	return w.sync(o, p, w.bug != nil && w.bug.hasty)
}

// sync waits until what is issued is on the disk. Callers hold the lock, which is released
// meanwhile.
func (w *readWorld) sync(o *readOp, p *readProcess, hasty bool) error {
	ticket := w.issued
	if hasty || w.synced >= ticket {
		return nil
	}
	w.mu.Unlock()
	f := w.stop(o, p, disk, nil)
	w.mu.Lock()
	if f == gone {
		return store.ErrClosed
	}
	w.synced = max(w.synced, ticket)
	return nil
}

// Durable implements store.Store.
func (p *readProcess) Durable(ctx context.Context) error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.w.sync(opOf(ctx), p, p.w.bug != nil && p.w.bug.careless)
}

// otherStore is that of a server whose calls take no time.
type otherStore struct {
	store.Store
	w *readWorld
}

func (s otherStore) Transact(_ context.Context, p store.Plan) error {
	if p.Writes[0].Key.Table == store.Meta {
		return nil
	}
	err := s.w.execute(p)
	s.w.synced = s.w.issued
	return err
}

func (s otherStore) Get(ctx context.Context, k store.Key, c store.Consistency) (store.Item, error) {
	return s.w.store.Get(ctx, k, c)
}

func (s otherStore) BatchGet(ctx context.Context, k []store.Key, c store.Consistency) ([]store.Item, error) {
	return s.w.store.BatchGet(ctx, k, c)
}

func (s otherStore) Durable(context.Context) error {
	s.w.synced = s.w.issued
	return nil
}

// step lets something happen; false when nothing can.
func (w *readWorld) step() bool {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.clock.Add(1)
	if w.check(); w.failed != "" {
		return false
	}
	if len(w.stopped) == 0 {
		if i := slices.IndexFunc(w.ops, func(o *readOp) bool { return !o.done }); i >= 0 {
			w.fail("%v waits, and nobody has the lead", w.ops[i])
		}
		return false
	}
	slices.SortFunc(w.stopped, func(a, b *stop) int { return a.op.n - b.op.n })
	switch n := w.rng.IntN(40); {
	case n < 4 && len(w.late) > 0:
		w.arrive()
	case n == 5:
		w.elsewhere()
	case n < 9 && w.faults > 0:
		w.faults--
		w.trouble()
	default:
		w.release(w.rng.IntN(len(w.stopped)))
	}
	return true
}

// release continues a goroutine, and decides what becomes of its call.
func (w *readWorld) release(i int) {
	s := w.stopped[i]
	w.stopped = slices.Delete(w.stopped, i, i+1)
	f := pass
	if s.what == begin {
		n := min(w.rng.IntN(readProcesses+2), readProcesses-1)
		if w.procs[n] == nil {
			w.boot(n)
		}
		s.op.p = w.procs[n]
	} else if (s.what == transact || s.what == read) && w.faults > 0 && w.rng.IntN(8) == 0 {
		w.faults--
		if f = refused; s.what == transact {
			f = [...]fate{refused, lostReply, underWay}[w.rng.IntN(3)]
		}
	}
	w.say("%v: %s, fate %d", s.op, s.what, f)
	s.fate <- f
}

// trouble ends a process, or all with a loss of power, or a caller's patience.
func (w *readWorld) trouble() {
	switch w.rng.IntN(4) {
	case 0, 1:
		w.crash(w.rng.IntN(readProcesses))
	case 2:
		for n := range w.procs {
			w.crash(n)
		}
		w.powerLoss()
	default:
		if o := w.ops[w.rng.IntN(len(w.ops))]; o.cancel != nil {
			w.say("%v is given up", o)
			o.cancel()
		}
	}
}

// crash ends a process. A plan that it was about to commit is written, late or lost.
func (w *readWorld) crash(n int) {
	p := w.procs[n]
	if p == nil {
		return
	}
	w.say("process %d dies", n)
	w.procs[n], p.dead = nil, true
	w.stopped = slices.DeleteFunc(w.stopped, func(s *stop) bool {
		if s.p != p {
			return false
		}
		if s.plan != nil {
			switch w.rng.IntN(3) {
			case 0:
				_ = w.execute(*s.plan)
			case 1:
				w.late = append(w.late, *s.plan)
			}
		}
		s.fate <- gone
		return true
	})
}

// arrive lets a plan that was under way arrive, or be lost.
func (w *readWorld) arrive() {
	i := w.rng.IntN(len(w.late))
	pl := w.late[i]
	w.late = slices.Delete(w.late, i, i+1)
	if w.rng.IntN(4) > 0 {
		w.say("a late plan arrives")
		_ = w.execute(pl)
	}
}

// elsewhere lets another server do something in the chat.
func (w *readWorld) elsewhere() {
	ctx, user := context.Background(), names[w.rng.IntN(2)]
	sender := "c"
	if w.direct {
		sender = user
	}
	var err error
	switch n := w.rng.IntN(8); {
	case n < 3 && (!w.direct || n == 0):
		_, err = w.other.Send(ctx, chat.Send{Caller: sender, ChatID: w.chat, Content: "x"})
	case n < 5:
		archived := w.rng.IntN(2) == 0
		_, err = w.other.SetMemberSettings(ctx,
			chat.MemberSettings{Caller: user, ChatID: w.chat, Archived: &archived, Procedure: "archive"})
	case n < 7 || w.direct:
		_, err = w.other.MarkRead(ctx, chat.MarkRead{Caller: user, ChatID: w.chat, Sequence: 1 + w.rng.Int64N(7)})
	default:
		_, err = w.other.Change(ctx, chat.OpRemove, chat.MemberChange{Caller: "c", ChatID: w.chat, UserID: user})
	}
	w.say("elsewhere: %s: %v", user, err)
	if err != nil && !w.left[user] {
		w.fail("elsewhere: %v", err)
	}
}

func (w *readWorld) say(format string, args ...any) { fmt.Fprintf(&w.trace, format+"\n", args...) }

func (w *readWorld) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf(format, args...)
		w.say("FAILED: %s", w.failed)
	}
}

// end lets all goroutines end, whatever they wait for.
func (w *readWorld) end() {
	w.mu.Lock()
	w.over = true
	for n := range w.procs {
		w.crash(n)
	}
	for _, s := range w.stopped {
		s.fate <- gone
	}
	w.stopped = nil
	w.mu.Unlock()
	synctest.Wait()
	w.mu.Lock()
	for _, o := range w.ops { // who is still there waits for a lead that was lost
		if o.cancel != nil {
			o.cancel()
		}
	}
	w.mu.Unlock()
	synctest.Wait()
}

// again reports whether a client asks again after an answer.
func again(err error) bool { return isOne(err, transient) && !errors.Is(err, context.Canceled) }
