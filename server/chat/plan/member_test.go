package plan

import (
	"errors"
	"testing"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// group is a group of an owner, an admin and a member, seen by one of them.
func group(caller, target *table.Membership) *State {
	return &State{
		Head: table.Head{ChatID: "chat_1", Version: 7, Sequence: 3, MembershipVersion: 4, ChangedAt: at},
		Chat: &table.Chat{ChatID: "chat_1", Type: table.Group, Status: table.Active, History: table.All, MemberCount: 3,
			Version: 4},
		Caller: caller, Target: target, TargetExists: true,
	}
}

func role(user string, r table.Role) *table.Membership {
	return &table.Membership{ChatID: "chat_1", UserID: user, Role: r}
}

// The plans refuse in the store what the rules refuse: each fact that a decision
// stood on, changed behind the plan's back, fails it (L-065…L-087, L-101…L-105).
func TestMemberPlansHoldTheirConditions(t *testing.T) {
	c := change(table.Member)
	c.Idempotency = command.MarkRead{Caller: "ann", ChatID: "chat_1", RequestID: "r"}.Idempotency() // any
	add, err := decide(group(role("ann", table.Owner), nil), command.OpAdd, c)
	if err != nil {
		t.Fatal(err)
	}
	del, err := decide(group(role("ann", table.Owner), role("bob", table.Member)), command.OpRemove, c)
	if err != nil {
		t.Fatal(err)
	}
	waiting := group(role("ann", table.Owner), nil)
	waiting.Pending = &table.Pending{ChatID: "chat_1", Members: []string{"bob", "cat"}}
	drop, err := decide(waiting, command.OpRemove, c)
	if err != nil {
		t.Fatal(err)
	}
	self := c
	self.UserID = "ann"
	leave, err := decide(group(role("ann", table.Member), role("ann", table.Member)), command.OpLeave, self)
	if err != nil {
		t.Fatal(err)
	}
	chat := func(change func(*table.Chat)) store.Item {
		row := *group(nil, nil).Chat
		change(&row)
		return row.Item()
	}
	as := func(r table.Role) store.Item { return table.Membership{Role: r}.Item() }
	count := func(n int64) store.Item { return chat(func(c *table.Chat) { c.MemberCount = n }) }
	chats := []struct {
		it   store.Item
		want bool
	}{
		{chat(func(*table.Chat) {}), true},
		{chat(func(c *table.Chat) { c.Type = table.Direct }), false},
		{chat(func(c *table.Chat) { c.Status = "archived" }), false},
		{chat(func(c *table.Chat) { c.Version = 5 }), false},
		{nil, false},
	}
	for name, d := range map[string]*Plan{"add": add, "remove": del, "drop": drop, "leave": leave} {
		valid(t, d)
		cond := write(t, d, table.ChatKey("chat_1")).Cond
		for _, x := range chats {
			if store.Evaluate(cond, x.it) != x.want {
				t.Errorf("%s on %v", name, x.it)
			}
		}
		if full := store.Evaluate(cond, count(100)); full != (name != "add") { // L-066
			t.Errorf("%s at 100 members: %v", name, full)
		}
		if last := store.Evaluate(cond, count(1)); last != (name == "add") { // L-082
			t.Errorf("%s at 1 member: %v", name, last)
		}
		head := write(t, d, table.HeadKey("chat_1"))
		if !store.Evaluate(head.Cond, table.Head{Version: 7}.Item()) ||
			store.Evaluate(head.Cond, table.Head{Version: 8}.Item()) || store.Evaluate(head.Cond, nil) {
			t.Errorf("%s does not compare the head", name)
		}
		if store.Evaluate(write(t, d, table.RequestKey(c.Idempotency.Key)).Cond, table.Request{}.Item()) {
			t.Errorf("%s repeats a request", name)
		}
		if name != "leave" { // L-073: the caller's role at the moment of the commit
			w := write(t, d, table.MembershipKey("chat_1", "ann"))
			if w.Op != store.OpCheck || store.Evaluate(w.Cond, as(table.Admin)) || store.Evaluate(w.Cond, nil) ||
				!store.Evaluate(w.Cond, as(table.Owner)) {
				t.Errorf("%s does not check the caller: %+v", name, w)
			}
		}
	}
	if w := write(t, add, table.MembershipKey("chat_1", "bob")); store.Evaluate(w.Cond, as(table.Member)) { // L-065
		t.Error("an addition overwrites a membership")
	}
	for name, w := range map[string]store.Write{
		"remove": write(t, del, table.MembershipKey("chat_1", "bob")),
		"leave":  write(t, leave, table.MembershipKey("chat_1", "ann")),
	} {
		// L-081, L-086, L-091: promoted meanwhile, gone meanwhile.
		if w.Op != store.OpDelete || !store.Evaluate(w.Cond, as(table.Member)) || store.Evaluate(w.Cond, as(table.Admin)) ||
			store.Evaluate(w.Cond, as(table.Owner)) || store.Evaluate(w.Cond, nil) {
			t.Errorf("%s: %+v", name, w)
		}
	}
	w := write(t, drop, table.PendingKey("chat_1"))
	if !store.Evaluate(w.Cond, waiting.Pending.Item()) ||
		store.Evaluate(w.Cond, table.Pending{Members: []string{"bob"}}.Item()) || store.Evaluate(w.Cond, nil) {
		t.Errorf("drop: %+v", w)
	}
}

// A member of a direct chat that is asked to change is refused before anything
// about roles is said, and so is one that is not active (L-006, L-098).
func TestRefusals(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*State)
		want   error
	}{
		"direct":      {func(s *State) { s.Chat.Type = table.Direct }, command.ErrInvalidOperation},
		"not active":  {func(s *State) { s.Chat.Status = "archived" }, command.ErrInvalidOperation},
		"no chat":     {func(s *State) { s.Chat = nil }, command.ErrNotAMember},
		"no head":     {func(s *State) { s.Head.Version = 0 }, command.ErrNotAMember},
		"no member":   {func(s *State) { s.Caller = nil }, command.ErrNotAMember},
		"last member": {func(s *State) { s.Chat.MemberCount = 1 }, command.ErrInvalidOperation},
	} {
		c := change(table.Member)
		s := group(role("ann", table.Owner), role("bob", table.Member))
		x.change(s)
		if _, err := decide(s, command.OpRemove, c); !errors.Is(err, x.want) {
			t.Errorf("remove, %s: %v", name, err)
		}
		s.Caller = role("ann", table.Admin)
		if errors.Is(x.want, command.ErrNotAMember) {
			s.Caller = nil
		}
		if _, err := decide(s, command.OpLeave, c); !errors.Is(err, x.want) {
			t.Errorf("leave, %s: %v", name, err)
		}
		s.Target = nil
		if _, err := decide(s, command.OpAdd, c); name != "last member" && !errors.Is(err, x.want) {
			t.Errorf("add, %s: %v", name, err)
		}
	}
	s := group(role("ann", table.Owner), nil)
	s.Pending = &table.Pending{Members: []string{"bob"}}
	if _, err := decide(s, command.OpAdd, change(table.Admin)); !errors.Is(err, command.ErrAlreadyMember) {
		t.Errorf("add somebody pending: %v", err)
	}
}
