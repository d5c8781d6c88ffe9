package failedrows_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/failedrows"
	"github.com/parley-chat/parley/workers/relay"
)

// fixture is a store with chats and a relay that publishes to a list.
type fixture struct {
	*testing.T
	now   time.Time
	store store.Store
	chats *chat.Service
	relay *relay.Relay
	log   []string // chat/version
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return f.now }
	f.store = dynamotest.Store(t, clock)
	ids, err := registry.New(f.store).Events(t.Context())
	f.require(err)
	serde, err := event.NewSerde(ids, nil)
	f.require(err)
	f.chats, err = chat.New(t.Context(), chat.Config{Store: f.store, Clock: clock, Generation: "g", Producer: "p"})
	f.require(err)
	for _, u := range []string{"alice", "bob"} {
		f.require(f.chats.EnsureUser(t.Context(), u))
	}
	f.relay, err = relay.New(relay.Config{
		Store: f.store, Serde: serde, Clock: clock, Logger: slog.New(slog.DiscardHandler),
		Publish: relay.Flatten(func(_ context.Context, records []*kafka.Record) error {
			for _, rec := range records {
				e, err := serde.Decode(context.Background(), rec.Key, rec.Value)
				f.require(err)
				f.log = append(f.log, fmt.Sprintf("%s/%d", e.GetChatId(), e.GetMetadata().GetVersion()))
			}
			return nil
		}),
	})
	f.require(err)
	return f
}

func (f *fixture) require(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// group creates a group with n messages: versions 1 to n + 2.
func (f *fixture) group(n int) string {
	f.Helper()
	c, err := f.chats.CreateGroup(f.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
	f.require(err)
	f.send(c.ChatID, n)
	return c.ChatID
}

func (f *fixture) send(id string, n int) {
	f.Helper()
	for range n {
		_, err := f.chats.Send(f.Context(), chat.Send{Caller: "alice", ChatID: id, Content: "x"})
		f.require(err)
	}
}

func (f *fixture) sweep() {
	f.Helper()
	for range 2 {
		f.now = f.now.Add(3 * time.Second)
		f.require(f.relay.Cycle(f.Context()))
	}
}

func (f *fixture) put(key store.Key, it store.Item) {
	f.Helper()
	f.require(f.store.BatchWrite(f.Context(), []store.Write{{Op: store.OpPut, Key: key, Item: it}}))
}

func (f *fixture) failed() []failedrows.Row {
	f.Helper()
	rows, err := failedrows.List(f.Context(), f.store, "", 100)
	f.require(err)
	return rows
}

// published fails unless a chat's versions were published in order, each once.
func (f *fixture) published(id string, want ...int) {
	f.Helper()
	var got []string
	for _, s := range f.log {
		if strings.HasPrefix(s, id+"/") {
			got = append(got, strings.TrimPrefix(s, id+"/"))
		}
	}
	if g, w := strings.Join(got, " "), strings.Trim(fmt.Sprint(want), "[]"); g != w {
		f.Fatalf("published versions %q, not %q", g, w)
	}
}

// A row with a count above the number of its events stops its chat until an operator repairs
// it. Then its events are published, and the later ones after them.
func TestRepair(t *testing.T) {
	f := newFixture(t)
	id := f.group(0) // versions 1, 2
	f.sweep()
	f.send(id, 1) // 3
	o := table.Outbox{Shard: event.Shard(id), AggregateID: id, FirstVersion: 3, Count: 9, CreatedAt: 1}
	f.put(o.Key(), o.Item())
	f.send(id, 2) // 4, 5
	other := f.group(1)
	f.sweep()
	f.published(id, 1, 2)
	f.published(other, 1, 2, 3)
	rows := f.failed()
	if len(rows) != 1 || rows[0].ChatID != id || rows[0].FirstVersion != 3 || rows[0].Attempts < 1 ||
		!strings.Contains(rows[0].LastError, "9 events") {
		t.Fatalf("%+v", rows)
	}
	_, repaired, err := failedrows.Repair(t.Context(), f.store, rows[0].ID, false)
	f.require(err)
	if len(repaired) != 1 || repaired[0].FirstVersion != 3 || repaired[0].Count != 1 {
		t.Fatalf("it would write %+v", repaired)
	}
	f.sweep()
	f.published(id, 1, 2) // nothing was done
	_, _, err = failedrows.Repair(t.Context(), f.store, rows[0].ID, true)
	f.require(err)
	f.sweep()
	f.published(id, 1, 2, 3, 4, 5)
	if rows := f.failed(); len(rows) != 0 {
		t.Fatalf("%+v", rows)
	}
	if _, _, err := failedrows.Repair(t.Context(), f.store, rows[0].ID, true); !errors.Is(err, failedrows.ErrNotFound) {
		t.Fatalf("repaired twice: %v", err)
	}
}

// A row that cannot be read at all is repaired from the events that no other row covers.
func TestRepairUnreadable(t *testing.T) {
	f := newFixture(t)
	id := f.group(1) // 1 to 3, in two rows or more
	page, err := f.store.Query(t.Context(),
		store.Query{Table: store.Outbox, PK: table.ShardKey(event.Shard(id)), Consistency: store.Strong})
	f.require(err)
	last := page.Rows[len(page.Rows)-1]
	bad := store.Key{Table: store.Outbox, PK: last.Key.PK, SK: id + "#nonsense"}
	f.require(f.store.BatchWrite(t.Context(),
		[]store.Write{{Op: store.OpDelete, Key: last.Key}, {Op: store.OpPut, Key: bad, Item: last.Item}}))
	f.sweep()
	f.published(id)
	rows := f.failed()
	if len(rows) != 1 || rows[0].FirstVersion != 0 {
		t.Fatalf("%+v", rows)
	}
	_, _, err = failedrows.Repair(t.Context(), f.store, rows[0].ID, true)
	f.require(err)
	f.sweep()
	f.published(id, 1, 2, 3)
}

// Missing events cannot be published: the row is dropped, and the chat resumes.
func TestDrop(t *testing.T) {
	f := newFixture(t)
	id := f.group(0)
	f.sweep()
	f.send(id, 2) // 3, 4
	f.require(f.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpDelete, Key: table.EventKey(id, 3)}}))
	f.sweep()
	f.published(id, 1, 2)
	rows := f.failed()
	if len(rows) != 1 {
		t.Fatalf("%+v", rows)
	}
	if _, _, err := failedrows.Repair(t.Context(), f.store, rows[0].ID, true); !errors.Is(err, failedrows.ErrNoEvents) {
		t.Fatalf("repaired without events: %v", err)
	}
	_, err := failedrows.Drop(t.Context(), f.store, rows[0].ID, false)
	f.require(err)
	if len(f.failed()) != 1 {
		t.Fatal("a dry run dropped it")
	}
	_, err = failedrows.Drop(t.Context(), f.store, rows[0].ID, true)
	f.require(err)
	f.sweep()
	f.published(id, 1, 2, 4)
	// A row that waits to be published cannot be dropped.
	f.send(id, 1)
	healthy := table.Outbox{Shard: event.Shard(id), AggregateID: id, FirstVersion: 5}.Key()
	if _, err := failedrows.Drop(t.Context(), f.store, healthy.PK+"/"+healthy.SK, true); !errors.Is(err,
		failedrows.ErrNotFound) {
		t.Fatalf("a healthy row: %v", err)
	}
	for _, id := range []string{"", "x", "07", "07/", "123/a"} {
		if _, err := failedrows.Drop(t.Context(), f.store, id, true); !errors.Is(err, failedrows.ErrInvalid) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// Pages hold all failed rows, each once.
func TestList(t *testing.T) {
	f := newFixture(t)
	want := map[string]bool{}
	for range 25 {
		id := f.group(0)
		o := table.Outbox{Shard: event.Shard(id), AggregateID: id, FirstVersion: 1, Count: 50, CreatedAt: 1}
		f.put(o.Key(), o.Item())
		want[id] = true
	}
	f.sweep()
	after := ""
	for {
		rows, err := failedrows.List(t.Context(), f.store, after, 7)
		f.require(err)
		for _, r := range rows {
			if !want[r.ChatID] {
				t.Fatalf("%+v stands there twice or should not", r)
			}
			delete(want, r.ChatID)
		}
		if len(rows) < 7 {
			break
		}
		after = rows[6].ID
	}
	if len(want) != 0 {
		t.Fatalf("%d are missing", len(want))
	}
}
