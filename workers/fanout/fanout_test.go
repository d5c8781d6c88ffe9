package fanout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/relay"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
)

// fixture is one process on a real broker, with bob's stream.
type fixture struct {
	t      *testing.T
	ctx    context.Context
	store  *storetest.Memory
	relay  *relay.Relay
	chats  *chat.Service
	hub    *delivery.Hub
	engine *consume.Engine
	bob    *delivery.Stream
	down   atomic.Bool // Kafka is unavailable
	noHubs atomic.Bool // hubs are unreachable
	broker *kafkatest.Broker
	mark   kafkatest.Mark // the end of the topics at the start
	config consume.Config // of the engine
}

// each runs a test on each kind of broker, in a fixture whose hub gets commits directly, or
// through Kafka alone. It runs in parallel with others, unless they share Apache Kafka.
func each(t *testing.T, live bool, test func(t *testing.T, w *fixture)) {
	t.Helper()
	if os.Getenv(kafkatest.Variable) == "" {
		t.Parallel()
	}
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) { test(t, newFixture(t, b, live)) })
}

func newFixture(t *testing.T, broker *kafkatest.Broker, live bool) *fixture {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	t.Cleanup(cancel)
	w := &fixture{t: t, ctx: ctx, store: storetest.NewMemory(time.Now), broker: broker,
		mark: broker.Mark(t, kafka.ReadBy(Group)...)}
	log := slog.New(slog.DiscardHandler)
	ids, err := registry.New(w.store).Events(ctx)
	w.must(err)
	serde, err := event.NewSerde(ids, nil)
	w.must(err)
	client, err := kafka.NewTransactional(broker.Addr, broker.Name("relay"))
	w.must(err)
	t.Cleanup(client.Close)
	w.relay, err = relay.New(relay.Config{
		Store: w.store, Serde: serde, Clock: time.Now, Logger: log, Sweep: 100 * time.Millisecond,
		Publish: relay.Flatten(func(ctx context.Context, records []*kafka.Record) error {
			if w.down.Load() {
				return errors.New("no broker")
			}
			return kafka.Transact(ctx, client, records)
		}),
	})
	w.must(err)
	w.chats, err = chat.New(ctx, chat.Config{Store: w.store, Clock: time.Now, Generation: "g", Producer: "p",
		Committed: func(c chat.Commit) {
			if live {
				w.hub.Deliver(delivery.Of(c.Events))
			}
			w.relay.Nudge(c)
		}})
	w.must(err)
	reader := view.New(view.Config{Store: w.store, History: store.Line("g"),
		TokenKey: make([]byte, view.KeySize), Clock: time.Now})
	w.hub, err = delivery.New(delivery.Config{History: store.Line("g"), Process: "p", Source: reader, Clock: time.Now,
		NewID: chat.NewID, Logger: log})
	w.must(err)
	handle := Handler(serde, w.hub.Deliver)
	w.config = consume.Config{
		Addr: broker.Addr, Group: broker.Name(Group), Consumer: "p", Topics: kafka.ReadBy(Group),
		Store: w.store, Clock: time.Now,
		Logger: log,
		Batch: func(ctx context.Context, records []*kafka.Record) (int, error) {
			if w.noHubs.Load() {
				return 0, consume.Fail(consume.Downstream, "hubs are unreachable", nil)
			}
			return handle(ctx, records)
		},
		WriteDeadLetter: func(_ context.Context, d consume.DeadLetter) error {
			t.Errorf("dead letter %s: %s, expected none", d.ID(), d.Reason)
			return nil
		},
	}
	w.begin(w.config.Group)
	w.engine, err = consume.New(w.config)
	w.must(err)
	var wg sync.WaitGroup
	run, stop := context.WithCancel(ctx)
	wg.Go(func() { _ = w.relay.Run(run) })
	wg.Go(func() { _ = w.engine.Run(run, func() {}) })
	wg.Go(func() { _ = w.hub.Run(run, func() {}) })
	t.Cleanup(func() { stop(); wg.Wait() })

	for _, u := range []string{"alice", "bob", "carol"} {
		w.must(w.chats.EnsureUser(ctx, u))
	}
	w.open()
	return w
}

// begin makes a group start where the topics ended at the start of the test, or at their
// beginning if the broker is the test's own.
func (w *fixture) begin(group string) {
	if w.broker.Cluster != nil {
		return
	}
	offsets := kadm.Offsets{}
	for topic, parts := range w.mark {
		for id, o := range parts {
			offsets.AddOffset(topic, id, o.EpochOffset().Offset, -1)
		}
	}
	w.must(kadm.NewClient(w.broker.Client(w.t)).CommitAllOffsets(w.ctx, group, offsets))
}

// open opens bob's stream with the chats that his device has cached.
func (w *fixture) open(known ...*deliveryv1.KnownChat) {
	w.t.Helper()
	var err error
	w.bob, err = w.hub.Open(w.ctx, delivery.OpenParams{
		Principal: auth.Principal{UserID: "bob", SessionID: "s", ExpiresAt: time.Now().Add(time.Hour)}, Known: known})
	w.must(err)
	bob := w.bob
	w.t.Cleanup(func() { w.hub.Close(bob) })
	for done := false; !done; {
		done, err = w.bob.Step(w.ctx)
		w.must(err)
	}
}

func (w *fixture) must(err error) {
	w.t.Helper()
	testkit.Must(w.t, err)
}

func (w *fixture) change(op chat.Operation, c chat.MemberChange) {
	w.t.Helper()
	_, err := w.chats.Change(w.ctx, op, c)
	w.must(err)
}

// await reads and acknowledges bob's frames until one is the expected one.
func (w *fixture) await(what string, is func(*deliveryv1.Frame) bool) {
	w.t.Helper()
	for {
		first, frames, _ := w.bob.Take(100)
		if len(frames) > 0 {
			w.must(w.bob.Ack(first + int64(len(frames)) - 1))
		}
		for _, f := range frames {
			if is(f.Proto()) {
				return
			}
		}
		select {
		case <-w.bob.Ready():
		case <-w.ctx.Done():
			w.t.Fatalf("waited for %s until the test's time was over", what)
		}
	}
}

// group creates a group of alice, carol and bob.
func (w *fixture) group() string {
	created, err := w.chats.CreateGroup(w.ctx, chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"carol"}})
	w.must(err)
	_, err = w.chats.Change(w.ctx, chat.OpAdd,
		chat.MemberChange{Caller: "alice", ChatID: created.ChatID, UserID: "bob", Role: table.Member})
	w.must(err)
	return created.ChatID
}

func (w *fixture) send(id string, n int) {
	for i := range n {
		_, err := w.chats.Send(w.ctx, chat.Send{Caller: "alice", ChatID: id, Content: fmt.Sprint(i)})
		w.must(err)
	}
}

// Without the live path every stream still converges through Kafka: an addition, messages and
// a removal arrive by the durable path alone.
func TestDurablePathAlone(t *testing.T) { each(t, false, durablePathAlone) }

func durablePathAlone(_ *testing.T, w *fixture) {
	id := w.group()
	w.await("the chat", func(f *deliveryv1.Frame) bool { return f.GetChatId() == id })
	w.send(id, 20)
	next := int64(1)
	w.await("the last message", func(f *deliveryv1.Frame) bool {
		if m := f.GetMessage(); m != nil && m.GetSequence() >= next {
			next = m.GetSequence() + 1
		}
		return next > 20 || f.GetHead().GetSequence() == 20
	})
	w.change(chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob"})
	w.await("the removal", func(f *deliveryv1.Frame) bool { return f.GetMembershipChange().GetUserId() == "bob" })
}

// While the durable path is stopped, users still chat. When it is back, everything that happened
// meanwhile is published: nothing remains in the outbox (K-070, L-190).
func TestDurablePathStopped(t *testing.T) { each(t, true, durablePathStopped) }

func durablePathStopped(t *testing.T, w *fixture) {
	w.down.Store(true)
	id := w.group()
	w.await("the chat", func(f *deliveryv1.Frame) bool { return f.GetChatId() == id })
	w.send(id, 20)
	next := int64(1)
	w.await("the last message", func(f *deliveryv1.Frame) bool {
		if m := f.GetMessage(); m != nil {
			if m.GetSequence() != next {
				t.Fatalf("message %d follows message %d, expected no gap", m.GetSequence(), next-1)
			}
			next++
		}
		return next > 20
	})
	waiting := func() int {
		page, err := w.store.Scan(w.ctx, store.Scan{Table: store.Outbox, Segments: 1})
		w.must(err)
		return len(page.Rows)
	}
	testkit.Eventually(t, "a failed attempt to publish", func() bool { return w.relay.Stats().Failures > 0 })
	if s := w.relay.Stats(); s.Published != 0 || waiting() == 0 {
		t.Fatalf("%d records are published, expected 0; %d rows wait, expected some", s.Published, waiting())
	}
	w.down.Store(false)
	testkit.Eventually(t, "an empty outbox and 23 handled events", func() bool {
		return waiting() == 0 && w.engine.Stats().Handled >= 23 && w.relay.Stats().Backlog == 0
	})
}

// messages reads bob's frames until he has the messages up to a sequence. It fails unless each
// is the next one, and arrives once.
func (w *fixture) messages(next *int64, last int64) {
	w.t.Helper()
	w.await(fmt.Sprintf("message %d", last), func(f *deliveryv1.Frame) bool {
		if m := f.GetMessage(); m != nil {
			if m.GetSequence() != *next {
				w.t.Fatalf("message %d follows message %d, expected each once and no gap", m.GetSequence(), *next-1)
			}
			*next++
		}
		return *next > last
	})
}

// The group's offsets are lost, and everything is read from the beginning. A client that has
// acknowledged its frames sees none of them again (K-099), and later messages are still
// delivered, once.
func TestOffsetsLost(t *testing.T) {
	each(t, true, func(t *testing.T, w *fixture) {
		id := w.group()
		w.await("the chat", func(f *deliveryv1.Frame) bool { return f.GetChatId() == id })
		next := int64(1)
		w.send(id, 20)
		w.messages(&next, 20)
		again := w.config
		again.Group += "-again"
		w.begin(again.Group)
		e, err := consume.New(again)
		w.must(err)
		ctx, stop := context.WithCancel(w.ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = e.Run(ctx, func() {}) })
		defer func() { stop(); wg.Wait() }()
		// Three events are about the group and its members.
		testkit.Eventually(t, "23 events handled again", func() bool { return e.Stats().Handled >= 23 })
		w.send(id, 1)
		w.messages(&next, 21)
		if _, frames, _ := w.bob.Take(100); len(frames) > 0 {
			t.Fatalf("%d further frames, expected none", len(frames))
		}
	})
}

// While hubs are unreachable, deliveries to them are skipped after some retries. A client that
// reconnects gets them from the store, without a gap (K-119, K-126).
func TestSkippedIsSynchronised(t *testing.T) {
	each(t, false, func(t *testing.T, w *fixture) {
		id := w.group()
		w.await("the chat", func(f *deliveryv1.Frame) bool { return f.GetChatId() == id })
		next := int64(1)
		w.send(id, 1)
		w.messages(&next, 1)
		version, err := w.version(id)
		w.must(err)
		w.noHubs.Store(true)
		w.send(id, 20)
		testkit.Eventually(t, "20 skipped records", func() bool { return w.engine.Stats().Skipped >= 20 })
		if _, frames, _ := w.bob.Take(100); len(frames) > 0 {
			t.Fatalf("%d frames arrived, expected none", len(frames))
		}
		w.hub.Close(w.bob)
		w.open(&deliveryv1.KnownChat{ChatId: id, Version: version})
		w.messages(&next, 21)
	})
}

// version returns a chat's version in the store.
func (w *fixture) version(id string) (int64, error) {
	it, err := w.store.Get(w.ctx, table.HeadKey(id), store.Strong)
	if err != nil {
		return 0, err
	}
	return table.HeadFrom(id, it).Version, nil
}
