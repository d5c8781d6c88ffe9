package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fixture struct {
	*testing.T
	store store.Store
	now   atomic.Int64 // ns after the start
	log   *buffer
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{T: t, log: &buffer{}}
	w.store = dynamotest.Store(t, w.clock)
	return w
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (w *fixture) clock() time.Time { return start.Add(time.Duration(w.now.Load())) }

func (w *fixture) pass(d time.Duration) { w.now.Add(int64(d)) }

func (w *fixture) chats(process string, st store.Store) *chat.Service {
	w.Helper()
	s, err := chat.New(w.Context(), chat.Config{
		Store: st, Clock: w.clock, Generation: "g", Producer: process,
		Sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
	})
	w.must(err)
	return s
}

func (w *fixture) reconciler(change ...func(*reconcile.Config)) *reconcile.Reconciler {
	w.Helper()
	cfg := reconcile.Config{Store: w.store, Chats: w.chats("r", w.store), Clock: w.clock,
		Logger: slog.New(slog.NewTextHandler(w.log, nil))}
	for _, f := range change {
		f(&cfg)
	}
	r, err := reconcile.New(cfg)
	w.must(err)
	return r
}

func (w *fixture) must(err error) {
	w.Helper()
	testkit.Must(w, err)
}

// users makes users and returns their names.
func (w *fixture) users(s *chat.Service, n int) []string {
	w.Helper()
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("u%02d", i))
		w.must(s.EnsureUser(w.Context(), all[i]))
	}
	return all
}

// members and pending members of a chat, and its stored count.
func (w *fixture) members(id string) (members, pending, stored int) {
	w.Helper()
	page, err := w.store.Query(w.Context(), store.Query{Table: store.ChatMemberships, PK: id})
	w.must(err)
	it, err := w.store.Get(w.Context(), table.PendingKey(id), store.Strong)
	w.must(err)
	row, err := w.store.Get(w.Context(), table.ChatKey(id), store.Strong)
	w.must(err)
	return len(page.Rows), len(table.PendingFrom(id, it).Members), int(table.ChatFrom(id, row).MemberCount)
}

// passed makes a pass. One that cannot tell whether its progress is stored, in a store with injected
// faults, is repeated, as Run repeats it.
func passed(ctx context.Context, r *reconcile.Reconciler) error {
	err := store.ErrAmbiguous
	for errors.Is(err, store.ErrAmbiguous) {
		err = r.Pass(ctx)
	}
	return err
}

// mortal is a store whose process dies after a number of plans.
type mortal struct {
	store.Store
	left int
}

func (m *mortal) Transact(ctx context.Context, p store.Plan) error {
	if p.Writes[0].Key.Table == store.Meta { // the clock
		return m.Store.Transact(ctx, p)
	}
	if m.left--; m.left < 0 {
		return store.ErrClosed
	}
	return m.Store.Transact(ctx, p)
}

// L-041, L-052, L-055, L-157, L-161, L-181, L-191: wherever the creation of a
// group of 100 dies, the next pass completes it.
func TestCompletesCreations(t *testing.T) {
	for plans := 1; plans <= 6; plans++ { // the group, and five chunks of 24
		w := newFixture(t)
		users := w.users(w.chats("p", w.store), 100)
		dying := w.chats("d", &mortal{w.store, plans})
		c, err := dying.CreateGroup(t.Context(),
			chat.CreateGroup{Caller: users[0], Name: "g", Members: users[1:], RequestID: "r"})
		w.must(err)
		members, pending, stored := w.members(c.ChatID)
		if want := min(1+24*(plans-1), 100); members != want || members+pending != 100 || stored != 100 ||
			(c.Incomplete == nil) != (plans == 6) {
			t.Fatalf("after %d plans: %d members, %d pending, count %d: %v", plans, members, pending, stored, c.Incomplete)
		}
		w.pass(2 * time.Hour) // no creation is too old to be completed
		r := w.reconciler()
		for range 2 {
			w.must(passed(t.Context(), r))
		}
		if members, pending, stored := w.members(c.ChatID); members != 100 || pending != 0 || stored != 100 {
			t.Errorf("after %d plans: %d members, %d pending, count %d", plans, members, pending, stored)
		}
		s := r.Stats()
		if want := int64(min(6-plans, 1)); s.Completed != want || s.Corrections != 0 || s.Passes != 2 || s.Pending != 0 ||
			s.Incomplete != 0 {
			t.Errorf("after %d plans: %+v", plans, s)
		}
	}
}

// L-053, L-054, L-059, L-060, L-061: a count that was damaged is corrected once, through
// the head, by however many passes at once; a chat that is older is left alone.
func TestCorrectsCounts(t *testing.T) {
	for _, k := range []int{1, 2, 8} {
		w := newFixture(t)
		s := w.chats("p", w.store)
		users := w.users(s, 4)
		c, err := s.CreateGroup(t.Context(), chat.CreateGroup{Caller: users[0], Name: "g", Members: users[1:3]})
		w.must(err)
		old, err := s.CreateDirect(t.Context(), chat.CreateDirect{Caller: users[0], Other: users[1]})
		w.must(err)
		damage := func(id string) {
			err := store.ErrAmbiguous
			for errors.Is(err, store.ErrAmbiguous) { // the store may be one with injected faults
				err = w.store.Transact(t.Context(), store.Plan{Writes: []store.Write{{
					Op: store.OpUpdate, Key: table.ChatKey(id),
					Update: store.Update{Set: []store.Attr{{Name: table.AttrMemberCount, Value: store.Int(77)}}},
				}}})
			}
			w.must(err)
		}
		damage(c.ChatID)
		damage(old.ChatID)
		rs := make([]*reconcile.Reconciler, k)
		var wg sync.WaitGroup
		for i := range rs {
			rs[i] = w.reconciler()
			wg.Go(func() {
				if err := passed(context.WithoutCancel(t.Context()), rs[i]); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Go(func() { // L-059: with concurrent changes
			_, err := s.Change(context.WithoutCancel(t.Context()), chat.OpAdd,
				chat.MemberChange{Caller: users[0], ChatID: c.ChatID, UserID: users[3], Role: table.Member})
			if err != nil && !errors.Is(err, store.ErrConflict) {
				t.Error(err)
			}
		})
		wg.Wait()
		w.must(passed(t.Context(), rs[0]))
		members, _, stored := w.members(c.ChatID)
		if members != stored || members != 4 {
			t.Errorf("%d passes: %d members, count %d", k, members, stored)
		}
		var corrections int64
		for _, r := range rs {
			corrections += r.Stats().Corrections
		}
		if corrections != 1 || strings.Count(w.log.String(), "member_count_corrected") != 1 {
			t.Errorf("%d passes: %d corrections\n%s", k, corrections, w.log)
		}
		if _, _, stored := w.members(old.ChatID); stored != 77 {
			t.Error("a direct chat was counted")
		}
		// The correction is a change of the chat like any other: its head has moved, and
		// its event has the exact count.
		page, err := w.store.Query(t.Context(), store.Query{Table: store.Events, PK: c.ChatID})
		w.must(err)
		updated := 0
		for _, r := range page.Rows {
			row, err := table.EventFrom(r)
			w.must(err)
			if row.Type == event.TypeChatUpdated {
				updated++
			}
		}
		if updated != 1 {
			t.Errorf("%d events of a correction", updated)
		}
	}
}

// L-057: chats that were created more than an hour ago are not counted.
func TestWindow(t *testing.T) {
	w := newFixture(t)
	s := w.chats("p", w.store)
	users := w.users(s, 2)
	for range 30 {
		_, err := s.CreateGroup(t.Context(), chat.CreateGroup{Caller: users[0], Name: "g", Members: users[1:]})
		w.must(err)
	}
	r := w.reconciler()
	w.must(r.Pass(t.Context()))
	if got := r.Stats(); got.Checked != 30 || got.Audited != 30 {
		t.Errorf("%+v, not 30 chats counted", got)
	}
	w.pass(time.Hour + time.Second)
	w.must(r.Pass(t.Context()))
	if got := r.Stats(); got.Checked != 30 || got.Audited != 60 {
		t.Errorf("%+v: chats were counted that are too old", got)
	}
	none := w.reconciler(func(c *reconcile.Config) { c.AuditRows = -1 })
	w.must(none.Pass(t.Context()))
	if got := none.Stats(); got.Audited != 0 || !got.AuditSince.IsZero() {
		t.Errorf("%+v: there is no audit", got)
	}
}

// sick fails for one chat.
type sick struct {
	reconcile.Chats
	id string
}

func (s *sick) FinishPending(ctx context.Context, id string) error {
	if id == s.id {
		return store.ErrUnavailable
	}
	return s.Chats.FinishPending(ctx, id)
}

// A chat that cannot be completed does not hold up the others (L-056), and the
// next pass tries again.
func TestOneSickChat(t *testing.T) {
	w := newFixture(t)
	s := w.chats("p", w.store)
	users := w.users(s, 4)
	var ids []string
	for range 3 {
		c, err := w.chats("d", &mortal{w.store, 1}).CreateGroup(t.Context(),
			chat.CreateGroup{Caller: users[0], Name: "g", Members: users[1:]})
		w.must(err)
		ids = append(ids, c.ChatID)
	}
	ill := &sick{Chats: s, id: ids[1]}
	r := w.reconciler(func(c *reconcile.Config) { c.Chats = ill })
	w.must(r.Pass(t.Context()))
	if got := r.Stats(); got.Completed != 2 || got.Incomplete != 1 ||
		!strings.Contains(w.log.String(), "chat_creation_incomplete") {
		t.Errorf("%+v\n%s", got, w.log)
	}
	ill.id = ""
	w.must(r.Pass(t.Context()))
	if got := r.Stats(); got.Completed != 3 || got.Pending != 1 {
		t.Errorf("%+v", got)
	}
}

// hung is a store whose scans never return.
type hung struct{ store.Store }

func (h *hung) Scan(ctx context.Context, _ store.Scan) (store.Page, error) {
	<-ctx.Done()
	return store.Page{}, ctx.Err()
}

// L-051: Run makes a pass at once and every five minutes. A pass has a limit even if the store
// does not answer, and Run returns when its context ends.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		r := w.reconciler(func(c *reconcile.Config) { c.Store, c.Clock = &hung{w.store}, time.Now })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx, func() {}) }()
		testkit.Advance(2*time.Minute + time.Second)
		if got := r.Stats(); got.Passes != 1 || got.Failed != 1 || got.LastDuration != 20*time.Second {
			t.Errorf("%+v, expected one pass that failed after 20 s", got)
		}
		testkit.Advance(5 * time.Minute)
		if got := r.Stats(); got.Passes != 2 {
			t.Errorf("%+v, expected a second pass after five minutes", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v, expected nil", err)
		}
	})
}

func TestConfig(t *testing.T) {
	if _, err := reconcile.New(reconcile.Config{}); err == nil {
		t.Error("a configuration without a store was accepted, expected an error")
	}
}

type buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
