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
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/table"
)

// The embedded engine returns writes before they are on the disk, and a relay's sweep or query
// may find them. They must not be on Kafka earlier than on the disk: after a loss of power the
// store would commit another event under the same version. So whenever the power fails, the
// store has everything that was published until then (K-068).
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

// powerLoss sends messages on a slow disk while a relay sweeps continuously, with nudges or
// without, and cuts the power ten times.
func powerLoss(t *testing.T, rng *rand.Rand, nudges bool) {
	disk := embeddedtest.NewDisk(func() { time.Sleep(2 * time.Millisecond) }) // a slow disk, in real time
	s := disk.Open(t, time.Now)
	var log published
	serde, err := newSerde()
	testkit.Must(t, err)
	re, err := New(Config{
		Store: s, Serde: serde, Clock: time.Now, Logger: discard, Sweep: time.Microsecond,
		Publish: Flatten(func(_ context.Context, records []*kafka.Record) error {
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
		}),
	})
	testkit.Must(t, err)
	chats, err := chat.New(t.Context(), chat.Config{
		Store: s, Clock: time.Now, Generation: "g1", Producer: "p1",
		Committed: func(c chat.Commit) {
			if nudges {
				re.Nudge(c)
			}
		},
	})
	testkit.Must(t, err)
	var ids []string
	for _, u := range []string{"alice", "bob"} {
		testkit.Must(t, chats.EnsureUser(t.Context(), u))
	}
	for range 4 {
		c, err := chats.CreateGroup(t.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		testkit.Must(t, err)
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
		time.Sleep(time.Duration(1+rng.IntN(20)) * time.Millisecond) // the power fails at any moment of the load
		before := log.snapshot()
		check(t, disk.PowerLoss(rng), before)
	}
	stop()
	running.Wait()
	if n := len(log.events); n < 20 {
		t.Fatalf("%d events were published, expected at least 20: fewer prove nothing", n)
	}
}

// check fails unless a disk has the events.
func check(t *testing.T, disk *embeddedtest.Disk, events []event.Event) {
	t.Helper()
	s := disk.Open(t, time.Now)
	for _, e := range events {
		key := table.EventKey(e.GetChatId(), e.GetMetadata().GetVersion())
		it, err := s.Get(t.Context(), key, store.Strong)
		testkit.Must(t, err)
		if it == nil {
			t.Fatalf("version %d of %s is published, but the store does not have it after a loss of power",
				e.GetMetadata().GetVersion(),
				e.GetChatId())
		}
		row, err := table.EventFrom(store.Row{Key: key, Item: it})
		testkit.Must(t, err)
		if id := e.GetMetadata().GetEventId(); row.EventID != id {
			t.Fatalf("version %d of %s is event %s, expected the published %s", e.GetMetadata().GetVersion(), e.GetChatId(),
				row.EventID,
				id)
		}
	}
}
