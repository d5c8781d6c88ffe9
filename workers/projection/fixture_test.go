package projection_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/projection/chatactivity"
)

// clock is set by tests.
type clock struct{ ms atomic.Int64 }

func (c *clock) now() time.Time { return time.UnixMilli(c.ms.Load()) }

func (c *clock) add(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// fixture is a store with chats.
type fixture struct {
	t     testing.TB
	store store.Store
	clock *clock
	chats *chat.Service
	ids   []string
	rng   *rand.Rand
}

var people = []string{"alice", "bob", "carol"}

func newFixture(t testing.TB, chats int) *fixture {
	t.Helper()
	c := &clock{}
	c.ms.Store(time.Date(2026, 3, 1, 9, 0, 0, 0, time.UTC).UnixMilli())
	f := &fixture{t: t, store: dynamotest.Store(t, c.now), clock: c, rng: rand.New(rand.NewPCG(1, 2))}
	var err error
	f.chats, err = chat.New(t.Context(), chat.Config{Store: f.store, Clock: c.now, Generation: "g", Producer: "p"})
	testkit.Must(t, err)
	for _, u := range people {
		testkit.Must(t, f.chats.EnsureUser(t.Context(), u))
	}
	for range chats {
		f.chat()
	}
	return f
}

// chat makes a group.
func (f *fixture) chat() {
	f.t.Helper()
	c, err := f.chats.CreateGroup(f.t.Context(), chat.CreateGroup{Caller: "alice", Name: "Tea", Members: people[1:]})
	testkit.Must(f.t, err)
	f.ids = append(f.ids, c.ChatID)
}

// talk sends messages to chats by chance, some hours apart.
func (f *fixture) talk(messages int) {
	f.t.Helper()
	for n := range messages {
		f.clock.add(time.Duration(f.rng.IntN(int(5 * time.Hour))))
		f.send(f.ids[f.rng.IntN(len(f.ids))], people[f.rng.IntN(len(people))], n)
	}
}

func (f *fixture) send(id, user string, n int) {
	f.t.Helper()
	_, err := f.chats.Send(f.t.Context(), chat.Send{Caller: user, ChatID: id, Content: fmt.Sprint("hello ", n)})
	testkit.Must(f.t, err)
}

// batches are the records of all messages, as a consumer gets them: some of one chat at a
// time, in their order.
func (f *fixture) batches(size int) (list [][]*kafka.Record) {
	f.t.Helper()
	of := map[string][]*kafka.Record{}
	for _, e := range f.events() {
		if m, ok := e.(*eventv1.MessagePersisted); ok {
			r := &kafka.Record{Topic: kafka.MessagesPersisted, Offset: m.GetMetadata().GetVersion(), Key: []byte(m.GetChatId())}
			of[m.GetChatId()] = append(of[m.GetChatId()], r)
		}
	}
	for _, id := range f.ids {
		list = slices.AppendSeq(list, slices.Chunk(of[id], size))
	}
	return list
}

// events are those of the event store.
func (f *fixture) events() (list []event.Event) {
	f.t.Helper()
	for row, err := range store.ScanAll(context.Background(), f.store, store.Scan{Table: store.Events, Segments: 1}) {
		testkit.Must(f.t, err)
		stored, err := table.EventFrom(row)
		testkit.Must(f.t, err)
		e, err := event.Unmarshal(stored.Type, stored.Payload)
		testkit.Must(f.t, err)
		list = append(list, e)
	}
	return list
}

// count is what the events say, counted in another way than the projection does.
func (f *fixture) count() map[string]int64 {
	f.t.Helper()
	out, senders := map[string]int64{}, map[string]bool{}
	for _, e := range f.events() {
		m, ok := e.(*eventv1.MessagePersisted)
		if !ok {
			continue
		}
		day := m.GetChatId() + " " + m.GetCreatedAt().AsTime().Format(time.DateOnly)
		out[day+" messages"]++
		out[day+" of "+m.GetSenderId()]++
		if who := day + m.GetSenderId(); !senders[who] {
			senders[who] = true
			out[day+" senders"]++
		}
	}
	return out
}

// shown is what the projection says, in the same form.
func (f *fixture) shown() map[string]int64 {
	f.t.Helper()
	ctx, out := context.Background(), map[string]int64{}
	for _, id := range f.ids {
		days, err := chatactivity.Days(ctx, f.store, id, f.clock.now().AddDate(0, 0, -365), f.clock.now())
		testkit.Must(f.t, err)
		for _, d := range days {
			at := id + " " + d.Date
			out[at+" messages"], out[at+" senders"] = d.Messages, d.Senders
			day, err := time.Parse(time.DateOnly, d.Date)
			testkit.Must(f.t, err)
			list, err := chatactivity.Senders(ctx, f.store, id, day)
			testkit.Must(f.t, err)
			for _, s := range list {
				out[at+" of "+s.UserID] = s.Messages
			}
		}
	}
	return out
}

// check compares both.
func (f *fixture) check() {
	f.t.Helper()
	want, got := f.count(), f.shown()
	if len(want) == 0 {
		f.t.Fatal("there are no messages")
	}
	for what, n := range want {
		if got[what] != n {
			f.t.Fatalf("%s: the projection says %d, the events say %d", what, got[what], n)
		}
	}
	if len(got) != len(want) {
		f.t.Fatalf("the projection says %d things, the events %d", len(got), len(want))
	}
}

// unasked is a decoder for projections that need none.
func unasked(context.Context, []byte, []byte) (event.Event, error) {
	return nil, errors.New("a fold looks at keys only")
}

// set makes the projections of a process over a store.
func (f *fixture) set(st store.Store, change func(*projection.Config)) *projection.Set {
	f.t.Helper()
	cfg := projection.Config{
		Definitions: []projection.Definition{chatactivity.Definition()}, Store: st, Decode: unasked, Process: "p1",
		History: store.Line("g"), Exclusive: true, Clock: f.clock.now, Logger: slog.New(slog.DiscardHandler), Rest: -1,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := projection.New(cfg)
	testkit.Must(f.t, err)
	return s
}

// operate is what operators use.
func (f *fixture) operate() *projection.Operate {
	return &projection.Operate{Definitions: []projection.Definition{chatactivity.Definition()}, Store: f.store,
		Generation: "g", Clock: f.clock.now}
}

// status is that of the projection.
func (f *fixture) status() projection.Status {
	f.t.Helper()
	list, err := f.operate().List(context.Background())
	testkit.Must(f.t, err)
	return list[0]
}

// do does something about the rebuild.
func (f *fixture) do(a projection.Action) {
	f.t.Helper()
	_, err := f.operate().Do(f.t.Context(), chatactivity.Name, projection.Change{Action: a}, "ada", true)
	testkit.Must(f.t, err)
}

// handle passes batches to a process until it takes them.
func handle(t testing.TB, s *projection.Set, batches [][]*kafka.Record) {
	t.Helper()
	for _, b := range batches {
		for n, tries := 0, 0; n < len(b); tries++ {
			finished, err := s.Handle(t.Context(), b[n:])
			n += finished
			if err != nil && tries == 1_000 {
				t.Error(err)
				return
			}
		}
	}
}

// builds lists the builds that have rows.
func (f *fixture) builds() (list []string) {
	f.t.Helper()
	for row, err := range store.ScanAll(f.t.Context(), f.store, store.Scan{Table: store.Projections, Segments: 1}) {
		testkit.Must(f.t, err)
		if build := strings.Split(row.Key.PK, "/")[1]; !slices.Contains(list, build) {
			list = append(list, build)
		}
	}
	slices.SortFunc(list, cmp.Compare)
	return list
}
