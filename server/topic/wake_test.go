package topic

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// hangingLog is a log whose reads hang while on is set.
type hangingLog struct {
	commitlog.Log
	on atomic.Bool
}

func (l *hangingLog) Read(ctx context.Context, p commitlog.Partition, from int64, n int) ([]*commitlog.Batch, error) {
	if l.on.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return l.Log.Read(ctx, p, from, n)
}

// A member whose call ends while it delivers for the group leaves that to another one.
func TestCancelledReceiveWakesAnother(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		x.publish("t", 0, 1)
		x.restart()
		synctest.Wait() // what follows the log has checked it
		log := &hangingLog{Log: x.engine.Sources.Log}
		log.on.Store(true)
		x.engine.Sources.Log = log
		a, err := x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: "g", Member: "a"}, true)
		if err != nil {
			t.Fatal(err)
		}
		b := x.attach("t", "g", "b")
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = a.Receive(ctx, 10) }()
		synctest.Wait()
		var got string
		done := make(chan error, 1)
		begin := time.Now()
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			e, err := b.Receive(ctx, 10)
			got = payloads(read(t, e.Deliveries))
			done <- err
		}()
		synctest.Wait()
		log.on.Store(false)
		cancel()
		if err := <-done; err != nil || got != "0" {
			t.Errorf("the other one received %q, %v", got, err)
		}
		if d := time.Since(begin); d > 0 {
			t.Errorf("it waited for %v", d)
		}
		a.End("DETACHED")
		b.End("DETACHED")
	})
}

// What a member has and what it may be sent is bounded together, however often credits are
// added; what is taken from it leaves its queue.
func TestCreditsBoundWhatIsOutstanding(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		for range 100 {
			x.payload("t", 1<<20)
		}
		slow, other := x.attach("t", "g", "slow"), x.attach("t", "g", "other")
		for range 20 {
			slow.AddCredits(&topicv1.Credits{Messages: 65_536, Bytes: 64 << 20})
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, _ = other.Receive(ctx, 1000)
			cancel()
		}
		if n := x.subscription("t", "g").GetPartitions()[0].GetInFlight(); n > 64+8 {
			t.Errorf("%d messages of 1 MiB are under way", n)
		}
		slow.End("DETACHED")
		other.End("DETACHED")
	})
}

func (x *fixture) payload(name string, size int) {
	x.t.Helper()
	r := &topicv1.PublishRequest{Topic: name, Messages: []*topicv1.TopicMessage{{Payload: make([]byte, size)}}}
	if _, err := x.Publish(x.t.Context(), op, r); err != nil {
		x.t.Fatal(err)
	}
}

// Messages whose lease ended before they were sent are not sent any more: they are others'.
func TestExpiredLeavesTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		slow, other := x.attach("t", "g", "slow"), x.attach("t", "g", "other")
		x.publish("t", 0, 4)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, _ = other.Receive(ctx, 1000) // delivers to both
		cancel()
		time.Sleep(40 * time.Second)
		other.End("DETACHED")
		first := x.receive(slow)
		if len(first) != 1 || first[0].attempt != 2 {
			t.Errorf("received %v, want one message for the second time", first)
		}
		x.ack(slow, first)
		if n := len(x.work(slow)); n != 3 {
			t.Errorf("received %d after it, want 3", n)
		}
		slow.End("DETACHED")
	})
}

// A connection that breaks is an attempt of the first message that was sent. It is none of the others, and
// what still waited to be sent is not even suspect.
func TestBrokenCountsWhatWasSent(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t", "g")
		a, b := x.attach("t", "g", "a"), x.attach("t", "g", "b")
		x.publish("t", 0, 10)
		x.publish("t", 10, 10)
		sent, earliest := map[int64]bool{}, int64(math.MaxInt64)
		e, err := a.Receive(t.Context(), 4)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range read(t, e.Deliveries) {
			sent[g.position] = true
			earliest = min(earliest, g.position)
		}
		x.ack(b, x.receive(b)) // delivers the rest to both
		a.End("BROKEN")
		again, alone := 0, 0
		for n := len(sent); n > 0; {
			list := x.receive(b)
			for _, g := range list {
				if first := g.position == earliest; first != (g.attempt == 2) {
					t.Errorf("%d is sent for the %dth time", g.position, g.attempt)
				}
				if !sent[g.position] {
					again++
					continue
				}
				if n--; len(list) == 1 {
					alone++
				}
			}
			if x.ack(b, list); len(list) == 0 {
				break
			}
		}
		again += len(x.work(b))
		if len(sent) < 2 || alone != len(sent) || again == 0 {
			t.Errorf("%d were sent, %d of them came back alone, %d waited", len(sent), alone, again)
		}
		b.End("DETACHED")
	})
}

// A lease ends also after a retry came due that no member took, as between polls, and one that
// begins when all messages have been acknowledged for longer than a lease.
func TestLeaseEndsWhoeverPolls(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{
			Retry: &topicv1.RetryPolicy{Lease: seconds(10), InitialBackoff: seconds(1)},
		})
		var sessions []*Session
		for range 2 {
			s, err := x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: "g"}, true)
			testkit.Must(t, err)
			sessions = append(sessions, s)
		}
		a, b := sessions[0], sessions[1]
		x.publish("t", 0, 2)
		had := x.want(a, "0 1")
		_, err := a.Nack(t.Context(), &topicv1.NackSet{Positions: at(had[:1]).GetPositions()})
		testkit.Must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, _ = b.Receive(ctx, 10) // finds that message 0 is not due
		cancel()
		time.Sleep(20 * time.Second)
		testkit.Equal(t, "messages with b", payloads(x.work(b)), "0 1")
		time.Sleep(20 * time.Second)
		x.publish("t", 2, 1)
		x.want(a, "2")
		time.Sleep(20 * time.Second)
		x.want(b, "2")
	})
}
