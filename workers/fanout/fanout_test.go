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

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/relay"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
)

// world is one process on a real broker, with a stream of bob's.
type world struct {
	t      *testing.T
	ctx    context.Context
	store  *storetest.Map
	relay  *relay.Relay
	chats  *chat.Service
	hub    *delivery.Hub
	engine *consume.Engine
	bob    *delivery.Stream
	down   atomic.Bool // Kafka takes nothing
}

// newWorld makes a world whose hub is told of commits at once, or by Kafka alone.
func newWorld(t *testing.T, live bool) *world {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	t.Cleanup(cancel)
	w := &world{t: t, ctx: ctx, store: storetest.NewMap(time.Now)}
	log := slog.New(slog.DiscardHandler)
	broker, err := kafka.OpenBroker(kafka.BrokerConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	w.must(err)
	t.Cleanup(broker.Close)
	ids, err := registry.New(w.store).Events(ctx)
	w.must(err)
	serde, err := event.NewSerde(ids, nil)
	w.must(err)
	client, err := kafka.NewTransactional(broker.Addr(), "relay")
	w.must(err)
	t.Cleanup(client.Close)
	w.relay, err = relay.New(relay.Config{
		Store: w.store, Serde: serde, Clock: time.Now, Logger: log, Stable: broker.Stable, Sweep: 100 * time.Millisecond,
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
	w.engine, err = consume.New(consume.Config{
		Addr: broker.Addr(), Group: Group, Consumer: "p", Topics: Topics(), Batch: Handler(serde, w.hub.Deliver),
		Dead: func(_ context.Context, d consume.Dead) error {
			t.Errorf("dead letter %s: %s", d.ID(), d.Reason)
			return nil
		},
		Store: w.store, Clock: time.Now, Logger: log,
	})
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
	w.bob, err = w.hub.Open(delivery.OpenParams{UserID: "bob", SessionID: "s", ExpiresAt: time.Now().Add(time.Hour)})
	w.must(err)
	t.Cleanup(func() { w.hub.Close(w.bob) })
	for done := false; !done; {
		done, err = w.bob.Step(ctx)
		w.must(err)
	}
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// await takes bob's frames until one is what is waited for.
func (w *world) await(what string, is func(*deliveryv1.Frame) bool) {
	w.t.Helper()
	for {
		_, frames, _ := w.bob.Take(100)
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
func (w *world) group() string {
	created, err := w.chats.CreateGroup(w.ctx, chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"carol"}})
	w.must(err)
	_, err = w.chats.AddMember(w.ctx, chat.MemberChange{Caller: "alice", ChatID: created.ChatID, UserID: "bob", Role: table.Member})
	w.must(err)
	return created.ChatID
}

func (w *world) send(id string, n int) {
	for i := range n {
		_, err := w.chats.Send(w.ctx, chat.Send{Caller: "alice", ChatID: id, Content: fmt.Sprint(i)})
		w.must(err)
	}
}

// With the live path switched off, every stream still converges through Kafka; an
// addition, messages and a removal arrive by the durable path alone.
func TestDurablePathAlone(t *testing.T) {
	w := newWorld(t, false)
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
	w.must(w.chats.RemoveMember(w.ctx, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob"}))
	w.await("the removal", func(f *deliveryv1.Frame) bool { return f.GetMembership().GetUserId() == "bob" })
}

// With the durable path stopped people still chat, and when it is back all that
// happened meanwhile is published: nothing is left in the outbox (K-070, L-190).
func TestDurablePathStopped(t *testing.T) {
	w := newWorld(t, true)
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
