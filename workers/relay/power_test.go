package relay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/table"
)

// The embedded engine shows what was written before it is on the disk, and a relay's
// sweep or query may find it there. It must not be on Kafka before it is: after a loss of
// power the store would commit another event under the same version. So whenever the
// power fails, the store has all that was published until then (K-068).
func TestNothingIsPublishedThatAPowerLossTakes(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { powerLoss(t, rand.New(rand.NewPCG(seed, 3)), seed%2 == 0) })
	}
}

type published struct {
	mu     sync.Mutex
	events []event.Event
}

func (p *published) snapshot() []event.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.events[:len(p.events):len(p.events)]
}

// powerLoss sends messages on a slow disk while a relay sweeps all the time, with nudges
// or without, and pulls the plug ten times.
func powerLoss(t *testing.T, rng *rand.Rand, nudges bool) {
	disk := embeddedtest.NewDisk(func() { time.Sleep(2 * time.Millisecond) })
	s := disk.Open(t, time.Now)
	var log published
	serde, err := newSerde()
	if err != nil {
		t.Fatal(err)
	}
	re, err := New(Config{
		Store: s, Serde: serde, Clock: time.Now, Logger: discard, Sweep: time.Microsecond,
		Publish: func(_ context.Context, records []*kafka.Record) error {
			log.mu.Lock()
			defer log.mu.Unlock()
			for _, rec := range records {
				e, err := serde.Decode(context.Background(), rec.Key, rec.Value)
				if err != nil {
					return err
				}
				log.events = append(log.events, e)
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	chats, err := chat.New(t.Context(), chat.Config{
		Store: s, Clock: time.Now, Generation: "g1", Producer: "p1",
		Committed: func(c chat.Commit) {
			if nudges {
				re.Nudge(c)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, u := range []string{"alice", "bob"} {
		if err := chats.EnsureUser(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		c, err := chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.ChatID)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = re.Run(ctx) })
	for i := range 8 {
		running.Go(func() {
			for ctx.Err() == nil {
				_, _ = chats.Send(ctx, chat.Send{Caller: "alice", ChatID: ids[i%len(ids)], Content: "x"})
			}
		})
	}
	for range 10 {
		time.Sleep(time.Duration(1+rng.IntN(20)) * time.Millisecond)
		before := log.snapshot()
		check(t, disk.PowerLoss(rng), before)
	}
	stop()
	running.Wait()
	if n := len(log.events); n < 20 {
		t.Fatalf("%d events were published, too few to show anything", n)
	}
}

// check demands that a disk has the events.
func check(t *testing.T, disk *embeddedtest.Disk, events []event.Event) {
	t.Helper()
	s := disk.Open(t, time.Now)
	for _, e := range events {
		key := table.EventKey(e.GetChatId(), e.GetMetadata().GetVersion())
		it, err := s.Get(t.Context(), key, store.Strong)
		if err != nil {
			t.Fatal(err)
		}
		if it == nil {
			t.Fatalf("version %d of %s is published, and a loss of power took it from the store", e.GetMetadata().GetVersion(), e.GetChatId())
		}
		row, err := table.EventFrom(store.Row{Key: key, Item: it})
		if err != nil {
			t.Fatal(err)
		}
		if id := e.GetMetadata().GetEventId(); row.EventID != id {
			t.Fatalf("version %d of %s is event %s, published was %s", e.GetMetadata().GetVersion(), e.GetChatId(), row.EventID, id)
		}
	}
}
