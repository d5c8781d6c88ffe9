package restore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topicstore/inspect"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/restore"
)

// stopped is an installation of which those processes run.
type stopped struct {
	running    []string
	begun      int
	generation string
}

func (s *stopped) Running(context.Context) ([]string, error) { return s.running, nil }

func (s *stopped) Begin(_ context.Context, generation string) error {
	s.begun, s.generation = s.begun+1, generation
	return nil
}

// fixture is restored tables.
type fixture struct {
	t     *testing.T
	store *storetest.Memory
	of    *stopped
	slots []inspect.Slot
	kafka error // what is wrong with its topics
	// records are topics and chats of the records on Kafka since the copy; since is that time.
	records [][2]string
	since   time.Time
}

func newFixture(t *testing.T) *fixture {
	return &fixture{t: t, store: storetest.NewMemory(time.Now), of: &stopped{}}
}

func (f *fixture) put(key store.Key, attrs ...store.Attr) {
	f.t.Helper()
	testkit.Must(f.t, f.store.Transact(f.t.Context(),
		store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: key, Item: store.NewItem(attrs...)}}}))
}

// chat makes a chat whose head is at a version and a sequence, with all events and messages up to others.
func (f *fixture) chat(id string, head table.Head, events, messages int64) {
	f.t.Helper()
	f.put(table.HeadKey(id), head.Item()...)
	one := store.Attr{Name: "x", Value: store.Int(1)}
	for v := range events {
		f.put(table.EventKey(id, v+1), one)
	}
	for n := range messages {
		f.put(table.MessageKey(id, n+1), one)
	}
}

func (f *fixture) run(change ...func(*restore.Config)) (string, error) {
	f.t.Helper()
	var out strings.Builder
	cfg := restore.Config{Installation: f.of, Store: f.store, Execute: true, Out: &out,
		CheckTopics: func(context.Context) error { return f.kafka },
		Slots:       func(context.Context) ([]inspect.Slot, error) { return f.slots, nil },
		Records: func(_ context.Context, since time.Time, each func(topic, key string)) error {
			f.since = since
			for _, r := range f.records {
				each(r[0], r[1])
			}
			return nil
		},
		Clock: time.Now}
	for _, c := range change {
		c(&cfg)
	}
	err := restore.Run(f.t.Context(), cfg)
	if err != nil && strings.Contains(err.Error(), "\n") {
		f.t.Errorf("more than a line: %v", err)
	}
	return out.String(), err
}

func dry(c *restore.Config) { c.Execute = false }

// No line of history begins while processes run, or on a Kafka without the topics in use.
func TestRefused(t *testing.T) {
	f := newFixture(t)
	f.of.running = []string{"srv_1 h:1", "wrk_1"}
	if _, err := f.run(); !errors.Is(err, restore.ErrRunning) || !strings.Contains(err.Error(), "srv_1 h:1, wrk_1") {
		t.Errorf("while processes run: %v", err)
	}
	f.of.running, f.kafka = nil, errors.New("messages.persisted: is missing")
	if _, err := f.run(); !errors.Is(err, f.kafka) {
		t.Errorf("without a topic: %v", err)
	}
	f.kafka = nil
	if out, err := f.run(dry); err != nil || !strings.Contains(out, "nothing was changed") || f.of.begun != 0 {
		t.Errorf("without --execute: %v, %s", err, out)
	}
	for range 2 { // it may be repeated
		if out, err := f.run(); err != nil || !strings.Contains(out, "generation "+f.of.generation+" has begun") {
			t.Errorf("%v, %s", err, out)
		}
	}
	if f.of.begun != 2 {
		t.Errorf("%d lines have begun", f.of.begun)
	}
}

// Chats whose newest change is in some tables only are named, each with what is wrong, and begin no
// line unless that is accepted.
func TestTorn(t *testing.T) {
	for name, tt := range map[string]struct {
		version, sequence, events, messages int64
		says                                string
	}{
		"whole":              {12, 7, 12, 7, ""},
		"whole, no messages": {3, 0, 3, 0, ""},
		"no event":           {12, 7, 11, 7, "c: event 12 is missing"},
		"no message":         {12, 7, 12, 6, "c: message 7 is missing"},
		"an event more":      {12, 7, 13, 7, "c: event 13 is there, and the head is at 12"},
		"a message more":     {12, 7, 12, 8, "c: message 8 is there, and the head is at 7"},
		"the first message":  {3, 0, 3, 1, "c: message 1 is there, and the head is at 0"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			for n := range int64(60) { // more than fit into one read
				f.chat("other"+table.Number(n), table.Head{Version: 2, Sequence: 1}, 2, 1)
			}
			f.chat("c", table.Head{Version: tt.version, Sequence: tt.sequence}, tt.events, tt.messages)
			out, err := f.run()
			if tt.says == "" {
				if err != nil || !strings.Contains(out, "61 chats, 0 of them torn") {
					t.Errorf("%v: %s", err, out)
				}
				return
			}
			if !errors.Is(err, restore.ErrTorn) || !strings.HasPrefix(out, tt.says+"\n") || f.of.begun != 0 {
				t.Errorf("%v: %s", err, out)
			}
			if _, err := f.run(func(c *restore.Config) { c.AcceptTorn = true }); err != nil || f.of.begun != 1 {
				t.Errorf("accepted: %v", err)
			}
		})
	}
}

// A topic that is made after a restore has a number that Kafka does not know, and an owner from before
// it cannot write; topics and logs that lack the other are named.
func TestTopics(t *testing.T) {
	f := newFixture(t)
	listed := func(slot int, name string, number int64) {
		f.put(table.TopicListKey(slot, name), store.Attr{Name: table.AttrTopicNumber, Value: store.Int(number)})
	}
	counters := func(slot int, number, epoch int64) {
		f.put(table.TopicCountersKey(slot), store.Attr{Name: table.AttrTopicNumber, Value: store.Int(number)},
			store.Attr{Name: table.AttrEpoch, Value: store.Int(epoch)})
	}
	id := store.Attr{Name: table.AttrInstallation, Value: store.String("one")}
	f.put(table.TopicInstallationKey(), id)
	listed(0, "orders", 2)   // the first of slot 0 of two
	listed(1, "payments", 3) // the first of slot 1
	listed(1, "letters", 5)
	counters(0, 1, 4)
	counters(1, 2, 6)
	f.slots = []inspect.Slot{
		{Installation: "one", Logs: map[uint64]string{2: "parley.t.orders", 8: "parley.t.later"}},
		{Installation: "one", Logs: map[uint64]string{3: "parley.t.payments"}},
	}
	row := func(slot int) (number, epoch int64) {
		it := testkit.Value(f.store.Get(t.Context(), table.TopicCountersKey(slot), store.Strong))(t)
		return it.Get(table.AttrTopicNumber).Int64(), it.Get(table.AttrEpoch).Int64()
	}
	for _, change := range []func(*restore.Config){dry, func(*restore.Config) {}} {
		out, err := f.run(change)
		testkit.Must(t, err)
		if strings.Count(out, "topic") != 4 || !strings.Contains(out, "topic of Kafka parley.t.later: of a topic that was made after") ||
			!strings.Contains(out, "topic letters: its log was removed after the copy") {
			t.Error(out)
		}
		if number, epoch := row(0); f.of.begun == 0 && (number != 1 || epoch != 4) {
			t.Errorf("without --execute: %d, %d", number, epoch)
		}
	}
	if number, epoch := row(0); number != 4 || epoch < 1_000_000 {
		t.Errorf("slot 0 has made %d topics at epoch %d, Kafka has the fourth", number, epoch)
	}
	if number, epoch := row(1); number != 2 || epoch < 1_000_000 {
		t.Errorf("slot 1 has made %d topics at epoch %d", number, epoch)
	}
	f.slots[1].Installation = "another"
	if _, err := f.run(); !errors.Is(err, restore.ErrForeign) {
		t.Errorf("another installation's Kafka: %v", err)
	}
}

// Tables from before the first durable topic take over the id that Kafka has: with another one no
// server would start.
func TestTablesOlderThanTopics(t *testing.T) {
	f := newFixture(t)
	f.slots = []inspect.Slot{{Installation: "one", Logs: map[uint64]string{1: "parley.t.a"}}, {}}
	if out, err := f.run(); err != nil || !strings.Contains(out, "take over the id that Kafka has") {
		t.Errorf("%v: %s", err, out)
	}
	it := testkit.Value(f.store.Get(t.Context(), table.TopicInstallationKey(), store.Strong))(t)
	testkit.Equal(t, "the id", it.Get(table.AttrInstallation).Str(), "one")
}

// Of each chat with records on Kafka from after the copy, the newest events of the topics of these
// records, and all behind them, are committed again in the line that begins, and published.
func TestEventsAgain(t *testing.T) {
	f := newFixture(t)
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for chat, topics := range map[string][]string{ // of the events from the first on
		"a": {kafka.ChatsCreated, kafka.MembershipsChanged, kafka.MessagesPersisted, kafka.MessagesPersisted},
		"b": {kafka.ChatsCreated, kafka.MessagesPersisted},
		"c": {kafka.ChatsCreated, kafka.MessagesPersisted},
	} {
		n := int64(0)
		for i, topic := range topics {
			md := &eventv1.EventMetadata{EventId: chat + topic, Generation: "g1", Version: int64(i + 1), PartitionKey: chat}
			var e event.Event = &eventv1.ChatCreated{Metadata: md, ChatId: chat}
			switch topic {
			case kafka.MembershipsChanged:
				e = &eventv1.MembershipChanged{Metadata: md, ChatId: chat}
			case kafka.MessagesPersisted:
				n++
				e = &eventv1.MessagePersisted{Metadata: md, ChatId: chat, Sequence: n}
				f.put(table.MessageKey(chat, n), store.Attr{Name: "x", Value: store.Int(1)})
			}
			row := table.Event{ChatID: chat, Version: int64(i + 1), EventID: chat + topic, Type: event.TypeOf(e),
				Payload: testkit.Value(event.Marshal(e))(t)}
			f.put(table.EventKey(chat, row.Version), row.Item()...)
		}
		f.put(table.HeadKey(chat), table.Head{ChatID: chat, Version: int64(len(topics)), Sequence: n,
			ChangedAt: at.UnixMilli()}.Item()...)
	}
	f.records = [][2]string{{kafka.MessagesPersisted, "a"}, {kafka.MembershipsChanged, "a"},
		{kafka.MessagesPersisted, "a"}, {kafka.MembershipsChanged, "b"}, {kafka.ChatsCreated, "new"}}
	generations := func(chat string) (all string) {
		for row, err := range store.QueryAll(t.Context(), f.store, store.Query{Table: store.Events, PK: chat}) {
			testkit.Must(t, err)
			e := testkit.Value(table.EventFrom(row))(t)
			all += " " + testkit.Value(event.Unmarshal(e.Type, e.Payload))(t).GetMetadata().GetGeneration()
		}
		return strings.TrimSpace(all)
	}
	announced := func() (all []string) {
		for row, err := range store.ScanAll(t.Context(), f.store, store.Scan{Table: store.Outbox, Segments: 1}) {
			testkit.Must(t, err)
			o := testkit.Value(table.OutboxFrom(row))(t)
			if o.Shard != event.Shard(o.AggregateID) || !o.Replay {
				t.Errorf("%+v", o)
			}
			all = append(all, fmt.Sprint(o.AggregateID, " ", o.FirstVersion, " ", o.Count))
		}
		slices.Sort(all)
		return all
	}
	out, err := f.run(dry)
	testkit.Must(t, err)
	if len(announced()) != 0 || generations("a") != "g1 g1 g1 g1" {
		t.Error("something was changed")
	}
	for _, says := range []string{"new: was made after the copy", "2 chats with records on Kafka since 2030-01-02T03:02:05Z, and 1 "} {
		if !strings.Contains(out, says) {
			t.Errorf("%q is missing: %s", says, out)
		}
	}
	testkit.Value(f.run())(t)
	g2 := f.of.generation
	testkit.Equal(t, "announced", announced(), []string{"a 2 3", "b 2 1"})
	testkit.Equal(t, "events of a", generations("a"), fmt.Sprintf("g1 %s %[1]s %[1]s", g2))
	testkit.Equal(t, "events of b, whose first change of members was lost", generations("b"), "g1 "+g2)
	testkit.Equal(t, "events of c", generations("c"), "g1 g1")
}
