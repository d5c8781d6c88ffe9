package fanout

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/relay"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
)

// With the live path switched off, every stream still converges through Kafka; an
// addition, messages and a removal arrive by the durable path alone.
func TestDurablePathAlone(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	st := storetest.NewMap(time.Now)
	broker, err := kafka.OpenBroker(kafka.BrokerConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	must(err)
	defer broker.Close()
	ids, err := registry.New(st).Events(ctx)
	must(err)
	serde, err := event.NewSerde(ids, nil)
	must(err)
	client, err := kafka.NewTransactional(broker.Addr(), "relay")
	must(err)
	defer client.Close()
	re, err := relay.New(relay.Config{
		Store: st, Serde: serde, Clock: time.Now, Logger: log, Stable: broker.Stable,
		Publish: func(ctx context.Context, records []*kafka.Record) error { return kafka.Transact(ctx, client, records) },
	})
	must(err)
	chats, err := chat.New(ctx, chat.Config{Store: st, Clock: time.Now, Generation: "g", Producer: "p", Committed: re.Nudge})
	must(err)
	reader := view.New(view.Config{Store: st, Generation: "g", TokenKey: make([]byte, view.KeySize), Clock: time.Now})
	hub, err := delivery.New(delivery.Config{Generation: "g", Process: "p", Source: reader, Clock: time.Now, NewID: chat.NewID})
	must(err)
	engine, err := consume.New(consume.Config{
		Addr: broker.Addr(), Group: Group, Consumer: "p", Topics: Topics(), Handle: Handler(serde, hub.Deliver),
		Dead: func(_ context.Context, d consume.Dead) error {
			t.Errorf("dead letter %s: %s", d.ID(), d.Reason)
			return nil
		},
		Store: st, Clock: time.Now, Logger: log,
	})
	must(err)
	var wg sync.WaitGroup
	run, stop := context.WithCancel(ctx)
	wg.Go(func() { _ = re.Run(run) })
	wg.Go(func() { _ = engine.Run(run) })
	wg.Go(func() { _ = hub.Run(run, log) })

	for _, u := range []string{"alice", "bob", "carol"} {
		must(chats.EnsureUser(ctx, u))
	}
	s, err := hub.Open(delivery.OpenParams{UserID: "bob", SessionID: "s", ExpiresAt: time.Now().Add(time.Hour)})
	must(err)
	defer hub.Close(s)
	for done := false; !done; {
		done, err = s.Step(ctx)
		must(err)
	}
	await := func(what string, is func(*deliveryv1.Frame) bool) {
		t.Helper()
		for {
			_, frames, _ := s.Take(100)
			for _, f := range frames {
				if is(f.Proto()) {
					return
				}
			}
			select {
			case <-s.Ready():
			case <-ctx.Done():
				t.Fatalf("%s did not come", what)
			}
		}
	}
	created, err := chats.CreateGroup(ctx, chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"carol"}})
	must(err)
	id := created.ChatID
	_, err = chats.AddMember(ctx, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob", Role: table.Member})
	must(err)
	await("the chat", func(f *deliveryv1.Frame) bool { return f.GetChatId() == id })
	for i := range 20 {
		_, err := chats.Send(ctx, chat.Send{Caller: "alice", ChatID: id, Content: fmt.Sprint(i)})
		must(err)
	}
	next := int64(1)
	await("the last message", func(f *deliveryv1.Frame) bool {
		if m := f.GetMessage(); m != nil && m.GetSequence() >= next {
			next = m.GetSequence() + 1
		}
		return next > 20 || f.GetHead().GetSequence() == 20
	})
	must(chats.RemoveMember(ctx, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob"}))
	await("the removal", func(f *deliveryv1.Frame) bool { return f.GetMembership().GetUserId() == "bob" })
	stop()
	wg.Wait()
}
