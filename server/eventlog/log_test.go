package eventlog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"log/slog"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/store/table"
)

const (
	chatsTopic      = "chats"
	searchTopic     = "search"
	deadLetterTopic = "letters"
)

// topicsOf are the topics of tests.
func topicsOf() []kafka.Topic {
	return []kafka.Topic{
		{Name: chatsTopic, Partitions: 4, Kind: kafka.Chats, Readers: []string{"readers"}},
		{Name: searchTopic, Partitions: 2, Kind: kafka.Searches},
		{Name: deadLetterTopic, Partitions: 1, Kind: kafka.DeadLetterKind, Readers: []string{"readers"}},
	}
}

// fixture is a log on a disk in memory.
type fixture struct {
	*Log
	disk  *embeddedtest.Disk
	store *embedded.Store
	lines testkit.Log
	clock func() time.Time
}

// open opens the log again on what is on the disk; set changes its configuration.
func (x *fixture) open(t testing.TB, set func(*Config)) {
	t.Helper()
	x.store = x.disk.Open(t, x.clock)
	now := time.Now
	if x.clock != nil {
		now = x.clock
	}
	cfg := Config{Store: x.store, Log: commitlog.NewLocal(records.Of(x.store), now), Generation: "published",
		Topics: topicsOf(), MaxBytes: 1 << 20, Clock: now, Logger: slog.New(slog.NewTextHandler(&x.lines, nil)),
		Committed: func(context.Context, string) (map[kafka.Partition]int64, error) { return nil, nil }}
	if set != nil {
		set(&cfg)
	}
	x.Log = testkit.Value(Open(t.Context(), cfg))(t)
}

func (x *fixture) reopen(t testing.TB, set func(*Config)) {
	t.Helper()
	testkit.Must(t, x.store.Close())
	x.open(t, set)
}

func newFixture(t testing.TB, set func(*Config)) *fixture {
	t.Helper()
	x := &fixture{disk: embeddedtest.NewDisk(nil)}
	x.open(t, set)
	return x
}

// put stores the rows of events, and a row of the outbox that announces them.
func (x *fixture) put(t testing.TB, chat string, first int64, texts ...string) Publication {
	t.Helper()
	p := Publication{Chat: chat, Last: first + int64(len(texts)) - 1}
	o := table.Outbox{Shard: 3, AggregateID: chat, FirstVersion: first, Count: int64(len(texts)), CreatedAt: 1}
	p.Row = o.Key()
	plan := store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: o.Key(), Item: o.Item()}}}
	to := kafka.Partition{Topic: chatsTopic, ID: commitlog.PartitionOf(chat, 4)}
	for i, text := range texts {
		e := eventRow(t, chat, first+int64(i), text)
		plan.Writes = append(plan.Writes, store.Write{Op: store.OpPut, Key: table.EventKey(chat, e.Version), Item: e.Item()})
		p.Records = append(p.Records, published(t, e, to))
	}
	testkit.Must(t, x.store.Transact(t.Context(), plan))
	return p
}

// published is the record of an event as the relay makes it.
func published(t testing.TB, e table.Event, to kafka.Partition) *kafka.Record {
	t.Helper()
	return &kafka.Record{Topic: to.Topic, Partition: to.ID, Key: []byte(e.ChatID),
		Value: append([]byte{0, 0, 0, 0, 4, 0}, e.Payload...), Headers: []kafka.Header{
			{Key: "event_id", Value: []byte(e.EventID)}, {Key: "event_type", Value: []byte(e.Type)},
			{Key: "generation", Value: []byte("committed")}, {Key: "published_in", Value: []byte("published")},
		}}
}

// marshal encodes the second event of a chat.
func marshal(t testing.TB, id, kind, generation string) []byte {
	t.Helper()
	return testkit.Value(event.Marshal(&eventv1.MessagePersisted{ChatId: "chat_a", Metadata: &eventv1.EventMetadata{
		EventId: id, EventType: kind, Generation: generation, Version: 2}}))(t)
}

// plain is a record that has no row.
func plain(topic string, partition int32, value string) *kafka.Record {
	return &kafka.Record{Topic: topic, Partition: partition, Value: []byte(value)}
}

// show prints a record with everything that readers see.
func show(r *kafka.Record) string {
	null := func(b []byte) string {
		if b == nil {
			return "null"
		}
		return fmt.Sprintf("%x", b)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%s/%d@%d %d %s=%s", r.Topic, r.Partition, r.Offset, r.Timestamp.UnixNano(), null(r.Key),
		null(r.Value))
	for _, h := range r.Headers {
		fmt.Fprintf(&s, " %q=%s", h.Key, null(h.Value))
	}
	return s.String()
}

// all reads a partition from an offset to its end.
func (x *fixture) all(t testing.TB, p kafka.Partition, from int64, maxBytes int) (list []*kafka.Record) {
	t.Helper()
	for {
		got := testkit.Value(x.Read(t.Context(), p, from, maxBytes))(t)
		if len(got) == 0 {
			return list
		}
		for _, r := range got {
			if r.Offset < from {
				t.Fatalf("%s at an offset below %d", show(r), from)
			}
			from = r.Offset + 1
		}
		list = append(list, got...)
	}
}

// everything shows the records of all partitions.
func (x *fixture) everything(t testing.TB, maxBytes int) (list []string) {
	t.Helper()
	for _, topic := range x.Topics() {
		for id := range topic.Partitions {
			for _, r := range x.all(t, kafka.Partition{Topic: topic.Name, ID: id}, 0, maxBytes) {
				list = append(list, show(r))
			}
		}
	}
	return list
}

// forms counts what the store has of a partition, by form.
func (x *fixture) forms(t testing.TB, p kafka.Partition) (refs, copies int) {
	t.Helper()
	part := testkit.Value(x.partition(p))(t)
	for next := int64(0); ; {
		list := testkit.Value(x.cfg.Log.Read(t.Context(), part.id, next, 1<<20))(t)
		if len(list) == 0 {
			return refs, copies
		}
		for _, b := range list {
			if next = b.End(); b.Form == commitlog.References {
				refs += b.Count()
			} else {
				copies += b.Count()
			}
		}
	}
}

// Events of chats are stored as references, everything else as copies, and so is every record that
// its row would not become again, byte for byte. Readers get the same from memory and from the disk,
// with what was null and what was empty.
func TestPublishedIsRead(t *testing.T) {
	chat := "chat_a"
	to := kafka.Partition{Topic: chatsTopic, ID: commitlog.PartitionOf(chat, 4)}
	header := func(i int, key string, value []byte) func(*kafka.Record) {
		return func(r *kafka.Record) { r.Headers[i] = kafka.Header{Key: key, Value: value} }
	}
	for name, change := range map[string]func(*kafka.Record){
		"":                       func(*kafka.Record) {},
		"a null value":           func(r *kafka.Record) { r.Value = nil },
		"an empty value":         func(r *kafka.Record) { r.Value = []byte{} },
		"no frame":               func(r *kafka.Record) { r.Value = r.Value[6:] },
		"another magic byte":     func(r *kafka.Record) { r.Value[0] = 1 },
		"another message":        func(r *kafka.Record) { r.Value[5] = 2 },
		"a longer index":         func(r *kafka.Record) { r.Value = slices.Insert(r.Value, 5, 2) },
		"a negative schema":      func(r *kafka.Record) { r.Value[1] = 0xff },
		"bytes that are none":    func(r *kafka.Record) { r.Value = append(r.Value, 0xff) },
		"another version":        func(r *kafka.Record) { r.Value = published(t, eventRow(t, chat, 7, "x"), to).Value },
		"a null key":             func(r *kafka.Record) { r.Key = nil },
		"another key":            func(r *kafka.Record) { r.Key = []byte("chat_b") },
		"no headers":             func(r *kafka.Record) { r.Headers = nil },
		"a header less":          func(r *kafka.Record) { r.Headers = r.Headers[:3] },
		"a header more":          func(r *kafka.Record) { r.Headers = append(r.Headers, kafka.Header{Key: "x"}) },
		"headers in other order": func(r *kafka.Record) { slices.Reverse(r.Headers) },
		"another event id":       header(0, "event_id", []byte("other")),
		"another type":           header(1, "event_type", []byte("ChatCreated")),
		"an unknown type":        header(1, "event_type", []byte("Unheard")),
		"another generation":     header(2, "generation", []byte("other")),
		"a null generation":      header(2, "generation", nil),
		"a null header of an event without a generation": func(r *kafka.Record) {
			r.Value = append(r.Value[:6:6], marshal(t, "evt_chat_a2", event.TypeMessagePersisted, "")...)
			r.Headers[2].Value = nil
		},
		"a type that nobody knows": func(r *kafka.Record) {
			r.Value = append(r.Value[:6:6], marshal(t, "evt_chat_a2", "Unheard", "committed")...)
			r.Headers[1].Value = []byte("Unheard")
		},
		"published elsewhere": header(3, "published_in", []byte("other")),
		"another header":      header(3, "published_at", []byte("published")),
	} {
		t.Run(name, func(t *testing.T) {
			x := newFixture(t, nil)
			p := x.put(t, chat, 1, "one", "two", "three")
			change(p.Records[1])
			search := plain(searchTopic, 1, "")
			search.Headers = []kafka.Header{{Key: "same", Value: []byte{}}, {Key: "same"}, {Key: "\xff", Value: []byte("v")}}
			search.Timestamp = time.UnixMilli(77).Add(99 * time.Microsecond)
			testkit.Must(t, x.Publish(t.Context(), []Publication{p, {Records: []*kafka.Record{search}}}))
			if it := testkit.Value(x.store.Get(t.Context(), p.Row, store.Strong))(t); it != nil {
				t.Error("the row is still there")
			}
			wantRefs := 3
			if name != "" {
				wantRefs = 2
			}
			if refs, copies := x.forms(t, to); refs != wantRefs || copies != 3-wantRefs {
				t.Errorf("%d references and %d copies", refs, copies)
			}
			want := x.everything(t, 1<<20)
			if got := x.all(t, to, 0, 1<<20); got[1] != p.Records[1] {
				t.Error("the tail has not the record that was published")
			}
			x.reopen(t, nil)
			testkit.Equal(t, "records from the disk", x.everything(t, 1<<20), want)
			if len(want) != 4 || want[3] != show(search) || search.Timestamp != time.UnixMilli(77) {
				t.Error(want)
			}
		})
	}
}

// Events whose versions are not those that the publication says are copies: a reference would lead to
// another event.
func TestVersionsOfAPublication(t *testing.T) {
	x := newFixture(t, nil)
	p := x.put(t, "chat_a", 5, "one", "two", "three")
	p.Last++
	testkit.Must(t, x.Publish(t.Context(), []Publication{p}))
	refs, copies := x.forms(t, kafka.Partition{Topic: chatsTopic, ID: commitlog.PartitionOf("chat_a", 4)})
	if refs != 0 || copies != 3 {
		t.Errorf("%d references and %d copies", refs, copies)
	}
}

// Small batches of references and copies, published in several generations of the store, are read in
// order, in pieces of any size, each with its own generation.
func TestReadAcrossBatches(t *testing.T) {
	x := newFixture(t, nil)
	at := kafka.Partition{Topic: chatsTopic, ID: commitlog.PartitionOf("chat_a", 4)}
	var want []string
	for n := range int64(240) {
		if n%50 == 49 {
			x.reopen(t, func(c *Config) { c.Generation = fmt.Sprint("generation ", n) })
		}
		p := x.put(t, "chat_a", n+1, "text")
		if p.Records[0].Headers[3].Value = []byte(x.cfg.Generation); n%31 == 30 {
			p.Records[0].Headers[3].Value = []byte("elsewhere")
		}
		testkit.Must(t, x.Publish(t.Context(), []Publication{p}))
		want = append(want, show(p.Records[0]))
	}
	if refs, copies := x.forms(t, at); refs != 233 || copies != 7 {
		t.Errorf("%d references and %d copies", refs, copies)
	}
	x.reopen(t, nil)
	for _, size := range []int{1, 1500, 30_000, 1 << 20} {
		testkit.Equal(t, "records", x.everything(t, size), want)
	}
	bytes := 0
	for _, r := range testkit.Value(x.Read(t.Context(), at, 3, 30_000))(t) {
		bytes += sizeOf(r)
	}
	if bytes < 30_000 || bytes > 30_500 {
		t.Errorf("%d bytes where 30,000 were asked for", bytes)
	}
}

// Records get the time of the call, which never goes back, unless they have one that is not in the
// future.
func TestTimes(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	x := &fixture{disk: embeddedtest.NewDisk(nil), clock: func() time.Time { return now }}
	x.open(t, nil)
	at := kafka.Partition{Topic: searchTopic, ID: 1}
	for _, c := range []struct{ clock, own, want int64 }{
		{1_000_000, 0, 1_000_000}, {900_000, 0, 1_000_000}, {900_000, 5000, 5000}, {1_000_001, 2_000_000, 1_000_001},
		{1_000_001, 1_000_001, 1_000_001}, {1_000_300, 0, 1_000_300}, {1_000_400, 6000, 6000},
	} {
		now = time.UnixMilli(c.clock)
		r := plain(at.Topic, at.ID, "v")
		if c.own > 0 {
			r.Timestamp = time.UnixMilli(c.own)
		}
		testkit.Must(t, x.Publish(t.Context(), []Publication{{Records: []*kafka.Record{r}}}))
		testkit.Equal(t, "time", r.Timestamp.UnixMilli(), c.want)
	}
	for ms, want := range map[int64]int64{0: 0, 1_000_000: 0, 1_000_001: 3, 1_000_002: 5, 1_000_300: 5, 1_000_301: -1} {
		offset, when, err := x.OffsetAt(t.Context(), at, time.UnixMilli(ms))
		testkit.Must(t, err)
		if offset != want || want >= 0 && when.UnixMilli() < ms {
			t.Errorf("record %d is of %d, want record %d", offset, ms, want)
		}
	}
	newest := func(want, ms int64) {
		t.Helper()
		offset, when, err := x.Newest(t.Context(), at)
		testkit.Must(t, err)
		if offset != want || want >= 0 && when.UnixMilli() != ms {
			t.Errorf("the newest is record %d of %s, want %d of %d", offset, when, want, ms)
		}
	}
	newest(5, 1_000_300)
	trim := func(before int64) {
		t.Helper()
		part := testkit.Value(x.partition(at))(t)
		testkit.Value(x.cfg.Log.Trim(t.Context(), part.id, before))(t)
		x.tail.trimmed(part, before)
	}
	trim(6) // the one with the greatest time
	newest(6, 6000)
	trim(7)
	newest(-1, 0)
}

// Topics that are missing are made; those that are not declared any more stay, as topics of search
// events; one with another number of partitions is refused, with both numbers.
func TestTopics(t *testing.T) {
	x := newFixture(t, nil)
	before := x.Topics()
	testkit.Equal(t, "topics", len(before), 3)
	testkit.Must(t, x.Add(t.Context(), kafka.Topic{Name: "more", Partitions: 1000, Kind: kafka.Chats}))
	testkit.Must(t, x.Add(t.Context(), kafka.Topic{Name: "more", Partitions: 1000, Kind: kafka.DeadLetterKind}))
	for _, err := range []error{
		x.Add(t.Context(), kafka.Topic{Name: "more", Partitions: 999}),
		func() error {
			_, err := Open(t.Context(), Config{Store: x.store, Log: x.cfg.Log,
				Topics: []kafka.Topic{{Name: "more", Partitions: 999}}})
			return err
		}(),
	} {
		if err == nil || !strings.Contains(err.Error(), "more") || !strings.Contains(err.Error(), "1000") ||
			!strings.Contains(err.Error(), "999") {
			t.Error(err)
		}
	}
	testkit.Must(t, x.Publish(t.Context(), []Publication{{Records: []*kafka.Record{plain("more", 999, "v")}}}))
	after := x.Topics()
	if len(before) != 3 || len(after) != 4 || after[3].Kind != kafka.DeadLetterKind {
		t.Errorf("%+v, then %+v", before, after)
	}
	x.SetReaders([]kafka.Topic{{Name: chatsTopic}, {Name: "none"}})
	if len(x.Topics()[0].Readers) != 0 || len(x.Topics()[2].Readers) != 1 || len(before[0].Readers) != 1 {
		t.Errorf("%+v", x.Topics())
	}
	x.SetReaders([]kafka.Topic{{Name: chatsTopic}})
	if again := x.Topics(); &again[0] != &x.Topics()[0] {
		t.Error("another slice without a change")
	}
	x.reopen(t, nil)
	former := x.Topics()[3]
	if former.Name != "more" || former.Kind != kafka.Searches || former.Partitions != 1000 || former.ID != after[3].ID ||
		former.ID == before[0].ID || len(former.Readers) > 0 || former.Configs["retention.ms"] == "" {
		t.Errorf("%+v", former)
	}
	testkit.Equal(t, "records", len(x.all(t, kafka.Partition{Topic: "more", ID: 999}, 0, 100)), 1)
	for _, p := range []kafka.Partition{{Topic: "none"}, {Topic: searchTopic, ID: 2}, {Topic: searchTopic, ID: -1}} {
		_, _, err := x.Bounds(t.Context(), p)
		_, readErr := x.Read(t.Context(), p, 0, 1)
		for _, err := range []error{err, readErr, x.Wait(t.Context(), []kafka.Position{{Partition: p, Offset: 0}}),
			x.Publish(t.Context(), []Publication{{Records: []*kafka.Record{plain(searchTopic, 0, "v"),
				plain(p.Topic, p.ID, "v")}}})} {
			if !errors.Is(err, commitlog.ErrNoTopic) {
				t.Errorf("%s: %v", p, err)
			}
		}
	}
	start, end, err := x.Bounds(t.Context(), kafka.Partition{Topic: searchTopic})
	if start != 0 || end != 0 || err != nil {
		t.Errorf("a refused call left %d to %d, %v", start, end, err)
	}
}

// One call may have more records than a batch, and more bytes; a record that no batch can hold is
// refused, and with it all of the call.
func TestLargeCalls(t *testing.T) {
	x := newFixture(t, nil)
	var texts []string
	for n := range 90 {
		texts = append(texts, fmt.Sprint(n))
	}
	var list []Publication
	for from := int64(1); from < 10_001; from += 90 {
		list = append(list, x.put(t, "chat_a", from, texts...))
	}
	small := Publication{}
	for n := range 10_001 {
		small.Records = append(small.Records, plain(searchTopic, 0, fmt.Sprint(n)))
	}
	rng := rand.New(rand.NewPCG(1, 1))
	large := Publication{}
	for n := range 5 { // 8 MiB with two of them, less one byte
		value := make([]byte, 4<<20-7)
		value[rng.IntN(len(value))] = byte(n)
		large.Records = append(large.Records, plain(searchTopic, 1, string(value)))
	}
	testkit.Must(t, x.Publish(t.Context(), append(list, small, large)))
	refs, copies := x.forms(t, kafka.Partition{Topic: chatsTopic, ID: commitlog.PartitionOf("chat_a", 4)})
	if refs != 10_080 || copies != 0 {
		t.Errorf("%d references, %d copies", refs, copies)
	}
	count := 0
	for _, p := range list {
		count += len(p.Records)
	}
	if x.tail.bytes > 16<<20 {
		t.Errorf("%d bytes in memory", x.tail.bytes)
	}
	want := x.everything(t, 100<<10)
	testkit.Equal(t, "records", len(want), count+10_001+5)
	x.reopen(t, nil)
	if !slices.Equal(x.everything(t, 100<<10), want) {
		t.Error("other records are read from the disk")
	}
	_, end, err := x.Bounds(t.Context(), kafka.Partition{Topic: searchTopic})
	testkit.Must(t, err)
	over := []Publication{{Records: []*kafka.Record{plain(searchTopic, 0, "v")}},
		{Records: []*kafka.Record{plain(searchTopic, 0, string(make([]byte, 8<<20)))}}}
	if err := x.Publish(t.Context(), over); !errors.Is(err, commitlog.ErrTooLarge) {
		t.Errorf("%v", err)
	}
	if _, e, err := x.Bounds(t.Context(), kafka.Partition{Topic: searchTopic}); e != end || err != nil {
		t.Errorf("a refused call moved the end from %d to %d, %v", end, e, err)
	}
	testkit.Must(t, x.Publish(t.Context(), nil))
	row := x.put(t, "chat_z", 1, "left")
	testkit.Must(t, x.Publish(t.Context(), []Publication{{Row: row.Row}})) // without records
	if it := testkit.Value(x.store.Get(t.Context(), row.Row, store.Strong))(t); it != nil {
		t.Error("the row is still there")
	}
}
