package plan

import (
	"errors"
	"testing"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// failedOn is the failure of the conditions of a name, on a key.
func failedOn(t *testing.T, d *Plan, name string, key store.Key, current store.Item) *store.ConditionError {
	t.Helper()
	for i, w := range d.Transaction().Writes {
		if w.Name == name && w.Key == key {
			return &store.ConditionError{Failures: []store.Failure{{Index: i, Name: name, Current: current}}}
		}
	}
	t.Fatalf("the plan has no condition %s on %s", name, key)
	return nil
}

// What people allow changes without the chat's head: a plan that failed on nothing else may
// still succeed, and says who does not allow it.
func TestWhatPeopleAllow(t *testing.T) {
	d, err := planner().Direct("chat_1", command.CreateDirect{Caller: "ann", Other: "bob", History: table.All}, at)
	if err != nil {
		t.Fatal(err)
	}
	deleted := store.NewItem(store.Attr{Name: people.AttrDeletedAt, Value: store.Int(at)},
		store.Attr{Name: table.AttrChats, Value: store.Int(1)})
	for name, c := range map[string]struct {
		failed *store.ConditionError
		want   error
	}{
		"ann blocks":                  {failedOn(t, d, CondBlock, people.BlockKey("ann", "bob"), store.Item{}), command.ErrForbidden},
		"bob blocks":                  {failedOn(t, d, CondBlock, people.BlockKey("bob", "ann"), store.Item{}), command.ErrForbidden},
		"bob is deleted":              {failedOn(t, d, CondChats, table.UserKey("bob"), deleted), command.ErrUserNotFound},
		"ann is deleted":              {failedOn(t, d, CondChats, table.UserKey("ann"), deleted), command.ErrUserNotFound},
		"bob's chats are not counted": {failedOn(t, d, CondChats, table.UserKey("bob"), store.Item{}), nil},
	} {
		if err := d.Disallowed("ann", c.failed); !errors.Is(err, c.want) || !d.MayStillSucceed(c.failed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	pair := failedOn(t, d, CondPair, table.DirectIndexKey("ann", "bob"), store.Item{})
	if d.MayStillSucceed(pair) || d.Disallowed("ann", pair) != nil {
		t.Error("a direct chat that is there may go away")
	}
	if uncounted, full := d.ChatCountConflicts(failedOn(t, d, CondChats, table.UserKey("bob"), deleted)); len(uncounted) >
		0 || full != nil {
		t.Errorf("a deleted account counts as %v, %v", uncounted, full)
	}
}

// A send is refused for a block only to who is a member.
func TestBarredSenders(t *testing.T) {
	m := &command.Message{Send: command.Send{Caller: "ann", ChatID: "chat_1", Content: "x"}}
	d, err := planner().Sends(table.Head{ChatID: "chat_1", Version: 3}, []*command.Message{m}, at)
	if err != nil {
		t.Fatal(err)
	}
	row := func(attrs ...string) store.Item {
		it := table.UserChat{History: table.All}.Item()
		for _, a := range attrs {
			it = append(it, store.Attr{Name: a, Value: store.Bool(true)})
		}
		return store.NewItem(it...)
	}
	left := append(table.UserChat{LeftVersion: 2}.Item(), store.Attr{Name: people.AttrBlocked, Value: store.Bool(true)})
	key := table.UserChatKey("ann", "chat_1")
	for name, c := range map[string]struct {
		row  store.Item
		want error
		open bool
	}{
		"blocked": {row(people.AttrBlocked), command.NotReachable, true},
		"blocks":  {row(people.AttrBlocks), command.CallerBlocks, true},
		"both":    {row(people.AttrBlocks, people.AttrBlocked), command.CallerBlocks, true},
		"no row":  {nil, command.ErrNotAMember, false},
		"left":    {store.NewItem(left...), command.ErrNotAMember, true},
	} {
		failed := failedOn(t, d, CondUser, key, c.row)
		outcomes, _, err := d.Conflicts(failed, []*command.Message{m})
		if err != nil || !errors.Is(outcomes[0].Err, c.want) || outcomes[0].Retry || d.MayStillSucceed(failed) != c.open {
			t.Errorf("%s: %+v, %v", name, outcomes, err)
		}
		if store.Evaluate(people.MaySend(), c.row) {
			t.Errorf("%s: the condition of a send holds", name)
		}
	}
	if !store.Evaluate(people.MaySend(), row()) {
		t.Error("a member may not send")
	}
}
