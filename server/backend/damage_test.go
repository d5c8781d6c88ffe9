package backend_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/internal/racetest"
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
	client, err := kafka.NewTransactional(n.eng.KafkaAddr(), "relay", n.eng.KafkaOptions()...)
	n.must(err)
	t.Cleanup(client.Close)
	n.relay, err = relay.New(relay.Config{
		Store: n.eng.Store, Serde: serde, Clock: clock, Logger: cfg.Logger, Flush: n.eng.LogStable,
		Publish: relay.Flatten(func(ctx context.Context, records []*kafka.Record) error {
			return kafka.Transact(ctx, client, records)
		}),
	})
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

// spans are those of all topics. One client asks for them: each connection costs a derived key.
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
	taken := map[string]bool{}
	for len(ids) < 3 {
		c, err := n.chats.CreateGroup(n.t.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		n.must(err)
		if partition := messages(c.ChatID); !taken[partition] {
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

func messages(id string) string {
	return filepath.Join("log", "partitions", fmt.Sprintf("messages.persisted-%d", event.Partition(id, 64)))
}

func flip(t *testing.T, path string, at func(size int) int) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[at(len(b))] ^= 0x10
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Whatever happens to the files of the log, the events of the store are in it after the
// next start, and after one more. The offsets that were given out keep their records.
func TestDamagedLogLosesNothing(t *testing.T) {
	t.Parallel()
	damages := map[string]struct {
		do   func(t *testing.T, dir, chat string)
		says string // what operators read; "" for nothing
	}{
		"nothing": {func(*testing.T, string, string) {}, ""},
		"last byte": {func(t *testing.T, dir, chat string) {
			flip(t, filepath.Join(dir, messages(chat), "0.dat"), func(n int) int { return n - 1 })
		}, "0.dat at byte"},
		"first byte": {func(t *testing.T, dir, chat string) {
			flip(t, filepath.Join(dir, messages(chat), "0.dat"), func(int) int { return 0 })
		}, "0.dat at byte 0"},
		"a length": {func(t *testing.T, dir, chat string) {
			flip(t, filepath.Join(dir, messages(chat), "0.dat"), func(int) int { return 10 })
		}, "offsets 0 to"},
		"a byte in the middle": {func(t *testing.T, dir, chat string) {
			flip(t, filepath.Join(dir, messages(chat), "0.dat"), func(n int) int { return n / 2 })
		}, "a batch cannot be read"},
		"a marker": {func(t *testing.T, dir, chat string) { // the second batch
			flip(t, filepath.Join(dir, messages(chat), "0.dat"), func(int) int { return 0 })
			b, err := os.ReadFile(filepath.Join(dir, messages(chat), "0.dat"))
			if err != nil {
				t.Fatal(err)
			}
			b[0] ^= 0x10
			b[12+int(binary.BigEndian.Uint32(b[8:]))+70] ^= 1
			if err := os.WriteFile(filepath.Join(dir, messages(chat), "0.dat"), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "a batch cannot be read"},
		"cut in half": {func(t *testing.T, dir, chat string) {
			path := filepath.Join(dir, messages(chat), "0.dat")
			info, err := os.Stat(path)
			if err == nil {
				err = os.Truncate(path, info.Size()/2)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, "to 23 are missing"},
		"segment": {remove(func(chat string) string { return filepath.Join(messages(chat), "0.dat") }),
			"the end is missing"},
		"index":     {remove(func(chat string) string { return filepath.Join(messages(chat), "0.idx") }), ""},
		"partition": {remove(messages), "offsets 0 to"},
		"partitions": {remove(func(string) string { return filepath.Join("log", "partitions") }),
			"offsets 0 to 23 are missing"},
		"log":       {remove(func(string) string { return "log" }), "offsets 0 to 23 are missing"},
		"meta.json": {remove(func(string) string { return filepath.Join("log", "meta.json") }), "meta.json is missing"},
		"topics.json": {remove(func(string) string { return filepath.Join("log", "topics.json") }),
			"topics.json is missing"},
		"groups.log": {remove(func(string) string { return filepath.Join("log", "groups.log") }),
			"groups.log is missing"},
		"pids.log":      {remove(func(string) string { return filepath.Join("log", "pids.log") }), ""},
		"snapshot.json": {remove(func(chat string) string { return filepath.Join(messages(chat), "snapshot.json") }), ""},
		"broken lists": {func(t *testing.T, dir, chat string) {
			for _, name := range []string{"meta.json", "topics.json", "seq_windows.json",
				filepath.Join("..", messages(chat), "snapshot.json")} {
				if err := os.WriteFile(filepath.Join(dir, "log", name), []byte(`{"version":`), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}, "meta.json cannot be read"},
	}
	for _, stopped := range []bool{true, false} {
		dir, ids := filledLog(t, stopped)
		for name, d := range damages {
			t.Run(fmt.Sprintf("stopped=%v/%s", stopped, strings.ReplaceAll(name, " ", "_")), func(t *testing.T) {
				if name != "nothing" && name != "log" { // no goroutines but theirs meet in the others
					racetest.SkipSerial(t)
				}
				t.Parallel()
				to := filepath.Join(t.TempDir(), "data")
				if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
					t.Fatal(err)
				}
				d.do(t, to, ids[0])
				n := start(t, to)
				says := d.says
				if !stopped { // how many transactions, and so markers, it has depends on the machine's pace
					says = strings.Replace(strings.Replace(says, "offsets 0 to 23 are missing", "offsets 0 to", 1),
						"to 23 are missing", "are missing", 1)
				}
				if said := n.said.String(); (says != "" && !strings.Contains(said, says)) ||
					(d.says == "" && strings.Contains(said, "damaged")) {
					t.Errorf("operators read: %s", said)
				}
				n.publish()
				records := n.inLog()
				n.more(ids)
				n.must(n.eng.Close())
				// The next start finds nothing, and publishes nothing again.
				n = start(t, to)
				if said := n.said.String(); strings.Contains(said, "damaged") || strings.Contains(said, "published again") {
					t.Errorf("the second start: %s", said)
				}
				n.publish()
				if again := n.inLog(); again != records+60 {
					t.Errorf("%d records became %d", records, again)
				}
			})
		}
	}
}

func remove(what func(chat string) string) func(*testing.T, string, string) {
	return func(t *testing.T, dir, chat string) {
		if err := os.RemoveAll(filepath.Join(dir, what(chat))); err != nil {
			t.Fatal(err)
		}
	}
}

// filledLog makes a data directory with events in its log: of a process that stopped, or
// of one that was killed.
func filledLog(t *testing.T, stopped bool) (dir string, ids []string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	n := start(t, dir)
	ids = n.fill()
	if n.inLog() != len(n.events()) {
		t.Fatal("there are events twice")
	}
	if stopped {
		n.must(n.eng.Close())
		return dir, ids
	}
	to := filepath.Join(t.TempDir(), "killed")
	n.must(os.CopyFS(to, os.DirFS(dir)))
	return to, ids
}

// The log of a version that kept no marks is taken as it is; without any log at all,
// everything is published again.
func TestLogWithoutMarks(t *testing.T) {
	dir, _ := filledLog(t, true)
	forget := func() {
		n := start(t, dir)
		n.must(n.eng.Store.BatchWrite(t.Context(), []store.Write{{Op: store.OpDelete, Key: table.LogKey()}}))
		n.must(n.eng.Close())
	}
	forget()
	n := start(t, dir)
	n.publish()
	if n.inLog() != len(n.events()) || n.said.Len() > 0 {
		t.Errorf("a whole log was repaired: %s", n.said)
	}
	n.must(n.eng.Close())
	forget()
	if err := os.RemoveAll(filepath.Join(dir, "log")); err != nil {
		t.Fatal(err)
	}
	n = start(t, dir)
	n.publish()
	n.inLog()
	if !strings.Contains(n.said.String(), "there is no log") {
		t.Errorf("operators read: %s", n.said)
	}
}

// A store that is behind its log, as from a backup, is refused: the log has what was
// acknowledged. Accepted, it continues under a new generation.
func TestStoreBehindItsLog(t *testing.T) {
	dir, ids := filledLog(t, true)
	old := filepath.Join(t.TempDir(), "old")
	if err := os.CopyFS(old, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	n := start(t, dir)
	n.more(ids)
	n.must(n.eng.Close())
	for _, name := range []string{"store", "SEAL"} { // the older store with the newer log
		n.must(os.RemoveAll(filepath.Join(dir, name)))
		n.must(os.Rename(filepath.Join(old, name), filepath.Join(dir, name)))
	}
	cfg := config(dir)
	_, err := backend.Open(cfg)
	if err == nil || !strings.Contains(err.Error(), "the log has version") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("a store behind its log: %v", err)
	}
	_, named, _ := strings.Cut(err.Error(), "--accept-loss ")
	cfg.Embedded.AcceptLoss, _, _ = strings.Cut(named, ";")
	e, err := backend.Open(cfg)
	n.must(err)
	if e.History.Holds(cfg.Embedded.AcceptLoss, 0) {
		t.Errorf("%q is held, as before", cfg.Embedded.AcceptLoss)
	}
	n.must(e.Close())
	n = start(t, dir)
	n.more(ids)
}
