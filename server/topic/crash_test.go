package topic

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// After the power fails, whatever was being done: each publish that was answered is there,
// nothing that was answered as acknowledged comes again, the rest does, and no session of
// before is one any more.
func TestPowerLoss(t *testing.T) {
	const seed = 17
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 30 {
		unbubbled(t, func(t *testing.T, x *fixture) {
			x.groups("t", "g")
			s := x.attach("t", "g", "m")
			var mu sync.Mutex
			published, acked, tried := map[int64]bool{}, map[int64]bool{}, map[int64]bool{}
			var all sync.WaitGroup
			going, stop := context.WithCancel(t.Context())
			for range 3 {
				all.Go(func() {
					for going.Err() == nil {
						r, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: messages(0, 3)})
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						for _, m := range r.GetResults() {
							published[m.GetPosition()] = true
						}
						mu.Unlock()
					}
				})
			}
			all.Go(func() {
				for {
					e, err := s.Receive(going, 100)
					if err != nil {
						return
					}
					for _, g := range read(t, e.Deliveries) {
						if g.position%3 == 0 {
							continue
						}
						mu.Lock()
						tried[g.position] = true
						mu.Unlock()
						x.ack(s, []got{g})
						mu.Lock()
						acked[g.position] = true
						mu.Unlock()
					}
				}
			})
			time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
			mu.Lock()
			disk := x.disk.PowerLoss(rng)
			before, done := map[int64]bool{}, map[int64]bool{}
			for p := range published { // one may be acknowledged, and not answered yet
				before[p] = !tried[p]
			}
			for p, must := range before {
				if !must {
					delete(before, p)
				}
			}
			for p := range acked {
				done[p] = true
			}
			mu.Unlock()
			stop()
			all.Wait()
			id := s.ID()
			x.stop()
			x.disk = disk
			x.start()
			_, err := x.Session(op, id)
			refusedAs(t, err, refusal.SessionGone)
			s = x.attach("t", "g", "m")
			for len(before) > 0 {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				e, err := s.Receive(ctx, 1000)
				cancel()
				if err != nil {
					t.Fatalf("%d messages are missing: %v", len(before), err)
				}
				for _, g := range read(t, e.Deliveries) {
					if done[g.position] {
						t.Fatalf("position %d comes again though it was acknowledged", g.position)
					}
					delete(before, g.position)
				}
				s.AddCredits(&topicv1.Credits{Messages: 10_000, Bytes: 8 << 20})
			}
		})
	}
}

// HQ-E20: once another process has the topics, an earlier one stores no position any more, and
// ends.
func TestEarlierOwnerIsFenced(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 2)
		had := x.want(s, numbers(0, 2))
		later, err := New(t.Context(), x.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := later.Subscription(t.Context(), op, "t", "g"); err != nil {
			t.Fatal(err)
		}
		g := later.engine.Topics.Opened(later.engine.Catalog.Topic("t").Number)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- later.engine.Flusher.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		in, err := g.Group("g").Attach(serving.SessionOptions{ID: "later", Member: "m", Messages: 10, Bytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		e, err := in.Receive(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Ack(t.Context(), at(read(t, e.Deliveries)[:1])); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Ack(t.Context(), at(had[1:])); !errors.Is(err, storage.ErrFenced) {
			t.Error(err)
		}
		x.ends = storage.ErrFenced
	})
}

// After the power fails, a group that was removed is gone and what it had acknowledged is
// complete, what was completed by force is, and a group that was resurrected lives.
func TestPowerLossAfterAdministration(t *testing.T) {
	rng := rand.New(rand.NewPCG(18, 0))
	for range 5 {
		unbubbled(t, func(t *testing.T, x *fixture) {
			x.groups("t")
			orphan := x.publish("t", 0, 1)[0].GetMessageId()
			x.subscribe("t", "g", nil)
			s := x.attach("t", "g", "m")
			done := x.publish("t", 1, 1)[0].GetMessageId()
			e, err := s.Receive(t.Context(), 10)
			if err != nil {
				t.Fatal(err)
			}
			x.ack(s, read(t, e.Deliveries))
			if _, err := x.Admin().Remove(t.Context(), ada, &topicv1.RemoveGroupRequest{Topic: "t", Group: "g"}); err != nil {
				t.Fatal(err)
			}
			afterRemoval := x.disk.PowerLoss(rng)
			force := &topicv1.ForceCompleteRequest{Topic: "t", OlderThan: seconds(0)}
			for n := int64(0); n == 0; { // until a time later than the message's
				r, err := x.Admin().ForceComplete(t.Context(), ada, force)
				if err != nil {
					t.Fatal(err)
				}
				n = r.GetOrphaned()
			}
			afterForce := x.disk.PowerLoss(rng)
			x.stop()
			x.disk = afterRemoval
			x.start()
			x.gone("t", "g")
			if st := x.status("t", done).GetStatus(); st != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
				t.Error("what the group had acknowledged is ", st)
			}
			x.stop()
			x.disk = afterForce
			x.start()
			if st := x.status("t", orphan).GetStatus(); st != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
				t.Error("what was completed by force is ", st)
			}
		})
	}
}
