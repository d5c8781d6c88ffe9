package commitlog_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/commitlogtest"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// eventTopic makes a topic of the event log.
func eventTopic(t testing.TB, log *commitlog.Local, name string, partitions int32) commitlog.EventTopic {
	t.Helper()
	made, err := log.CreateEventTopic(t.Context(), commitlog.EventTopic{Name: name, Partitions: partitions})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func recordsOf(n, count int) (list []record.Record) {
	for i := range count {
		list = append(list, record.Record{Key: []byte(fmt.Sprint("key ", n)), Value: []byte(fmt.Sprint(n, i)),
			Time:    int64(n + 1),
			Headers: []record.Header{{Key: "same", Value: []byte{0xff}}, {Key: "same"}}})
	}
	return list
}

func referencesOf(n, count int) (r record.References) {
	r.PublishedIn = "generation"
	for i := range count {
		r.List = append(r.List, record.Reference{Chat: fmt.Sprint("chat_", n), Version: int64(i + 1), Schema: 4,
			Time: int64(n + 1)})
	}
	return r
}

// Records and references of one topic are read in order, at their positions, with gaps, by time,
// after trims and when the engine was opened again.
func TestRecordsAndReferences(t *testing.T) {
	disk, clock := embeddedtest.NewDisk(nil), commitlogtest.NewClock()
	s := disk.Open(t, nil)
	log := commitlog.NewLocal(records.Of(s), clock.Now)
	at := commitlog.Partition{Topic: eventTopic(t, log, "messages.persisted", 96).Number, Number: 95}
	var want []commitlog.Append
	var bases []int64
	end := int64(0)
	for n := range 10 {
		clock.Advance(time.Second)
		a := commitlog.Append{Partition: at, Gap: int64(n % 3)}
		if n%2 == 0 {
			a.Records = recordsOf(n, 3)
		} else {
			a.References = referencesOf(n, 3)
		}
		got := testkit.Value(log.Append(t.Context(), []commitlog.Append{a}))(t)
		if got[0].Base != end+a.Gap || got[0].Count != 3 || got[0].Batch.Gap != a.Gap {
			t.Fatalf("batch %d: %+v behind position %d", n, got[0], end)
		}
		want, bases, end = append(want, a), append(bases, got[0].Base), got[0].Batch.End()
	}
	check := func(log commitlog.Log, from int, start int64) {
		t.Helper()
		if s, e, err := log.Bounds(t.Context(), at); err != nil || s != start || e != end {
			t.Fatalf("bounds are %d and %d, %v; want %d and %d", s, e, err, start, end)
		}
		got := testkit.Value(log.Read(t.Context(), at, start, 1<<20))(t)
		if len(got) != len(want)-from {
			t.Fatalf("%d batches", len(got))
		}
		for i, b := range got {
			w := want[from+i]
			if b.Base != bases[from+i] || b.Gap != w.Gap || b.Count() != 3 {
				t.Errorf("batch %d begins with %d behind a gap of %d", from+i, b.Base, b.Gap)
			}
			if b.Form == commitlog.References {
				if !reflect.DeepEqual(b.References(), w.References) {
					t.Errorf("batch %d has %+v", from+i, b.References())
				}
				continue
			}
			for k := range b.Count() {
				if !reflect.DeepEqual(b.Record(k), w.Records[k]) {
					t.Errorf("batch %d has record %+v", from+i, b.Record(k))
				}
			}
		}
	}
	check(log, 0, 0)
	for n, base := range bases { // the times of the records count, not those of the appends
		when := time.UnixMilli(int64(n + 1))
		if p := testkit.Value(log.PositionAt(t.Context(), at, when))(t); p != base {
			t.Errorf("batch %d begins with %d, the time leads to %d", n, base, p)
		}
	}
	start := testkit.Value(log.Trim(t.Context(), at, bases[4]+1))(t)
	testkit.Equal(t, "start", start, bases[3]+3)
	check(log, 4, start)
	testkit.Must(t, s.Close())
	log = commitlog.NewLocal(records.Of(disk.Open(t, nil)), clock.Now)
	check(log, 4, start)
}

// What a partition cannot hold is refused, and nothing of the same call is stored.
func TestEventLogRefuses(t *testing.T) {
	log := commitlog.NewLocal(records.Of(embeddedtest.NewDisk(nil).Open(t, nil)), time.Now)
	topic := eventTopic(t, log, "t", 3).Number
	at := commitlog.Partition{Topic: topic}
	one := []*commitlog.Message{{Key: "k"}}
	for name, c := range map[string]struct {
		a    commitlog.Append
		want error
	}{
		"messages":             {commitlog.Append{Partition: at, Messages: one}, commitlog.ErrInvalid},
		"nothing":              {commitlog.Append{Partition: at}, commitlog.ErrInvalid},
		"records of topics":    {commitlog.Append{Partition: home, Records: recordsOf(0, 1)}, commitlog.ErrInvalid},
		"references of topics": {commitlog.Append{Partition: home, References: referencesOf(0, 1)}, commitlog.ErrInvalid},
		"a gap in a topic":     {commitlog.Append{Partition: home, Messages: one, Gap: 1}, commitlog.ErrInvalid},
		"records and references": {commitlog.Append{Partition: at, Records: recordsOf(0, 1),
			References: referencesOf(0, 1)}, commitlog.ErrInvalid},
		"messages and records": {commitlog.Append{Partition: at, Records: recordsOf(0, 1), Messages: one},
			commitlog.ErrInvalid},
		"a producer": {commitlog.Append{Partition: at, Records: recordsOf(0, 1),
			Producer: commitlog.Producer{ID: "p", Number: 1}}, commitlog.ErrInvalid},
		"a negative gap": {commitlog.Append{Partition: at, Records: recordsOf(0, 1), Gap: -1}, commitlog.ErrInvalid},
		"a gap of 2^62":  {commitlog.Append{Partition: at, Records: recordsOf(0, 1), Gap: 1<<62 + 1}, commitlog.ErrInvalid},
		"no chat": {commitlog.Append{Partition: at, References: record.References{List: make([]record.Reference, 1)}},
			commitlog.ErrInvalid},
		"many headers": {commitlog.Append{Partition: at, Records: []record.Record{{Headers: make([]record.Header, 10_001)}}},
			commitlog.ErrInvalid},
		"10,001 records":    {commitlog.Append{Partition: at, Records: recordsOf(0, 10_001)}, commitlog.ErrTooLarge},
		"10,001 references": {commitlog.Append{Partition: at, References: referencesOf(0, 10_001)}, commitlog.ErrTooLarge},
		"8 MiB": {commitlog.Append{Partition: at, Records: []record.Record{{Value: make([]byte, 8<<20)}}},
			commitlog.ErrTooLarge},
		"partition 3": {commitlog.Append{Partition: commitlog.Partition{Topic: topic, Number: 3},
			Records: recordsOf(0, 1)}, commitlog.ErrNoTopic},
		"another topic": {commitlog.Append{Partition: commitlog.Partition{Topic: topic + 1},
			Records: recordsOf(0, 1)}, commitlog.ErrNoTopic},
		"partition 1024": {commitlog.Append{Partition: commitlog.Partition{Topic: topic, Number: 1024},
			Records: recordsOf(0, 1)}, commitlog.ErrInvalid},
	} {
		good := commitlog.Append{Partition: at, Records: recordsOf(0, 1)}
		if _, err := log.Append(t.Context(), []commitlog.Append{good, c.a}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, end, err := log.Bounds(t.Context(), at); err != nil || end != 0 {
		t.Errorf("the end is %d, %v", end, err)
	}
	for _, gap := range []int64{1 << 62, 1} { // the second has no room
		_, err := log.Append(t.Context(), []commitlog.Append{{Partition: at, Records: recordsOf(0, 1), Gap: gap}})
		if (err == nil) != (gap > 1) || gap == 1 && !errors.Is(err, commitlog.ErrInvalid) {
			t.Errorf("a gap of %d: %v", gap, err)
		}
	}
	if _, _, err := log.Bounds(t.Context(), commitlog.Partition{Topic: topic + 1}); !errors.Is(err, commitlog.ErrNoTopic) {
		t.Errorf("bounds of another topic: %v", err)
	}
	if err := log.Delete(t.Context(), topic); !errors.Is(err, commitlog.ErrInvalid) {
		t.Errorf("a topic of the event log is deleted without its name: %v", err)
	}
}

// The caller's slices are its own once an append returns.
func TestReferencesAreCopied(t *testing.T) {
	log := commitlog.NewLocal(records.Of(embeddedtest.NewDisk(nil).Open(t, nil)), time.Now)
	at := commitlog.Partition{Topic: eventTopic(t, log, "t", 1).Number}
	refs := referencesOf(0, 2)
	got := testkit.Value(log.Append(t.Context(), []commitlog.Append{{Partition: at, References: refs}}))(t)
	refs.List[0].Version = 99
	if v := got[0].Batch.References().List[0].Version; v != 1 {
		t.Errorf("version %d", v)
	}
}

// A topic of the event log has up to 1,024 partitions, each a log of its own; no other has one.
func TestManyPartitions(t *testing.T) {
	log := commitlog.NewLocal(records.Of(embeddedtest.NewDisk(nil).Open(t, nil)), time.Now)
	topic, other := eventTopic(t, log, "many", 1024), eventTopic(t, log, "other", 1)
	more := commitlog.EventTopic{Name: "more", Partitions: 1025}
	if _, err := log.CreateEventTopic(t.Context(), more); !errors.Is(err, commitlog.ErrInvalid) {
		t.Errorf("1,025 partitions: %v", err)
	}
	for round := range int64(2) {
		var list []commitlog.Append
		for n := int32(1023); n >= 0; n-- {
			at := commitlog.Partition{Topic: topic.Number, Number: n}
			list = append(list, commitlog.Append{Partition: at, Records: recordsOf(int(n), 2)})
		}
		for _, a := range testkit.Value(log.Append(t.Context(), list))(t) {
			if a.Base != 2*round {
				t.Fatalf("base %d in round %d", a.Base, round)
			}
		}
	}
	at := commitlog.Partition{Topic: topic.Number, Number: 1023}
	if b := testkit.Value(log.Read(t.Context(), at, 2, 1))(t); len(b) != 1 || string(b[0].Record(0).Key) != "key 1023" {
		t.Errorf("partition 1023 has %+v", b)
	}
	testkit.Must(t, log.RemoveEventTopic(t.Context(), "many"))
	if _, _, err := log.Bounds(t.Context(), at); !errors.Is(err, commitlog.ErrNoTopic) {
		t.Errorf("a partition of a removed topic: %v", err)
	}
	late := []commitlog.Append{{Partition: at, Records: recordsOf(0, 1)}}
	if _, err := log.Append(t.Context(), late); !errors.Is(err, commitlog.ErrNoTopic) {
		t.Errorf("an append to a removed topic: %v", err)
	}
	if _, end, err := log.Bounds(t.Context(), commitlog.Partition{Topic: other.Number}); err != nil || end != 0 {
		t.Errorf("the other topic: end %d, %v", end, err)
	}
}

// Topics of the event log have names, numbers that are never used again, and the id that they
// were made with; all of that survives the engine.
func TestEventTopics(t *testing.T) {
	disk := embeddedtest.NewDisk(nil)
	s := disk.Open(t, nil)
	log := commitlog.NewLocal(records.Of(s), time.Now)
	create := func(name string, partitions int32, id commitlog.TopicID) (commitlog.EventTopic, error) {
		return log.CreateEventTopic(t.Context(), commitlog.EventTopic{Name: name, Partitions: partitions, ID: id})
	}
	mine := commitlog.TopicID{1, 2, 3}
	b := testkit.Value(create("b", 96, mine))(t)
	a := testkit.Value(create("a.v2_-A9", 1, commitlog.TopicID{}))(t)
	if b.Number != 1<<62 || a.Number != 1<<62+1 || b.ID != mine || a.ID == (commitlog.TopicID{}) {
		t.Errorf("%+v and %+v", b, a)
	}
	for _, same := range []commitlog.TopicID{{}, mine} {
		if again, err := create("b", 96, same); err != nil || again != b {
			t.Errorf("again: %+v, %v", again, err)
		}
	}
	for name, f := range map[string]func() (commitlog.EventTopic, error){
		"other partitions": func() (commitlog.EventTopic, error) { return create("b", 95, mine) },
		"another id":       func() (commitlog.EventTopic, error) { return create("b", 96, commitlog.TopicID{9}) },
		"no name":          func() (commitlog.EventTopic, error) { return create("", 1, mine) },
		"a dot":            func() (commitlog.EventTopic, error) { return create(".", 1, mine) },
		"two dots":         func() (commitlog.EventTopic, error) { return create("..", 1, mine) },
		"a space":          func() (commitlog.EventTopic, error) { return create("a b", 1, mine) },
		"a byte":           func() (commitlog.EventTopic, error) { return create("a\xff", 1, mine) },
		"250 bytes":        func() (commitlog.EventTopic, error) { return create(strings.Repeat("a", 250), 1, mine) },
		"no partitions":    func() (commitlog.EventTopic, error) { return create("c", 0, mine) },
		"a number": func() (commitlog.EventTopic, error) {
			return log.CreateEventTopic(t.Context(), commitlog.EventTopic{Name: "c", Number: 1 << 62, Partitions: 1})
		},
	} {
		if _, err := f(); !errors.Is(err, commitlog.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	long := testkit.Value(create(strings.Repeat("a", 249), 1, mine))(t)
	list := func(want ...commitlog.EventTopic) {
		t.Helper()
		if got := testkit.Value(log.EventTopics(t.Context()))(t); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	list(b, a, long)
	at := commitlog.Partition{Topic: long.Number}
	testkit.Value(log.Append(t.Context(), []commitlog.Append{{Partition: at, Records: recordsOf(0, 5)}}))(t)
	testkit.Must(t, log.RemoveEventTopic(t.Context(), long.Name))
	if err := log.RemoveEventTopic(t.Context(), long.Name); !errors.Is(err, commitlog.ErrNoTopic) {
		t.Errorf("removed again: %v", err)
	}
	list(b, a)
	testkit.Must(t, s.Close())
	s = disk.Open(t, nil)
	log = commitlog.NewLocal(records.Of(s), time.Now)
	list(b, a)
	again := testkit.Value(create(long.Name, 1, commitlog.TopicID{}))(t)
	if again.Number != long.Number+1 || again.ID == long.ID {
		t.Errorf("a removed topic is %+v, it was %+v", again, long)
	}
	if _, end, err := log.Bounds(t.Context(), commitlog.Partition{Topic: again.Number}); err != nil || end != 0 {
		t.Errorf("a topic that is made again ends with %d, %v", end, err)
	}
	if in, err := commitlog.Inspect(t.Context(), records.Of(s), func() {}, func(_ part, where, what string) error {
		return fmt.Errorf("%s: %s", where, what)
	}); err != nil || in != (commitlog.Inspected{}) {
		t.Errorf("%+v, %v", in, err)
	}
}

// There are 1,000 topics at most; those that were removed do not count.
func TestEventTopicsAreBounded(t *testing.T) {
	engine := &full{Records: records.Of(embeddedtest.NewDisk(nil).Open(t, nil)), is: true} // made on a full disk
	log := commitlog.NewLocal(engine, time.Now)
	for n := range 1000 {
		eventTopic(t, log, fmt.Sprint("t", n), 1)
	}
	one := commitlog.EventTopic{Name: "one-more", Partitions: 1}
	if _, err := log.CreateEventTopic(t.Context(), one); !errors.Is(err, commitlog.ErrInvalid) {
		t.Errorf("1,001 topics: %v", err)
	}
	testkit.Must(t, log.RemoveEventTopic(t.Context(), "t7"))
	if made := testkit.Value(log.CreateEventTopic(t.Context(), one))(t); made.Number != 1<<62+1000 {
		t.Errorf("%+v", made)
	}
}

// An inspection names what is wrong in the event log: a damaged batch, a topic that cannot be
// read, and records of a topic that the catalogue does not have.
func TestInspectEventLog(t *testing.T) {
	engine := records.Of(embeddedtest.NewDisk(nil).Open(t, nil))
	log := commitlog.NewLocal(engine, time.Now)
	mustAppend(t, log, home, commitlogtest.Message(1))
	topics := []commitlog.EventTopic{eventTopic(t, log, "good", 1), eventTopic(t, log, "damaged", 1)}
	for n := range 3 {
		for _, topic := range topics {
			at := commitlog.Partition{Topic: topic.Number}
			testkit.Value(log.Append(t.Context(), []commitlog.Append{{Partition: at, References: referencesOf(n, 4)}}))(t)
		}
	}
	var found []string
	inspect := func(want commitlog.Inspected, lines ...string) {
		t.Helper()
		found = nil
		got, err := commitlog.Inspect(t.Context(), engine, func() {}, func(_ part, where, what string) error {
			found = append(found, where+": "+what)
			return nil
		})
		if err != nil || got != want || len(found) != len(lines) {
			t.Fatalf("%+v, %v, %q", got, err, found)
		}
		for i, line := range lines {
			if !strings.Contains(found[i], line) {
				t.Errorf("%q, want %q", found[i], line)
			}
		}
	}
	commit := func(r store.Record) {
		t.Helper()
		wait := testkit.Value(engine.Commit(t.Context(), []store.Record{r}))(t)
		testkit.Must(t, wait())
	}
	inspect(commitlog.Inspected{Topics: 1, Messages: 1, Events: 24})
	key := func(topic uint64, last byte) []byte {
		return append([]byte{0x40, 0, 0, 0, 0, 0, 0, byte(topic)}, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, last)
	}
	commit(store.Record{Key: key(1, 7), Value: []byte("damaged")})
	inspect(commitlog.Inspected{Topics: 1, Messages: 1, Events: 20},
		"partition 4611686018427387905/0, batch that ends with position 7")
	commit(store.Record{Key: []byte("\xe1damaged"), Value: []byte("damaged")})
	inspect(commitlog.Inspected{Topics: 1, Messages: 1, Events: 20}, "position 7", "topics of the event log",
		"topic 4611686018427387905 of the event log: it has records, but no name")
	if _, err := commitlog.NewLocal(engine, time.Now).EventTopics(t.Context()); !errors.Is(err, store.ErrCorrupt) {
		t.Errorf("topics: %v", err)
	}
	commit(store.Record{Key: []byte("\xe1damaged"), Until: []byte("\xe1damaged\x00")})
	inspect(commitlog.Inspected{Topics: 1, Messages: 1, Events: 20}, "position 7", "it has records, but no name")
	commit(store.Record{Key: []byte("\xe0"), Value: []byte("damaged")})
	inspect(commitlog.Inspected{Topics: 1, Messages: 1, Events: 20}, "position 7", "number of the next topic",
		"it has records, but no name")
}
