package plan

import (
	"errors"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// L-031, L-032: a creation overwrites no row. Whichever of its rows is there already, the plan
// fails on the condition of that row and stores nothing, although all others would succeed.
func TestCreationsOverwriteNothing(t *testing.T) {
	direct := command.CreateDirect{Caller: "ann", Other: "bob", History: table.All, RequestID: "r"}
	group := command.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob"}, History: table.All, RequestID: "r"}
	makeDirect := func() (*Plan, error) { return planner().Direct("chat_1", direct, at) }
	makeGroup := func() (*Plan, error) { return planner().Group("chat_1", group, at) }
	there := store.NewItem(store.Attr{Name: table.AttrVersion, Value: store.Int(7)})
	for name, c := range map[string]struct {
		plan func() (*Plan, error)
		key  store.Key
		cond string
	}{
		"chat of a direct chat":    {makeDirect, table.ChatKey("chat_1"), CondChat},
		"head of a direct chat":    {makeDirect, table.HeadKey("chat_1"), CondHead},
		"pair of a direct chat":    {makeDirect, table.DirectIndexKey("ann", "bob"), CondPair},
		"request of a direct chat": {makeDirect, table.RequestKey(direct.Idempotency().Key), CondRequest},
		"chat of a group":          {makeGroup, table.ChatKey("chat_1"), CondChat},
		"head of a group":          {makeGroup, table.HeadKey("chat_1"), CondHead},
		"pending of a group":       {makeGroup, table.PendingKey("chat_1"), CondPending},
		"request of a group":       {makeGroup, table.RequestKey(group.Idempotency().Key), CondRequest},
		"nothing of a direct chat": {makeDirect, store.Key{}, ""},
		"nothing of a group":       {makeGroup, store.Key{}, ""},
	} {
		p, err := c.plan()
		if err != nil {
			t.Fatal(err)
		}
		st := storetest.NewMemory(func() time.Time { return time.UnixMilli(at) })
		var before []store.Write
		for _, user := range []string{"ann", "bob"} {
			row := table.User{CreatedAt: at, Status: table.Active, Counted: true}
			before = append(before, store.Write{Op: store.OpPut, Key: table.UserKey(user), Item: row.Item()})
		}
		if c.cond != "" {
			before = append(before, store.Write{Op: store.OpPut, Key: c.key, Item: there})
		}
		if err := st.BatchWrite(t.Context(), before); err != nil {
			t.Fatal(err)
		}
		err = st.Transact(t.Context(), p.Transaction())
		if c.cond == "" {
			if err != nil {
				t.Errorf("%s is there: %v, want a chat", name, err)
			}
			continue
		}
		failed := new(store.ConditionError)
		if !errors.As(err, &failed) || len(failed.Failures) != 1 || failed.Failures[0].Name != c.cond {
			t.Errorf("the %s is there: %v, want the condition %q alone to fail", name, err, c.cond)
		}
		if n := len(rows(t, st, store.Events, "chat_1")) + len(rows(t, st, store.ChatMemberships, "chat_1")); n > 0 {
			t.Errorf("the %s is there: %d rows are stored, want none", name, n)
		}
	}
}
