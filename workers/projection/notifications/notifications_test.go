package notifications_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/projection"
	"github.com/parley-chat/parley/workers/projection/notifications"
)

type fixture struct {
	t     *testing.T
	addr  string
	store *storetest.Memory
	serde *event.Serde
	write func(context.Context, consume.DeadLetter) error
	set   *projection.Set
	now   time.Time
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := kafkatest.InProcess(t)
	producer, err := kafka.NewProducer(b.Addr)
	testkit.Must(t, err)
	t.Cleanup(producer.Close)
	f := &fixture{t: t, addr: b.Addr, now: time.Now().Truncate(24 * time.Hour).Add(12 * time.Hour)}
	f.store = storetest.NewMemory(f.clock)
	subjects := registry.New(f.store)
	ids, err := subjects.Events(t.Context())
	testkit.Must(t, err)
	f.serde, err = event.NewSerde(ids, subjects.SubjectsOf)
	testkit.Must(t, err)
	f.write = consume.Publisher(producer, func(b []byte) ([]byte, error) { return event.Frame(9, b) })
	f.set = f.process()
	testkit.Must(t, f.set.Prepare(t.Context()))
	return f
}

func (f *fixture) clock() time.Time { return f.now }

// process makes the projection of a process.
func (f *fixture) process() *projection.Set { return f.processOf(notifications.Definition()) }

// processOf makes one with another definition.
func (f *fixture) processOf(d projection.Definition) *projection.Set {
	f.t.Helper()
	s, err := projection.New(projection.Config{
		Definitions: []projection.Definition{d}, Store: f.store, Decode: f.serde.Decode,
		Addr: f.addr, Process: "p", History: store.Line("g"),
		Exclusive: true, Clock: f.clock, Logger: slog.New(slog.DiscardHandler),
		Rest: -1, PollEvery: time.Millisecond,
	})
	testkit.Must(f.t, err)
	return s
}

// rebuild has a process rebuild what is to be rebuilt.
func (f *fixture) rebuild(s *projection.Set) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx, func() {}) })
	defer running.Wait()
	defer cancel()
	operate := projection.Operate{Definitions: []projection.Definition{notifications.Definition()}, Store: f.store}
	testkit.Eventually(f.t, "the projection is made", func() bool {
		list, err := operate.List(ctx)
		return err == nil && list[0].Builds.Next == 0
	})
}

// fail writes the dead letter of an event, some days ago.
func (f *fixture) fail(group, chat, user string, n, days int) string {
	f.t.Helper()
	at := f.now.AddDate(0, 0, -days)
	value, err := f.serde.Encode(&eventv1.MessagePersisted{
		Metadata: event.Metadata{
			Type: event.TypeMessagePersisted, ID: fmt.Sprint("evt_", n), ChatID: chat, At: at,
			Origin: event.Origin{Generation: "g", Producer: "p"},
			Cause:  event.Cause{Actor: user}.Complete("evt_1"), Version: int64(n), MembershipVersion: 1,
		}.Proto(),
		MessageId: fmt.Sprint("msg_", n), ChatId: chat, Sequence: int64(n), SenderId: user, Content: "secret",
		ClientMessageId: "c1", CreatedAt: timestamppb.New(at),
	})
	testkit.Must(f.t, err)
	return f.deadLetter(group, &kafka.Record{Topic: kafka.MessagesPersisted, Partition: 3, Offset: int64(n), Timestamp: at,
		Key: []byte(chat), Value: value}, at)
}

func (f *fixture) deadLetter(group string, r *kafka.Record, at time.Time) string {
	f.t.Helper()
	d := consume.DeadLetter{Record: r, Group: group, Consumer: "wrk_1",
		Class: eventv1.FailureClass_FAILURE_CLASS_PERMANENT, Reason: "permanent: bad", FailedAt: at, Attempts: 3}
	testkit.Must(f.t, f.write(f.t.Context(), d))
	return d.ID()
}

// consume passes all dead letters to a process, three times.
func (f *fixture) consume(s *projection.Set) {
	f.t.Helper()
	spans, err := lag.Spans(f.t.Context(), f.addr, kafka.DeadLetters)
	testkit.Must(f.t, err)
	for range 3 {
		testkit.Must(f.t, lag.Read(f.t.Context(), f.addr, spans, func(r *kafka.Record) error {
			_, err := s.Handle(f.t.Context(), []*kafka.Record{r})
			return err
		}))
	}
}

func (f *fixture) list(filter notifications.Filter, size int) (ids []string) {
	f.t.Helper()
	for token := ""; ; {
		list, next, err := notifications.List(f.t.Context(), f.store, f.now, filter, size, token)
		testkit.Must(f.t, err)
		for _, n := range list {
			ids = append(ids, n.DeadLetterID)
		}
		if token = next; token == "" {
			return ids
		}
	}
}

// EV47, EV48, EV49, EV50: each event that a consumer gave up is there once, with its cause, found
// by chat, user, group, status and time, in pages; what was done about it shows at once; and the
// projection can be dropped and made again from the dead letters.
func TestNotifications(t *testing.T) {
	f := newFixture(t)
	f.rebuild(f.set)
	a := f.fail("fanout", "chat_a", "alice", 1, 9)
	b := f.fail("fanout", "chat_b", "bob", 2, 3)
	c := f.fail("search", "chat_a", "bob", 3, 3)
	d := f.fail("fanout", "chat_a", "alice", 4, 0)
	odd := f.deadLetter("fanout", &kafka.Record{Topic: kafka.MessagesPersisted, Offset: 90, Key: []byte("k\xff"),
		Value: []byte("x")}, f.now)
	f.deadLetter("fanout", &kafka.Record{Topic: kafka.MessagesPersisted, Offset: 91, Key: []byte("\x00"), Value: nil}, f.now)
	f.fail("fanout", "chat_b", "bob", 2, 3) // a crash has written it twice
	f.consume(f.set)
	status := table.DeadLetter{Status: "redriven", By: "ada", At: f.now.UnixMilli(), Tries: 1}
	testkit.Must(t, f.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut,
		Key: table.DeadLetterKey("search", kafka.MessagesPersisted, 3, 3), Item: status.Item()}}))

	want := map[string]struct {
		filter notifications.Filter
		ids    []string
	}{
		"chat":     {notifications.Filter{ChatID: "chat_a"}, []string{d, c, a}},
		"user":     {notifications.Filter{UserID: "bob"}, []string{c, b}},
		"both":     {notifications.Filter{UserID: "bob", ChatID: "chat_a"}, []string{c}},
		"group":    {notifications.Filter{Group: "search"}, []string{c}},
		"event":    {notifications.Filter{EventID: "evt_2"}, []string{b}},
		"open":     {notifications.Filter{ChatID: "chat_a", Statuses: []deadletter.Status{deadletter.Open}}, []string{d, a}},
		"redriven": {notifications.Filter{Statuses: []deadletter.Status{deadletter.Redriven}}, []string{c}},
		"since":    {notifications.Filter{UserID: "alice", After: f.now.AddDate(0, 0, -8)}, []string{d}},
		"until":    {notifications.Filter{Before: f.now.AddDate(0, 0, -3)}, []string{a}},
		"between":  {notifications.Filter{After: f.now.AddDate(0, 0, -3), Before: f.now}, []string{c, b}},
	}
	check := func(when string) {
		t.Helper()
		for name, w := range want {
			for _, size := range []int{1, 2, 100} {
				if got := f.list(w.filter, size); !slices.Equal(got, w.ids) {
					t.Fatalf("%s, %s in pages of %d: %q, not %q", when, name, size, got, w.ids)
				}
			}
		}
		all := f.list(notifications.Filter{}, 3)
		if slices.Sort(all); len(all) != 6 || !slices.Contains(all, odd) {
			t.Fatalf("%s: %q", when, all)
		}
	}
	check("consumed")
	list, _, err := notifications.List(t.Context(), f.store, f.now, notifications.Filter{Group: "search"}, 1, "")
	testkit.Must(t, err)
	if n := list[0]; n.ChatID != "chat_a" || n.Version != 3 || n.EventType != event.TypeMessagePersisted ||
		n.Reason != "permanent: bad" || n.Attempts != 3 || n.Status != deadletter.Redriven || n.Handling.By != "ada" {
		t.Fatalf("%+v", n)
	}

	before := f.rows("1")
	f.drop()
	if got := f.list(notifications.Filter{}, 100); len(got) != 0 {
		t.Fatalf("they are dropped: %q", got)
	}
	operate := projection.Operate{Definitions: []projection.Definition{notifications.Definition()}, Store: f.store,
		Generation: "g", Clock: f.clock}
	_, err = operate.Do(t.Context(), notifications.Name, projection.Change{Action: projection.Start}, "ada", true)
	testkit.Must(t, err)
	f.rebuild(f.process())
	check("made again")
	testkit.Equal(t, "the rows", fmt.Sprint(f.rows("2")), fmt.Sprint(before))
}

// A record that a rebuild cannot bring into its build is a gap, which the rebuild names. One that is
// ignored is none: it has no rows in a live build either.
func TestGapOfARecord(t *testing.T) {
	f := newFixture(t)
	testkit.Must(t, f.set.Prepare(t.Context()))
	f.rebuild(f.set)
	f.fail("fanout", "chat_a", "alice", 1, 3)
	lost := f.fail("fanout", "chat_b", "bob", 2, 3)
	f.fail("fanout", "chat_c", "bob", 3, 3)
	d := notifications.Definition()
	rows := d.Rows
	d.Rows = func(ctx context.Context, r *kafka.Record, decode projection.Decode) ([]projection.Row, error) {
		list, err := rows(ctx, r, decode)
		for _, row := range list {
			switch {
			case strings.HasSuffix(row.SK, lost):
				return nil, consume.Fail(consume.Permanent, "it cannot be read", nil)
			case row.Aggregate == "chat/chat_c":
				return nil, consume.Fail(consume.Ignored, "it says nothing", nil)
			}
		}
		return list, err
	}
	operate := projection.Operate{Definitions: []projection.Definition{d}, Store: f.store, Generation: "g", Clock: f.clock}
	_, err := operate.Do(t.Context(), notifications.Name, projection.Change{Action: projection.Start}, "ada", true)
	testkit.Must(t, err)
	s := f.processOf(d)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = s.Run(ctx, func() {}) })
	defer running.Wait()
	defer cancel()
	var got projection.Status
	testkit.Eventually(t, "the rebuild is paused", func() bool {
		list, err := operate.List(ctx)
		got = list[0]
		return err == nil && got.Builds.Paused
	})
	if !got.Rebuild.Blocked || got.Rebuild.Stuck != 1 ||
		!strings.HasPrefix(got.Rebuild.Gaps, kafka.DeadLetters+"/") || got.Builds.Live != 1 {
		t.Errorf("%+v", got)
	}
	testkit.Equal(t, "what the alert counts", s.Stats(notifications.Name).Stuck, int64(1))
}

// rows are those of a build, in their order, without its number.
func (f *fixture) rows(build string) (list []string) {
	f.t.Helper()
	prefix := notifications.Name + "/" + build + "/"
	for row, err := range store.ScanAll(f.t.Context(), f.store, store.Scan{Table: store.Notifications, Segments: 1}) {
		testkit.Must(f.t, err)
		if len(row.Key.PK) > len(prefix) && row.Key.PK[:len(prefix)] == prefix {
			list = append(list, fmt.Sprint(row.Key.PK[len(prefix):], row.Key.SK, row.Item))
		}
	}
	slices.Sort(list)
	return list
}

// drop removes all rows.
func (f *fixture) drop() {
	f.t.Helper()
	for row, err := range store.ScanAll(f.t.Context(), f.store, store.Scan{Table: store.Notifications, Segments: 1}) {
		testkit.Must(f.t, err)
		testkit.Must(f.t, f.store.BatchWrite(f.t.Context(), []store.Write{{Op: store.OpDelete, Key: row.Key}}))
	}
}

// A record that is no dead letter is ignored: as a dead letter of its own it would come again.
// One whose schema cannot be asked for waits. A token is good for its own list only.
func TestOddRequests(t *testing.T) {
	f := newFixture(t)
	if _, _, err := notifications.List(t.Context(), f.store, f.now, notifications.Filter{}, 1, ""); !errors.Is(err,
		projection.ErrNotBuilt) {
		t.Fatal(err)
	}
	f.rebuild(f.set)
	for _, value := range [][]byte{nil, []byte("x"), {0, 0, 0, 0, 9, 0, 0xff}} {
		_, err := f.set.Handle(t.Context(), []*kafka.Record{{Topic: kafka.DeadLetters, Key: []byte("k"), Value: value}})
		testkit.Equal(t, "the class", consume.ClassOf(err), consume.Ignored)
	}
	for n := range 3 {
		f.fail("fanout", "chat_a", "alice", n+1, 0)
	}
	f.consume(f.set)
	_, token, err := notifications.List(t.Context(), f.store, f.now, notifications.Filter{ChatID: "chat_a"}, 1, "")
	testkit.Must(t, err)
	for _, other := range []notifications.Filter{{ChatID: "chat_b"}, {}, {UserID: "alice"}} {
		if _, _, err := notifications.List(t.Context(), f.store, f.now, other, 1, token); !errors.Is(err,
			notifications.ErrToken) {
			t.Errorf("%+v: %v", other, err)
		}
	}
	for _, bad := range []string{"x", "2|chat/chat_a|", "||"} {
		if _, _, err := notifications.List(t.Context(), f.store, f.now, notifications.Filter{ChatID: "chat_a"}, 1,
			bad); !errors.Is(err, notifications.ErrToken) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	away, err := projection.New(projection.Config{
		Definitions: []projection.Definition{notifications.Definition()}, Store: f.store,
		Decode:  func(context.Context, []byte, []byte) (event.Event, error) { return nil, errors.New("away") },
		Process: "p", History: store.Line("g"), Clock: f.clock, Logger: slog.New(slog.DiscardHandler),
	})
	testkit.Must(t, err)
	spans, err := lag.Spans(t.Context(), f.addr, kafka.DeadLetters)
	testkit.Must(t, err)
	testkit.Must(t, lag.Read(t.Context(), f.addr, spans, func(r *kafka.Record) error {
		_, err := away.Handle(t.Context(), []*kafka.Record{r})
		testkit.Equal(t, "the class", consume.ClassOf(err), consume.Authoritative)
		return nil
	}))
}
