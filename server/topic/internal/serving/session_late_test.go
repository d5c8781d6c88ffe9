package serving

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// fixture is a group of one partition.
type fixture struct {
	t     *testing.T
	log   commitlog.Log
	part  *Partition
	group *Group
	// deadLetters is called with what failed too often, in place of storing it.
	deadLetters func([]machine.Undeliverable)
}

// newFixture makes a group that leases messages for a minute.
func newFixture(t *testing.T, maxAttempts int, clock func() time.Time) *fixture {
	t.Helper()
	disk := embeddedtest.NewDisk(nil).Open(t, time.Now)
	logger := slog.New(slog.DiscardHandler)
	x := &fixture{t: t, log: commitlog.NewLocal(records.Of(disk), clock)}
	flusher := NewFlusher(disk, 1, clock, logger)
	part, err := OpenPartition(t.Context(), PartitionConfig{
		Store: disk, Log: x.log, Flusher: flusher, Memory: NewMemory(0), Clock: clock, Logger: logger,
	}, commitlog.Partition{Topic: 1}, nil)
	testkit.Must(t, err)
	x.part = part
	part.Do(func(m *machine.Machine) {
		_, _, _, err = m.Subscribe(machine.Config{
			Name: "g", Generation: 1, MaxAttempts: maxAttempts, InitialBackoff: time.Second, MaxBackoff: 2 * time.Second,
			Lease: time.Minute,
		}, machine.Begin{})
	})
	testkit.Must(t, err)
	testkit.Must(t, disk.BatchWrite(t.Context(), []store.Write{part.First("g")}))
	x.group = NewGroup(GroupConfig{
		Topic: "t", Name: "g", Parts: []*Partition{part}, Flusher: flusher, Clock: clock,
		Durable:       func() bool { return false },
		Undeliverable: func(_ *Group, _ int, deadLetters []machine.Undeliverable) { x.deadLetters(deadLetters) },
		Failed:        func(err error) { t.Error(err) },
	}, topicv1.SubscriptionState_SUBSCRIPTION_STATE_ACTIVE)
	return x
}

func (x *fixture) attach(o SessionOptions) *Session {
	x.t.Helper()
	s, err := x.group.Attach(o)
	testkit.Must(x.t, err)
	return s
}

// publish stores n messages in a batch.
func (x *fixture) publish(n int) {
	x.t.Helper()
	list := make([]*topicv1.TopicMessage, n)
	for i := range list {
		list[i] = &topicv1.TopicMessage{Payload: []byte("x")}
	}
	pending, err := x.log.Begin(x.t.Context(), []commitlog.Append{{Partition: x.part.Address, Messages: list}})
	testkit.Must(x.t, err)
	x.part.Begun(pending.Appended[0].Batch)
	testkit.Must(x.t, pending.Wait(x.t.Context()))
	x.part.Durable(pending.Appended[0].Base + int64(n))
	x.group.WakeAll()
}

// nack gives a message back.
func (x *fixture) nack(s *Session, position int64) {
	x.t.Helper()
	_, err := s.Nack(x.t.Context(), &topicv1.NackSet{Positions: []*topicv1.Positions{{Base: position}}})
	testkit.Must(x.t, err)
}

// The process stands still for 4 s between every fourth reading of the clock and the next, and
// leases end 1 s apart: deadlines are past before a timer can be set for them. Members give
// half of the messages back once, and forget them after that like the other half. Each lease
// must end and each retry must come, or a message would not fail as often as it may.
func TestEveryWakeUpIsLate(t *testing.T) {
	for name, polled := range map[string]bool{"stream": false, "poll": true} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { everyWakeUpIsLate(t, polled) }) })
	}
}

func everyWakeUpIsLate(t *testing.T, polled bool) {
	const messages, maxAttempts = 20, 30
	var mu sync.Mutex
	var late time.Duration
	rng := rand.New(rand.NewPCG(1, 1))
	x := newFixture(t, maxAttempts, func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(4) == 0 {
			late += 4 * time.Second
		}
		return time.Now().Add(late)
	})
	failed := map[int64]int{} // attempts, by position
	x.deadLetters = func(deadLetters []machine.Undeliverable) {
		mu.Lock()
		defer mu.Unlock()
		for _, l := range deadLetters {
			failed[l.Position] = l.Attempts
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
	defer cancel()
	var members sync.WaitGroup
	for _, name := range []string{"1", "2"} {
		s := x.attach(SessionOptions{Member: name, Messages: 100, Bytes: 1 << 20, Renew: true, Polled: polled})
		members.Go(func() {
			for ctx.Err() == nil {
				x.forget(ctx, s)
			}
			s.End("DETACHED")
		})
	}
	for range messages {
		x.publish(1)
		time.Sleep(time.Second / 2)
	}
	members.Wait()
	x.group.Close("")
	mu.Lock()
	defer mu.Unlock()
	for p := range int64(messages) {
		if failed[p] != maxAttempts {
			t.Errorf("message %d failed %d times for good, want %d", p, failed[p], maxAttempts)
		}
	}
}

// forget receives once. Of what is delivered for the first time it gives messages with even
// positions back. It does not answer for the others. A poller comes again after the retries are
// due and before leases end.
func (x *fixture) forget(ctx context.Context, s *Session) {
	poll, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	e, err := s.Receive(poll, 1) // so that each has a lease of its own
	if err == nil {
		for _, d := range e.Deliveries {
			d.each(func(from, to int64) {
				for p := from; d.Attempts == nil && p < to; p++ {
					if p%2 == 0 {
						x.nack(s, p)
					}
				}
			})
		}
	}
	if s.options.Polled {
		time.Sleep(20 * time.Second)
	}
}

// A process that stands still while it ends a lease ends the next one, too, which is over by
// then.
func TestNextLeaseIsOverMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late atomic.Int64 // ns
		x := newFixture(t, 1, func() time.Time { return time.Now().Add(time.Duration(late.Load())) })
		var failed []int64
		x.deadLetters = func(deadLetters []machine.Undeliverable) { // before the next deadline is checked
			for _, l := range deadLetters {
				failed = append(failed, l.Position)
			}
			late.Add(int64(10 * time.Second))
		}
		for _, name := range []string{"1", "2", "3"} {
			s := x.attach(SessionOptions{Member: name, Messages: 1, Bytes: 1 << 20})
			defer s.End("DETACHED")
			x.publish(1)
			_, err := s.Receive(t.Context(), 10)
			testkit.Must(t, err)
			time.Sleep(4 * time.Second)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if !slices.Equal(failed, []int64{0, 1, 2}) {
			t.Errorf("the leases of %v have ended, want 0, 1 and 2", failed)
		}
		x.group.Close("")
	})
}

// A member that loses a message and gets it again is notified in this order: the delivery must
// not be taken out of its queue with the one that it lost.
func TestLostAndDeliveredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFixture(t, 3, time.Now)
		// Message 0 fails for good when its lease ends, with which the lease of message 1 ends. The
		// group delivers that again before the call that ended the leases returns.
		x.deadLetters = func([]machine.Undeliverable) { x.group.pump(t.Context(), 10) }
		other := x.attach(SessionOptions{Member: "2", Messages: 1, Bytes: 1 << 20, Renew: true})
		x.publish(1)
		for attempt := range 3 {
			_, err := other.Receive(t.Context(), 10)
			testkit.Must(t, err)
			if attempt < 2 {
				x.nack(other, 0)
			}
		}
		s := x.attach(SessionOptions{Member: "1", Messages: 10, Bytes: 1 << 20, Renew: true})
		x.publish(1)
		_, err := s.Receive(t.Context(), 10)
		testkit.Must(t, err)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		e, err := s.Receive(t.Context(), 10)
		testkit.Must(t, err)
		testkit.Equal(t, "messages named as lost", e.LeaseLost[0].GetCount(), 1)
		e, err = s.Receive(t.Context(), 10)
		testkit.Must(t, err)
		if len(e.Deliveries) != 1 || e.Deliveries[0].Base != 1 || e.Deliveries[0].Attempts[0] != 2 {
			t.Errorf("received %+v, want message 1 for the second time", e)
		}
		s.End("DETACHED")
		other.End("DETACHED")
		x.group.Close("")
	})
}
