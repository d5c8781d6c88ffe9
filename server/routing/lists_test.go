package routing_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// L-128: a list is kept for 300 seconds, also while it is asked for; then the store is
// asked again.
func TestListsAreKeptFiveMinutes(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *fixture{"memory": inMemory, "miniredis": inMiniredis} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			ctx := t.Context()
			there := func(want bool) {
				t.Helper()
				v, _, err := w.List(ctx, "c")
				testkit.Must(t, err)
				if (v == 7) != want {
					t.Fatalf("version %d; there should be one: %v", v, want)
				}
			}
			testkit.Must(t, w.SetList(ctx, "c", 7, []string{"u"}))
			w.pass(200 * time.Second)
			there(true)
			w.pass(99 * time.Second)
			there(true)
			w.pass(2 * time.Second)
			there(false)
			testkit.Must(t, w.SetList(ctx, "c", 3, []string{"u"})) // what was forgotten forbids nothing
			v, _, err := w.List(ctx, "c")
			testkit.Must(t, err)
			if v != 3 {
				t.Fatalf("version %d", v)
			}
		})
	}
	t.Run("redis", func(t *testing.T) {
		addr := realRedis(t)
		r := inRedis(t).engine.(*routing.Redis)
		testkit.Must(t, r.SetList(t.Context(), "c", 7, []string{"u"}))
		o, err := redis.ParseURL(addr)
		testkit.Must(t, err)
		admin := redis.NewClient(o)
		defer func() { _ = admin.Close() }()
		left, err := admin.PTTL(t.Context(), r.ListKey("c")).Result()
		testkit.Must(t, err)
		if left <= 0 || left > 300*time.Second {
			t.Fatalf("kept for %v", left)
		}
	})
}

// watched is a store that notes reads which are not consistent.
type watched struct {
	store.Store
	mu    sync.Mutex
	loose []string
	pause func() // between two reads of a list
}

func (w *watched) note(what string, c store.Consistency) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c != store.Strong {
		w.loose = append(w.loose, what)
	}
}

func (w *watched) Get(ctx context.Context, k store.Key, c store.Consistency) (store.Item, error) {
	w.note(k.String(), c)
	it, err := w.Store.Get(ctx, k, c)
	if w.pause != nil {
		w.pause()
	}
	return it, err
}

func (w *watched) BatchGet(ctx context.Context, k []store.Key, c store.Consistency) ([]store.Item, error) {
	w.note(fmt.Sprint(k), c)
	return w.Store.BatchGet(ctx, k, c)
}

func (w *watched) Query(ctx context.Context, q store.Query) (store.Page, error) {
	w.note(string(q.Table), q.Consistency)
	return w.Store.Query(ctx, q)
}

// members is a chat, its service, and caches of several processes over one shared cache.
type members struct {
	*testing.T
	chats  *chat.Service
	store  *watched
	id     string
	caches []*routing.Recipients
	lists  routing.Lists
}

func newMembers(t *testing.T, lists routing.Lists, change func(*chat.Config)) *members {
	m := &members{T: t, store: &watched{Store: storetest.NewMemory(time.Now)}, lists: lists}
	cfg := chat.Config{Store: m.store.Store, Clock: time.Now, Generation: "g", Producer: "p"}
	if change != nil {
		change(&cfg)
	}
	var err error
	m.chats, err = chat.New(t.Context(), cfg)
	testkit.Must(t, err)
	for n := range 10 {
		testkit.Must(t, m.chats.EnsureUser(t.Context(), user(n)))
	}
	reader := view.New(view.Config{Store: m.store, History: store.Line("g"),
		TokenKey: make([]byte, view.KeySize), Clock: time.Now})
	for range 2 {
		m.caches = append(m.caches, routing.NewRecipients("g", lists, reader.MemberIDs))
	}
	return m
}

func user(n int) string { return fmt.Sprint("user_", n) }

// now is the membership version of the chat, as its events carry it, and who its members
// are.
func (m *members) now() (version int64, users []string) {
	m.Helper()
	it, err := m.store.Store.Get(m.Context(), table.HeadKey(m.id), store.Strong)
	testkit.Must(m.T, err)
	p, err := m.store.Store.Query(m.Context(),
		store.Query{Table: store.ChatMemberships, PK: m.id, Consistency: store.Strong})
	testkit.Must(m.T, err)
	for _, r := range p.Rows {
		users = append(users, r.Key.SK)
	}
	return table.HeadFrom(m.id, it).MembershipVersion, users
}

// exact fails if the cache of a process does not name those who are members at present,
// asked with the version that an event of the present carries.
func (m *members) exact(process int) {
	m.Helper()
	version, want := m.now()
	got, err := m.caches[process].Members(m.Context(), m.id, version)
	testkit.Must(m.T, err)
	if got = slices.Sorted(slices.Values(got)); !slices.Equal(got, want) {
		m.Fatalf("process %d at version %d: %v, want %v", process, version, got, want)
	}
}

// L-127, L-130: a list that was good is worthless with the MembershipChanged that follows
// it, in every process and in the shared cache, without being deleted; a fill that was read
// before and comes after it changes nothing.
func TestMembershipChangedMakesListsWorthless(t *testing.T) {
	each(t, func(t *testing.T, w *fixture) {
		m := newMembers(t, w.engine, nil)
		ctx := t.Context()
		c, err := m.chats.CreateGroup(ctx, chat.CreateGroup{Caller: user(0), Name: "g", Members: []string{user(1), user(2)}})
		testkit.Must(t, err)
		m.id = c.ChatID
		m.exact(0)
		m.exact(1)
		before, stale := m.now()
		_, err = m.chats.Change(ctx, chat.OpRemove, chat.MemberChange{Caller: user(0), ChatID: m.id, UserID: user(1)})
		testkit.Must(t, err)
		testkit.Must(t, m.lists.SetList(ctx, "g:"+m.id, before, stale)) // a late fill of a third process
		m.exact(1)
		m.exact(0)
		testkit.Must(t, m.lists.SetList(ctx, "g:"+m.id, before, stale))
		version, users, err := m.lists.List(ctx, "g:"+m.id)
		testkit.Must(t, err)
		if at, _ := m.now(); version != at || slices.Contains(users, user(1)) {
			t.Fatalf("the shared list is %v at %d, the chat at %d", users, version, at)
		}
		if got, err := m.caches[0].Members(ctx, m.id, before); err != nil || slices.Contains(got, user(1)) {
			t.Fatalf("an event from before brings back %v (%v)", got, err)
		}
	})
}

// L-129, L-130, L-131: whatever fills when, in two processes, while members come and go: an
// event's recipients are those of its version or of a newer one. No event is needed to make
// a list good, no time has to pass, and every read of the store is consistent.
func TestListsAreNeverOlderThanTheEvent(t *testing.T) {
	for seed := range uint64(30) {
		w := inMemory(t)
		m := newMembers(t, w.engine, nil)
		rng := rand.New(rand.NewPCG(seed, 1))
		ctx := t.Context()
		c, err := m.chats.CreateGroup(ctx, chat.CreateGroup{Caller: user(0), Name: "g", Members: []string{user(1)}})
		testkit.Must(t, err)
		m.id = c.ChatID
		change := func() {
			u := user(1 + rng.IntN(9))
			ch := chat.MemberChange{Caller: user(0), ChatID: m.id, UserID: u, Role: table.Member}
			if _, err := m.chats.Change(ctx, chat.OpAdd, ch); errors.Is(err, chat.ErrAlreadyMember) {
				_, err = m.chats.Change(ctx, chat.OpRemove, ch)
				testkit.Must(t, err)
			} else {
				testkit.Must(t, err)
			}
		}
		inside := false
		m.store.pause = func() { // changes between the head's read and the list's
			if !inside && rng.IntN(2) == 0 {
				inside = true
				change()
				inside = false
			}
		}
		for range 60 {
			switch rng.IntN(6) {
			case 0:
				change()
			case 1:
				w.pass(time.Duration(rng.IntN(400)) * time.Second)
			case 2:
				w.flush()
			case 3: // a process that restarts
				m.caches[rng.IntN(2)] = m.caches[0].Fresh("g", m.lists)
			default:
				version, _ := m.now()
				got, err := m.caches[rng.IntN(2)].Members(ctx, m.id, version)
				testkit.Must(t, err)
				at, users := m.now()
				if at == version && !slices.Equal(slices.Sorted(slices.Values(got)), users) {
					t.Fatalf("seed %d: %v at version %d, want %v", seed, got, version, users)
				}
			}
		}
		m.store.pause = nil
		m.exact(0)
		m.exact(1)
		if len(m.store.loose) > 0 {
			t.Fatalf("not consistent: %v", m.store.loose)
		}
	}
}

// L-049: a member whom the second phase of a group's creation made receives every event
// from then on: no cache, filled at whatever moment of the creation, keeps them out for any
// time.
func TestLateMembersReceiveAtOnce(t *testing.T) {
	each(t, func(t *testing.T, w *fixture) {
		var m *members
		here := map[string]bool{}
		checked := 0
		m = newMembers(t, w.engine, func(c *chat.Config) {
			c.Chunk = 2
			c.Committed = func(c chat.Commit) {
				m.id = c.ChatID
				_, users := m.now()
				for _, u := range users {
					here[u] = true
				}
				last := c.Events[len(c.Events)-1].GetMetadata().GetMembershipVersion()
				for _, cache := range m.caches {
					got, err := cache.Members(m.Context(), c.ChatID, last)
					testkit.Must(m.T, err)
					for u := range here {
						if !slices.Contains(got, u) {
							m.Errorf("version %d: %s is a member and not among %v", last, u, got)
						}
					}
				}
				checked++
			}
		})
		var others []string
		for n := range 9 {
			others = append(others, user(1+n))
		}
		c, err := m.chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: user(0), Name: "g", Members: others})
		testkit.Must(t, err)
		testkit.Must(t, c.Incomplete)
		if _, err := m.chats.Send(t.Context(), chat.Send{Caller: user(9), ChatID: m.id, Content: "x"}); err != nil {
			t.Fatal(err)
		}
		if len(here) != 10 || checked != 7 { // the chat, five chunks, the message
			t.Fatalf("%d members, %d commits", len(here), checked)
		}
		m.exact(0)
		m.exact(1)
	})
}

// Whatever ids users have, each is found as it was put, and none as another.
func TestUserIDs(t *testing.T) {
	text, err := os.ReadFile("../auth/testdata/user_ids.json")
	testkit.Must(t, err)
	var ids struct{ Accepted []string }
	testkit.Must(t, json.Unmarshal(text, &ids))
	each(t, func(t *testing.T, w *fixture) {
		ctx := t.Context()
		a, b := routing.Server{"a", "h:1", "g", 1}, routing.Server{"b", "h:2", "g", 1}
		testkit.Must(t, w.Claim(ctx, a, time.Minute))
		testkit.Must(t, w.Claim(ctx, b, time.Minute))
		for i, id := range ids.Accepted {
			_, err := w.Put(ctx, []routing.Server{a, b}[i%2], []string{id}, time.Minute)
			testkit.Must(t, err)
		}
		where, err := w.Lookup(ctx, ids.Accepted)
		testkit.Must(t, err)
		for i, id := range ids.Accepted {
			if got := names(where[id]); got != []string{"a/1", "b/1"}[i%2] {
				t.Errorf("%q is at %q", id, got)
			}
		}
		testkit.Must(t, w.SetList(ctx, "c", 1, ids.Accepted))
		if _, users, err := w.List(ctx, "c"); err != nil || !slices.Equal(users, ids.Accepted) {
			t.Errorf("%q %v", users, err)
		}
	})
}
