package app_test

import (
	"context"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// unreconciled makes two groups in the data directory of a stopped server: one whose stored
// number of members is wrong, and one whose creation was cut off between its phases.
func unreconciled(t *testing.T, dir string) {
	t.Helper()
	_, err := auth.LoadKey(dir) // a server makes none where there are users
	testkit.Must(t, err)
	eng, err := backend.Open(backend.Config{Embedded: &backend.Embedded{DataDir: dir, Kafka: "127.0.0.1:0"}})
	testkit.Must(t, err)
	defer func() { testkit.Must(t, eng.Close()) }()
	cut := &cutOff{Store: eng.Store}
	chats, err := chat.New(t.Context(), chat.Config{Store: cut, Clock: time.Now, Generation: eng.Generation,
		Producer: "srv_test"})
	testkit.Must(t, err)
	for _, user := range []string{"alice", "bob"} {
		testkit.Must(t, chats.EnsureUser(t.Context(), user))
	}
	create := chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}}
	c, err := chats.CreateGroup(t.Context(), create)
	testkit.Must(t, err)
	testkit.Must(t, c.Incomplete)
	testkit.Must(t, eng.Store.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpUpdate,
		Key: table.ChatKey(c.ChatID), Cond: store.Exists(), Name: "chat",
		Update: store.Update{Set: []store.Attr{{Name: table.AttrMemberCount, Value: store.Int(77)}}}}}}))
	cut.off = true
	c, err = chats.CreateGroup(t.Context(), create)
	testkit.Must(t, err)
	if c.Incomplete == nil {
		t.Fatal("the second phase was not cut off")
	}
}

// ofRepairs move in a server that starts over what unreadable and unreconciled leave.
var ofRepairs = []string{"parley_fanout_dead_letters_total", "parley_chat_reconciliation_corrections_total",
	"parley_reconcile_completed_total", "parley_reconcile_audited_total", "parley_reconcile_pending",
	"parley_reconcile_oldest_seconds"}

// cutOff is a store that, once it is off, carries out no second phase of a creation.
type cutOff struct {
	store.Store
	off bool
}

func (c *cutOff) Transact(ctx context.Context, p store.Plan) error {
	for _, w := range p.Writes {
		if c.off && w.Key.Table == store.PendingMembers && w.Op != store.OpPut {
			return store.ErrClosed
		}
	}
	return c.Store.Transact(ctx, p)
}
