package fanout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
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

// fixture is one process on a real broker, with a stream of bob's.
type fixture struct {
	t      *testing.T
	ctx    context.Context
	store  *storetest.Map
	relay  *relay.Relay
	chats  *chat.Service
	hub    *delivery.Hub
	engine *consume.Engine
	bob    *delivery.Stream
	down   atomic.Bool // Kafka takes nothing
	away   atomic.Bool // hubs cannot be reached
	broker *kafkatest.Broker
	mark   kafkatest.Mark // where the topics ended
	config consume.Config // of the engine
}

// each runs a test on each kind of broker, in a fixture whose hub is told of commits at
// once, or by Kafka alone.
func each(t *testing.T, live bool, test func(t *testing.T, w *fixture)) {
	t.Helper()
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) { test(t, newFixture(t, b, live)) })
}

func newFixture(t *testing.T, broker *kafkatest.Broker, live bool) *fixture {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	t.Cleanup(cancel)
	w := &fixture{t: t, ctx: ctx, store: storetest.NewMap(time.Now), broker: broker, mark: broker.Mark(t, Topics()...)}
	log := slog.New(slog.DiscardHandler)
	var stable func(context.Context) error
	if broker.Embedded != nil {
		stable = broker.Embedded.Flush
	}
	ids, err := registry.New(w.store).Events(ctx)
	w.must(err)
	serde, err := event.NewSerde(ids, nil)
	w.must(err)
	client, err := kafka.NewTransactional(broker.Addr, broker.Name("relay"))
	w.must(err)
	t.Cleanup(client.Close)
	w.relay, err = relay.New(relay.Config{
		Store: w.store, Serde: serde, Clock: time.Now, Logger: log, Flush: stable, Sweep: 100 * time.Millisecond,
		Publish: func(ctx context.Context, records []*kafka.Record) error {
			if w.down.Load() {
				return errors.New("no broker")
			}
			return kafka.Transact(ctx, client, records)
		},
	})
	w.must(err)
	w.chats, err = chat.New(ctx, chat.Config{Store: w.store, Clock: time.Now, Generation: "g", Producer: "p", Committed: func(c chat.Commit) {
		if live {
			w.hub.Deliver(delivery.Of(c.Events))
		}
		w.relay.Nudge(c)
	}})
	w.must(err)
	reader := view.New(view.Config{Store: w.store, Generation: "g", TokenKey: make([]byte, view.KeySize), Clock: time.Now})
	w.hub, err = delivery.New(delivery.Config{Generation: "g", Process: "p", Source: reader, Clock: time.Now, NewID: chat.NewID})
	w.must(err)
	handle := Handler(serde, w.hub.Deliver)
	w.config = consume.Config{
		Addr: broker.Addr, Group: broker.Name(Group), Consumer: "p", Topics: Topics(), Store: w.store, Clock: time.Now, Logger: log,
		Batch: func(ctx context.Context, records []*kafka.Record) (int, error) {
			if w.away.Load() {
				return 0, consume.Fail(consume.Downstream, "hubs are away", nil)
			}
			return handle(ctx, records)
		},
		WriteDeadLetter: func(_ context.Context, d consume.DeadLetter) error {
			t.Errorf("dead letter %s: %s", d.ID(), d.Reason)
			return nil
		},
	}
	w.begin(w.config.Group)
	w.engine, err = consume.New(w.config)
	w.must(err)
	var wg sync.WaitGroup
	run, stop := context.WithCancel(ctx)
	wg.Go(func() { _ = w.relay.Run(run) })
	wg.Go(func() { _ = w.engine.Run(run) })
	wg.Go(func() { _ = w.hub.Run(run, log) })
	t.Cleanup(func() { stop(); wg.Wait() })

	for _, u := range []string{"alice", "bob", "carol"} {
		w.must(w.chats.EnsureUser(ctx, u))
	}
	w.open()
	return w
}

// begin makes a group begin where the topics ended; in a broker of the test's own that
// is their beginning.
func (w *fixture) begin(group string) {
	if w.broker.Embedded != nil {
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

// open opens bob's stream, which knows some chats.
func (w *fixture) open(known ...*deliveryv1.KnownChat) {
	w.t.Helper()
	var err error
	w.bob, err = w.hub.Open(w.ctx, delivery.OpenParams{UserID: "bob", SessionID: "s", ExpiresAt: time.Now().Add(time.Hour), Known: known})
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
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) change(op chat.Operation, c chat.MemberChange) {
	w.t.Helper()
	_, err := w.chats.Change(w.ctx, op, c)
	w.must(err)
}

// await takes bob's frames, and acknowledges them, until one is what is waited for.
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
			w.t.Fatalf("%s did not come", what)
		}
	}
}

// group makes a group with alice, carol and bob.
func (w *fixture) group() string {
	created, err := w.chats.CreateGroup(w.ctx, chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"carol"}})
	w.must(err)
	_, err = w.chats.Change(w.ctx, chat.OpAdd, chat.MemberChange{Caller: "alice", ChatID: created.ChatID, UserID: "bob", Role: table.Member})
	w.must(err)
	return created.ChatID
}

func (w *fixture) send(id string, n int) {
	for i := range n {
		_, err := w.chats.Send(w.ctx, chat.Send{Caller: "alice", ChatID: id, Content: fmt.Sprint(i)})
		w.must(err)
	}
}

// With the live path switched off, every stream still converges through Kafka; an
// addition, messages and a removal arrive by the durable path alone.
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
	w.await("the removal", func(f *deliveryv1.Frame) bool { return f.GetMembership().GetUserId() == "bob" })
}

// With the durable path stopped people still chat, and when it is back all that
// happened meanwhile is published: nothing is left in the outbox (K-070, L-190).
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
				t.Fatalf("message %d follows %d", m.GetSequence(), next-1)
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
	for w.relay.Stats().Failures == 0 && w.ctx.Err() == nil { // it has tried
		time.Sleep(time.Millisecond)
	}
	if s := w.relay.Stats(); s.Published != 0 || waiting() == 0 {
		t.Fatalf("published %d, %d rows wait", s.Published, waiting())
	}
	w.down.Store(false)
	for waiting() > 0 || w.engine.Stats().Handled < 23 || w.relay.Stats().Backlog > 0 {
		select {
		case <-w.ctx.Done():
			t.Fatalf("%d rows wait, relay %+v, fanout %+v", waiting(), w.relay.Stats(), w.engine.Stats())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// messages takes bob's frames until he has messages up to a sequence; each must be the
// one that follows, and come once.
func (w *fixture) messages(next *int64, last int64) {
	w.t.Helper()
	w.await(fmt.Sprintf("message %d", last), func(f *deliveryv1.Frame) bool {
		if m := f.GetMessage(); m != nil {
			if m.GetSequence() != *next {
				w.t.Fatalf("message %d follows %d", m.GetSequence(), *next-1)
			}
			*next++
		}
		return *next > last
	})
}

// The group's offsets are lost, and all is read from the beginning: a client that has
// acknowledged what it got sees none of it again (K-099), and what comes after is still
// delivered, once.
func TestOffsetsLost(t *testing.T) {
	each(t, true, func(t *testing.T, w *fixture) {
		id := w.group()
		w.await("the chat", func(f *deliveryv1.Frame) bool { return f.GetChatId() == id })
		next := int64(1)
		w.send(id, 20)
		w.messages(&next, 20)
		again := w.config
		again.Group += "-anew"
		w.begin(again.Group)
		e, err := consume.New(again)
		w.must(err)
		ctx, stop := context.WithCancel(w.ctx)
		var wg sync.WaitGroup
		wg.Go(func() { _ = e.Run(ctx) })
		defer func() { stop(); wg.Wait() }()
		for e.Stats().Handled < 23 { // three about the group and its members
			select {
			case <-w.ctx.Done():
				t.Fatalf("%+v", e.Stats())
			case <-time.After(10 * time.Millisecond):
			}
		}
		w.send(id, 1)
		w.messages(&next, 21)
		if _, frames, _ := w.bob.Take(100); len(frames) > 0 {
			t.Fatalf("%d frames more", len(frames))
		}
	})
}

// Hubs cannot be reached, and what is for them is left out after some retries: whoever
// comes back gets it from the store, without a gap (K-119, K-126).
func TestSkippedIsSynchronised(t *testing.T) {
	each(t, false, func(t *testing.T, w *fixture) {
		id := w.group()
		w.await("the chat", func(f *deliveryv1.Frame) bool { return f.GetChatId() == id })
		next := int64(1)
		w.send(id, 1)
		w.messages(&next, 1)
		version, err := w.version(id)
		w.must(err)
		w.away.Store(true)
		w.send(id, 20)
		for w.engine.Stats().Skipped < 20 {
			select {
			case <-w.ctx.Done():
				t.Fatalf("%+v", w.engine.Stats())
			case <-time.After(10 * time.Millisecond):
			}
		}
		if _, frames, _ := w.bob.Take(100); len(frames) > 0 {
			t.Fatalf("%d frames came", len(frames))
		}
		w.hub.Close(w.bob)
		w.open(&deliveryv1.KnownChat{ChatId: id, Version: version})
		w.messages(&next, 21)
	})
}

// version is a chat's.
func (w *fixture) version(id string) (int64, error) {
	it, err := w.store.Get(w.ctx, table.HeadKey(id), store.Strong)
	if err != nil {
		return 0, err
	}
	return table.HeadFrom(id, it).Version, nil
}
