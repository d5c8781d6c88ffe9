package app_test

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/testkit"
)

// miscounted makes a group in the data directory of a stopped server whose stored number of
// members is wrong.
func miscounted(t *testing.T, dir string) {
	t.Helper()
	_, err := auth.LoadKey(dir) // a server makes none where there are users
	testkit.Must(t, err)
	eng, err := backend.Open(backend.Config{Embedded: &backend.Embedded{DataDir: dir, Kafka: "127.0.0.1:0"}})
	testkit.Must(t, err)
	defer func() { testkit.Must(t, eng.Close()) }()
	chats, err := chat.New(t.Context(), chat.Config{Store: eng.Store, Clock: time.Now, Generation: eng.Generation,
		Producer: "srv_test"})
	testkit.Must(t, err)
	for _, user := range []string{"alice", "bob"} {
		testkit.Must(t, chats.EnsureUser(t.Context(), user))
	}
	c, err := chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
	testkit.Must(t, err)
	testkit.Must(t, c.Incomplete)
	testkit.Must(t, eng.Store.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpUpdate,
		Key: table.ChatKey(c.ChatID), Cond: store.Exists(), Name: "chat",
		Update: store.Update{Set: []store.Attr{{Name: table.AttrMemberCount, Value: store.Int(77)}}}}}}))
}
