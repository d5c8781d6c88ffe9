package searchrelay_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	searchv1 "github.com/parley-chat/parley/gen/parley/search/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/event/eventtest"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/search/record"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/failedrows"
	"github.com/parley-chat/parley/workers/relay"
	"github.com/parley-chat/parley/workers/replay"
	"github.com/parley-chat/parley/workers/searchrelay"
)

// fixture is a store with search events, and a log that relays publish them to.
type fixture struct {
	t       *testing.T
	now     time.Time
	store   *storetest.Memory
	events  *record.Recorder
	targets search.Targets
	streams []string
	log     []*kafka.Record
	fail    func(records []*kafka.Record) (before, after error)
	flush   error
	deletes bool // publishing deletes rows
	dead    []string
	aside   int           // rows published in part; 0: the default
	took    time.Duration // by a transaction
}

func newFixture(t *testing.T, topics string) *fixture {
	t.Helper()
	f := &fixture{t: t, now: time.Unix(1_700_000_000, 0), targets: testkit.Value(search.ParseTargets(topics))(t),
		fail: func([]*kafka.Record) (error, error) { return nil, nil }}
	clock := func() time.Time { return f.now }
	f.store = storetest.NewMemory(clock)
	n := 0
	f.events = record.New(record.Config{Store: f.store, Clock: clock, Retention: 24 * time.Hour,
		NewID:    func(prefix string) string { n++; return fmt.Sprint(prefix, n) },
		Recorded: func(stream string) { f.streams = append(f.streams, stream) }})
	return f
}

// relay makes a relay, as after a start of the process.
func (f *fixture) relay() *relay.Relay {
	f.t.Helper()
	clock := func() time.Time { return f.now }
	partitions := map[string]int{}
	for _, topic := range f.targets.Topics() {
		partitions[topic], partitions[topic+".dlq"] = 8, 1
	}
	source := &searchrelay.Source{Store: f.store, Targets: f.targets, Clock: clock, Partitions: partitions}
	guard := &searchrelay.Guard{Source: source, Attempts: searchrelay.DefaultAttempts,
		Publish: func(ctx context.Context, list []eventlog.Publication) error {
			f.now = f.now.Add(f.took)
			records := relay.Records(list)
			before, after := f.fail(records)
			if before == nil {
				f.log = append(f.log, records...)
				f.delete(ctx, list)
			}
			return errors.Join(before, after)
		},
		DeadLettered: func(id, topic string, why error) { f.dead = append(f.dead, fmt.Sprint(id, " of ", topic, ": ", why)) }}
	return testkit.Value(relay.New(relay.Config{
		Store: f.store, Load: source.Load, Clock: clock, Logger: slog.New(slog.DiscardHandler), Publish: guard.Do,
		MaxAside: f.aside, Deletes: f.deletes,
		Shards: []int{64, 65, 66, 67, 68, 69, 70, 71}, Flush: func(context.Context) error { return f.flush },
	}))(f.t)
}

// delete deletes the rows of what was published, in the mode in which publishing does that.
func (f *fixture) delete(ctx context.Context, list []eventlog.Publication) {
	for _, p := range list {
		if p.Chat != "" {
			f.t.Errorf("search events are published as events of the chat %s", p.Chat)
		}
		if f.deletes && p.Row != (store.Key{}) {
			testkit.Must(f.t, f.store.BatchWrite(ctx, []store.Write{{Op: store.OpDelete, Key: p.Row}}))
		}
	}
}

// inBothModes runs a test with rows that the relay deletes, and with rows that publishing deletes.
func inBothModes(t *testing.T, test func(t *testing.T, deletes bool)) {
	t.Helper()
	t.Run("the relay deletes", func(t *testing.T) { test(t, false) })
	t.Run("publishing deletes", func(t *testing.T) { test(t, true) })
}

func (f *fixture) record(user string, contents ...search.Content) []string {
	f.t.Helper()
	var events []search.Event
	for _, c := range contents {
		events = append(events, search.Event{Content: c})
	}
	return testkit.Value(f.events.Record(f.t.Context(), user, events))(f.t)
}

// cycles has a relay do what is due, and what will be in a minute.
func (f *fixture) cycles(r *relay.Relay) (err error) {
	for range 30 {
		err = r.Cycle(f.t.Context())
		f.now = f.now.Add(2 * time.Second)
	}
	return err
}

// waiting is how many rows of the outbox there are.
func (f *fixture) waiting() (n int) {
	for _, err := range store.ScanAll(f.t.Context(), f.store, store.Scan{Table: store.Outbox, Segments: 1}) {
		testkit.Must(f.t, err)
		n++
	}
	return n
}

func header(r *kafka.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

func envelope(t *testing.T, r *kafka.Record) search.Envelope {
	t.Helper()
	var e search.Envelope
	testkit.Must(t, json.Unmarshal(r.Value, &e))
	return e
}

func six() []search.Content {
	return []search.Content{
		&searchv1.SearchImpression{SearchId: "s1", ResultIds: []string{"r"}}, &searchv1.SearchResultSummary{SearchId: "s1"},
		&searchv1.SearchClick{SearchId: "s1", ResultId: "r"}, &searchv1.SearchDwell{SearchId: "s1", ResultId: "r"},
		&searchv1.AcImpression{SearchId: "a1"}, &searchv1.AcSelect{SearchId: "a1", Suggestion: "x"},
	}
}

// KS05, KS10, KS24, EV11: one record for each event, in the topic of its type, under the key
// that the topic's policy says; the other value is a header.
func TestRecords(t *testing.T) {
	f := newFixture(t, "search_click=clicks:aggregate")
	ids := f.record("alice", six()...)
	testkit.Must(t, f.cycles(f.relay()))
	testkit.Equal(t, "records", len(f.log), 6)
	testkit.Equal(t, "rows that wait", f.waiting(), 0)
	for i, r := range f.log {
		e := envelope(t, r)
		topic := e.EventType + "_v1"
		key, other, name := e.DedupKey, e.AggregateID, "aggregate_id"
		if e.EventType == "search_click" {
			topic, key, other, name = "clicks", e.AggregateID, e.DedupKey, "dedup_key"
		}
		if r.Topic != topic || string(r.Key) != key || header(r, name) != other || e.EventID != ids[i] ||
			header(r, "event_id") != ids[i] || header(r, "event_type") != e.EventType || len(r.Headers) != 3 {
			t.Errorf("%s is in %s under %s with %v", r.Value, r.Topic, r.Key, r.Headers)
		}
	}
}

// K-043: the partition of a record is that of its key by the contract.
func TestPartitionVectors(t *testing.T) {
	tried := 0
	for _, v := range eventtest.Vectors() {
		want, known := v.Partitions[8]
		if !known || v.Key == "" || len(v.Key) > 64 {
			continue
		}
		tried++
		f := newFixture(t, "search_click=clicks:aggregate")
		f.record("alice", &searchv1.SearchClick{SearchId: v.Key, ResultId: "r"})
		testkit.Must(t, f.relay().Cycle(t.Context()))
		if r := f.log[0]; int(r.Partition) != want || string(r.Key) != v.Key {
			t.Errorf("%.20q is in partition %d, the contract says %d", r.Key, r.Partition, want)
		}
	}
	if tried < 5 {
		t.Fatalf("%d vectors were tried", tried)
	}
}

// Whatever ends a process between commit, publication and deletion: each event is published,
// and published again it is the same record.
func TestCrashes(t *testing.T) {
	f := newFixture(t, "")
	first := f.record("alice", six()...)
	f.relay() // ended before it did anything
	f.fail = func([]*kafka.Record) (error, error) { return nil, errors.New("the answer is lost") }
	if err := f.relay().Cycle(t.Context()); err == nil {
		t.Fatal("a transaction without an answer succeeded")
	}
	f.fail = func([]*kafka.Record) (error, error) { return nil, nil }
	f.flush = errors.New("killed before the disk has it")
	_ = f.relay().Cycle(t.Context())
	testkit.Equal(t, "rows that wait", f.waiting(), 1)
	second := f.record("bob", six()...)
	f.flush = nil
	last := f.relay()
	testkit.Must(t, f.cycles(last))
	testkit.Equal(t, "rows that wait at the end", f.waiting(), 0)
	values := map[string]string{}
	for _, r := range f.log {
		id := header(r, "event_id")
		if was, ok := values[id]; ok && was != string(r.Value) {
			t.Errorf("%s was %s and is %s", id, was, r.Value)
		}
		values[id] = string(r.Value)
	}
	for _, id := range append(first, second...) {
		if values[id] == "" {
			t.Errorf("%s was lost", id)
		}
	}
	if len(f.log) < 24 || len(values) != 12 {
		t.Errorf("%d records of %d events, expected 24 or more of 12", len(f.log), len(values))
	}
}

// A relay that is notified of a stream publishes at once, and sweeps find the others.
func TestWake(t *testing.T) {
	f := newFixture(t, "")
	r := f.relay()
	testkit.Must(t, r.Cycle(t.Context()))
	f.record("alice", six()...)
	testkit.Must(t, r.Cycle(t.Context()))
	testkit.Equal(t, "records that nobody announced", len(f.log), 0)
	r.Wake(f.streams[0])
	r.Wake("chat_1") // of another relay
	testkit.Must(t, r.Cycle(t.Context()))
	testkit.Equal(t, "records", len(f.log), 6)
	f.record("bob", six()...)
	f.now = f.now.Add(2 * time.Second)
	testkit.Must(t, r.Cycle(t.Context()))
	testkit.Equal(t, "records after the sweep", len(f.log), 12)
	testkit.Must(t, f.cycles(r))
	testkit.Equal(t, "records at the end", len(f.log), 12)
}

// KS16, KS17, KS18: what a partition refuses for good is tried five times, at growing
// intervals, and then is in the topic's dead letters, with its origin and the reason. Other
// partitions continue, and so do later events of the same.
func TestDeadLetters(t *testing.T) {
	f := newFixture(t, "search_click=clicks:aggregate")
	var attempts []time.Time
	refuse := true
	f.fail = func(records []*kafka.Record) (error, error) {
		for _, r := range records {
			if r.Topic == "clicks" && refuse {
				attempts = append(attempts, f.now)
				return &kafka.PartitionError{Partitions: []kafka.Partition{{Topic: r.Topic, ID: r.Partition}},
					Err: kerr.MessageTooLarge}, nil
			}
		}
		return nil, nil
	}
	ids := f.record("alice", &searchv1.SearchClick{SearchId: "s1", ResultId: "r"})
	r := f.relay()
	testkit.Must(t, f.cycles(r))
	testkit.Must(t, f.cycles(r))
	if len(attempts) != 5 {
		t.Fatalf("attempts at %v, expected 5", attempts)
	}
	for i := 2; i < 5; i++ {
		if attempts[i].Sub(attempts[i-1]) <= attempts[i-1].Sub(attempts[i-2]) {
			t.Errorf("attempts at %v, expected growing intervals", attempts)
		}
	}
	testkit.Equal(t, "rows that wait", f.waiting(), 0)
	testkit.Equal(t, "dead letters", strings.Join(f.dead, "\n"),
		"srch_1-1 of clicks: "+kerr.MessageTooLarge.Error())
	var deadLetter search.DeadLetter
	rec := f.log[len(f.log)-1]
	testkit.Must(t, json.Unmarshal(rec.Value, &deadLetter))
	var original search.Envelope
	testkit.Must(t, json.Unmarshal(deadLetter.Event, &original))
	if rec.Topic != "clicks.dlq" || rec.Partition != 0 || deadLetter.OriginalTopic != "clicks" ||
		deadLetter.OriginalKey != "s1" || deadLetter.EventID != ids[0] || deadLetter.EventType != "search_click" ||
		deadLetter.Attempts != 5 || deadLetter.FailedAt == "" ||
		!strings.Contains(deadLetter.Error, "MESSAGE_TOO_LARGE") || original.EventID != ids[0] ||
		original.AggregateID != "s1" {
		t.Errorf("%s/%d: %s", rec.Topic, rec.Partition, rec.Value)
	}
	refuse = false
	f.record("alice", &searchv1.SearchClick{SearchId: "s1", ResultId: "next"})
	testkit.Must(t, f.cycles(r))
	if rec := f.log[len(f.log)-1]; rec.Topic != "clicks" {
		t.Errorf("the next event is in %s", rec.Topic)
	}
}

// A partition that only cannot be reached is waited for, however long that takes.
func TestOutagesAreNoDeadLetters(t *testing.T) {
	f := newFixture(t, "")
	down := true
	f.fail = func(records []*kafka.Record) (error, error) {
		if down {
			return &kafka.PartitionError{Partitions: []kafka.Partition{{Topic: records[0].Topic, ID: records[0].Partition}},
				Err: kerr.NotEnoughReplicas}, nil
		}
		return nil, nil
	}
	f.record("alice", six()...)
	r := f.relay()
	for range 20 {
		testkit.Must(t, f.cycles(r))
	}
	if len(f.log) != 0 || len(f.dead) != 0 || f.waiting() != 1 {
		t.Fatalf("%d records, dead letters %v, %d rows wait; expected none, none, 1", len(f.log), f.dead, f.waiting())
	}
	down = false
	testkit.Must(t, f.cycles(r))
	testkit.Must(t, f.cycles(r))
	testkit.Equal(t, "records", len(f.log), 6)
}

// storeEncoded stores a stream with one row of encoded events, however they came to be.
func (f *fixture) storeEncoded(stream string, events ...string) {
	f.t.Helper()
	n := int64(len(events))
	row := table.SearchEvents{Stream: stream, First: 1, Count: n, At: f.now.UnixMilli(),
		Events: []byte(strings.Join(events, "")), ExpiresAt: f.now.Add(time.Hour).Unix()}
	announced := table.Outbox{Shard: event.Shard(stream), AggregateID: stream, FirstVersion: 1, Count: n,
		CreatedAt: row.At}
	testkit.Must(f.t, f.store.BatchWrite(f.t.Context(), []store.Write{
		{Op: store.OpPut, Key: table.SearchEventsKey(stream, 1), Item: row.Item()},
		{Op: store.OpPut, Key: announced.Key(), Item: announced.Item()},
	}))
}

// encoded is an event as it is stored.
func (f *fixture) encoded(c search.Content) string {
	f.t.Helper()
	return string(testkit.Value(search.Encode("alice", search.Event{OccurredAt: f.now, Content: c}))(f.t))
}

// unknown is an event of a type that does not exist.
func (f *fixture) unknown() string {
	click := f.encoded(&searchv1.SearchClick{SearchId: "s1", ResultId: "r"})
	return strings.ReplaceAll(click, "search_click", "search_share")
}

// An event without an envelope is a dead letter at once, with what was recorded; a row whose
// events are gone is quarantined. Neither stops others.
func TestUnreadableEvents(t *testing.T) {
	f := newFixture(t, "")
	f.record("alice", six()...)
	f.record("bob", six()...)
	f.storeEncoded("srch_new", f.unknown())
	lost := table.Outbox{Shard: event.Shard("srch_lost"), AggregateID: "srch_lost", FirstVersion: 1, Count: 3,
		CreatedAt: f.now.UnixMilli()}
	testkit.Must(t, f.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: lost.Key(), Item: lost.Item()}}))
	r := f.relay()
	testkit.Must(t, f.cycles(r))
	testkit.Equal(t, "records", len(f.log), 13)
	var deadLetters []string
	for _, rec := range f.log {
		var deadLetter search.DeadLetter
		if !strings.HasSuffix(rec.Topic, ".dlq") {
			continue
		}
		testkit.Must(t, json.Unmarshal(rec.Value, &deadLetter))
		deadLetters = append(deadLetters, fmt.Sprintf("%s %s %t %s", deadLetter.EventType, deadLetter.Event,
			len(deadLetter.Recorded) > 0,
			deadLetter.Error))
	}
	testkit.Equal(t, "dead letters", strings.Join(deadLetters, "\n"),
		`search_share null true search: event srch_new-1 is of the unknown type "search_share"`)
	testkit.Equal(t, "reported dead letters", strings.Join(f.dead, "\n"), "srch_new-1 of "+
		f.targets[search.Types()[0]].Topic+`: search: event srch_new-1 is of the unknown type "search_share"`)
	testkit.Equal(t, "rows that wait", f.waiting(), 1)
	failed := testkit.Value(failedrows.List(t.Context(), f.store, "", 10))(t)
	if len(failed) != 1 || !strings.Contains(failed[0].LastError, "srch_lost-1 does not exist") {
		t.Errorf("%+v", failed)
	}
}

// What is a dead letter from the start is reported once it is published, and once only, although its
// row is read for each attempt.
func TestDeadLettersAreReportedOnce(t *testing.T) {
	f := newFixture(t, "")
	f.storeEncoded("srch_odd", f.unknown(), f.encoded(&searchv1.SearchClick{SearchId: "s1", ResultId: "r"}),
		f.encoded(&searchv1.AcSelect{SearchId: "a1", Suggestion: strings.Repeat("x", kafka.MaxEvent)}))
	r := f.relay()
	f.refuse(func(kafka.Partition) bool { return true }, kerr.NotEnoughReplicas)
	_ = f.cycles(r)
	testkit.Equal(t, "reported before they are published", len(f.dead), 0)
	f.refuse(ofTopic("search_click_v1"), kerr.NotEnoughReplicas)
	_ = f.cycles(r)
	f.refuse(ofTopic(), nil)
	testkit.Must(t, f.cycles(r))
	testkit.Must(t, f.cycles(r))
	testkit.Equal(t, "rows that wait", f.waiting(), 0)
	testkit.Equal(t, "records", len(f.log), 3)
	if len(f.dead) != 2 || !strings.HasPrefix(f.dead[0], "srch_odd-1 of "+f.targets[search.Types()[0]].Topic+": ") ||
		!strings.HasPrefix(f.dead[1], "srch_odd-3 of ac_select_v1: the event has ") {
		t.Errorf("reported: %q", f.dead)
	}
}

// What is a dead letter from the start and is refused for good waits like other records, and
// stops none of them.
func TestFirstDeadLettersRefused(t *testing.T) {
	f := newFixture(t, "")
	deadLetters := f.targets[search.Types()[0]].DeadLetters()
	f.refuse(ofTopic(deadLetters), kerr.MessageTooLarge)
	f.storeEncoded("srch_odd", f.unknown())
	r := f.relay()
	for i := range 2 * searchrelay.DefaultAttempts {
		f.record("alice", six()...)
		_ = f.cycles(r)
		testkit.Equal(t, "records", len(f.log), 6*(i+1))
	}
	f.refuse(ofTopic(), nil)
	testkit.Must(t, f.cycles(r))
	testkit.Must(t, f.cycles(r))
	testkit.Equal(t, "rows that wait", f.waiting(), 0)
	if last := f.log[len(f.log)-1]; last.Topic != deadLetters || len(f.dead) != 1 {
		t.Errorf("the last record is in %s, expected %s; reported: %q", last.Topic, deadLetters, f.dead)
	}
}

// KS19, KS20, KS21, KS22: what was published is published again from the store, chosen by
// type, time and number, with the same ids and keys; a dry run only counts.
func TestReplay(t *testing.T) {
	f := newFixture(t, "")
	r := f.relay()
	start := f.now
	f.record("alice", six()...)
	f.now = f.now.Add(time.Minute)
	f.record("alice", six()...)
	filter := replay.Filter{Types: []string{"search_click", "search_dwell", "ac_select"}}
	clock := func() time.Time { return f.now }
	run := func(c replay.Filter, o replay.Options) replay.Report {
		return testkit.Value(replay.Run(t.Context(), f.store, clock, c, o))(t)
	}
	testkit.Equal(t, "events that are not published yet", run(filter, replay.Options{Rate: replay.MaxRate}).Unpublished, 6)
	testkit.Must(t, f.cycles(r))
	published := map[string]string{}
	for _, rec := range f.log {
		published[header(rec, "event_id")] = string(rec.Key) + " " + string(rec.Value)
	}
	f.log = nil // Kafka is empty now
	testkit.Equal(t, "dry run", run(filter, replay.Options{DryRun: true}), replay.Report{Events: 6, Rows: 4})
	testkit.Equal(t, "rows after a dry run", f.waiting(), 0)
	if got := run(filter, replay.Options{Rate: replay.MaxRate, Limit: 4}); got.Events != 4 || !got.More {
		t.Errorf("%+v, expected 4 events and more", got)
	}
	testkit.Must(t, f.cycles(r))
	testkit.Equal(t, "records of 4 events", len(f.log), 4)
	filter.Until = start.Add(30 * time.Second)
	testkit.Equal(t, "before a time", run(filter, replay.Options{Rate: replay.MaxRate}).Events, 3)
	filter.After, filter.Until = filter.Until, time.Time{}
	testkit.Equal(t, "after it", run(filter, replay.Options{Rate: replay.MaxRate}).Events, 3)
	testkit.Must(t, f.cycles(f.relay()))
	testkit.Equal(t, "records", len(f.log), 10)
	for _, rec := range f.log {
		if was := published[header(rec, "event_id")]; was != string(rec.Key)+" "+string(rec.Value) {
			t.Errorf("%s %s was %s", rec.Key, rec.Value, was)
		}
	}
	for _, bad := range []replay.Filter{{Types: []string{"search_click", "MessagePersisted"}},
		{Types: []string{"search_click"}, Chats: []string{"chat_1"}}, {Types: []string{"search_click"}, From: 1}} {
		if _, err := replay.Run(t.Context(), f.store, clock, bad, replay.Options{}); !errors.Is(err, replay.ErrInvalid) {
			t.Errorf("%+v: %v, expected %v", bad, err, replay.ErrInvalid)
		}
	}
}
