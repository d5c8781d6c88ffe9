package chat_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

func (w *fixture) tooMany(err error, user string) {
	w.t.Helper()
	many := new(chat.TooManyChats)
	if !errors.Is(err, chat.ErrTooManyChats) || !errors.As(err, &many) || many.UserID != user {
		w.t.Errorf("%v, not too many chats of %s", err, user)
	}
}

// Whoever is in as many chats as the limit allows can neither create one nor be
// added; leaving one makes room again.
func TestLimitOfChats(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st, func(c *chat.Config) { c.Chats = 3 })
		w.users(s, "ann", "bob", "cat", "dan")
		ids := make([]string, 3)
		for i := range ids {
			ids[i] = w.group(s, "ann", "bob")
		}
		_, err := s.CreateGroup(w.ctx, chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"cat"}})
		w.tooMany(err, "ann")
		_, err = s.CreateDirect(w.ctx, chat.CreateDirect{Caller: "ann", Other: "cat"})
		w.tooMany(err, "ann")
		_, err = s.CreateGroup(w.ctx, chat.CreateGroup{Caller: "cat", Name: "g", Members: []string{"bob", "dan"}})
		w.tooMany(err, "bob")
		_, err = s.CreateDirect(w.ctx, chat.CreateDirect{Caller: "cat", Other: "bob"})
		w.tooMany(err, "bob")
		id := w.group(s, "cat", "dan")
		_, err = s.Change(w.ctx, chat.OpAdd, chat.MemberChange{Caller: "cat", ChatID: id, UserID: "bob", Role: table.Member})
		w.tooMany(err, "bob")
		if err := changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "bob", ChatID: ids[0]}); err != nil {
			t.Fatal(err)
		}
		w.add(s, id, "cat", "bob", table.Member)
		_, err = s.Change(w.ctx, chat.OpAdd,
			chat.MemberChange{Caller: "ann", ChatID: ids[0], UserID: "bob", Role: table.Member})
		w.tooMany(err, "bob")
		w.check()
	})
}

// Plans of a user who is added to many chats at once wait for each other, and the
// limit holds exactly.
func TestLimitOfChatsAtOnce(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st, func(c *chat.Config) { c.Chats = 5 })
		owners := numbered("o", 12)
		w.users(s, append(owners, "bob", "cat")...)
		var wg sync.WaitGroup
		errs := make([]error, len(owners))
		for i, o := range owners {
			id := w.group(s, o, "cat")
			if i >= 4 { // cat's own limit
				if err := changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "cat", ChatID: id}); err != nil {
					t.Fatal(err)
				}
			}
			wg.Go(func() {
				_, errs[i] = s.Change(w.ctx, chat.OpAdd,
					chat.MemberChange{Caller: o, ChatID: id, UserID: "bob", Role: table.Member})
			})
		}
		wg.Wait()
		in := 0
		for _, err := range errs {
			if err == nil {
				in++
			} else {
				w.tooMany(err, "bob")
			}
		}
		if in != 5 {
			t.Errorf("bob is in %d chats", in)
		}
		w.check()
	})
}

// Rows of users that an earlier release wrote have no number of chats: it is counted
// before the first plan that changes it.
func TestChatsOfOlderUsersAreCounted(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st, func(c *chat.Config) { c.Chats = 4 })
		w.users(s, "ann", "bob", "cat", "dan")
		id, other := w.group(s, "ann", "bob", "cat"), w.group(s, "ann", "bob", "cat")
		older := func() {
			for _, u := range []string{"ann", "bob", "cat", "dan"} {
				put := store.Write{Op: store.OpPut, Key: table.UserKey(u),
					Item: table.User{CreatedAt: 1, Status: table.Active}.Item()}
				if err := st.BatchWrite(w.ctx, []store.Write{put}); err != nil {
					t.Fatal(err)
				}
			}
		}
		chats := func(user string) string {
			it, err := st.Get(w.ctx, table.UserKey(user), store.Strong)
			if err != nil {
				t.Fatal(err)
			}
			u := table.UserFrom(user, it)
			return fmt.Sprint(u.Counted, " ", u.Chats, " ", u.CreatedAt)
		}
		older()
		for _, step := range []struct {
			do   func() error
			user string
			want string
		}{
			{func() error {
				return changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "bob", ChatID: id})
			}, "bob", "true 1 1"},
			{func() error {
				return changeMember(w.ctx, s, chat.OpRemove, chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat"})
			}, "cat", "true 1 1"},
			{func() error {
				_, err := s.Change(w.ctx, chat.OpAdd,
					chat.MemberChange{Caller: "ann", ChatID: other, UserID: "dan", Role: table.Member})
				return err
			}, "dan", "true 1 1"},
			{func() error {
				_, err := s.CreateDirect(w.ctx, chat.CreateDirect{Caller: "bob", Other: "ann"})
				return err
			}, "ann", "true 3 1"},
		} {
			if err := step.do(); err != nil {
				t.Fatal(err)
			}
			if got := chats(step.user); got != step.want {
				t.Errorf("%s: %s, not %s", step.user, got, step.want)
			}
		}
		older()
		if g := w.group(s, "dan", "ann", "bob"); g == "" || chats("dan") != "true 2 1" || chats("ann") != "true 4 1" ||
			chats("bob") != "true 3 1" {
			t.Error(chats("dan"), chats("ann"), chats("bob"))
		}
		older()
		_, err := s.CreateGroup(w.ctx, chat.CreateGroup{Caller: "dan", Name: "g", Members: []string{"ann"}})
		w.tooMany(err, "ann")
		w.check()
	})
}

// checkRows holds the users' rows against the memberships.
func (w *fixture) checkRows() {
	w.t.Helper()
	in := map[string]int64{}
	roles := map[[2]string]table.Role{}
	for _, r := range w.scan(store.ChatMemberships) {
		in[r.Key.SK]++
		roles[[2]string{r.Key.SK, r.Key.PK}] = table.MembershipFrom(r.Key.PK, r.Key.SK, r.Item).Role
	}
	for _, r := range w.scan(store.Users) {
		if u := table.UserFrom(r.Key.PK, r.Item); u.Counted && u.Chats != in[u.UserID] {
			w.t.Errorf("%s is in %d chats, not %d", u.UserID, in[u.UserID], u.Chats)
		}
	}
	for _, r := range w.scan(store.DeliveryState) {
		if user, ok := strings.CutSuffix(r.Key.PK, "#left"); ok {
			w.checkLeft(user, r)
			continue
		}
		row := table.UserChatFrom(r.Key.PK, r.Key.SK, r.Item)
		role, member := roles[[2]string{row.UserID, row.ChatID}]
		if !member || row.Left() || row.Role != role || row.ExpiresAt != 0 || row.ReadSequence < row.JoinedSequence {
			w.t.Errorf("%s in %s: member %v as %s, row %+v", row.UserID, row.ChatID, member, role, row)
		}
		w.checkPeer(row)
		delete(roles, [2]string{row.UserID, row.ChatID})
	}
	for who := range roles {
		w.t.Errorf("%s is a member of %s without a row", who[0], who[1])
	}
}

// checkLeft holds the rows of a chat that was left against each other.
func (w *fixture) checkLeft(user string, r store.Row) {
	w.t.Helper()
	row := table.UserChatFrom(user, r.Key.SK, r.Item)
	if strings.HasPrefix(r.Key.SK, "#") {
		row = table.LeftLogFrom(user, r)
		if r.Key != table.LeftLogKey(user, row.ChangedAt, row.ChatID) {
			w.t.Errorf("%s: %+v", r.Key, row)
		}
	} else if it, err := w.store.Get(w.ctx, table.LeftLogKey(user, row.ChangedAt, row.ChatID), store.Strong); err != nil ||
		it == nil {
		w.t.Errorf("%s has no row in order of time: %v", r.Key, err)
	}
	if !row.Left() || row.ExpiresAt == 0 {
		w.t.Errorf("%s: %+v", r.Key, row)
	}
}

// A chat that was left under an earlier release has its row in place, with what ended
// the membership: whoever left cannot send, and can be added again.
func TestChatsLeftUnderAnEarlierRelease(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob", "cat")
		id := w.group(s, "ann", "bob", "cat")
		if err := changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "bob", ChatID: id}); err != nil {
			t.Fatal(err)
		}
		left := w.userChat("bob", id)
		if err := st.BatchWrite(w.ctx,
			[]store.Write{{Op: store.OpPut, Key: table.UserChatKey("bob", id), Item: left.Item()}}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Send(w.ctx, chat.Send{Caller: "bob", ChatID: id, Content: "x"}); !errors.Is(err, chat.ErrNotAMember) {
			t.Error(err)
		}
		if _, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: id, Sequence: 1}); !errors.Is(err,
			chat.ErrNotAMember) {
			t.Error(err)
		}
		w.add(s, id, "ann", "bob", table.Member)
		if row := w.userChat("bob", id); row.Left() || row.ExpiresAt != 0 {
			t.Errorf("%+v", row)
		}
		w.send(s, id, "bob", "back")
		w.check()
	})
}
