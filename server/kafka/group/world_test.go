package group

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The explorer runs the machine with readers that behave as Kafka's clients do, on a small log, under a schedule that
// a seed decides: readers join, leave, die, come back with an old id, lose connections and commit late; the store is
// slow or fails; the server restarts; the machine is woken late; the wall clock is set back. The model beside it
// (model_test.go) knows what each answer may be. After the schedule nothing fails any more, and all that lives must
// come to rest.
const (
	partitions    = 4
	exploreKept   = time.Minute // retention
	exploreDelay  = 300 * time.Millisecond
	healWithin    = 90 * time.Second // above a session, a rebalance and an assignment that time out one after the other
	sessionMillis = 10_000
	rebalMillis   = 15_000
)

// asked is a request that has no answer yet.
type asked struct {
	from *reader // nil for a late commit
	req  kmsg.Request
	then func(kmsg.Response)
}

type world struct {
	rng     *rand.Rand
	m       *machine
	cfg     Config
	groups  []*modelGroup
	readers []*reader
	calls   map[uint64]*asked
	token   uint64
	now     time.Duration
	wall    time.Time
	life    int // number of restarts

	kept    map[string][]byte // by the store
	queued  []Row             // were not given to the store
	number  uint64
	storing []Row // by the store
	stored  uint64

	calm   bool // nothing fails any more
	bug    *mistake
	failed string
	trace  *strings.Builder
}

func newWorld(seed uint64, b *mistake, trace *strings.Builder) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 0x2545f4914f6cdd1d)), calls: map[uint64]*asked{}, kept: map[string][]byte{},
		wall: time.Unix(1_700_000_000, 0), bug: b, trace: trace,
		cfg: Config{Topics: tested, Retention: exploreKept}.withDefaults(),
	}
	for i := range 1 + w.rng.IntN(2) {
		// Leaders of earlier versions do not see instance ids. A cooperative static member that restarts between the two
		// rebalances of a transfer keeps its clients from asking for the second one, so there are none of these.
		static := w.one(2)
		g := newModelGroup(fmt.Sprintf("g%d", i), !static && w.one(2))
		w.groups = append(w.groups, g)
		for n := range 1 + w.rng.IntN(4) {
			r := &reader{w: w, g: g, name: fmt.Sprintf("%s.%d", g.name, n), version: []int16{2, 3, 4, 9}[w.rng.IntN(4)]}
			if static {
				r.version = []int16{5, 9}[w.rng.IntN(2)]
			}
			if static && w.one(2) {
				r.instance = r.name
			}
			w.readers = append(w.readers, r)
		}
	}
	w.start()
	return w
}

func (w *world) one(in int) bool { return w.rng.IntN(in) == 0 }

func (w *world) fail(format string, args ...any) {
	if w.failed == "" {
		w.failed = fmt.Sprintf(format, args...)
	}
}

func (w *world) log(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%8.3f ", w.now.Seconds())
		fmt.Fprintf(w.trace, format+"\n", args...)
	}
}

func (w *world) moment() moment { return moment{w.now, w.wall} }

// start makes a machine of what is stored.
func (w *world) start() {
	all := rows{groups: map[string]header{}, offsets: map[string]map[partitionKey]offset{}}
	for k, v := range w.kept {
		if err := all.add(Row{[]byte(k), v}); err != nil {
			w.fail("%v", err)
		}
	}
	if err := all.check(); err != nil {
		w.fail("%v", err)
	}
	before := w.m
	w.m = newMachine(w.cfg, all, w.moment())
	w.m.initialDelay = exploreDelay
	if w.bug != nil && w.bug.restart != nil && before != nil {
		w.bug.restart(w, before, w.m)
	}
	w.queued, w.storing = nil, nil
	w.flush()
}

// restart ends the process, with all connections, and starts another. What is being stored may be stored.
func (w *world) restart() {
	if w.one(2) {
		w.apply()
	}
	w.log("restart")
	w.life++
	clear(w.calls)
	for _, r := range w.readers {
		r.disconnected()
	}
	w.start()
}

// flush delivers what an input made.
func (w *world) flush() {
	if w.bug != nil && w.bug.state != nil {
		w.bug.state(w)
	}
	rows, number, replies := w.m.take()
	w.queued, w.number = append(w.queued, rows...), number
	for _, r := range replies {
		all := []reply{r}
		if w.bug != nil && w.bug.reply != nil {
			all = w.bug.reply(w, r)
		}
		for _, r := range all {
			w.deliver(r)
		}
	}
}

func (w *world) deliver(r reply) {
	c := w.calls[r.token]
	if c == nil {
		w.fail("an answer to nobody: %T for request %d", r.body, r.token)
		return
	}
	delete(w.calls, r.token)
	b := r.body.AppendTo(nil)
	read := c.req.ResponseKind()
	if err := read.ReadFrom(b); err != nil || read.Key() != c.req.Key() {
		w.fail("the answer %T to %T cannot be read: %v", r.body, c.req, err)
		return
	}
	c.then(read)
}

// send gives a request to the machine.
func (w *world) send(from *reader, req kmsg.Request, then func(kmsg.Response)) uint64 {
	w.token++
	token := w.token
	w.calls[token] = &asked{from, req, then}
	body := req.ResponseKind().RequestKind() // as it comes over the wire
	body.SetVersion(req.GetVersion())
	if err := body.ReadFrom(req.AppendTo(nil)); err != nil {
		w.fail("the request %T cannot be read: %v", req, err)
		return token
	}
	if w.bug != nil && w.bug.request != nil {
		w.bug.request(w, body)
	}
	c := Client{Credential: "reader", ID: "app", Host: "10.0.0.1"}
	w.m.handle(w.moment(), request{token: token, client: c, body: body, fresh: fmt.Sprintf("%d", token)})
	w.flush()
	return token
}

// disconnect ends the connection that a request came over.
func (w *world) disconnect(token uint64) {
	if w.calls[token] == nil {
		return
	}
	delete(w.calls, token)
	if w.bug != nil && w.bug.deaf {
		return
	}
	w.m.forget(w.moment(), token)
	w.flush()
}

// store gives rows to the store, or has it finish.
func (w *world) store() {
	if w.storing == nil {
		if len(w.queued) > 0 {
			w.storing, w.stored, w.queued = w.queued, w.number, nil
		}
		return
	}
	failed := !w.calm && w.one(12)
	if !failed || w.one(2) { // the outcome of a failed write is not known
		w.apply()
	}
	if failed {
		w.log("a write fails")
	}
	w.storing = nil
	w.m.stored(w.moment(), w.stored, failed)
	w.flush()
}

func (w *world) apply() {
	for _, r := range w.storing {
		if r.Value == nil {
			delete(w.kept, string(r.Key))
		} else {
			w.kept[string(r.Key)] = r.Value
		}
	}
}

// pass lets time pass. The machine is woken when it asked for that or, unless calm, up to 2 s later.
func (w *world) pass(d time.Duration) {
	for end := w.now + d; w.now < end && w.failed == ""; {
		at := max(w.m.next(), w.now)
		if !w.calm && at < never && w.one(4) {
			at += time.Duration(w.rng.IntN(2000)) * time.Millisecond
		}
		early := at > end
		if at = min(at, end); w.bug != nil && w.bug.asleep {
			at = end
		}
		w.wall = w.wall.Add(at - w.now)
		w.now = at
		if w.bug != nil && w.bug.asleep {
			continue
		}
		next := w.m.wake(w.moment())
		if next <= w.now {
			w.fail("after a wake at %s the next is due at %s", w.now, next)
		}
		if len(w.m.rows)+len(w.m.replies) > 0 && early && w.calm && (w.bug == nil || w.bug.state == nil) {
			w.fail("something is done before it is due")
		}
		w.flush()
	}
}

// step does something.
func (w *world) step() {
	switch n := w.rng.IntN(100); {
	case n < 60:
		w.readers[w.rng.IntN(len(w.readers))].act()
	case n < 72:
		w.store()
	case n < 76:
		w.readers[w.rng.IntN(len(w.readers))].die()
	case n < 79:
		w.readers[w.rng.IntN(len(w.readers))].leave()
	case n < 81:
		if r := w.readers[w.rng.IntN(len(w.readers))]; r.wait != 0 {
			w.log("%s loses its connection", r.name)
			w.disconnect(r.wait)
			r.disconnected()
		}
	case n < 84:
		w.late()
	case n < 90:
		g := w.groups[w.rng.IntN(len(w.groups))]
		g.end[w.rng.IntN(partitions)] += int64(1 + w.rng.IntN(3))
	case n < 91 && w.one(3):
		w.restart()
	case n < 92 && w.one(3):
		back := time.Duration(w.rng.IntN(48)) * time.Hour
		w.log("the wall clock is set back by %s", back)
		w.wall = w.wall.Add(-back)
	case n < 93 && w.one(3):
		for range w.rng.IntN(20) { // a store that is slower than sessions would hide from the model when they ended
			w.pass(4 * time.Second)
			w.store()
		}
	default:
		w.pass(time.Duration(1+w.rng.IntN(3000)) * time.Millisecond)
	}
}

// late sends a commit that was made earlier, and keeps one for later.
func (w *world) late() {
	g := w.groups[w.rng.IntN(len(w.groups))]
	if g.late != nil {
		old := g.late
		g.late = nil
		w.log("a late commit of %s", old.req.MemberID)
		g.commit(w, nil, old)
		return
	}
	for _, r := range w.readers {
		if r.g == g && r.phase == reading && len(r.owned) > 0 && w.one(2) {
			if c := r.commitRequest(); len(c.req.Topics[0].Partitions) > 0 {
				g.late = c
			}
			return
		}
	}
}

// heal lets everything come to rest, and says what does not.
func (w *world) heal() {
	w.calm = true
	w.log("calm")
	for _, r := range w.readers {
		if !r.alive && w.one(2) {
			r.alive = true
		}
	}
	for range int(healWithin / (500 * time.Millisecond)) {
		for _, r := range w.readers {
			if r.alive {
				r.run()
			}
		}
		w.pass(500 * time.Millisecond)
		for w.storing != nil || len(w.queued) > 0 {
			w.store()
		}
		if w.failed != "" || w.unrest() == "" {
			return
		}
	}
	w.fail("after %s without faults: %s", healWithin, w.unrest())
}

// unrest tells what has not come to rest, or "".
func (w *world) unrest() string {
	for token, c := range w.calls {
		return fmt.Sprintf("request %d, a %T, has no answer", token, c.req)
	}
	for _, g := range w.groups {
		if why := g.unrest(w); why != "" {
			return why
		}
	}
	return ""
}

var known = map[int16]bool{
	0: true, kerr.UnknownMemberID.Code: true, kerr.IllegalGeneration.Code: true, kerr.RebalanceInProgress.Code: true,
	kerr.FencedInstanceID.Code: true, kerr.CoordinatorNotAvailable.Code: true, kerr.MemberIDRequired.Code: true,
}

func (w *world) known(what string, code int16) {
	if !known[code] {
		w.fail("%s is answered %v", what, kerr.ErrorForCode(code))
	}
}
