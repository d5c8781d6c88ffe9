package topic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// A topic that nobody uses is closed, and nothing of it is in memory. Who uses it again finds
// it as it was: what is acknowledged, what waits for its time, and how often it was tried.
func TestIdleTopicIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.publish("q", 0, 10)
		s := x.attach("q", "", "m")
		had := x.want(s, numbers(0, 10))
		x.ack(s, had[:5])
		nack := &topicv1.NackSet{Positions: at(had[5:6]).GetPositions(), Delay: durationpb.New(2 * time.Hour)}
		if _, err := s.Nack(t.Context(), nack); err != nil {
			t.Fatal(err)
		}
		testkit.Advance(time.Hour)
		if x.Sizes().Open != 1 {
			t.Error("it is closed though it has a member")
		}
		s.End("DETACHED")
		testkit.Advance(5 * time.Minute)
		if n := x.Sizes(); n.Open != 0 || n.Resident != 0 {
			t.Errorf("%d topics are open, with %d bytes", n.Open, n.Resident)
		}
		s = x.attach("q", "", "m")
		x.ack(s, x.want(s, numbers(6, 4)))
		testkit.Advance(time.Hour)
		if last := x.want(s, "5"); last[0].attempt != 2 {
			t.Errorf("attempt %d", last[0].attempt)
		}
		if n := x.status("q", "0-4"); n.GetStatus() != topicv1.MessageStatus_MESSAGE_STATUS_COMPLETED {
			t.Error(n)
		}
		s.End("DETACHED")
	})
}

// A topic stays open for who has it, however long that is.
func TestHeldTopicIsNotClosed(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		l, err := x.engine.Topics.Open(t.Context(), x.engine.Catalog.Topic("t"))
		if err != nil {
			t.Fatal(err)
		}
		testkit.Advance(time.Hour)
		if x.engine.Topics.Opened(l.Number) != l {
			t.Error("it is closed")
		}
		l.Release()
		testkit.Advance(5 * time.Minute)
		if x.Sizes().Open != 0 {
			t.Error("it is open though nobody has it")
		}
		x.publish("t", 0, 5)
		x.engine.Topics.CloseIdle(0) // its cursor is stored first
		testkit.Advance(2 * time.Second)
		x.engine.Topics.CloseIdle(0)
		if n := x.Sizes(); n.Open != 0 || n.Resident != 0 {
			t.Errorf("%d topics are open, with %d bytes", n.Open, n.Resident)
		}
	})
}

// Who opens a topic while it is about to be closed has it.
func TestOpenedWhileItIsClosed(t *testing.T) {
	unbubbled(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.publish("t", 0, 1)
		reading := x.engine.Catalog.Topic("t").Reading()
		done := make(chan bool)
		go func() {
			x.engine.Topics.CloseIdle(0)
			close(done)
		}()
		testkit.Eventually(t, "it is about to be closed", func() bool {
			read := make(chan storage.Read, 1) // takes the lock once the change, which waits for it, is over
			go func() { read <- x.engine.Catalog.Topic("t").Reading() }()
			select {
			case r := <-read:
				r.End()
				return false
			case <-time.After(50 * time.Millisecond):
				go func() { (<-read).End() }()
				return true
			}
		})
		l, err := x.engine.Topics.Open(t.Context(), x.engine.Catalog.Topic("t"))
		reading.End()
		<-done
		if err != nil || x.engine.Topics.Opened(l.Number) != l {
			t.Error("it is closed though somebody has it: ", err)
		}
		l.Release()
	})
}

// noCursors fails the writes of cursors while it is on.
type noCursors struct {
	store.Store
	on *atomic.Bool
}

func (n noCursors) Transact(ctx context.Context, p store.Plan) error {
	for _, w := range p.Writes {
		if n.on.Load() && w.Key.Table == store.Subscriptions {
			return store.ErrUnavailable
		}
	}
	return n.Store.Transact(ctx, p)
}

// A topic of which something cannot be stored stays open until it is.
func TestUnstoredTopicIsNotClosed(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		on := &atomic.Bool{}
		x.wrap = func(s store.Store) store.Store { return noCursors{s, on} }
		x.restart()
		x.configure("q", &topicv1.TopicConfig{CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK})
		x.publish("q", 0, 5)
		s := x.attach("q", "", "m")
		on.Store(true)
		x.ack(s, x.want(s, numbers(0, 5))[:3])
		s.End("DETACHED")
		testkit.Advance(time.Hour)
		if x.Sizes().Open != 1 {
			t.Error("it is closed, and what was acknowledged is not stored")
		}
		on.Store(false)
		testkit.Advance(time.Hour)
		if x.Sizes().Open != 0 {
			t.Error("it stays open")
		}
		s = x.attach("q", "", "m")
		x.ack(s, x.want(s, numbers(3, 2)))
		s.End("DETACHED")
	})
}

// Whatever is done, in which order, between closings and restarts: a group gets what it has
// not acknowledged, and nothing else.
func TestClosedTopicsAgainstAModel(t *testing.T) {
	closed := 0
	for seed := range uint64(20) {
		bubble(t, func(t *testing.T, x *fixture) {
			rng := rand.New(rand.NewPCG(seed, 18))
			x.groups("t", "g", "h")
			published := 0
			acked, tried := map[string]bool{}, map[string]int{} // by group and message
			for range 60 {
				group := []string{"g", "h"}[rng.IntN(2)]
				switch rng.IntN(7) {
				case 0, 1:
					n := 1 + rng.IntN(5)
					x.publish("t", published, n)
					published += n
				case 2, 3:
					s := x.attach("t", group, "m")
					for _, m := range x.receive(s) {
						id := group + " " + m.payload
						if acked[id] || int(m.attempt) != tried[id]+1 {
							t.Fatalf("seed %d: %s comes as attempt %d, acknowledged: %v, failed %d times", seed, id, m.attempt,
								acked[id], tried[id])
						}
						if rng.IntN(3) > 0 {
							acked[id] = len(x.ack(s, []got{m})) == 0
						} else if tried[id] < 3 {
							nack := &topicv1.NackSet{Positions: at([]got{m}).GetPositions(), Delay: seconds(5)}
							if _, err := s.Nack(t.Context(), nack); err != nil {
								t.Fatal(err)
							}
							tried[id]++
						}
					}
					s.End("DETACHED")
				case 4:
					if _, err := x.Pause(t.Context(), op, "t", group); err == nil && rng.IntN(2) == 0 {
						testkit.Advance(2 * time.Second)
						x.engine.Topics.CloseIdle(0)
					}
					_, err := x.Resume(t.Context(), op, "t", group)
					if err != nil {
						refusedAs(t, err, refusal.InvalidTransition)
					}
				case 5:
					if rng.IntN(2) == 0 {
						testkit.Advance(2 * time.Second)
					}
					x.engine.Topics.CloseIdle(0)
					closed += 1 - x.Sizes().Open
				case 6:
					x.restart()
				}
			}
			testkit.Advance(10 * time.Second)
			for _, group := range []string{"g", "h"} {
				s := x.attach("t", group, "m")
				var rest []string
				for _, m := range x.receive(s) {
					rest = append(rest, m.payload)
				}
				for i := range published {
					p := strconv.Itoa(i)
					if done := acked[group+" "+p]; done == slices.Contains(rest, p) {
						t.Errorf("seed %d: %s of %s is acknowledged: %v, delivered: %v", seed, p, group, done, !done)
					}
				}
				s.End("DETACHED")
			}
		})
	}
	if closed < 20 {
		t.Errorf("topics were closed %d times", closed)
	}
}

// Topics are closed all the time while many publish, consume and change subscriptions: no
// message is lost, and none comes again that is acknowledged.
func TestClosedUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		names := []string{"t0", "t1", "t2"}
		for _, name := range names {
			x.groups(name, "g")
		}
		ctx, stop := context.WithCancel(t.Context())
		var others, publishers sync.WaitGroup
		closed := 0
		others.Go(func() {
			for wait.For(ctx, time.Second) == nil {
				x.engine.Topics.CloseIdle(0)
				closed += len(names) - x.Sizes().Open
			}
		})
		const each = 40
		for _, name := range names {
			for from := range 2 {
				publishers.Go(func() {
					for i := range each {
						time.Sleep(time.Duration(rand.IntN(60)) * time.Second) // whole seconds: all at once
						x.publish(name, from*each+i, 1)
					}
				})
			}
			others.Go(func() {
				for i := 0; wait.For(ctx, time.Duration(rand.IntN(90))*time.Second) == nil; i++ {
					x.subscribe(name, fmt.Sprint("other", i), nil)
					if _, err := x.Cancel(t.Context(), op, name, fmt.Sprint("other", i)); err != nil {
						t.Error(err)
					}
				}
			})
			others.Go(func() { x.consumeAll(ctx, name, 2*each) })
		}
		publishers.Wait()
		testkit.Advance(time.Hour)
		stop()
		others.Wait()
		if closed < 100 {
			t.Errorf("topics were found closed %d times", closed)
		}
		for _, name := range names {
			if p := x.subscription(name, "g").GetPartitions()[0]; p.GetFloor() != 2*each || p.GetEnd() != 2*each {
				t.Error(name, p)
			}
		}
	})
}

// consumeAll consumes a topic by sessions that are short, until the context ends.
func (x *fixture) consumeAll(ctx context.Context, name string, want int) {
	done := map[string]bool{}
	for ctx.Err() == nil {
		s, err := x.Attach(ctx, op, &topicv1.Attach{Topic: name, Group: "g", Member: "m"}, false)
		if err != nil {
			if ctx.Err() == nil {
				x.t.Error(err)
			}
			return
		}
		within, cancel := context.WithTimeout(ctx, time.Second)
		e, err := s.Receive(within, 10)
		cancel()
		if err == nil {
			had := read(x.t, e.Deliveries)
			for _, m := range had {
				if done[m.payload] {
					x.t.Errorf("%s: %s comes again", name, m.payload)
				}
			}
			refused, err := s.Ack(context.WithoutCancel(ctx), at(had))
			if err != nil || len(refused) > 0 {
				x.t.Errorf("%s: %v, %v", name, refused, err)
			}
			for _, m := range had {
				done[m.payload] = true
			}
		}
		s.End("DETACHED")
		_ = wait.For(ctx, time.Duration(rand.IntN(90))*time.Second) // ctx is checked next
	}
	if n := len(done); n != want {
		x.t.Errorf("%s: %d messages came, not %d", name, n, want)
	}
}
