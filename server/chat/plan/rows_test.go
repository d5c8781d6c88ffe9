package plan

import (
	"errors"
	"slices"
	"testing"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// A user's number of chats is counted in the plans that change it, and whoever is in
// as many as the limit joins no other.
func TestChatsOfAUserAreCounted(t *testing.T) {
	m := planner()
	counts := func(d *Plan, user string) (int64, func(int64) bool) {
		w := write(t, d, table.UserKey(user))
		return w.Update.Add[0].N, func(n int64) bool {
			return store.Evaluate(w.Cond, table.User{Chats: n, Counted: true}.Item())
		}
	}
	direct, err := m.Direct("chat_1", command.CreateDirect{Caller: "ann", Other: "bob", History: table.All}, at)
	if err != nil {
		t.Fatal(err)
	}
	group1, err := m.Group("chat_1", command.CreateGroup{Caller: "ann", Members: []string{"bob"}, History: table.All}, at)
	if err != nil {
		t.Fatal(err)
	}
	add, err := decide(group(role("ann", table.Owner), nil), command.OpAdd, change(table.Member))
	if err != nil {
		t.Fatal(err)
	}
	remove, err := decide(group(role("ann", table.Owner), role("bob", table.Member)), command.OpRemove,
		change(table.Member))
	if err != nil {
		t.Fatal(err)
	}
	s := group(nil, nil)
	s.Pending = &table.Pending{ChatID: "chat_1", CreatedBy: "ann", Members: []string{"bob"}}
	chunk, err := m.Chunk(s, 1, at)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name string
		d    *Plan
		user string
		n    int64
		full bool // refused at 10,000
	}{
		{"direct", direct, "ann", 1, true}, {"direct", direct, "bob", 1, true}, {"group", group1, "ann", 1, true},
		{"add", add, "bob", 1, true}, {"remove", remove, "bob", -1, false}, {"chunk", chunk, "bob", 1, false},
	} {
		n, holds := counts(x.d, x.user)
		if n != x.n || !holds(9_999) || holds(10_000) == x.full || !holds(-3) {
			t.Errorf("%s: %s counts %d, holds at 9,999 %v, at 10,000 %v", x.name, x.user, n, holds(9_999), holds(10_000))
		}
		if w := write(t, x.d, table.UserKey(x.user)); store.Evaluate(w.Cond, table.User{}.Item()) ||
			store.Evaluate(w.Cond, nil) {
			t.Errorf("%s: holds without a number", x.name)
		}
	}
	full := group(role("ann", table.Owner), nil)
	full.TargetUser = table.User{UserID: "bob", Chats: 10_000, Counted: true}
	_, err = decide(full, command.OpAdd, change(table.Member))
	if many := new(command.TooManyChats); !errors.As(err, &many) || !errors.Is(err, command.ErrTooManyChats) ||
		many.UserID != "bob" || many.Limit != 10_000 {
		t.Error(err)
	}
}

// Each change of a user's row raises its revision, and a new membership of a former
// member starts above all that the earlier one had.
func TestRevisions(t *testing.T) {
	m := planner()
	raises := func(d *Plan, user string) {
		t.Helper()
		u := write(t, d, table.UserChatKey(user, "chat_1")).Update
		if !slices.Contains(u.Add, store.Increment{Name: "revision", N: 1}) {
			t.Errorf("%+v", u)
		}
	}
	d, err := m.Sends(group(nil, nil).Head, []*command.Message{message("chat_1", "bob", "x", 1)}, at)
	if err != nil {
		t.Fatal(err)
	}
	raises(d, "bob")
	if d, err = decide(group(role("ann", table.Owner), role("bob", table.Member)), command.OpRole,
		change(table.Admin)); err != nil {
		t.Fatal(err)
	}
	raises(d, "bob")
	next, err := store.Apply(write(t, d, table.UserChatKey("bob", "chat_1")).Update,
		table.UserChat{Role: table.Member, ChangedAt: 1, Revision: 4}.Item())
	if row := table.UserChatFrom("bob", "chat_1", next); err != nil || row.Role != table.Admin || row.ChangedAt != at ||
		row.Revision != 5 {
		t.Errorf("%+v, %v", row, err)
	}
	if d, err = decide(group(role("ann", table.Owner), nil), command.OpAdd, change(table.Admin)); err != nil {
		t.Fatal(err)
	}
	first := table.UserChatFrom("bob", "chat_1", write(t, d, table.UserChatKey("bob", "chat_1")).Item)
	if first.Revision <= table.FirstRevision(6)+16_000_000 || first.Role != table.Admin { // joins with version 8
		t.Errorf("%+v", first)
	}
	for _, was := range []table.UserChat{{ChangedAt: 5}, {ChangedAt: 5, Revision: 7}} {
		for _, now := range []table.UserChat{{ChangedAt: 5}, {ChangedAt: 5, Revision: 7}, {ChangedAt: 5, Revision: 8},
			{ChangedAt: 6, Revision: 7}, {ChangedAt: 6}} {
			if store.Evaluate(unchangedRow(was), now.Item()) != (was == now) {
				t.Errorf("%+v, then %+v", was, now)
			}
		}
	}
}
