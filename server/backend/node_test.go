package backend_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/relay"
)

// node is an engine with the parts that fill its log.
type node struct {
	t     *testing.T
	eng   *backend.Backend
	chats *chat.Service
	relay *relay.Relay
	now   time.Time
	said  *bytes.Buffer // the log for people
}

func start(t *testing.T, dir string) *node {
	t.Helper()
	n := &node{t: t, now: time.Now(), said: &bytes.Buffer{}}
	cfg := config(dir)
	cfg.Logger = slog.New(slog.NewTextHandler(n.said, nil))
	var err error
	n.eng, err = backend.Open(cfg)
	n.must(err)
	t.Cleanup(func() { _ = n.eng.Close() })
	clock := func() time.Time { return n.now }
	ids, err := registry.New(n.eng.Store).Events(t.Context())
	n.must(err)
	serde, err := event.NewSerde(ids, nil)
	n.must(err)
	n.chats, err = chat.New(t.Context(),
		chat.Config{Store: n.eng.Store, Clock: time.Now, Generation: n.eng.Generation, Producer: "p"})
	n.must(err)
	n.must(n.chats.EnsureUser(t.Context(), "alice"))
	n.must(n.chats.EnsureUser(t.Context(), "bob"))
	n.relay, err = relay.New(relay.Config{Store: n.eng.Store, Generation: n.eng.Generation, Serde: serde, Clock: clock,
		Logger: cfg.Logger, Publish: n.eng.Publish, Deletes: true})
	n.must(err)
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// publish lets the relay do all that there is to do.
func (n *node) publish() {
	n.t.Helper()
	for range 3 {
		n.now = n.now.Add(3 * time.Second)
		n.must(n.relay.Cycle(n.t.Context()))
	}
	page, err := n.eng.Store.Scan(n.t.Context(), store.Scan{Table: store.Outbox, Segments: 1})
	n.must(err)
	if len(page.Rows) > 0 {
		n.t.Fatalf("%d rows are left in the outbox", len(page.Rows))
	}
}

// events are the ids of all events in the store.
func (n *node) events() (ids []string) {
	n.t.Helper()
	s := store.Scan{Table: store.Events, Segments: 1}
	for first := true; first || s.Cursor != ""; first = false {
		page, err := n.eng.Store.Scan(n.t.Context(), s)
		n.must(err)
		for _, row := range page.Rows {
			e, err := table.EventFrom(row)
			n.must(err)
			ids = append(ids, e.EventID)
		}
		s.Cursor = page.Cursor
	}
	return ids
}

// inLog reads what committed readers see, and holds it against the store: all events
// are there, and none that the store lacks.
func (n *node) inLog() (records int) {
	n.t.Helper()
	missing := map[string]bool{}
	for _, id := range n.events() {
		missing[id] = true
	}
	all := len(missing)
	seen := map[string]int{}
	n.must(lag.Read(n.t.Context(), n.eng.KafkaAddr(), n.spans(), func(r *kafka.Record) error {
		records++
		for _, h := range r.Headers {
			if h.Key == "event_id" {
				seen[string(h.Value)]++
				delete(missing, string(h.Value))
			}
		}
		return nil
	}, n.eng.KafkaOptions()...))
	if len(missing) > 0 || len(seen) != all {
		n.t.Fatalf("%d of %d events are not in the log, which has %d", len(missing), all, len(seen))
	}
	return records
}

// spans are those of all topics.
func (n *node) spans() (spans []lag.Span) {
	n.t.Helper()
	c, err := kafka.NewProducer(n.eng.KafkaAddr(), n.eng.KafkaOptions()...)
	n.must(err)
	defer c.Close()
	var topics []string
	for _, t := range kafka.Topics() {
		topics = append(topics, t.Name)
	}
	admin := kadm.NewClient(c)
	starts, err := admin.ListStartOffsets(n.t.Context(), topics...)
	n.must(err)
	n.must(starts.Error())
	ends, err := admin.ListCommittedOffsets(n.t.Context(), topics...)
	n.must(err)
	n.must(ends.Error())
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(end.Topic, end.Partition)
		spans = append(spans, lag.Span{Partition: kafka.Partition{Topic: end.Topic, ID: end.Partition},
			From: start.Offset, To: end.Offset})
	})
	if len(spans) < len(topics) {
		n.t.Fatalf("%d partitions of %d topics", len(spans), len(topics))
	}
	return spans
}

// fill makes chats with messages and publishes them in several transactions. Each chat has a partition of its own, so
// the offsets of its messages are the same in each run.
func (n *node) fill() (ids []string) {
	n.t.Helper()
	taken := map[int]bool{}
	for len(ids) < 3 {
		c, err := n.chats.CreateGroup(n.t.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		n.must(err)
		if partition := event.Partition(c.ChatID, 64); !taken[partition] {
			taken[partition] = true
			ids = append(ids, c.ChatID)
		}
	}
	n.more(ids)
	return ids
}

func (n *node) more(ids []string) {
	n.t.Helper()
	for i := range 4 {
		for _, id := range ids {
			for j := range 5 {
				_, err := n.chats.Send(n.t.Context(), chat.Send{Caller: "alice", ChatID: id, Content: fmt.Sprint(i, j)})
				n.must(err)
			}
		}
		n.publish()
	}
}
