package eventquery_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/eventquery"
)

// state is what is stored of a chat that its events say, too.
type state struct {
	Head    table.Head
	Row     table.Chat
	Members map[string]table.Membership
}

// stored reads the rows of a chat.
func (f *fixture) stored(id string) state {
	f.Helper()
	head, err := f.store.Get(f.Context(), table.HeadKey(id), store.Strong)
	f.must(err)
	row, err := f.store.Get(f.Context(), table.ChatKey(id), store.Strong)
	f.must(err)
	s := state{Head: table.HeadFrom(id, head), Row: table.ChatFrom(id, row), Members: map[string]table.Membership{}}
	for r, err := range store.QueryAll(f.Context(), f.store, store.Query{Table: store.ChatMemberships, PK: id}) {
		f.must(err)
		s.Members[r.Key.SK] = table.MembershipFrom(id, r.Key.SK, r.Item)
	}
	return s
}

// fold derives a chat from its events.
func (f *fixture) fold(id string, version int64) state {
	f.Helper()
	c, problem, err := eventquery.Fold(f.Context(), f.store, id, version, func(int64) error { return nil })
	f.must(errors.Join(problem, err))
	return state{c.Head, c.Row, c.Members}
}

// step changes a chat in one of many ways; what is refused changes nothing.
func (f *fixture) step(r *rand.Rand, id string, n int) {
	users := []string{"alice", "bob", "carol", "dave"}
	user := users[r.IntN(len(users))]
	ctx := f.Context()
	switch r.IntN(6) {
	case 0:
		_, _ = f.chats.Change(ctx, chat.OpAdd, chat.MemberChange{Caller: "alice", ChatID: id, UserID: user,
			Role: table.Member})
	case 1:
		_, _ = f.chats.Change(ctx, chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: id, UserID: user})
	case 2:
		role := []table.Role{table.Admin, table.Member}[r.IntN(2)]
		_, _ = f.chats.Change(ctx, chat.OpRole, chat.MemberChange{Caller: "alice", ChatID: id, UserID: user, Role: role})
	case 3:
		name := fmt.Sprint("name ", n)
		_, _, _ = f.chats.UpdateChat(ctx, chat.ChatChange{Caller: "alice", ChatID: id, Name: &name})
	default:
		_, _ = f.chats.Send(ctx, chat.Send{Caller: user, ChatID: id, Content: fmt.Sprint("message ", n)})
	}
}

// EV54: the events of a chat make its rows again, at each of its versions and at each time.
func TestFoldEqualsTheStore(t *testing.T) {
	for seed := range uint64(5) {
		f := newFixture(t)
		r := rand.New(rand.NewPCG(seed, 1))
		id := f.group(0)
		seen := map[int64]state{}
		at := map[int64]time.Time{}
		for n := range 60 {
			s := f.stored(id)
			if _, ok := seen[s.Head.Version]; !ok {
				at[s.Head.Version] = f.clock()
			}
			seen[s.Head.Version] = s
			f.pass(time.Duration(1+r.IntN(3)) * time.Second)
			f.step(r, id, n)
		}
		if len(seen) < 20 {
			t.Fatalf("seed %d: %d versions", seed, len(seen))
		}
		for version, want := range seen {
			if got := f.fold(id, version); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d, version %d:\ngot  %+v\nwant %+v", seed, version, got, want)
			}
			found, err := eventquery.VersionAt(t.Context(), f.store, id, at[version])
			f.must(err)
			if found != version {
				t.Errorf("seed %d: at %s the chat was at version %d, not %d", seed, at[version], found, version)
			}
		}
		last := f.stored(id)
		if got := f.fold(id, 0); !reflect.DeepEqual(got, last) {
			t.Errorf("seed %d, the newest:\ngot  %+v\nwant %+v", seed, got, last)
		}
	}
}

// A fold ends where the events do, and says why; versions and chats that there are not are
// told apart from that.
func TestFoldOfWhatIsNotWhole(t *testing.T) {
	f := newFixture(t)
	id := f.group(6) // versions 1 to 8
	none := func(int64) error { return nil }
	if _, _, err := eventquery.Fold(t.Context(), f.store, id, 9, none); !errors.Is(err, eventquery.ErrNotFound) ||
		!strings.Contains(err.Error(), "the chat is at version 8") {
		t.Errorf("version 9: %v", err)
	}
	if _, _, err := eventquery.Fold(t.Context(), f.store, "chat_nobody", 0, none); !errors.Is(err,
		eventquery.ErrNotFound) {
		t.Errorf("no chat: %v", err)
	}
	if _, _, err := eventquery.Fold(t.Context(), f.store, id, -1, none); !errors.Is(err, eventquery.ErrInvalid) {
		t.Errorf("version -1: %v", err)
	}
	want := f.fold(id, 4)
	f.write(store.Write{Op: store.OpDelete, Key: table.EventKey(id, 5)})
	for _, version := range []int64{0, 7} {
		c, problem, err := eventquery.Fold(t.Context(), f.store, id, version, none)
		f.must(err)
		if problem == nil || !strings.Contains(problem.Error(), "whole up to version 4 only") ||
			!reflect.DeepEqual(state{c.Head, c.Row, c.Members}, want) {
			t.Errorf("version %d: %+v, %v", version, c, problem)
		}
	}
}

// long makes a chat with many events, more than are read at a time.
func (f *fixture) long(versions int64) string {
	f.Helper()
	id := f.group(0)
	e := f.events[1] // bob was added
	for v := int64(3); v <= versions; v++ {
		e.GetMetadata().Version, e.GetMetadata().EventId = v, fmt.Sprint("evt_", v)
		payload, err := event.Marshal(e)
		f.must(err)
		f.write(store.Write{Op: store.OpPut, Key: table.EventKey(id, v),
			Item: table.Event{ChatID: id, Version: v, EventID: fmt.Sprint("evt_", v), Type: event.TypeMembershipChanged,
				Payload: payload}.Item()})
	}
	return id
}

// A long chat is listed whole, in pages that end anywhere.
func TestListOfALongChat(t *testing.T) {
	f := newFixture(t)
	id := f.long(2500)
	for _, filter := range []eventquery.Filter{{ChatID: id}, {},
		{ChatID: id, Statuses: []outbox.Status{outbox.New, outbox.Published}}} {
		for _, o := range []eventquery.Options{{}, {Limit: 333}, {MaxRead: 501}} {
			found, read := f.list(filter, o)
			if len(found) != 2500 || read != 2500 {
				t.Fatalf("%+v with %+v: %d events, %d read", filter, o, len(found), read)
			}
			for i, e := range found {
				if e.Version != int64(i+1) {
					t.Fatalf("%+v with %+v: version %d as number %d", filter, o, e.Version, i+1)
				}
			}
		}
	}
}

// A long fold reports how far it is, and ends if that cannot be reported.
func TestFoldReports(t *testing.T) {
	f := newFixture(t)
	id := f.long(2500)
	var reports []int64
	c, problem, err := eventquery.Fold(t.Context(), f.store, id, 0, func(v int64) error {
		reports = append(reports, v)
		return nil
	})
	f.must(errors.Join(problem, err))
	if c.Head.Version != 2500 || !reflect.DeepEqual(reports, []int64{1000, 2000}) {
		t.Errorf("version %d, reports %v", c.Head.Version, reports)
	}
	stop := errors.New("the caller has left")
	_, _, err = eventquery.Fold(t.Context(), f.store, id, 0, func(int64) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("the fold continued: %v", err)
	}
}

// An event with a wrong time in the future does not hide those that came later.
func TestVersionAtWithAWrongClock(t *testing.T) {
	f := newFixture(t)
	id := f.group(3) // versions 1 to 5
	row, err := f.store.Get(t.Context(), table.EventKey(id, 4), store.Strong)
	f.must(err)
	e := eventquery.Read(store.Row{Key: table.EventKey(id, 4), Item: row})
	e.Body.GetMetadata().EventTime = timestamppb.New(start.AddDate(1, 0, 0))
	payload, err := event.Marshal(e.Body)
	f.must(err)
	f.write(store.Write{Op: store.OpPut, Key: table.EventKey(id, 4),
		Item: table.Event{ChatID: id, Version: 4, EventID: e.ID, Type: e.Type, Payload: payload}.Item()})
	if v, err := eventquery.VersionAt(t.Context(), f.store, id, start.Add(time.Hour)); v != 5 || err != nil {
		t.Errorf("version %d, %v", v, err)
	}
	if _, err := eventquery.VersionAt(t.Context(), f.store, id, start.Add(-time.Hour)); !errors.Is(err,
		eventquery.ErrNotFound) {
		t.Errorf("before the first event: %v", err)
	}
}
