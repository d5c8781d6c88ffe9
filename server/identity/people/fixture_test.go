package people_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// engines runs a test on every engine; that on DynamoDB Local where there is one.
func engines(t *testing.T, test func(w *fixture)) {
	t.Helper()
	t.Run("map", func(t *testing.T) {
		w := &fixture{T: t, now: epoch}
		w.open(storetest.NewMemory(w.clock))
		test(w)
	})
	t.Run("embedded", func(t *testing.T) {
		w := &fixture{T: t, now: epoch}
		st, err := embedded.Open(embedded.Options{Dir: t.TempDir(), Clock: w.clock})
		testkit.Must(t, err)
		t.Cleanup(func() { testkit.Must(t, st.Close()) })
		w.open(st)
		test(w)
	})
	t.Run("dynamodb", func(t *testing.T) {
		w := &fixture{T: t, now: time.Now()} // the engine's clock is the machine's
		w.open(dynamotest.Fresh(t))
		test(w)
	})
}

var epoch = time.UnixMilli(1_767_225_600_000)

// fixture is a store with chats and people on it.
type fixture struct {
	*testing.T
	mu       sync.Mutex
	now      time.Time
	spy      *spy
	chats    *chat.Service
	people   *people.Service
	notified []notification // by the service, in order
	found    identifiers
}

// notification is what streams were notified of.
type notification struct {
	user    string
	version int64
	chats   int
}

func (w *fixture) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// pass lets time pass.
func (w *fixture) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

// ProfileChanged implements people.Hub.
func (w *fixture) ProfileChanged(user string, version int64, chats []string) {
	w.notified = append(w.notified, notification{user, version, len(chats)})
}

func noSleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

func (w *fixture) open(st store.Store) {
	w.spy = &spy{Store: st}
	var err error
	w.chats, err = chat.New(w.Context(), chat.Config{Store: w.spy, Clock: w.clock, Generation: "g", Producer: "p",
		Sleep: noSleep})
	testkit.Must(w, err)
	w.found = identifiers{}
	w.people = w.service()
	for _, u := range []string{"ann", "bob", "cat", "dan"} {
		testkit.Must(w, w.chats.EnsureUser(w.Context(), u))
	}
}

// service is the service of another process.
func (w *fixture) service(change ...func(*people.Config)) *people.Service {
	c := people.Config{Store: w.spy, Clock: w.clock, NewID: chat.NewID, Chats: w.chats, Hub: w, Sleep: noSleep,
		Identifiers: w.found}
	for _, f := range change {
		f(&c)
	}
	return people.New(c)
}

// identifiers are those of people, by value.
type identifiers map[string]string

// Lookup implements people.Identifiers.
func (i identifiers) Lookup(_ context.Context, identifier string) (string, error) {
	return i[identifier], nil
}

// OfUser implements people.Identifiers.
func (i identifiers) OfUser(_ context.Context, user string) (list []string, err error) {
	for value, of := range i {
		if of == user {
			list = append(list, value)
		}
	}
	return list, nil
}

// spy counts the calls of a store, and loses answers of transactions.
type spy struct {
	store.Store
	reads, plans atomic.Int64
	lose         atomic.Int64 // this many answers
	refuse       atomic.Int64 // so many plans
}

func (s *spy) Get(ctx context.Context, k store.Key, c store.Consistency) (store.Item, error) {
	s.reads.Add(1)
	return s.Store.Get(ctx, k, c)
}

func (s *spy) BatchGet(ctx context.Context, k []store.Key, c store.Consistency) ([]store.Item, error) {
	s.reads.Add(1)
	return s.Store.BatchGet(ctx, k, c)
}

func (s *spy) Query(ctx context.Context, q store.Query) (store.Page, error) {
	s.reads.Add(1)
	return s.Store.Query(ctx, q)
}

func (s *spy) Transact(ctx context.Context, p store.Plan) error {
	s.plans.Add(1)
	if s.refuse.Load() > 0 && s.refuse.Add(-1) == 0 {
		return store.ErrClosed
	}
	err := s.Store.Transact(ctx, p)
	if err == nil && s.lose.Load() > 0 && s.lose.Add(-1) >= 0 {
		return store.ErrAmbiguous
	}
	return err
}

// count returns the calls that f makes.
func (s *spy) count(f func()) (reads, plans int64) {
	reads, plans = s.reads.Load(), s.plans.Load()
	f()
	return s.reads.Load() - reads, s.plans.Load() - plans
}

func (w *fixture) direct(a, b string) (string, error) {
	c, err := w.chats.CreateDirect(w.Context(), chat.CreateDirect{Caller: a, Other: b})
	return c.ChatID, err
}

func (w *fixture) group(owner string, members ...string) (string, error) {
	c, err := w.chats.CreateGroup(w.Context(), chat.CreateGroup{Caller: owner, Name: "Tea", Members: members})
	if err == nil {
		err = c.Incomplete
	}
	return c.ChatID, err
}

func (w *fixture) send(id, sender, text string) error {
	_, err := w.chats.Send(w.Context(), chat.Send{Caller: sender, ChatID: id, Content: text})
	return err
}

func (w *fixture) add(id, caller, user string) error {
	_, err := w.chats.Change(w.Context(), chat.OpAdd,
		chat.MemberChange{Caller: caller, ChatID: id, UserID: user, Role: table.Member})
	return err
}

func (w *fixture) role(id, user string) table.Role {
	w.Helper()
	it, err := w.spy.Get(w.Context(), table.MembershipKey(id, user), store.Strong)
	testkit.Must(w, err)
	if it == nil {
		return ""
	}
	return table.MembershipFrom(id, user, it).Role
}
