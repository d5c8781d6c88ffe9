package plan

import (
	"errors"
	"fmt"
	"testing"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// rows returns what a store has of a table and partition.
func rows(t *testing.T, st store.Store, in store.Table, pk string) []store.Row {
	t.Helper()
	page, err := st.Query(t.Context(), store.Query{Table: in, PK: pk, Consistency: store.Strong})
	if err != nil {
		t.Fatal(err)
	}
	return page.Rows
}

// A command that means several facts makes one event of each, in one plan with one row of the
// outbox. What stands against one of them stands against all: nothing is stored (EV01, EV02,
// EV03).
func TestCommandOfSeveralEvents(t *testing.T) {
	c := command.CreateDirect{Caller: "ann", Other: "bob", History: table.All}
	d, err := planner().Direct("chat_1", c, at)
	if err != nil {
		t.Fatal(err)
	}
	valid(t, d)
	if len(d.Events) != 2 || event.TypeOf(d.Events[0]) != event.TypeChatCreated ||
		event.TypeOf(d.Events[1]) != event.TypeMembershipChanged {
		t.Fatalf("%v, expected the creation and a membership", d.Events)
	}
	st := storetest.NewMemory(func() time.Time { return time.UnixMilli(at) })
	user := func(name string, chats int64) {
		t.Helper()
		row := table.User{CreatedAt: at, Status: table.Active, Chats: chats, Counted: true}
		put := store.Write{Op: store.OpPut, Key: table.UserKey(name), Item: row.Item()}
		if err := st.BatchWrite(t.Context(), []store.Write{put}); err != nil {
			t.Fatal(err)
		}
	}
	user("ann", 0)
	user("bob", MaxChats) // the second event cannot be
	failed := new(store.ConditionError)
	if err := st.Transact(t.Context(), d.Transaction()); !errors.As(err, &failed) {
		t.Fatalf("%v, expected a failed condition", err)
	}
	shard := table.ShardKey(event.Shard("chat_1"))
	for in, pk := range map[store.Table]string{store.Events: "chat_1", store.Outbox: shard,
		store.ChatMemberships: "chat_1"} {
		if list := rows(t, st, in, pk); len(list) > 0 {
			t.Errorf("%d rows of %s are stored, expected none", len(list), in)
		}
	}
	user("bob", 0)
	if err := st.Transact(t.Context(), d.Transaction()); err != nil {
		t.Fatal(err)
	}
	if n := len(rows(t, st, store.Events, "chat_1")); n != 2 {
		t.Errorf("%d events, expected 2", n)
	}
	list := rows(t, st, store.Outbox, shard)
	if len(list) != 1 {
		t.Fatalf("%d rows of the outbox, expected 1", len(list))
	}
	if o, err := table.OutboxFrom(list[0]); err != nil || o.FirstVersion != 1 || o.Count != 2 {
		t.Errorf("%+v, %v; expected the events 1 and 2", o, err)
	}
}

// An event that is stored never changes: another command that was decided on the same state
// fails as a whole, whatever its events say (EV08).
func TestEventsNeverChange(t *testing.T) {
	st := storetest.NewMemory(func() time.Time { return time.UnixMilli(at) })
	head := table.Head{ChatID: "chat_1", Version: 4, Sequence: 2, MembershipVersion: 2, ChangedAt: at}
	member := table.UserChat{History: table.All, Role: table.Owner, Revision: table.FirstRevision(1)}
	for key, it := range map[store.Key]store.Item{
		table.HeadKey("chat_1"): head.Item(), table.UserChatKey("ann", "chat_1"): member.Item(),
	} {
		if err := st.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: key, Item: it}}); err != nil {
			t.Fatal(err)
		}
	}
	send := func(text string, n int) error {
		d, err := planner().Sends(head, []*command.Message{message("chat_1", "ann", text, n)}, at)
		if err != nil {
			t.Fatal(err)
		}
		return st.Transact(t.Context(), d.Transaction())
	}
	if err := send("first", 1); err != nil {
		t.Fatal(err)
	}
	before := rows(t, st, store.Events, "chat_1")
	failed := new(store.ConditionError)
	if err := send("second", 2); !errors.As(err, &failed) {
		t.Fatalf("%v, expected a failed condition", err)
	}
	if _, ok := failed.Failed(CondHead); !ok {
		t.Errorf("%v, expected the head to have failed", failed)
	}
	after := rows(t, st, store.Events, "chat_1")
	if len(before) != 1 || len(after) != 1 || fmt.Sprint(before[0].Item) != fmt.Sprint(after[0].Item) {
		t.Errorf("%v, expected the one event %v", after, before)
	}
}

// A command whose events do not fit into one plan is refused by a rule that says so; it is
// never divided (EV70).
func TestCommandLargerThanAPlan(t *testing.T) {
	for _, c := range []struct {
		events, content int
		refused         bool
	}{
		{98, 1, false}, // with head and outbox row 100 writes
		{99, 1, true},
		{101, 1, true},
		{40, 100 << 10, false},
		{42, 100 << 10, true}, // more than 4 MiB
	} {
		b := planner().builder(table.Head{ChatID: "chat_1", Version: 3}, at, event.Cause{Actor: "ann"}, 0, 0)
		for range c.events {
			b.Events = append(b.Events, &eventv1.ChatUpdated{Metadata: b.next(event.TypeChatUpdated), ChatId: "chat_1",
				UpdatedBy: string(make([]byte, c.content))})
		}
		_, err := b.finish()
		var refusal *command.Refusal
		if !c.refused {
			if err != nil {
				t.Errorf("%d events: %v, expected a plan", c.events, err)
			}
			continue
		}
		if !errors.As(err, &refusal) || refusal.Rule != "COMMAND_TOO_LARGE" || !errors.Is(err, command.ErrInvalidOperation) ||
			refusal.Values["events"] != fmt.Sprint(c.events) || refusal.Values["max_writes"] != "100" {
			t.Errorf("%d events of %d bytes: %v, expected COMMAND_TOO_LARGE with the numbers", c.events, c.content, err)
		}
	}
}
