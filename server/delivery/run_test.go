package delivery_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store/table"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Run fills a hole by itself, in real time, and leaves no goroutine behind.
func TestRunPerformsTheWork(t *testing.T) {
	w := newFixture(t, func(c *delivery.Config) { c.Clock = time.Now })
	id := w.group(table.All, "alice", "bob")
	b := w.open("bob", "", known(id, 0))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.hub.Run(ctx, func() {}) })
	n := 0
	w.deliver = func(d delivery.Delivery) {
		if n++; n == 2 { // the first is lost
			w.hub.Deliver(d)
		}
	}
	w.send("alice", id, "lost")
	w.send("alice", id, "found")
	for len(b.texts[id]) < 2 {
		select {
		case <-b.s.Ready():
			b.take()
		case <-time.After(20 * time.Second):
			t.Fatalf("the stream shows %v", b.texts[id])
		}
	}
	cancel()
	wg.Wait()
	b.agrees(id)
}

// Many goroutines commit, deliver, open, mark and close at once; run with -race.
func TestConcurrentUse(t *testing.T) {
	w := newFixture(t, func(c *delivery.Config) { c.Clock, c.Spread = time.Now, time.Millisecond })
	id := w.group(table.All, "alice", "bob")
	for i := range 40 {
		w.send("alice", id, string(rune('a'+i%26)))
	}
	commits := w.commits
	ctx, cancel := context.WithCancel(t.Context())
	var hub, users sync.WaitGroup
	hub.Go(func() { _ = w.hub.Run(ctx, func() {}) })
	for i := range 8 {
		users.Go(func() {
			for j := range 20 {
				s, err := w.hub.Open(t.Context(),
					delivery.OpenParams{
						Principal: auth.Principal{UserID: "bob", SessionID: "s", ExpiresAt: time.Now().Add(time.Hour)},
					})
				if err != nil {
					t.Error(err)
					return
				}
				for done := false; !done && err == nil; {
					done, err = s.Step(ctx)
				}
				w.hub.Deliver(commits[(i*20+j)%len(commits)])
				_, frames, _ := s.Take(100)
				if len(frames) > 0 {
					_ = s.Ack(int64(len(frames)))
				}
				s.Heartbeat()
				w.hub.Tick()
				w.hub.InvalidateAll()
				_ = w.hub.Stats()
				w.hub.Close(s)
			}
		})
	}
	users.Wait()
	cancel()
	hub.Wait()
	if n := w.hub.Stats().Streams; n != 0 {
		t.Fatalf("%d streams are left", n)
	}
}
