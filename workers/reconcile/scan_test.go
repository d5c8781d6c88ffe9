package reconcile_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/reconcile"
)

// recorder implements chats. It records when each was counted or completed, and hangs on some.
type recorder struct {
	clock func() time.Time
	mu    sync.Mutex
	seen  map[string][]time.Time
	hangs func(id string) bool
}

func newRecorder(w *fixture) *recorder {
	return &recorder{clock: w.clock, seen: map[string][]time.Time{}, hangs: func(string) bool { return false }}
}

func (r *recorder) record(ctx context.Context, id string) error {
	r.mu.Lock()
	r.seen[id] = append(r.seen[id], r.clock())
	r.mu.Unlock()
	if r.hangs(id) {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (r *recorder) FinishPending(ctx context.Context, id string) error { return r.record(ctx, id) }

func (r *recorder) CheckCount(ctx context.Context, id string) (chat.Count, error) {
	return chat.Count{}, r.record(ctx, id)
}

func (r *recorder) times(id string) []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[id]
}

// groups puts rows of groups, created now, into the table of chats.
func (w *fixture) groups(name string, n int) []string {
	w.Helper()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("chat_%08x%s%04d", rand.Uint32(), name, i)
		row := table.Chat{Type: table.Group, Status: table.Active, History: table.All, MemberCount: 1,
			CreatedAt: w.clock().UnixMilli()}
		w.must(w.store.BatchWrite(w.Context(),
			[]store.Write{{Op: store.OpPut, Key: table.ChatKey(ids[i]), Item: row.Item()}}))
	}
	return ids
}

// The audit counts every chat in its first hour, however many older ones exist and wherever in
// the table the new ones are: a pass reads as much as a round of half an hour needs.
func TestAuditReachesEveryChat(t *testing.T) {
	w := newFixture(t)
	counted := newRecorder(w)
	w.groups("old", 240)
	w.pass(2 * time.Hour)
	// 12 passes of 10 rows are half of the table.
	r := w.reconciler(func(c *reconcile.Config) { c.Chats, c.AuditRows = counted, 10 })
	born := map[string]time.Time{}
	var last int64
	for n := range 36 { // three hours
		if n < 24 {
			for _, id := range w.groups("new", 3) {
				born[id] = w.clock()
			}
		}
		w.must(r.Pass(t.Context()))
		if read := r.Stats().Audited - last; n > 6 && read > 80 {
			t.Fatalf("pass %d read %d chats, expected a part of up to 80", n, read)
		}
		last = r.Stats().Audited
		if since := r.Stats().AuditSince; n > 0 && (since.IsZero() || w.clock().Sub(since) > time.Hour) {
			t.Errorf("pass %d: the last whole round started at %v, expected within the last hour", n, since)
		}
		w.pass(5 * time.Minute)
	}
	for id, at := range born {
		if times := counted.times(id); len(times) == 0 || times[0].Sub(at) > time.Hour {
			t.Errorf("%s was counted at %v, expected in its first hour", id, times)
		}
	}
	for id := range counted.seen {
		if _, ok := born[id]; !ok {
			t.Errorf("%s was counted, expected only chats in their first hour", id)
		}
	}
}

// A round continues where the last pass ended, also in another process. Of two workers one makes
// the round, and the other continues it when it finds no progress.
func TestRoundContinuesElsewhere(t *testing.T) {
	w := newFixture(t)
	counted := newRecorder(w)
	ids := w.groups("g", 60)
	w.pass(time.Second)
	one := func() *reconcile.Reconciler {
		return w.reconciler(func(c *reconcile.Config) { c.Chats, c.AuditRows = counted, 10 })
	}
	count := func() (n int) {
		for _, id := range ids {
			n += len(counted.times(id))
		}
		return n
	}
	a, b := one(), one()
	w.must(a.Pass(t.Context())) // the first round, whole: 60
	for range 2 {
		w.must(a.Pass(t.Context())) // 10 each
	}
	w.must(b.Pass(t.Context())) // its first pass continues after a's last
	if n := count(); n != 60+20+10 {
		t.Fatalf("%d counts, expected 90", n)
	}
	w.must(a.Pass(t.Context())) // finds progress by b, and leaves the round to b
	w.must(b.Pass(t.Context()))
	w.must(a.Pass(t.Context()))
	if n := count(); n != 100 || a.Stats().Audited != 80 {
		t.Fatalf("%d counts, expected 100; %+v, expected 80 audited", n, a.Stats())
	}
	w.must(a.Pass(t.Context())) // no progress by b since: a continues the round
	w.must(b.Pass(t.Context()))
	w.must(a.Pass(t.Context()))
	for _, id := range ids {
		if n := len(counted.times(id)); n != 2 {
			t.Errorf("%s was counted %d times in two rounds, expected twice", id, n)
		}
	}
	restarted := one()
	for passes := 0; passes < 8 && count() < 180; passes++ { // an engine may return an empty last page
		w.must(restarted.Pass(t.Context()))
	}
	if n := count(); n != 180 || restarted.Stats().AuditSince != a.Stats().AuditSince {
		t.Errorf("%d counts in three rounds of 60, expected 180; the last rounds started at %v and %v, expected the same", n,
			restarted.Stats().AuditSince,
			a.Stats().AuditSince)
	}
}

// cutOff is a store whose scans fail while it is down, with a hook after each scan.
type cutOff struct {
	store.Store
	down  bool
	after func()
}

func (c *cutOff) Get(ctx context.Context, k store.Key, how store.Consistency) (store.Item, error) {
	if c.down {
		return nil, store.ErrUnavailable
	}
	return c.Store.Get(ctx, k, how)
}

func (c *cutOff) Scan(ctx context.Context, s store.Scan) (store.Page, error) {
	if c.down {
		return store.Page{}, store.ErrUnavailable
	}
	page, err := c.Store.Scan(ctx, s)
	if c.after != nil && s.Table == store.Chats {
		c.after()
	}
	return page, err
}

// A process that was overtaken in the middle of its pass does not reset the round.
func TestOvertakenPassDoesNotResetTheRound(t *testing.T) {
	w := newFixture(t)
	counted := newRecorder(w)
	w.groups("g", 60)
	w.must(w.reconciler(func(c *reconcile.Config) { c.Chats, c.AuditRows = counted, 10 }).Pass(t.Context()))
	off := &cutOff{Store: w.store}
	slow := w.reconciler(func(c *reconcile.Config) { c.Store, c.Chats, c.AuditRows = off, counted, 10 })
	fast := w.reconciler(func(c *reconcile.Config) { c.Chats, c.AuditRows = counted, 10 })
	off.after = func() {
		off.after = nil
		for range 3 {
			w.must(fast.Pass(t.Context()))
		}
	}
	w.must(slow.Pass(t.Context())) // reads the first ten; meanwhile three passes did thirty
	for range 3 {
		w.must(fast.Pass(t.Context()))
	}
	twice := 0
	for id, times := range counted.seen {
		if len(times) == 3 {
			twice++
		} else if len(times) != 2 {
			t.Errorf("%s was counted %d times in two rounds, expected twice or three times", id, len(times))
		}
	}
	if twice != 10 {
		t.Errorf("%d chats were counted twice in the second round, expected the ten that both had read", twice)
	}
}

// An unavailable store does not reset a round to its start.
func TestRoundSurvivesFailures(t *testing.T) {
	w := newFixture(t)
	counted := newRecorder(w)
	ids := w.groups("g", 40)
	off := &cutOff{Store: w.store}
	r := w.reconciler(func(c *reconcile.Config) { c.Store, c.Chats, c.AuditRows = off, counted, 10 })
	w.must(r.Pass(t.Context()))
	for range 4 {
		w.pass(5 * time.Minute)
		w.must(r.Pass(t.Context()))
		off.down = true
		if err := r.Pass(t.Context()); err == nil {
			t.Fatal("a pass without a store succeeded, expected an error")
		}
		off.down = false
	}
	for _, id := range ids {
		if n := len(counted.times(id)); n != 2 {
			t.Errorf("%s was counted %d times in two rounds, expected twice", id, n)
		}
	}
	if since := r.Stats().AuditSince.Sub(start); since != 5*time.Minute {
		t.Errorf("every chat was read since %v, expected since the second pass, at 5m", since)
	}
}

// unsure is a store whose answers to plans are lost.
type unsure struct {
	store.Store
	lose func(n int) (before, after bool)
	n    int
}

func (u *unsure) Transact(ctx context.Context, p store.Plan) error {
	u.n++
	before, after := u.lose(u.n)
	if before {
		return store.ErrAmbiguous
	}
	err := u.Store.Transact(ctx, p)
	if after {
		return store.ErrAmbiguous
	}
	return err
}

// When the outcome of saving the position is unknown, it is saved again, and the pass continues.
func TestUnknownSaves(t *testing.T) {
	for name, lose := range map[string]func(n int) (bool, bool){
		"written":     func(n int) (bool, bool) { return false, n%2 == 1 },
		"not written": func(n int) (bool, bool) { return n%2 == 1, false },
		"and again":   func(n int) (bool, bool) { return false, n%4 != 0 },
	} {
		w := newFixture(t)
		counted := newRecorder(w)
		ids := w.groups("g", 510) // more than a page
		st := &unsure{Store: w.store, lose: lose}
		r := w.reconciler(func(c *reconcile.Config) {
			c.Store, c.Chats, c.AuditRows = &apart{Store: w.store, chats: st}, counted, 170
		})
		for n := range 4 { // all, and a round of three
			w.must(r.Pass(t.Context()))
			if got := r.Stats().Audited; got != 510+int64(n)*170 {
				t.Fatalf("%s: %d chats audited after pass %d, expected %d", name, got, n, 510+int64(n)*170)
			}
		}
		for _, id := range ids {
			if n := len(counted.times(id)); n != 2 {
				t.Errorf("%s: %s was counted %d times in two rounds, expected twice", name, id, n)
			}
		}
	}
}

// apart is a store whose plans for the round through the chats go to another store: the two
// rounds run at the same time.
type apart struct {
	store.Store
	chats store.Store
}

func (a *apart) Transact(ctx context.Context, p store.Plan) error {
	if p.Writes[0].Key == table.ProgressKey(store.Chats) {
		return a.chats.Transact(ctx, p)
	}
	return a.Store.Transact(ctx, p)
}

// Pending chats stay in the statistics while the store is unavailable.
func TestPendingIsReportedWithoutTheStore(t *testing.T) {
	w := newFixture(t)
	row := table.Pending{Members: []string{"u"}, CreatedAt: w.clock().UnixMilli()}
	w.must(w.store.BatchWrite(t.Context(),
		[]store.Write{{Op: store.OpPut, Key: table.PendingKey("chat_p"), Item: row.Item()}}))
	w.pass(time.Hour)
	off := &cutOff{Store: w.store}
	r := w.reconciler(func(c *reconcile.Config) { c.Store, c.Chats = off, newRecorder(w) })
	for _, down := range []bool{false, true} {
		off.down = down
		if err := r.Pass(t.Context()); (err != nil) != down {
			t.Fatalf("down %t: the pass returned %v, expected an error only then", down, err)
		}
		if s := r.Stats(); s.Pending != 1 || s.Oldest != time.Hour {
			t.Errorf("down %t: %+v, expected 1 pending, an hour old", down, s)
		}
	}
}

// A saved position that the store refuses restarts its round, and the audit continues.
func TestRefusedPosition(t *testing.T) {
	w := newFixture(t)
	counted := newRecorder(w)
	ids := w.groups("g", 20)
	bad := table.Progress{Revision: 7, After: "a\x00b", Began: 1, Rows: 3}
	w.must(w.store.BatchWrite(t.Context(),
		[]store.Write{{Op: store.OpPut, Key: table.ProgressKey(store.Chats), Item: bad.Item()}}))
	r := w.reconciler(func(c *reconcile.Config) { c.Chats = counted })
	w.must(r.Pass(t.Context()))
	for _, id := range ids {
		if n := len(counted.times(id)); n != 1 {
			t.Errorf("%s was counted %d times, expected once", id, n)
		}
	}
	if !strings.Contains(w.log.String(), "reconcile_round_restarted") {
		t.Errorf("expected reconcile_round_restarted in the log:\n%s", w.log)
	}
}

// Chats that hang, in both tables, hold up no others, and passes that run out of time continue
// with the others.
func TestSlowChats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.store = storetest.NewMemory(time.Now)
		counted := newRecorder(w)
		counted.clock = time.Now
		var pending []string
		for i := range 200 {
			id := fmt.Sprintf("chat_p%03d", i)
			pending = append(pending, id)
			row := table.Pending{Members: []string{"u"}, CreatedAt: time.Now().UnixMilli()}
			w.must(w.store.BatchWrite(t.Context(),
				[]store.Write{{Op: store.OpPut, Key: table.PendingKey(id), Item: row.Item()}}))
		}
		w.now.Store(int64(time.Since(start)))
		young := w.groups("new", 50)
		counted.hangs = func(id string) bool { return id < "chat_p060" && id >= "chat_p000" }
		r := w.reconciler(func(c *reconcile.Config) { c.Chats, c.Clock = counted, time.Now })
		w.must(r.Pass(t.Context()))
		if took := r.Stats().LastDuration; took > 150*time.Second {
			t.Errorf("a pass took %v, expected up to 150 s", took)
		}
		for _, id := range young {
			if len(counted.times(id)) == 0 {
				t.Errorf("%s was not counted in the first pass, expected all new chats", id)
			}
		}
		for range 2 { // 60 chats that hang for 20 s each, four at a time: five minutes, of passes of two
			testkit.Advance(5 * time.Minute)
			w.must(r.Pass(t.Context()))
		}
		for i, id := range pending {
			if n := len(counted.times(id)); n == 0 || (i < 60 && n > 1) {
				t.Errorf("%s was tried %d times in three passes, expected once, or more if it does not hang", id, n)
			}
		}
		if got := r.Stats(); got.Pending != 200 || got.Incomplete != 60 || got.Completed != 140 || got.Failed != 0 {
			t.Errorf("%+v, expected 200 pending: 60 incomplete and 140 completed", got)
		}
	})
}
