package backend_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/move"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic/topictest"
)

// moving is an installation that is moved.
type moving struct {
	t                 *testing.T
	dir               string
	rows              map[store.Key]store.Item // that move, before
	records           map[string]string
	generation        string
	shown             int64
	key               []byte
	ofChats, ofOthers store.Key // cursors
}

// newMoving fills an installation: chats with a relay that has work left, rows in every table, and topics.
func newMoving(t *testing.T) *moving {
	t.Helper()
	m := &moving{t: t, dir: filepath.Join(t.TempDir(), "data"), key: []byte("the keys")}
	n := start(t, m.dir)
	ids := n.fill()
	for range 3 { // the outbox has rows
		_, err := n.chats.Send(t.Context(), chat.Send{Caller: "alice", ChatID: ids[0], Content: "waits"})
		testkit.Must(t, err)
	}
	m.fillTables(n.eng.Store)
	m.fillTopics(n.eng)
	m.generation, m.shown = n.eng.History.Generation(), n.eng.History.Shown()
	testkit.Must(t, n.eng.Close())
	testkit.Must(t, os.WriteFile(filepath.Join(m.dir, move.KeyFile), m.key, 0o600))
	src, closing := m.open()
	m.rows, m.records = contents(t, src)
	testkit.Must(t, closing())
	return m
}

// fillTables puts rows of all kinds of values into every table but those whose rows a start reads.
func (m *moving) fillTables(s store.Store) {
	for _, d := range store.Tables() {
		if slices.Contains([]store.Table{store.ChatCounters, store.Schemas, store.Outbox, store.Events}, d.Name) {
			continue
		}
		var writes []store.Write
		for i := range 12 {
			k := store.Key{Table: d.Name, PK: fmt.Sprintf("filled-%d", i%3)}
			if d.SortKey {
				k.SK = fmt.Sprintf("row-%02d", i)
			} else {
				k.PK = fmt.Sprintf("filled-%02d", i)
			}
			attrs := []store.Attr{
				{Name: "text", Value: store.String(strings.Repeat("ü", i))}, {Name: "number", Value: store.Int(int64(i) - 5)},
				{Name: "bytes", Value: store.Bytes([]byte{0, 255, byte(i)})}, {Name: "yes", Value: store.Bool(i%2 == 0)},
				{Name: "list", Value: store.List([]string{"", "a", fmt.Sprint(i)})},
				{Name: "large", Value: store.Bytes(make([]byte, 9000))},
			}
			if d.TTL && i%2 == 0 {
				attrs = append(attrs, store.Attr{Name: store.ExpiresAtField, Value: store.Int(time.Now().Add(time.Hour).Unix())})
			}
			writes = append(writes, store.Write{Op: store.OpPut, Key: k, Item: store.NewItem(attrs...)})
		}
		testkit.Must(m.t, s.BatchWrite(m.t.Context(), writes))
	}
}

// fillTopics makes a topic with messages of producers, of which some were trimmed, and one of chats.
func (m *moving) fillTopics(e *backend.Backend) {
	ctx := m.t.Context()
	log := e.Logs.(*commitlog.Local)
	for p := range int32(2) {
		at := commitlog.Partition{Topic: 7, Number: p}
		for i := range 20 {
			by := commitlog.Producer{ID: "p", Number: int64(i + 1)}
			_, err := log.Append(ctx, []commitlog.Append{{Partition: at, Producer: by,
				Messages: []*commitlog.Message{{Key: "k", Payload: make([]byte, 30_000)}, {Type: "t", Payload: []byte{byte(i)}}}}})
			testkit.Must(m.t, err)
		}
		testkit.Value(log.Trim(ctx, at, 11))(m.t)
	}
	events := testkit.Value(log.CreateEventTopic(ctx, commitlog.EventTopic{Name: "events", Partitions: 4}))(m.t)
	at := commitlog.Partition{Topic: events.Number, Number: 3}
	testkit.Value(log.Append(ctx, []commitlog.Append{
		{Partition: at, References: record.References{List: []record.Reference{{Chat: "chat", Version: 1}}}},
		{Partition: at, Records: []record.Record{{Value: []byte("stays")}}},
	}))(m.t)
	m.ofOthers, m.ofChats = table.CursorKey(7, 0, "g", 1), table.CursorKey(8, 0, "g", 1)
	row := table.Cursor{Epoch: 5, State: topictest.Cursor(), At: 1}.Item()
	put := func(k store.Key, it store.Item) store.Write { return store.Write{Op: store.OpPut, Key: k, Item: it} }
	testkit.Must(m.t, e.Store.BatchWrite(ctx, []store.Write{
		put(table.TopicKey("orders"), table.Topic{Number: 7, Version: 1, Config: `{"partitions":2}`}.Item()),
		put(table.TopicKey("messages.persisted"),
			table.Topic{Number: 8, Version: 1, Config: `{"partitions":1,"source":"SOURCE_CHAT_EVENTS"}`}.Item()),
		put(m.ofOthers, row), put(m.ofChats, row), put(table.MachineKey(8, 0), row), put(table.MachineKey(7, 0), row),
		put(table.TopicCountersKey(0), store.NewItem(store.Attr{Name: table.AttrTopicNumber, Value: store.Int(9)},
			store.Attr{Name: table.AttrEpoch, Value: store.Int(5)})),
	}))
}

func (m *moving) open() (move.Source, func() error) {
	m.t.Helper()
	src, closing, err := backend.OpenExport(m.t.Context(), config(m.dir), backend.Moving{})
	testkit.Must(m.t, err)
	src.Files = []move.File{{Name: move.KeyFile, Content: m.key}}
	return src, closing
}

// What does not move: tables, and rows of others.
var (
	stays    = []store.Table{"leases", "consumer_attempts", "dead_letters"}
	stayRows = []string{"generation", "log", "topics", "import", "#topics"}
)

// contents are the rows that move, and the records of topics.
func contents(t *testing.T, src move.Source) (map[store.Key]store.Item, map[string]string) {
	t.Helper()
	rows, records := map[store.Key]store.Item{}, map[string]string{}
	for _, d := range store.Tables() {
		for r, err := range store.ScanAll(t.Context(), src.Store, store.Scan{Table: d.Name, Segments: 1}) {
			testkit.Must(t, err)
			if !slices.Contains(stays, d.Name) && !slices.Contains(stayRows, r.Key.PK) {
				rows[r.Key] = r.Item
			}
		}
	}
	testkit.Must(t, src.Records(t.Context(), nil, func(key, value []byte) bool {
		records[string(key)] = string(value)
		return true
	}))
	return rows, records
}

// export returns an export.
func (m *moving) export() []byte {
	m.t.Helper()
	src, closing := m.open()
	var b bytes.Buffer
	testkit.Value(move.Stream(m.t.Context(), src, &b, nil))(m.t)
	testkit.Must(m.t, closing())
	return b.Bytes()
}

func load(ctx context.Context, dir string, export []byte) (move.Report, error) {
	to, closing, err := backend.OpenImport(ctx, config(dir), backend.Moving{})
	if err != nil {
		return move.Report{}, err
	}
	r, err := move.Import(ctx, bytes.NewReader(export), to, nil)
	return r, errors.Join(err, closing())
}

// compare compares a moved installation with what it was.
func (m *moving) compare(dir string) {
	m.t.Helper()
	src, closing, err := backend.OpenExport(m.t.Context(), config(dir), backend.Moving{})
	testkit.Must(m.t, err)
	rows, records := contents(m.t, src)
	testkit.Must(m.t, closing())
	more := 0 // of the outbox, which has all events now
	for k := range rows {
		if _, had := m.rows[k]; !had && k.Table == store.Outbox {
			more++
		}
	}
	testkit.Equal(m.t, "rows", len(rows)-more, len(m.rows)-1) // the state of a partition of events
	if more == 0 {
		m.t.Error("no events are announced")
	}
	for k, want := range m.rows {
		got, same := rows[k], true
		for _, a := range want {
			same = same && got.Get(a.Name).Equal(a.Value)
		}
		special := k == m.ofChats || k == table.MachineKey(8, 0)
		if !special && (!same || len(got) != len(want)) {
			m.t.Errorf("%s is %v, it was %v", k, got, want)
		}
	}
	testkit.Equal(m.t, "records", len(records), len(m.records))
	for k, want := range m.records {
		if records[k] != want {
			m.t.Errorf("record %x differs", k)
		}
	}
	if at := table.CursorFrom(rows[m.ofChats]).State; !topictest.Restarted(at) {
		m.t.Errorf("the group of a topic of chats is at %x", at)
	}
	testkit.Equal(m.t, "topics made, epoch", src.Header.Topics, move.TopicCounters{Number: 9, Epoch: 5})
	key := testkit.Value(os.ReadFile(filepath.Join(dir, move.KeyFile)))(m.t)
	testkit.Equal(m.t, "the keys", string(key), string(m.key))
}

// An installation that was moved has every row and every record of topics that move, the keys and the
// history, and publishes all events into its own log.
func TestMove(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	dir, file := filepath.Join(t.TempDir(), "moved"), filepath.Join(t.TempDir(), "file")
	src, closing := m.open()
	r := testkit.Value(move.ToFile(t.Context(), src, file, nil))(t)
	testkit.Must(t, closing())
	if _, err := move.ToFile(t.Context(), src, file, nil); err == nil {
		t.Error("an export was written over")
	}
	if n := int64(len(m.rows) + len(m.records)); r.Entries() < n { // and more messages than batches
		t.Errorf("%d entries, %d rows and records", r.Entries(), n)
	}
	testkit.Value(load(t.Context(), dir, testkit.Value(os.ReadFile(file))(t)))(t)
	m.compare(dir)
	n := start(t, dir)
	h := n.eng.History
	if h.Generation() == m.generation || !h.Holds(m.generation, m.shown) || h.Holds(m.generation, m.shown+1_000_000) {
		t.Errorf("history: %v, %v", h.Holds(m.generation, m.shown), h.Holds(m.generation, m.shown+1_000_000))
	}
	for _, row := range []store.Key{
		{Table: store.Leases, PK: "filled-00"}, {Table: store.ConsumerAttempts, PK: "filled-0", SK: "row-00"},
	} {
		if it := testkit.Value(n.eng.Store.Get(t.Context(), row, store.Strong))(t); it != nil {
			t.Errorf("%s has moved", row)
		}
	}
	n.publish()
	if events, records := len(n.events()), n.inLog(); events < 60 || records < events {
		t.Errorf("%d events, %d records", events, records)
	}
}

// The event log does not move: an export has none of its topics and records, whether it begins or
// continues, and an import takes none.
func TestEventLogDoesNotMove(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	if len(m.records) < 40 { // batches, heads and numbers of producers of a durable topic
		t.Errorf("%d records move", len(m.records))
	}
	src, closing := m.open()
	var last []byte
	for key := range m.records {
		if key > string(last) {
			last = []byte(key)
		}
		if key >= "\x40" {
			t.Errorf("record %x moves", key)
		}
	}
	testkit.Must(t, src.Records(t.Context(), last, func(key, _ []byte) bool {
		t.Errorf("record %x comes behind the last one", key)
		return true
	}))
	testkit.Must(t, closing())
	dir := filepath.Join(t.TempDir(), "moved")
	testkit.Value(load(t.Context(), dir, m.export()))(t)
	n := start(t, dir)
	for _, topic := range testkit.Value(n.eng.Logs.(*commitlog.Local).EventTopics(t.Context()))(t) {
		for id := range topic.Partitions {
			p := commitlog.Partition{Topic: topic.Number, Number: id}
			if start, end, err := n.eng.Logs.Bounds(t.Context(), p); start != 0 || end != 0 || err != nil {
				t.Errorf("records of %s have moved: %d to %d, %v", topic.Name, start, end, err)
			}
		}
	}
	to, closing, err := backend.OpenImport(t.Context(), config(filepath.Join(t.TempDir(), "another")), backend.Moving{})
	testkit.Must(t, err)
	for _, key := range []string{"\x40\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00", "\xe0", "\xe1events", "\xe2\x01group"} {
		if err := to.Records(t.Context(), []store.Record{{Key: []byte(key)}}); !errors.Is(err, commitlog.ErrNotCarried) {
			t.Errorf("an import takes %x: %v", key, err)
		}
	}
	testkit.Must(t, closing())
}

// An import of an export with any damaged byte names the place, and nothing of it starts; the export as it was is
// imported afterwards.
func TestMoveOfDamage(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	export := m.export()
	dir := filepath.Join(t.TempDir(), "moved")
	refused := func(what string, b []byte, onDisk bool) {
		t.Helper()
		_, err := move.Import(t.Context(), bytes.NewReader(b), nowhere{t}, nil)
		if onDisk {
			_, err = load(t.Context(), dir, b)
			if e, err := backend.Open(config(dir)); err == nil || !strings.Contains(err.Error(), "an import into") {
				t.Fatalf("%s: a server starts: %v, %v", what, e, err)
			}
		}
		if err == nil || strings.Contains(err.Error(), "\n") || !errors.Is(err, move.ErrDamaged) &&
			!errors.Is(err, move.ErrCutOff) && !strings.Contains(err.Error(), "is no export") &&
			!strings.Contains(err.Error(), "this version reads 1") {
			t.Errorf("%s: %v", what, err)
		}
	}
	changed := func(at int) []byte {
		b := bytes.Clone(export)
		b[at] ^= 1 << rand.IntN(8)
		return b
	}
	starts := frames(t, export)
	for i, at := range starts[:len(starts)-1] {
		end := starts[i+1]
		for n, byte := range []int{at + 8 + rand.IntN(end-at-8), at, at + 3, at + 4, at + 8, at + 9, end - 1} {
			refused(fmt.Sprintf("byte %d of frame %d changed", byte-at, i), changed(byte), n == 0)
		}
		refused(fmt.Sprintf("frame %d is missing", i), append(bytes.Clone(export[:at]), export[end:]...), false)
		refused(fmt.Sprintf("frame %d is there twice", i), append(bytes.Clone(export[:end]), export[at:]...), false)
	}
	for range 500 {
		at := rand.IntN(len(export))
		refused(fmt.Sprintf("byte %d changed", at), changed(at), false)
	}
	refused("another version", []byte("parley export 2\n"), true)
	refused("nothing", nil, true)
	testkit.Value(load(t.Context(), dir, export))(t)
	m.compare(dir)
}

// nowhere is a target that keeps nothing and must not be finished.
type nowhere struct{ t *testing.T }

func (nowhere) Begin(context.Context, move.Header) (move.Progress, error) {
	return move.Progress{}, nil
}
func (nowhere) File(move.File) error                          { return nil }
func (nowhere) Rows(context.Context, []store.Row) error       { return nil }
func (nowhere) Records(context.Context, []store.Record) error { return nil }
func (nowhere) Reached(context.Context, move.Progress) error  { return nil }
func (n nowhere) Written(context.Context) (move.Source, error) {
	n.t.Error("all was taken")
	return move.Source{}, errKilled
}
func (n nowhere) Finish(context.Context, move.Header) error { n.t.Error("it is finished"); return nil }

// frames are where the frames of an export begin, and its end.
func frames(t *testing.T, export []byte) (starts []int) {
	t.Helper()
	at := bytes.IndexByte(export, '\n') + 1
	for at < len(export) {
		starts = append(starts, at)
		at += 8 + int(binary.BigEndian.Uint32(export[at:]))
	}
	if at != len(export) || len(starts) < 30 {
		t.Fatalf("%d frames end at %d of %d", len(starts), at, len(export))
	}
	return append(starts, at)
}

// An export and an import that were cut off anywhere continue with the same call, as often as that happens,
// and a process that is killed repeats what it had not on the disk.
func TestMoveCutOff(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	export := m.export()
	dir := filepath.Join(t.TempDir(), "moved")
	resumed := false
	for cut := rand.IntN(2000); cut < len(export); cut += rand.IntN(len(export) / 8) {
		r, err := load(t.Context(), dir, export[:cut])
		if !errors.Is(err, move.ErrCutOff) {
			t.Fatalf("cut off at %d: %v", cut, err)
		}
		resumed = resumed || r.Resumed
		if _, err := backend.Open(config(dir)); err == nil {
			t.Fatal("a server starts")
		}
	}
	to, closing, err := backend.OpenImport(t.Context(), config(dir), backend.Moving{})
	testkit.Must(t, err)
	if _, err := move.Import(t.Context(), bytes.NewReader(export), &forgetful{to}, nil); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	testkit.Must(t, closing())
	testkit.Value(load(t.Context(), dir, export))(t)
	m.compare(dir)
	if !resumed {
		t.Error("no import continued")
	}
	// The export itself, to a file that an earlier one has a part of.
	path := filepath.Join(t.TempDir(), "file")
	for range 8 {
		src, closing := m.open()
		cut := rand.IntN(len(export))
		testkit.Must(t, os.WriteFile(path+move.Partial, export[:cut], 0o600))
		r := testkit.Value(move.ToFile(t.Context(), src, path, nil))(t)
		testkit.Must(t, closing())
		if first := frames(t, export)[1]; r.Resumed != (cut >= first) || r.Resumed && int(r.Bytes) != len(export) {
			t.Errorf("cut off at %d: resumed %v, %d bytes, not %d", cut, r.Resumed, r.Bytes, len(export))
		}
		if got := testkit.Value(os.ReadFile(path))(t); r.Resumed && !bytes.Equal(got, export) {
			t.Errorf("cut off at %d: another export", cut)
		}
		testkit.Must(t, os.Remove(path))
	}
	// A part of an export of data that have changed since is none of this one.
	n := start(t, m.dir)
	testkit.Must(t, n.eng.Close())
	testkit.Must(t, os.WriteFile(path+move.Partial, export[:len(export)/2], 0o600))
	src, closing := m.open()
	if r := testkit.Value(move.ToFile(t.Context(), src, path, nil))(t); r.Resumed || r.Header.ID == "" {
		t.Errorf("resumed %v: %+v", r.Resumed, r.Header)
	}
	testkit.Must(t, closing())
}

var errKilled = errors.New("killed")

// forgetful is a target of a process that is killed before it has anything on the disk.
type forgetful struct{ move.Target }

func (*forgetful) Reached(context.Context, move.Progress) error { return errKilled }

// lossy is a target that loses a row.
type lossy struct {
	move.Target
	lost bool
}

func (l *lossy) Rows(ctx context.Context, rows []store.Row) error {
	if !l.lost && rows[0].Key.Table == store.Messages {
		l.lost, rows = true, rows[1:]
	}
	return l.Target.Rows(ctx, rows)
}
