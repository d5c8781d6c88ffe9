package check_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/check"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/relay"
)

// fixture is a data directory that the real packages filled, and what is in it.
type fixture struct {
	dir    string
	direct string // a chat of alice and bob
	group  string // of alice, bob, carol and dora; erik left, frank was removed and came back
	young  string // a group whose members are still on their way in
}

func config(dir string) backend.Config {
	return backend.Config{Embedded: &backend.Embedded{DataDir: dir, Kafka: "127.0.0.1:0"}}
}

// stuck is a store in which nobody who is on the way in arrives.
type stuck struct{ store.Store }

func (s stuck) Transact(ctx context.Context, p store.Plan) error {
	for _, w := range p.Writes {
		if w.Key.Table == store.PendingMembers && w.Op != store.OpPut {
			return store.ErrUnavailable
		}
	}
	return s.Store.Transact(ctx, p)
}

// fill makes a data directory with everything in it that a chat can have.
func fill(t testing.TB, messages int) *fixture {
	t.Helper()
	h := &fixture{dir: t.TempDir()}
	ctx := t.Context()
	eng, err := backend.Open(config(h.dir))
	testkit.Must(t, err)
	defer func() { testkit.Must(t, eng.Close()) }()
	subjects := registry.New(eng.Store)
	ids, err := subjects.Events(ctx)
	testkit.Must(t, err)
	serde, err := event.NewSerde(ids, nil)
	testkit.Must(t, err)
	service := func(st store.Store) *chat.Service {
		s, err := chat.New(ctx, chat.Config{Store: st, Clock: time.Now, Generation: eng.Generation, Producer: "p",
			Sleep: func(context.Context, time.Duration) error { return errors.New("no more") }})
		testkit.Must(t, err)
		return s
	}
	chats := service(eng.Store)
	for _, u := range []string{"alice", "bob", "carol", "dora", "erik", "frank", "gus"} {
		testkit.Must(t, chats.EnsureUser(ctx, u))
	}
	direct, err := chats.CreateDirect(ctx, chat.CreateDirect{Caller: "alice", Other: "bob"})
	testkit.Must(t, err)
	group, err := chats.CreateGroup(ctx,
		chat.CreateGroup{Caller: "alice", Name: "all", Members: []string{"bob", "carol", "erik", "frank"}, RequestID: "r1",
			History: table.SinceJoined})
	testkit.Must(t, err)
	young, err := service(stuck{eng.Store}).CreateGroup(ctx,
		chat.CreateGroup{Caller: "alice", Name: "young", Members: []string{"bob", "carol"}})
	testkit.Must(t, err)
	h.direct, h.group, h.young = direct.ChatID, group.ChatID, young.ChatID
	send := func(id, from string, n int) {
		for i := range n {
			_, err := chats.Send(ctx, chat.Send{Caller: from, ChatID: id, Content: fmt.Sprint("message ", i, " of ", from)})
			testkit.Must(t, err)
		}
	}
	change := func(op chat.Operation, user string, role table.Role) {
		c := chat.MemberChange{Caller: "alice", ChatID: h.group, UserID: user, Role: role}
		if op == chat.OpLeave {
			c.Caller = user
		}
		_, err := chats.Change(ctx, op, c)
		testkit.Must(t, err)
	}
	send(h.direct, "alice", messages)
	send(h.group, "bob", messages)
	change(chat.OpRemove, "frank", "")
	change(chat.OpAdd, "frank", table.Member)
	change(chat.OpAdd, "dora", table.Member)
	change(chat.OpRole, "carol", table.Admin)
	change(chat.OpLeave, "erik", "")
	name := "everybody"
	_, _, err = chats.UpdateChat(ctx, chat.ChatChange{Caller: "alice", ChatID: h.group, Name: &name})
	testkit.Must(t, err)
	send(h.group, "carol", messages)
	_, err = chats.MarkRead(ctx, chat.MarkRead{Caller: "alice", ChatID: h.group, Sequence: 2})
	testkit.Must(t, err)

	now := time.Now()
	r, err := relay.New(relay.Config{
		Store: eng.Store, Serde: serde, Clock: func() time.Time { return now }, Logger: slog.New(slog.DiscardHandler),
		Generation: eng.Generation, Publish: eng.Publish, Deletes: true,
	})
	testkit.Must(t, err)
	for range 3 {
		now = now.Add(3 * time.Second)
		testkit.Must(t, r.Cycle(ctx))
	}
	send(h.group, "dora", 3) // these wait in the outbox
	topics(t, eng)
	return h
}

// topicLog is a log of a topic, which begins with position 2.
var topicLog = commitlog.Partition{Topic: 1, Number: 3}

func topics(t testing.TB, eng *backend.Backend) {
	t.Helper()
	log := eng.Logs
	for n := range int64(5) {
		_, err := log.Append(t.Context(), []commitlog.Append{{
			Partition: topicLog, Messages: []*commitlog.Message{{Key: "a"}, {Key: "b"}},
			Producer: commitlog.Producer{ID: "p", Number: n},
		}})
		testkit.Must(t, err)
	}
	_, err := log.Trim(t.Context(), topicLog, 3)
	testkit.Must(t, err)
}

// copyOf copies the directory, so that the copy can be damaged.
func (h *fixture) copyOf(t testing.TB) *fixture {
	t.Helper()
	c := *h
	c.dir = t.TempDir()
	testkit.Must(t, os.CopyFS(c.dir, os.DirFS(h.dir)))
	return &c
}

// open opens the directory; repair lets it be changed.
func (h *fixture) open(t testing.TB, repair bool) *backend.Offline {
	t.Helper()
	o, err := backend.OpenOffline(config(h.dir), repair)
	testkit.Must(t, err)
	return o
}

// damage changes rows behind the back of everybody.
func (h *fixture) damage(t testing.TB, f func(o *backend.Offline)) {
	t.Helper()
	o := h.open(t, true)
	f(o)
	testkit.Must(t, o.Close())
}

func (h *fixture) check(t testing.TB, repair bool) ([]check.Finding, check.Report) {
	t.Helper()
	return h.checkFrom(t, repair, nil)
}

// checkFrom checks with a backup; nil: without one.
func (h *fixture) checkFrom(t testing.TB, repair bool, backup *fixture) ([]check.Finding, check.Report) {
	t.Helper()
	o := h.open(t, repair)
	defer func() { testkit.Must(t, o.Close()) }()
	var from *backend.Offline
	if backup != nil {
		from = backup.open(t, false)
		defer func() { testkit.Must(t, from.Close()) }()
	}
	var list []check.Finding
	report, err := check.Run(t.Context(),
		check.Config{Data: o, Repair: repair, Backup: from, Clock: time.Now, Out: io.Discard,
			OnFinding: func(f check.Finding) { list = append(list, f) }})
	testkit.Must(t, err)
	return list, report
}

// rows is all that is stored, as text, but for the rows that a repair cannot make as
// they were: the generation, marks of the log, and when something was last checked.
func (h *fixture) rows(t testing.TB) map[string]string {
	t.Helper()
	o := h.open(t, false)
	defer func() { testkit.Must(t, o.Close()) }()
	all := map[string]string{}
	for _, d := range store.Tables() {
		if d.Name == store.Meta {
			continue
		}
		for row, err := range o.Raw.Rows(d.Name) {
			testkit.Must(t, err)
			var b strings.Builder
			for _, a := range row.Item {
				if d.Name == store.DeliveryState && (a.Name == "revision" || a.Name == "changed_at") || d.Name == store.Outbox ||
					d.Name == store.Users && a.Name == "created_at" || a.Name == "last_message_at" {
					continue
				}
				fmt.Fprintf(&b, "%s=%v ", a.Name, a.Value)
			}
			all[row.Key.String()] = b.String()
		}
	}
	return all
}

func same(t testing.TB, before, after map[string]string) {
	t.Helper()
	for k, v := range before {
		if after[k] != v {
			t.Errorf("%s was %s, is %s", k, v, after[k])
		}
	}
	for k := range after {
		if _, ok := before[k]; !ok {
			t.Errorf("%s was not there", k)
		}
	}
}

func set(t testing.TB, o *backend.Offline, k store.Key, attr string, v store.Value) {
	t.Helper()
	testkit.Must(t,
		o.Store.Transact(t.Context(), store.Plan{Writes: []store.Write{{
			Op: store.OpUpdate, Key: k, Update: store.Update{Set: []store.Attr{{Name: attr, Value: v}}},
		}}}))
}

func write(t testing.TB, o *backend.Offline, w ...store.Write) {
	t.Helper()
	testkit.Must(t, o.Store.Transact(t.Context(), store.Plan{Writes: w}))
}

func del(k store.Key) store.Write { return store.Write{Op: store.OpDelete, Key: k} }

func put(k store.Key, it store.Item) store.Write {
	return store.Write{Op: store.OpPut, Key: k, Item: it}
}

// garbage replaces the bytes of a row.
func garbage(t testing.TB, o *backend.Offline, k store.Key) {
	t.Helper()
	testkit.Must(t, o.Store.DB().Set(embedded.ItemKey(nil, k), []byte("no item"), nil))
}

// waiting is the row of the outbox of the group's last messages.
func (h *fixture) waiting(t testing.TB, o *backend.Offline) store.Row {
	t.Helper()
	page, err := o.Store.Query(t.Context(),
		store.Query{Table: store.Outbox, PK: table.ShardKey(event.Shard(h.group)), From: h.group, To: h.group + "~"})
	testkit.Must(t, err)
	return page.Rows[0]
}

// request is the key of a row by which the repetition of a send is recognized.
func (h *fixture) request(t testing.TB, o *backend.Offline) store.Key {
	t.Helper()
	for row, err := range o.Raw.Rows(store.IdempotencyKeys) {
		testkit.Must(t, err)
		if strings.HasPrefix(row.Key.PK, "send#bob#"+h.group) {
			return row.Key
		}
	}
	t.Fatal("no request")
	return store.Key{}
}

func subject(t testing.TB, o *backend.Offline) store.Key {
	t.Helper()
	for row, err := range o.Raw.Rows(store.Schemas) {
		testkit.Must(t, err)
		if !strings.HasPrefix(row.Key.PK, "#") {
			return row.Key
		}
	}
	t.Fatal("no subject")
	return store.Key{}
}
