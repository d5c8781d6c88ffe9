package explorer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// readRules is what must be true of read positions, and what is known for it.
type readRules struct {
	issued, synced int                               // commits that can be seen, and those on the disk
	images         []*storetest.Memory               // the store after each commit; the first: before any
	revisions      map[string]map[int64]readRevision // of a member's row
	reportedUpTo   map[string]int64                  // the highest revision that was reported of each member
	due            map[string]int64                  // the highest that must be
	answers        map[string]int64                  // the highest position that each member was answered
	left           map[string]bool                   // members who were removed
	gaveUp         map[string]bool                   // who does not ask again
	requests       map[string]int64                  // the sequence that each request id was answered for
	recorded       map[string]int64                  // the position that each request id is recorded with
	refusedIDs     map[string]bool                   // that stood for two requests
}

type readRevision struct {
	read, peer   int64
	ticket       int  // of its commit
	notifiesPeer bool // of what the other person of a direct chat has read
}

// row reads a member's row.
func (w *readWorld) row(user string) (table.UserChat, bool) {
	it, err := w.store.Get(context.Background(), table.UserChatKey(user, w.chat), store.Strong)
	if err != nil {
		w.fail("read: %v", err)
	}
	return table.UserChatFrom(user, w.chat, it), it != nil
}

// execute runs a plan and holds what it did to members' rows against the rules.
func (w *readWorld) execute(p store.Plan) error {
	if w.bug != nil && w.bug.plan != nil {
		p = w.bug.plan(p)
	}
	before := map[string]table.UserChat{}
	var records []table.Request
	for _, wr := range p.Writes {
		switch wr.Key.Table {
		case store.DeliveryState:
			if row, ok := w.row(wr.Key.PK); ok && wr.Key.SK == w.chat {
				before[wr.Key.PK] = row
			}
		case store.IdempotencyKeys:
			records = append(records, table.RequestFrom(wr.Key.PK, wr.Item))
		}
	}
	if err := w.store.Transact(context.Background(), p); err != nil {
		return err
	}
	w.issued++
	w.images = append(w.images, w.store.Clone())
	for _, r := range records {
		w.recorded[r.Scope[strings.LastIndex(r.Scope, "#")+1:]] = r.Sequence
	}
	w.merged = w.merged || len(records) > 1
	sends := slices.ContainsFunc(p.Writes, func(wr store.Write) bool { return wr.Key.Table == store.Messages })
	for _, user := range names[:3] {
		was, changed := before[user]
		is, ok := w.row(user)
		if !changed {
			continue
		}
		if !ok {
			w.left[user] = true
			continue
		}
		if w.say("%s has read %d, revision %d", user, is.ReadSequence, is.Revision); is.ReadSequence < was.ReadSequence {
			w.fail("what %s has read goes back from %d to %d", user, was.ReadSequence, is.ReadSequence)
		}
		w.revised(was, is)
		if !sends { // a message changes nothing that a device does not count by itself
			w.due[user] = is.Revision
		}
	}
	w.ahead()
	return nil
}

// ahead fails if somebody is shown more than the other person of a direct chat has read.
func (w *readWorld) ahead() {
	for _, user := range names[:2] {
		if row, ok := w.row(user); ok && row.Peer != "" {
			if other, _ := w.row(row.Peer); row.PeerReadSequence > other.ReadSequence {
				w.fail("%s is shown that %s has read %d, but it is %d", user, row.Peer, row.PeerReadSequence, other.ReadSequence)
			}
		}
	}
}

// revised takes a revision of a row in.
func (w *readWorld) revised(was, row table.UserChat) {
	if w.revisions[row.UserID] == nil {
		w.revisions[row.UserID] = map[int64]readRevision{}
	}
	if _, ok := w.revisions[row.UserID][row.Revision]; ok {
		w.fail("revision %d of %s stands for two states", row.Revision, row.UserID)
	}
	if row.PeerReadSequence < was.PeerReadSequence {
		w.fail("what %s is shown goes back from %d to %d", row.UserID, was.PeerReadSequence, row.PeerReadSequence)
	}
	w.revisions[row.UserID][row.Revision] = readRevision{row.ReadSequence, row.PeerReadSequence, w.issued,
		row.PeerReadSequence > was.PeerReadSequence}
}

// reported holds what is shown to a member's devices against the store.
func (w *readWorld) reported(row table.UserChat) {
	if w.bug != nil && w.bug.forgetful && w.issued > w.lastOf(row) {
		return
	}
	is, ok := w.revisions[row.UserID][row.Revision]
	if w.bug != nil && w.bug.selfish && is.notifiesPeer {
		return
	}
	switch {
	case w.bug != nil && w.bug.silent:
	case !ok || is.read != row.ReadSequence || is.peer != row.PeerReadSequence:
		w.fail("%s is shown %d and %d at revision %d, the store had %d and %d", row.UserID, row.ReadSequence,
			row.PeerReadSequence, row.Revision, is.read, is.peer)
	case is.ticket > w.synced:
		w.fail("%s is shown revision %d, which is not on disk", row.UserID, row.Revision)
	}
	w.reportedUpTo[row.UserID] = max(w.reportedUpTo[row.UserID], row.Revision)
}

// lastOf is the commit that made a row what it is.
func (w *readWorld) lastOf(row table.UserChat) int {
	return w.revisions[row.UserID][row.Revision].ticket
}

// answered holds an answer against the rules, and reports whether the client asks again.
func (w *readWorld) answered(o *readOp, out chat.MemberState, err error, cancelled bool) bool {
	w.say("%v answers %d of %d, %v", o, out.Row.ReadSequence, out.Head.Sequence, err)
	switch {
	case err == nil:
		position := min(o.sequence, out.Head.Sequence)
		if out.Replayed { // the chat may have more since it was carried out
			position = w.recorded[o.request]
		}
		if out.Row.ReadSequence < position {
			w.fail("%v is answered with %d", o, out.Row.ReadSequence)
		}
		if first, ok := w.requests[o.request]; ok && o.request != "" && first != o.sequence {
			w.fail("%v: the id was answered for %d", o, first)
		}
		w.requests[o.request] = o.sequence
		w.answers[o.user] = max(w.answers[o.user], position)
	case errors.Is(err, chat.ErrNotAMember):
		if !w.left[o.user] {
			w.fail("%v: %v", o, err)
		}
	case errors.Is(err, chat.ErrKeyReused):
		if !w.refusedIDs[o.request] {
			w.fail("%v: %v, with an id of its own", o, err)
		}
	case cancelled && errors.Is(err, context.Canceled):
		w.gaveUp[o.user] = true
	case again(err):
		return true
	default:
		w.fail("%v: %v", o, err)
	}
	o.done = true
	return false
}

// powerLoss takes what was not on the disk, or a part of it.
func (w *readWorld) powerLoss() {
	w.synced += w.rng.IntN(w.issued - w.synced + 1)
	w.say("the power is lost: %d of %d commits stay", w.synced, w.issued)
	w.issued, w.images, w.late = w.synced, w.images[:w.synced+1], nil
	w.store = w.images[w.synced].Clone()
	for _, of := range w.revisions {
		for r, is := range of {
			if is.ticket > w.synced {
				delete(of, r)
			}
		}
	}
	for user, due := range w.due {
		if row, ok := w.row(user); ok && due > row.Revision {
			if w.due[user] = row.Revision; w.direct {
				w.due[user] = 0 // it may be that of a message
			}
		}
	}
}

// check holds the store against what was answered.
func (w *readWorld) check() {
	for user, position := range w.answers {
		if row, ok := w.row(user); ok && row.ReadSequence < position {
			w.fail("%s was answered with %d, and %d is stored", user, position, row.ReadSequence)
		}
	}
}

// finish checks the end against the rules: what a member's row is now was reported to the devices.
func (w *readWorld) finish() {
	if w.bug != nil && w.bug.silent {
		return
	}
	for _, user := range names[:2] {
		row, ok := w.row(user)
		if ok && !w.gaveUp[user] && !w.gaveUp[row.Peer] && w.reportedUpTo[user] < w.due[user] {
			w.fail("revision %d of %s was not reported, only %d", row.Revision, user, w.reportedUpTo[user])
		}
	}
}

// readBug is a way to be wrong that the rules of read positions must notice.
type readBug struct {
	name      string
	finds     string
	hasty     bool                        // the answer to a write does not wait for the disk
	careless  bool                        // nor does that from what was read
	hopeful   bool                        // an unknown outcome counts as success
	forgetful bool                        // a repetition reports nothing
	selfish   bool                        // the other person of a direct chat is not notified
	direct    bool                        // in a direct chat
	silent    bool                        // what is reported is not checked: the answers must show the bug
	plan      func(store.Plan) store.Plan // is written in place of the plan
}

var readBugs = []readBug{
	{name: "a merged position is answered before it is on the disk", hasty: true, silent: true, finds: "is stored"},
	{name: "a merged position is reported before it is on the disk", hasty: true, finds: "not on disk"},
	{name: "an answer from what was read does not wait for the disk", careless: true, silent: true, finds: "is stored"},
	{name: "an unknown outcome counts as written", hopeful: true, silent: true, finds: "is stored"},
	{name: "a repetition reports nothing", forgetful: true, finds: "was not reported"},
	{name: "the lowest position of a group wins", plan: lowest, silent: true, finds: "is stored"},
	{name: "a position is compared with what was read", silent: true, finds: "goes back",
		plan: func(p store.Plan) store.Plan { return without(p, plan.CondUser) }},
	{name: "without the condition on the request", finds: "the id was answered for",
		plan: func(p store.Plan) store.Plan { return without(p, plan.CondRequest) }},
	{name: "the other person's devices are not told", direct: true, selfish: true, finds: "was not reported"},
	{name: "the other person is told under the same revision", direct: true, plan: unrevised, finds: "stands for two"},
	{name: "the other person's row is that of the read", direct: true, finds: "the store had",
		plan: func(p store.Plan) store.Plan { return without(p, plan.CondPeer) }},
	{name: "the other person is told before it is on the disk", direct: true, careless: true, finds: "not on disk"},
	{name: "a repetition tells nobody", direct: true, forgetful: true, finds: "was not reported"},
}

// lowest is a plan of a group that writes the lowest of its positions.
func lowest(p store.Plan) store.Plan {
	writes, low := slices.Clone(p.Writes), int64(math.MaxInt64)
	for _, wr := range writes {
		if wr.Key.Table == store.IdempotencyKeys {
			low = min(low, table.RequestFrom(wr.Key.PK, wr.Item).Sequence)
		}
	}
	for i, wr := range writes {
		set := slices.Clone(wr.Update.Set)
		for j := range set {
			if set[j].Name == table.AttrReadSequence {
				set[j].Value = store.Int(min(set[j].Value.Int64(), low))
			}
		}
		writes[i].Update.Set = set
	}
	return store.Plan{Writes: writes, Token: p.Token}
}

// readStart is what schedules of read positions begin with.
type readStart struct {
	store  *storetest.Memory
	chat   string
	direct bool // of a and b
}

// readBase is a group of a, b and c, its owner, with five messages; or a direct chat of a and
// b with as many, of which nobody has read any.
func readBase(t *testing.T, direct bool) readStart {
	t.Helper()
	w := &readWorld{readRules: newReadRules()}
	w.clock.Store(epoch)
	w.store = storetest.NewMemory(w.now)
	svc := w.service(otherStore{w.store, w}, "base", nil)
	ctx := context.Background()
	for _, u := range names[:3] {
		if err := svc.EnsureUser(ctx, u); err != nil {
			t.Fatal(err)
		}
	}
	sender := "c"
	c, err := svc.CreateGroup(ctx, chat.CreateGroup{Caller: "c", Name: "g", Members: []string{"a", "b"}})
	if direct {
		sender = "a"
		c, err = svc.CreateDirect(ctx, chat.CreateDirect{Caller: "a", Other: "b"})
	}
	if err != nil || c.Incomplete != nil {
		t.Fatal(err, c.Incomplete)
	}
	for range 5 {
		if _, err := svc.Send(ctx, chat.Send{Caller: sender, ChatID: c.ChatID, Content: "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if direct {
		unread := store.Write{Op: store.OpUpdate, Key: table.UserChatKey("a", c.ChatID), Cond: store.Exists(), Name: "x",
			Update: store.Update{Set: []store.Attr{{Name: table.AttrReadSequence, Value: store.Int(0)}}}}
		if err := w.store.Transact(ctx, store.Plan{Writes: []store.Write{unread}}); err != nil {
			t.Fatal(err)
		}
	}
	return readStart{w.store, c.ChatID, direct}
}

func newReadRules() readRules {
	return readRules{revisions: map[string]map[int64]readRevision{}, reportedUpTo: map[string]int64{},
		due:     map[string]int64{},
		answers: map[string]int64{}, left: map[string]bool{}, gaveUp: map[string]bool{}, requests: map[string]int64{},
		recorded: map[string]int64{}, refusedIDs: map[string]bool{}}
}

// exploreReads runs one schedule.
func exploreReads(t *testing.T, seed uint64, from readStart, b *readBug) (w *readWorld) {
	synctest.Test(t, func(*testing.T) {
		w = &readWorld{rng: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)), bug: b, chat: from.chat, direct: from.direct,
			store: from.store.Clone(), readRules: newReadRules()}
		w.clock.Store(epoch + 10_000)
		w.images = []*storetest.Memory{w.store.Clone()}
		w.other = w.service(otherStore{w.store, w}, "other", func(row table.UserChat, _ table.Head) { w.reported(row) })
		for _, user := range names[:3] {
			if row, ok := w.row(user); ok {
				w.revised(row, row)
				w.reportedUpTo[user] = row.Revision
			}
		}
		w.faults = w.rng.IntN(6)
		n := 2 + w.rng.IntN(7)
		if w.rng.IntN(64) == 0 {
			n = 60 // more than a group takes
		}
		for range n {
			w.wish()
		}
		for w.step() {
		}
		w.end()
		if w.failed == "" {
			w.finish()
		}
	})
	return w
}

// wish makes a call. Some have an id, and a few an id that another one has already.
func (w *readWorld) wish() {
	o := &readOp{n: len(w.ops), user: "a", sequence: 1 + w.rng.Int64N(7)}
	if w.rng.IntN(5) == 0 || w.direct && w.rng.IntN(3) == 0 {
		o.user = "b"
	}
	switch {
	case w.rng.IntN(2) == 0:
	case w.rng.IntN(8) == 0 && o.n > 0 && w.ops[o.n-1].user == o.user && w.ops[o.n-1].request != "":
		o.request = w.ops[o.n-1].request
		w.refusedIDs[o.request] = w.refusedIDs[o.request] || o.sequence != w.ops[o.n-1].sequence
	default:
		o.request = fmt.Sprint("r", o.n)
	}
	w.ops = append(w.ops, o)
	go w.client(o)
}

// usualReads is the number of schedules of a plain go test.
const usualReads = 600

// Positions that are merged are answered once they are on the disk, never go back, and are
// reported to the member's devices, whatever crashes, is lost or comes late.
func TestReadSchedules(t *testing.T) { readSchedules(t, readBase(t, false)) }

// The same holds in a direct chat for what each is shown of the other, which is never more
// than the other has read, and never goes back.
func TestPeerReadSchedules(t *testing.T) { readSchedules(t, readBase(t, true)) }

// readSchedules runs in parallel with others: one schedule uses one core, since its goroutines take turns.
func readSchedules(t *testing.T, from readStart) {
	t.Helper()
	t.Parallel()
	first, ran, merged := testkit.Seed(t, 1), 0, 0
	for n := range testkit.Rounds(t, "PARLEY_EXPLORE", usualReads) {
		seed := first + uint64(n)
		w := exploreReads(t, seed, from, nil)
		if w.failed != "" {
			t.Fatalf("seed %d\n%s", seed, &w.trace)
		}
		if ran++; w.merged {
			merged++
		}
	}
	if t.Logf("%d of %d schedules with merged positions", merged, ran); merged == 0 && ran > 100 {
		t.Error("no schedule merges positions")
	}
}

// Every seeded bug of read positions is found.
func TestSeededBugsOfReads(t *testing.T) {
	t.Parallel()
	group, pair := readBase(t, false), readBase(t, true)
	for i := range readBugs {
		b, from := &readBugs[i], group
		if b.direct {
			from = pair
		}
		t.Run(b.name, func(t *testing.T) {
			for seed := uint64(1); seed < 20_000; seed++ {
				w := exploreReads(t, seed, from, b)
				if w.failed == "" {
					continue
				}
				if !strings.Contains(w.failed, b.finds) {
					t.Errorf("another bug than the one that was sown:\n%s", &w.trace)
				}
				t.Logf("seed %d: %s", seed, w.failed)
				return
			}
			t.Fatal("not found")
		})
	}
}

// A seed is one schedule.
func TestSameSeedSameReads(t *testing.T) {
	from := readBase(t, true)
	for seed := range uint64(50) {
		a, b := exploreReads(t, seed, from, nil), exploreReads(t, seed, from, nil)
		if a.trace.String() != b.trace.String() {
			t.Fatalf("seed %d differs:\n%s\nand\n%s", seed, &a.trace, &b.trace)
		}
	}
}
