package topic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// inFlight counts what the members of a group have, in all partitions.
func (x *fixture) inFlight(name, group string) (n int64) {
	x.t.Helper()
	for _, p := range x.subscription(name, group).GetPartitions() {
		n += p.GetInFlight()
	}
	return n
}

// boundMember is a member that does with messages whatever members do, until it is stopped.
type boundMember struct {
	x      *fixture
	rng    *rand.Rand
	group  string
	bound  int64
	most   *int64 // that was in flight
	mu     *sync.Mutex
	done   map[string]int // acknowledgements by payload
	polled bool
}

// run attaches again and again. A session ends after a while, normally or not.
func (c *boundMember) run(ctx context.Context, name string) {
	for n := 0; ctx.Err() == nil; n++ {
		s, err := c.x.Attach(ctx, op, &topicv1.Attach{
			Topic: "t", Group: c.group, Member: fmt.Sprint(name, n), Credits: &topicv1.Credits{Messages: 8, Bytes: 1 << 20},
		}, c.polled)
		if err != nil {
			c.x.t.Errorf("attach: %v", err)
			return
		}
		c.session(ctx, s)
		s.End([]string{serving.Broken, "DETACHED"}[c.rng.IntN(2)])
	}
}

func (c *boundMember) session(ctx context.Context, s *Session) {
	for range 10 {
		poll, cancel := context.WithTimeout(ctx, 2*time.Second)
		e, err := s.Receive(poll, 1+c.rng.IntN(5))
		cancel()
		c.count()
		if err != nil || e.Gone != "" {
			if ctx.Err() != nil {
				return
			}
			continue
		}
		list := read(c.x.t, e.Deliveries)
		time.Sleep(time.Duration(c.rng.IntN(800)) * time.Millisecond)
		for i := range list {
			c.settle(ctx, s, list[i])
		}
		c.count()
	}
}

func (c *boundMember) settle(ctx context.Context, s *Session, m got) {
	switch c.rng.IntN(8) {
	case 0: // its lease ends
	case 1:
		_, err := s.Nack(ctx, &topicv1.NackSet{Positions: at([]got{m}).GetPositions()})
		c.check(err)
	default:
		refused, err := s.Ack(ctx, at([]got{m}))
		c.check(err)
		if err == nil && len(refused) == 0 {
			c.mu.Lock()
			c.done[m.payload]++
			c.mu.Unlock()
		}
	}
}

// check takes no error but that the session has ended meanwhile.
func (c *boundMember) check(err error) {
	if err != nil && !errors.Is(err, &refusal.Error{Reason: refusal.SessionGone}) {
		c.x.t.Error(err)
	}
}

// count asks how much is in flight.
func (c *boundMember) count() {
	n := c.x.inFlight("t", c.group)
	c.mu.Lock()
	defer c.mu.Unlock()
	*c.most = max(*c.most, n)
	if n > c.bound {
		c.x.t.Errorf("%d messages are in flight, the bound is %d", n, c.bound)
	}
}

// The members of a group never have more than max_in_flight messages together, whatever kind they are and
// whatever they do, in all partitions. The group reaches the bound and gets everything all the same, keys in
// order or not, also while it has a backfill.
func TestMaxInFlight(t *testing.T) {
	const bound, count = 3, 60
	for _, ordering := range []topicv1.Ordering{topicv1.Ordering_ORDERING_NONE, topicv1.Ordering_ORDERING_KEY} {
		t.Run(ordering.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, x *fixture) {
				x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 4})
				x.keyed(0, count/3, "early")
				x.subscribe("t", "g", &topicv1.SubscriptionConfig{
					MaxInFlight: bound, Ordering: ordering,
					Retry: &topicv1.RetryPolicy{Lease: seconds(5), MaxAttempts: 1000, MaxBackoff: seconds(3)},
				})
				for n := range count / 3 {
					x.keyed(count/3+n, 1, string(rune('a'+n%7)))
				}
				x.publish("t", 2*count/3, count/3)
				_, err := x.StartBackfill(t.Context(), op, &topicv1.StartBackfillRequest{
					Topic: "t", Group: "g", From: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}},
				})
				testkit.Must(t, err)
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				var mu sync.Mutex
				limit, done := int64(0), map[string]int{}
				for n := range 4 {
					c := &boundMember{x: x, rng: rand.New(rand.NewPCG(uint64(n), 1)), group: "g", bound: bound, most: &limit,
						mu: &mu, done: done, polled: n%2 == 0}
					all.Go(func() { c.run(ctx, fmt.Sprint("m", n, "-")) })
				}
				for range 1000 {
					testkit.Advance(time.Second)
					mu.Lock()
					over := len(done) == count
					mu.Unlock()
					if over {
						break
					}
				}
				cancel()
				all.Wait()
				testkit.Equal(t, "messages that are acknowledged", len(done), count)
				testkit.Equal(t, "most messages in flight", limit, int64(bound))
			})
		})
	}
}

// A change of the bound alone ends no session: members keep what they have, and a wider bound is used at
// once. It is stored, and a queue has it as well as a group.
func TestMaxInFlightChanges(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Partitions: 2})
		x.publish("t", 0, 20)
		sub, err := x.update("$queue", &topicv1.SubscriptionConfig{MaxInFlight: 4})
		testkit.Must(t, err)
		testkit.Equal(t, "bound", sub.GetConfig().GetMaxInFlight(), int32(4))
		s := x.attach("t", "$queue", "m")
		other := x.attach("t", "$queue", "n")
		had := x.receive(s)
		testkit.Equal(t, "messages with one member", len(had), 4)
		testkit.Equal(t, "messages with the other", len(x.receive(other)), 0)
		_, err = x.update("$queue", &topicv1.SubscriptionConfig{MaxInFlight: 2}, "max_in_flight")
		testkit.Must(t, err)
		x.ack(s, had[:2])
		testkit.Equal(t, "messages beyond a bound that became less", len(x.receive(other)), 0)
		testkit.Equal(t, "messages in flight", x.inFlight("t", "$queue"), int64(2))
		more := make(chan []got)
		go func() { more <- x.receive(other) }()
		synctest.Wait()
		_, err = x.update("$queue", &topicv1.SubscriptionConfig{MaxInFlight: 5}, "max_in_flight")
		testkit.Must(t, err)
		testkit.Equal(t, "messages once there is room", len(<-more), 3)
		if x.ack(s, had[2:]) != nil {
			t.Error("the first member has lost its messages")
		}
		s.End("DETACHED")
		other.End("DETACHED")
		x.restart()
		s = x.attach("t", "$queue", "m")
		testkit.Equal(t, "messages after a restart", len(x.receive(s)), 5)
		_, err = x.update("$queue", nil, "max_in_flight")
		testkit.Must(t, err)
		testkit.Equal(t, "messages without a bound", len(x.receive(s)), 11)
	})
}

// A group whose members have as many messages as they may is not stalled: it was asked for.
func TestMaxInFlightIsNoStall(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.groups("t")
		x.subscribe("t", "g", &topicv1.SubscriptionConfig{MaxInFlight: 1})
		s := x.attach("t", "g", "m")
		x.publish("t", 0, 3)
		testkit.Equal(t, "messages", len(x.receive(s)), 1)
		poller, err := x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: "g", Member: "p"}, true)
		testkit.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = s.Receive(ctx, 10) }()
		for range 20 {
			testkit.Advance(10 * time.Second)
			_, err := s.Extend(t.Context(), &topicv1.ExtendSet{})
			testkit.Must(t, err)
			testkit.Equal(t, "messages for a poll", len(x.receive(poller)), 0)
			testkit.Equal(t, "stalls", len(x.subscription("t", "g").GetStalls()), 0)
		}
		testkit.Equal(t, "stalled groups", x.metric("t", "g").Stalled, int64(0))
	})
}
