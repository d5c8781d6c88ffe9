package chat_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// L-017, L-020, L-176: however many create it, from both sides and two processes,
// two people have one chat, and one caller made it.
func TestDirectRace(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		services := []*chat.Service{w.service("p", st), w.service("q", st)}
		w.users(services[0], "ann", "bob")
		var mu sync.Mutex
		ids, fresh := map[string]int{}, 0
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				r := chat.CreateDirect{Caller: "ann", Other: "bob"}
				if i%2 == 1 {
					r.Caller, r.Other = r.Other, r.Caller
				}
				if i%3 == 0 {
					r.RequestID = fmt.Sprint("r", i%4)
				}
				c, err := services[i/2%2].CreateDirect(w.ctx, r)
				if err != nil {
					t.Error(err)
					return
				}
				// Sending right away must work for everybody.
				if _, err := services[i%2].Send(w.ctx, chat.Send{Caller: r.Other, ChatID: c.ChatID, Content: "hi"}); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				ids[c.ChatID]++
				if !c.Replayed {
					fresh++
				}
			})
		}
		wg.Wait()
		if len(ids) != 1 || fresh != 1 {
			t.Errorf("%v, %d fresh", ids, fresh)
		}
		w.check()
		w.checkCommits(true)
	})
}

func TestDirectChat(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob", "cat")
		c, err := s.CreateDirect(w.ctx,
			chat.CreateDirect{Caller: "ann", Other: "bob", RequestID: "r", History: table.SinceJoined})
		if err != nil || c.Replayed || !strings.HasPrefix(c.ChatID, "chat_") {
			t.Fatal(c, err)
		}
		row := w.chat(c.ChatID)
		// L-001, L-024
		if row.Type != table.Direct || row.MemberCount != 2 || row.Status != table.Active ||
			row.History != table.SinceJoined || row.CreatedBy != "ann" {
			t.Errorf("%+v", row)
		}
		for name, x := range map[string]struct {
			req  chat.CreateDirect
			want error
		}{
			"L-021 self":    {chat.CreateDirect{Caller: "ann", Other: "ann"}, chat.ErrInvalidOperation},
			"L-023 unknown": {chat.CreateDirect{Caller: "ann", Other: "zoe"}, chat.ErrUserNotFound},
			"L-011 bad id":  {chat.CreateDirect{Caller: "ann", Other: "b#b"}, chat.ErrInvalidArgument},
			"bad history":   {chat.CreateDirect{Caller: "ann", Other: "bob", History: "x"}, chat.ErrInvalidArgument},
			"other content": {chat.CreateDirect{Caller: "ann", Other: "cat", RequestID: "r", History: table.SinceJoined},
				chat.ErrKeyReused},
			"L-013 again":   {chat.CreateDirect{Caller: "ann", Other: "bob"}, nil},
			"L-178 swapped": {chat.CreateDirect{Caller: "bob", Other: "ann"}, nil},
			"same request": {chat.CreateDirect{Caller: "ann", Other: "bob", RequestID: "r", History: table.SinceJoined},
				nil},
			"L-020 other request": {chat.CreateDirect{Caller: "bob", Other: "ann", RequestID: "r"}, nil},
		} {
			got, err := s.CreateDirect(w.ctx, x.req)
			if !errors.Is(err, x.want) || (err == nil && (got.ChatID != c.ChatID || !got.Replayed)) {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		// S-53: a key that found the chat is remembered like one that made it.
		found := chat.CreateDirect{Caller: "ann", Other: "bob", RequestID: "found"}
		for range 2 {
			if got, err := s.CreateDirect(w.ctx, found); err != nil || got.ChatID != c.ChatID || !got.Replayed {
				t.Errorf("found: %+v, %v", got, err)
			}
			if _, err := s.CreateDirect(w.ctx, chat.CreateDirect{Caller: "ann", Other: "cat", RequestID: "found"}); !errors.Is(
				err, chat.ErrKeyReused) {
				t.Errorf("found, with other content: %v", err)
			}
		}
		// L-101…L-108, L-186: nothing but sends by the two.
		ch := chat.MemberChange{Caller: "ann", ChatID: c.ChatID, UserID: "cat", Role: table.Member}
		if _, err := s.Change(w.ctx, chat.OpAdd, ch); !errors.Is(err, chat.ErrInvalidOperation) {
			t.Error(err)
		}
		ch.UserID = "bob"
		if err := changeMember(w.ctx, s, chat.OpRemove, ch); !errors.Is(err, chat.ErrInvalidOperation) {
			t.Error(err)
		}
		if err := changeMember(w.ctx, s, chat.OpLeave, ch); !errors.Is(err, chat.ErrInvalidOperation) {
			t.Error(err)
		}
		// L-107
		if _, err := s.Send(w.ctx, chat.Send{Caller: "cat", ChatID: c.ChatID, Content: "x"}); !errors.Is(err,
			chat.ErrNotAMember) {
			t.Error(err)
		}
		if n := len(w.scan(store.Chats)); n != 1 { // L-003
			t.Errorf("%d chats", n)
		}
		w.check()
		w.checkCommits(true)
	})
}

func TestGroups(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		many := numbered("u", 101)
		w.users(s, append(many, "ann")...)
		create := func(r chat.CreateGroup) (chat.Created, error) {
			r.Caller = "ann"
			if r.Name == "" {
				r.Name = "name"
			}
			return s.CreateGroup(w.ctx, r)
		}
		for name, x := range map[string]struct {
			req  chat.CreateGroup
			want error
		}{
			"L-026 100 others":   {chat.CreateGroup{Members: many[:100]}, chat.ErrInvalidArgument},
			"L-027 nobody":       {chat.CreateGroup{}, chat.ErrInvalidArgument},
			"L-027 only oneself": {chat.CreateGroup{Members: []string{"ann"}}, chat.ErrInvalidArgument},
			"unknown user":       {chat.CreateGroup{Members: []string{"u001", "zoe"}}, chat.ErrUserNotFound},
			"bad user":           {chat.CreateGroup{Members: []string{"u#"}}, chat.ErrInvalidArgument},
			"long name": {chat.CreateGroup{Members: many[:1], Name: strings.Repeat("ü", 129)},
				chat.ErrInvalidArgument},
			"name that is not":    {chat.CreateGroup{Members: many[:1], Name: "\xff"}, chat.ErrInvalidArgument},
			"bad history":         {chat.CreateGroup{Members: many[:1], History: "x"}, chat.ErrInvalidArgument},
			"bad id of a request": {chat.CreateGroup{Members: many[:1], RequestID: "a#b"}, chat.ErrInvalidArgument},
		} {
			if _, err := create(x.req); !errors.Is(err, x.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := len(w.scan(store.Chats)) + len(w.scan(store.Events)); n != 0 {
			t.Errorf("%d rows of refused chats", n)
		}
		for _, n := range []int{1, 2, 23, 24, 25, 48, 96, 97, 98, 99} { // L-028, L-038…L-040, L-179, L-180
			// L-025: repetitions and the caller are dropped.
			c, err := create(chat.CreateGroup{Members: slices.Concat(many[:n], many[:1], []string{"ann"}),
				Name: strings.Repeat("ü", 128)})
			if err != nil || c.Incomplete != nil || c.Replayed {
				t.Fatal(n, c, err)
			}
			row, h := w.chat(c.ChatID), w.head(c.ChatID)
			// L-116
			if row.MemberCount != int64(n+1) || h.Version != int64(n+1) || h.MembershipVersion != int64(n+1) ||
				row.Version != h.Version {
				t.Errorf("%d others: %+v, %+v", n, row, h)
			}
		}
		w.check()
		w.checkCommits(true)
	})
}

// crash ends a process at its n-th plan: that plan and all that follow do nothing.
type crash struct {
	store.Store
	left atomic.Int64
}

func (c *crash) Transact(ctx context.Context, p store.Plan) error {
	if !isClock(p) && c.left.Add(-1) < 0 {
		return store.ErrUnavailable
	}
	return c.Store.Transact(ctx, p)
}

// isClock tells the plans that write the last stamp down: nothing depends on them.
func isClock(p store.Plan) bool { return p.Writes[0].Key == table.ClockKey() }

// L-041, L-042, L-161, L-191: a group whose creation stops after any plan is
// completed by anybody, or by a repetition of the request.
func TestCrashedCreation(t *testing.T) {
	const chunk, others = 4, 14
	for n := range int64(6) {
		for _, finish := range []string{"anybody", "repetition"} {
			w := newFixture(t, dynamotest.Store(t, time.Now))
			small := func(c *chat.Config) { c.Chunk = chunk }
			healthy := w.service("q", w.store, small)
			members := numbered("u", others)
			w.users(healthy, append(members, "ann")...)
			dying := &crash{Store: w.store}
			dying.left.Store(n)
			s := w.service("p", dying, small)
			r := chat.CreateGroup{Caller: "ann", Name: "g", Members: members, RequestID: "r"}
			c, err := s.CreateGroup(w.ctx, r)
			if (n == 0) != (err != nil) || (err == nil && (n < 5) != (c.Incomplete != nil)) {
				t.Fatal(n, c, err)
			}
			if n == 0 && len(w.scan(store.Chats))+len(w.scan(store.PendingMembers)) != 0 { // L-003, L-156
				t.Error("phase 1 left something")
			}
			w.check() // L-046 holds at every moment
			if finish == "anybody" && n > 0 {
				if err := healthy.FinishPending(w.ctx, c.ChatID); err != nil {
					t.Fatal(err)
				}
			} else {
				again, err := healthy.CreateGroup(w.ctx, r)
				if err != nil || again.Incomplete != nil || again.Replayed != (n > 0) || (n > 0 && again.ChatID != c.ChatID) {
					t.Fatal(n, again, err)
				}
			}
			if len(w.scan(store.PendingMembers)) != 0 || len(w.scan(store.ChatMemberships)) != others+1 ||
				len(w.scan(store.Chats)) != 1 {
				t.Errorf("after %d plans and %s: %d pending rows", n, finish, len(w.scan(store.PendingMembers)))
			}
			w.check()
			w.checkCommits(true)
		}
	}
}

// Many finish the same group while members that are on their way in are removed, and
// others leave: nobody comes twice, and nobody who was removed comes back.
func TestFinishRaces(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		small := func(c *chat.Config) { c.Chunk = 2 }
		members := numbered("u", 30)
		dying := &crash{Store: st}
		dying.left.Store(1)
		services := []*chat.Service{w.service("p", st, small), w.service("q", st, small)}
		w.users(services[0], append(members, "ann")...)
		c, err := w.service("d", dying, small).CreateGroup(w.ctx,
			chat.CreateGroup{Caller: "ann", Name: "g", Members: members})
		if err != nil || c.Incomplete == nil {
			t.Fatal(c, err)
		}
		if _, err := services[0].Change(w.ctx, chat.OpAdd,
			chat.MemberChange{Caller: "ann", ChatID: c.ChatID, UserID: "u029", Role: table.Admin}); !errors.Is(err,
			chat.ErrAlreadyMember) {
			t.Error(err)
		}
		// L-043
		if _, err := services[0].Send(w.ctx, chat.Send{Caller: "u029", ChatID: c.ChatID, Content: "x"}); !errors.Is(err,
			chat.ErrNotAMember) {
			t.Error(err)
		}
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				if err := services[i%2].FinishPending(w.ctx, c.ChatID); err != nil {
					t.Error(err)
				}
			})
		}
		var removed sync.Map
		for i := 0; i < 30; i += 3 {
			wg.Go(func() {
				err := changeMember(w.ctx, services[i%2], chat.OpRemove,
					chat.MemberChange{Caller: "ann", ChatID: c.ChatID, UserID: members[i]})
				if err != nil {
					t.Error(err)
				}
				removed.Store(members[i], true)
			})
			wg.Go(func() { // L-093, L-193
				err := changeMember(w.ctx, services[i%2], chat.OpLeave, chat.MemberChange{Caller: members[i+1], ChatID: c.ChatID})
				if err == nil {
					removed.Store(members[i+1], true)
				} else if !errors.Is(err, chat.ErrNotAMember) { // still on the way in
					t.Error(err)
				}
			})
			wg.Go(func() {
				if _, err := services[i%2].Send(w.ctx, chat.Send{Caller: "ann", ChatID: c.ChatID, Content: "x"}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, r := range w.scan(store.ChatMemberships) {
			if _, ok := removed.Load(r.Key.SK); ok {
				t.Errorf("%s came back", r.Key.SK)
			}
		}
		if n := len(w.scan(store.PendingMembers)); n != 0 {
			t.Errorf("%d pending rows", n)
		}
		w.check()
		w.checkCommits(true)
	})
}

// The ids of other systems name users everywhere: as sender, member, target, as part of a
// pair and of a request. Nothing takes one for two or two for one.
func TestUserIDsOfOtherSystems(t *testing.T) {
	ids := []string{
		"auth0|123", "ann@example.com", "3b241101-e2bb-4255-8caf-4136c566a962", "李", "Łukasz", "🙂", "a:b", "a|b", "b|a",
		"a,b", "100%", "%2F", "%23",
		"{x}", "x}", "a&b=c", "<b>", `"q"`, `back\slash`, "$1", "*", "-", "system-reconcile", strings.Repeat("é", 32),
		"e\u0301", "é", "...",
	}
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, append([]string{"ann"}, ids...)...)
		id := w.group(s, "ann", ids...)
		if n := len(w.membersOf(id)); n != len(ids)+1 {
			t.Fatalf("%d members of %d", n, len(ids)+1)
		}
		pairs := map[string]string{}
		for i, u := range ids {
			sent, err := s.Send(w.ctx, chat.Send{Caller: u, ChatID: id, Content: u, ClientMessageID: "same"})
			if err != nil || sent.Replayed || sent.Sequence != int64(i+1) {
				t.Errorf("%s: %+v, %v", u, sent, err)
			}
			c, err := s.CreateDirect(w.ctx, chat.CreateDirect{Caller: u, Other: ids[(i+1)%len(ids)], RequestID: "same"})
			if err != nil || c.Replayed || pairs[c.ChatID] != "" {
				t.Errorf("%s: %+v, %v, of %s before", u, c, err, pairs[c.ChatID])
			}
			pairs[c.ChatID] = u
			back, err := s.CreateDirect(w.ctx, chat.CreateDirect{Caller: ids[(i+1)%len(ids)], Other: u})
			if err != nil || back.ChatID != c.ChatID {
				t.Errorf("%s: %+v, %v", u, back, err)
			}
			if _, err := s.Change(w.ctx, chat.OpRole,
				chat.MemberChange{Caller: "ann", ChatID: id, UserID: u, Role: table.Admin,
					RequestID: "r" + fmt.Sprint(i)}); err != nil {
				t.Errorf("%s: %v", u, err)
			}
			if err := changeMember(w.ctx, s, chat.OpRemove,
				chat.MemberChange{Caller: "ann", ChatID: id, UserID: u}); err != nil {
				t.Errorf("%s: %v", u, err)
			}
		}
		w.check()
		w.checkCommits(true)
	})
	if err := command.CheckUser(plan.Reconciler); err == nil {
		t.Errorf("a user can be named %s", plan.Reconciler)
	}
}
