package deadletter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/deadletter/encoding"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

type fixture struct {
	t       *testing.T
	now     time.Time
	manager *Manager
	store   store.Store
	write   func(context.Context, consume.DeadLetter) error
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	b := kafkatest.InProcess(t)
	c, err := kafka.NewProducer(b.Addr)
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	r := &fixture{t: t, now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return r.now }
	r.store = dynamotest.Store(t, clock)
	r.write = consume.Publisher(c, func(b []byte) ([]byte, error) { return append([]byte{0, 0, 0, 0, 9, 0}, b...), nil })
	r.manager, err = New(Config{Addr: b.Addr, Store: r.store, Clock: clock, Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	return r
}

// add writes the dead letter of the n-th record of a key for a group.
func (r *fixture) add(group, key string, n int) *kafka.Record {
	r.t.Helper()
	value := make([]byte, rand.IntN(200))
	for i := range value {
		value[i] = byte(rand.Uint32())
	}
	rec := &kafka.Record{
		Topic: kafka.MessagesPersisted, Partition: int32(len(key) % 7), Offset: int64(n), Timestamp: r.now.Add(-time.Minute),
		Key: []byte(key), Value: value, Headers: []kafka.Header{{Key: "h", Value: []byte{0, 255}}, {Key: "h", Value: nil}},
	}
	err := r.write(r.t.Context(), consume.DeadLetter{Record: rec, Group: group, Consumer: "c",
		Reason: fmt.Sprint("permanent: reason ", n%3), FailedAt: r.now.Add(time.Duration(n) * time.Second), Attempts: 2})
	testkit.Must(r.t, err)
	return rec
}

func (r *fixture) list(f Filter) (ids []string) {
	r.t.Helper()
	p, err := r.manager.List(r.t.Context(), f, maxDeadLetters, Position{})
	if err != nil || p.Next != nil {
		r.t.Fatal(p.Next, err)
	}
	for _, l := range p.DeadLetters {
		ids = append(ids, l.ID())
	}
	return ids
}

func TestListAndGet(t *testing.T) {
	r := newFixture(t)
	if ids := r.list(Filter{}); len(ids) != 0 {
		t.Fatal(ids)
	}
	var recs []*kafka.Record
	for n := range 30 {
		recs = append(recs, r.add([]string{"fanout", "projector"}[n%2], fmt.Sprint("chat", n%4), n))
	}
	r.add("fanout", "chat0", 0) // once more, as after a crash
	for name, c := range map[string]struct {
		f    Filter
		want int
	}{
		"all":        {Filter{}, 30},
		"group":      {Filter{Group: "fanout"}, 15},
		"topic":      {Filter{Topic: kafka.ChatsCreated}, 0},
		"key":        {Filter{Key: "chat1"}, 8},
		"reason":     {Filter{Reason: "reason 2"}, 10},
		"class":      {Filter{Class: encoding.Class("permanent")}, 30},
		"no class":   {Filter{Class: encoding.Class("unknown")}, 0},
		"after":      {Filter{After: r.now.Add(20 * time.Second)}, 10},
		"before":     {Filter{Before: r.now.Add(20 * time.Second)}, 20},
		"both":       {Filter{After: r.now.Add(5 * time.Second), Before: r.now.Add(7 * time.Second), Group: "projector"}, 1},
		"id":         {Filter{IDs: []string{"fanout/messages.persisted/5/4", "nobody"}}, 1},
		"discarded":  {Filter{Statuses: []Status{Discarded}}, 0},
		"everything": {Filter{Statuses: []Status{Open, Redriven, Discarded, Running}}, 30},
	} {
		if ids := r.list(c.f); len(ids) != c.want || len(slices.Compact(slices.Sorted(slices.Values(ids)))) != c.want {
			t.Errorf("%s: %d of %d: %v", name, len(ids), c.want, ids)
		}
	}
	var paged []string
	pages := 0
	for from := (Position{}); ; pages++ {
		p, err := r.manager.List(t.Context(), Filter{}, 7, from)
		if err != nil || len(p.DeadLetters) > 7 {
			t.Fatalf("%d, %v", len(p.DeadLetters), err)
		}
		for _, l := range p.DeadLetters {
			if !slices.Contains(paged, l.ID()) { // the one that was written twice
				paged = append(paged, l.ID())
			}
		}
		if p.Next == nil {
			break
		}
		from = *p.Next
	}
	if whole := r.list(Filter{}); pages != 4 || !slices.Equal(paged, whole) {
		t.Fatalf("%d pages: %v, not %v", pages, paged, whole)
	}
	for n, rec := range recs {
		l, err := r.manager.Get(t.Context(),
			fmt.Sprintf("%s/%s/%d/%d", []string{"fanout", "projector"}[n%2], rec.Topic, rec.Partition, rec.Offset))
		testkit.Must(t, err)
		got := l.Record
		if !bytes.Equal(got.Key, rec.Key) || !bytes.Equal(got.Value, rec.Value) || got.Offset != rec.Offset ||
			got.Partition != rec.Partition || !got.Timestamp.Equal(rec.Timestamp) ||
			len(got.Headers) != 2 || got.Headers[0].Key != "h" || !bytes.Equal(got.Headers[0].Value, []byte{0, 255}) ||
			got.Headers[1].Value != nil || l.Attempts != 2 || l.Consumer != "c" {
			t.Fatalf("%+v became %+v", rec, l)
		}
	}
	if _, err := r.manager.Get(t.Context(), "nobody/x/0/0"); !errors.Is(err, ErrNotFound) {
		t.Fatal(err)
	}
	for name, f := range map[string]Filter{
		"ids": {IDs: make([]string, maxIDs+1)}, "times": {After: r.now, Before: r.now},
	} {
		if _, err := r.manager.List(t.Context(), f, 10, Position{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, limit := range []int{0, maxDeadLetters + 1} {
		if _, err := r.manager.List(t.Context(), Filter{}, limit, Position{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

// Dead letters go to their handlers in order per key. The others of a key wait behind one that
// fails. None goes to a handler twice (K-149).
func TestRedrive(t *testing.T) {
	r := newFixture(t)
	for n := range 40 {
		r.add("fanout", fmt.Sprint("chat", n%4), n)
	}
	r.add("unknown", "chat0", 100)
	var seen []string
	healthy := false
	handle := func(ctx context.Context, rec *kafka.Record) error {
		if !consume.Redriven(ctx) {
			t.Error("the context does not say that this is a redrive")
		}
		if string(rec.Key) == "chat1" && rec.Offset == 13 && !healthy {
			return consume.Fail(consume.Permanent, "still bad", errors.New("secret"))
		}
		if string(rec.Key) == "chat2" && rec.Offset == 2 && !healthy {
			panic("secret")
		}
		seen = append(seen, fmt.Sprintf("%s/%03d", rec.Key, rec.Offset))
		return nil
	}
	how := Redrive{Actor: "ops", Rate: maxRate, Handlers: map[string]consume.Handler{"fanout": handle}}

	dry := how
	dry.DryRun = true
	rep, err := r.manager.Redrive(t.Context(), Filter{}, dry)
	if err != nil || len(seen) > 0 || rep.Matched != 41 || rep.Done != 40 || rep.NoHandler != 1 {
		t.Fatalf("dry run: %+v, %v", rep, err)
	}
	outcomes := map[Outcome]int{}
	first := how
	first.OnOutcome = func(id string, what Outcome, reason string) error {
		outcomes[what]++
		if strings.Contains(reason, "secret") || (reason == "") != (what != Failed && what != Behind) ||
			!strings.Contains(id, "/messages.persisted/") {
			t.Errorf("%s: %s %q", id, what, reason)
		}
		return nil
	}
	rep, err = r.manager.Redrive(t.Context(), Filter{}, first)
	if err != nil || rep != (Report{Matched: 41, Done: 20 + 3, Behind: 6 + 9, Failed: 2, NoHandler: 1}) {
		t.Fatalf("%+v, %v", rep, err)
	}
	if outcomes[Done] != rep.Done || outcomes[Behind] != rep.Behind || outcomes[Failed] != 2 || outcomes[NoHandler] != 1 {
		t.Fatalf("reported outcomes: %v, expected those of %+v", outcomes, rep)
	}
	bad, err := r.manager.Get(t.Context(), "fanout/messages.persisted/5/13")
	if err != nil || bad.Status != Open || bad.Handling.Result != "permanent: still bad" || bad.Handling.By != "ops" ||
		bad.Handling.Tries != 1 || bad.Handling.At != r.now.UnixMilli() {
		t.Fatalf("%+v, %v", bad, err)
	}
	if ids := r.list(Filter{}); len(ids) != 2+15+1 {
		t.Fatalf("%d are open", len(ids))
	}
	healthy = true
	r.now = r.now.Add(time.Minute)
	rep, err = r.manager.Redrive(t.Context(), Filter{Group: "fanout"}, how)
	if err != nil || rep.Done != 17 || rep.Failed != 0 || rep.Behind != 0 {
		t.Fatalf("%+v, %v", rep, err)
	}
	perKey := map[string][]string{}
	for _, s := range seen {
		key, _, _ := strings.Cut(s, "/")
		perKey[key] = append(perKey[key], s)
	}
	for key, list := range perKey {
		if !slices.IsSorted(list) || len(slices.Compact(list)) != 10 {
			t.Errorf("%s: %v", key, list)
		}
	}
	if rep, err := r.manager.Redrive(t.Context(), Filter{Group: "fanout"}, how); err != nil || rep.Matched != 0 {
		t.Fatalf("%+v, %v", rep, err)
	}
}

// A dead letter is claimed by one redrive at a time. The claim of an ended process expires.
func TestRedriveTakesTurns(t *testing.T) {
	r := newFixture(t)
	rec := r.add("fanout", "chat1", 1)
	other := errors.New("called")
	calls := 0
	how := Redrive{Actor: "ops", Handlers: map[string]consume.Handler{"fanout": func(ctx context.Context,
		_ *kafka.Record) error {
		if calls++; calls > 1 {
			return nil
		}
		// While this redrive handles it, another finds it claimed.
		rep, err := r.manager.Redrive(ctx, Filter{Statuses: []Status{Open, Running}},
			Redrive{Actor: "b", Handlers: map[string]consume.Handler{
				"fanout": func(context.Context, *kafka.Record) error { return other },
			}})
		if err != nil || rep.Taken != 1 || rep.Done+rep.Failed != 0 {
			t.Errorf("%+v, %v", rep, err)
		}
		r.now = r.now.Add(claimFor + time.Second) // and this one seems to have ended
		l, err := r.manager.Get(ctx, "fanout/messages.persisted/5/1")
		if err != nil || l.Status != Open {
			t.Errorf("%+v, %v", l, err)
		}
		if _, err := r.manager.Redrive(ctx, Filter{},
			Redrive{Actor: "c", Handlers: map[string]consume.Handler{"fanout": func(context.Context,
				*kafka.Record) error {
				return nil
			}}}); err != nil {
			t.Error(err)
		}
		return nil
	}}}
	rep, err := r.manager.Redrive(t.Context(), Filter{}, how)
	if err != nil || rep.Taken != 1 || rep.Done != 0 { // the later one's result stands
		t.Fatalf("%+v, %v", rep, err)
	}
	if l, err := r.manager.Get(t.Context(), "fanout/messages.persisted/5/1"); err != nil || l.Status != Redriven ||
		l.Handling.By != "c" || l.Record.Offset != rec.Offset {
		t.Fatalf("%+v, %v", l, err)
	}
}

func TestDiscard(t *testing.T) {
	r := newFixture(t)
	for n := range 6 {
		r.add("fanout", fmt.Sprint("chat", n%2), n)
	}
	f := Filter{Key: "chat1"}
	if rep, err := r.manager.Discard(t.Context(), f,
		Discard{Actor: "ops", Reason: "test data", DryRun: true}); err != nil || rep.Done != 3 || len(r.list(Filter{})) != 6 {
		t.Fatalf("%+v, %v", rep, err)
	}
	if rep, err := r.manager.Discard(t.Context(), f,
		Discard{Actor: "ops", Reason: "test data", DryRun: false}); err != nil || rep.Done != 3 ||
		len(r.list(Filter{})) != 3 {
		t.Fatalf("%+v, %v", rep, err)
	}
	l, err := r.manager.Get(t.Context(), "fanout/messages.persisted/5/1")
	if err != nil || l.Status != Discarded || l.Handling.Result != "test data" || l.Handling.By != "ops" {
		t.Fatalf("%+v, %v", l, err)
	}
	never := map[string]consume.Handler{"fanout": func(_ context.Context, rec *kafka.Record) error {
		if string(rec.Key) == "chat1" {
			t.Error("a discarded letter was redriven")
		}
		return nil
	}}
	if rep, err := r.manager.Redrive(t.Context(), Filter{Statuses: []Status{Open, Discarded}},
		Redrive{Actor: "ops", Rate: maxRate, Handlers: never}); err != nil || rep.Taken != 3 || rep.Done != 3 {
		t.Fatalf("%+v, %v", rep, err)
	}
	for name, call := range map[string]func() error{
		"nobody": func() error {
			_, err := r.manager.Discard(t.Context(), f, Discard{Actor: "", Reason: "why", DryRun: false})
			return err
		},
		"no reason": func() error {
			_, err := r.manager.Discard(t.Context(), f, Discard{Actor: "ops", Reason: "", DryRun: false})
			return err
		},
		"no name": func() error { _, err := r.manager.Redrive(t.Context(), f, Redrive{}); return err },
		"too fast": func() error {
			_, err := r.manager.Redrive(t.Context(), f, Redrive{Actor: "ops", Rate: maxRate + 1})
			return err
		},
	} {
		if err := call(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Records of the topic that are no dead letters are skipped, and outcomes expire later than
// the dead letters.
func TestForeignRecords(t *testing.T) {
	r := newFixture(t)
	c, err := kafka.NewTransactional(r.manager.cfg.Addr, "test") // which ends with a control record
	testkit.Must(t, err)
	defer c.Close()
	var foreign []*kafka.Record
	for i, value := range []string{"", "x", "\x00\x00\x00\x00\x09\x00\xff", "\x00\x00\x00\x00\x09\x00", `{"a":1}`} {
		foreign = append(foreign, &kafka.Record{Topic: kafka.DeadLetters, Partition: int32(i % 2), Value: []byte(value)})
	}
	testkit.Must(t, kafka.Transact(t.Context(), c, foreign))
	r.add("fanout", "chat1", 1)
	if ids := r.list(Filter{}); len(ids) != 1 {
		t.Fatal(ids)
	}
	if _, err := r.manager.Discard(t.Context(), Filter{},
		Discard{Actor: "ops", Reason: "why", DryRun: false}); err != nil {
		t.Fatal(err)
	}
	p, err := r.manager.List(t.Context(), Filter{Statuses: []Status{Discarded}}, 1, Position{})
	if err != nil || len(p.DeadLetters) != 1 {
		t.Fatal(p, err)
	}
	list := p.DeadLetters
	if it, err := r.store.Get(t.Context(), list[0].key(), store.Strong); err != nil ||
		it.Get(store.ExpiresAtField).Int64() < r.now.Add(31*24*time.Hour).Unix() {
		t.Fatal(it, err)
	}
}

// A limit ends a call, and so do many failures, because then the cause is not repaired yet.
func TestEndsEarly(t *testing.T) {
	r := newFixture(t)
	for n := range 12 {
		r.add("fanout", fmt.Sprint("chat", n), n)
	}
	good := map[string]consume.Handler{"fanout": func(context.Context, *kafka.Record) error { return nil }}
	if rep, err := r.manager.Redrive(t.Context(), Filter{},
		Redrive{Actor: "ops", Rate: maxRate, Limit: 5, Handlers: good}); err != nil || rep.Done != 5 || !rep.More {
		t.Fatalf("%+v, %v", rep, err)
	}
	if rep, err := r.manager.Discard(t.Context(), Filter{}, Discard{Actor: "ops", Reason: "test", Limit: 3}); err != nil ||
		rep.Done != 3 || !rep.More {
		t.Fatalf("%+v, %v", rep, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	rep, err := r.manager.Redrive(ctx, Filter{},
		Redrive{Actor: "ops", Rate: maxRate, Handlers: good,
			OnOutcome: func(string, Outcome, string) error { cancel(); return nil }})
	if !errors.Is(err, context.Canceled) || rep.Done != 1 {
		t.Fatalf("%+v, %v", rep, err)
	}
	if ids := r.list(Filter{}); len(ids) != 3 {
		t.Fatal(ids)
	}
	full := Report{Failed: maxFailed}
	if !full.full(0) || !full.More || (&Report{Failed: maxFailed - 1}).full(0) || (&Report{Done: 5}).full(6) {
		t.Fatal("the failures are not bounded")
	}
}

func TestCount(t *testing.T) {
	r := newFixture(t)
	for n := range 10 { // reasons 0, 1, 2, 0 …
		r.add("fanout", fmt.Sprint("chat", n%4), n)
	}
	r.add("projector", "chat0", 100)
	counts, all, err := r.manager.Count(t.Context(), Filter{})
	if err != nil || all != 11 || len(counts) != 4 || counts[0].DeadLetters != 4 ||
		counts[0].Reason != "permanent: reason 0" || counts[0].Group != "fanout" || counts[3].DeadLetters != 1 {
		t.Fatalf("%+v, %d, %v", counts, all, err)
	}
	if c := counts[0]; !c.First.Equal(r.now) || !c.Last.Equal(r.now.Add(9*time.Second)) ||
		c.Topic != kafka.MessagesPersisted {
		t.Fatalf("%+v", c)
	}
}

// Open dead letters are counted without being read twice, and no longer once they are handled.
func TestWatch(t *testing.T) {
	r := newFixture(t)
	w := r.manager.Watch()
	expect := func(deadLetters int, oldest time.Duration) {
		t.Helper()
		testkit.Must(t, w.count(t.Context()))
		if got := w.Stats(); got.DeadLetters != deadLetters || got.Oldest != oldest {
			t.Fatalf("%+v, not %d and %s", got, deadLetters, oldest)
		}
	}
	expect(0, 0)
	for n := range 250 {
		r.add("fanout", fmt.Sprint("chat", n%9), n)
	}
	r.add("fanout", "chat1", 1) // once more, as after a crash
	r.now = r.now.Add(time.Hour)
	expect(250, time.Hour)
	discard := func(f Filter) {
		t.Helper()
		if _, err := r.manager.Discard(t.Context(), f, Discard{Actor: "ops", Reason: "test"}); err != nil {
			t.Fatal(err)
		}
	}
	discard(Filter{Before: r.now.Add(-time.Hour + 100*time.Second)})
	expect(150, time.Hour-100*time.Second)
	r.add("projector", "chat1", 300)
	expect(151, time.Hour-100*time.Second)
	discard(Filter{})
	expect(0, 0)
}

// A Watch counts when it starts, and again every minute.
func TestWatchCountsAgain(t *testing.T) {
	r := newFixture(t)
	w := r.manager.Watch()
	if w.every != time.Minute {
		t.Errorf("it counts every %s", w.every)
	}
	w.every = 20 * time.Millisecond
	r.add("fanout", "chat0", 0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx, func() {}) }()
	testkit.Eventually(t, "the dead letter is counted that was there", func() bool { return w.Stats().DeadLetters == 1 })
	r.add("fanout", "chat1", 1)
	testkit.Eventually(t, "a later letter is counted", func() bool { return w.Stats().DeadLetters == 2 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A dead letter that was written before the fields for class and id existed is selected by its
// class, and found by its id.
func TestDeadLetterWithoutFields(t *testing.T) {
	r := newFixture(t)
	c, err := kafka.NewProducer(r.manager.cfg.Addr)
	testkit.Must(t, err)
	defer c.Close()
	payload, err := proto.Marshal(&eventv1.DeadLetter{
		DlqMetadata: &eventv1.DeadLetterMetadata{
			OriginalTopic: kafka.MessagesPersisted, OriginalPartition: 5, OriginalOffset: 4, ConsumerGroup: "fanout",
			FailureReason:    "permanent: bad",
			FailureTimestamp: timestamppb.New(r.now), ProcessingAttempts: 3,
		},
		OriginalRecord: &eventv1.OriginalRecord{Value: []byte("x")},
	})
	testkit.Must(t, err)
	if err := kafka.Publish(t.Context(),
		c, &kafka.Record{Topic: kafka.DeadLetters, Value: append([]byte{0, 0, 0, 0, 9, 0}, payload...)}); err != nil {
		t.Fatal(err)
	}
	if ids := r.list(Filter{Class: encoding.Class("permanent")}); !slices.Equal(ids,
		[]string{"fanout/messages.persisted/5/4"}) {
		t.Errorf("letters of the class: %v", ids)
	}
	if l, err := r.manager.Get(t.Context(), "fanout/messages.persisted/5/4"); err != nil || l.Attempts != 3 ||
		string(l.Record.Value) != "x" {
		t.Errorf("%+v, %v", l, err)
	}
}
