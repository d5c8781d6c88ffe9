package topic

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic/internal/serving"
)

// poison is the payload of the message that ends a consumer, one of healthy+1.
const (
	poison  = "17"
	healthy = 39
)

// consumer handles messages one by one.
type consumer struct {
	x      *fixture
	name   string
	polled bool
	// ends is how the session of one ends that gets the poison, as soon as it is: with a reason
	// or, if that is empty, its leases do. "never" ends it never: it returns the poison.
	ends  string
	acked map[string]int
	s     *Session
}

// round receives once and handles what came.
func (c *consumer) round() {
	t := c.x.t
	t.Helper()
	if c.s == nil {
		s, err := c.x.Attach(t.Context(), op, &topicv1.Attach{Topic: "t", Group: "g", Member: c.name}, c.polled)
		testkit.Must(t, err)
		c.s = s
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	e, err := c.s.Receive(ctx, healthy+1)
	if err != nil {
		return
	}
	had := read(t, e.Deliveries)
	bad := slices.IndexFunc(had, func(g got) bool { return g.payload == poison })
	switch {
	case bad >= 0 && c.ends == "":
		testkit.Advance(32 * time.Second) // it hangs
		return
	case bad >= 0 && c.ends != "never":
		c.s.End(c.ends)
		c.s = nil
		return
	case bad >= 0:
		c.x.fails(c.s, had[bad:bad+1], "cannot be handled")
		had = slices.Delete(had, bad, bad+1)
	}
	for _, g := range had {
		if len(c.x.ack(c.s, []got{g})) == 0 {
			c.acked[g.payload]++
		}
	}
}

// HQ-F03: a message that ends every consumer that gets it becomes a dead letter after its last attempt,
// and takes none of those with it that the consumers had besides.
func TestPoisonTakesNoOther(t *testing.T) {
	ends := map[string]string{"broken": serving.Broken, "silent": serving.Silent, "slow": serving.Slow, "leases": ""}
	for how, why := range ends {
		for _, partitions := range []int32{1, 2} {
			for _, attempts := range []int32{1, 3} {
				for _, keyed := range []bool{false, true} {
					for members := 1; members <= 2; members++ {
						name := fmt.Sprintf("%s/partitions=%d/attempts=%d/keyed=%v/members=%d", how, partitions, attempts, keyed, members)
						t.Run(name, func(t *testing.T) {
							bubble(t, func(t *testing.T, x *fixture) {
								poisonTakesNoOther(t, x, partitions, attempts, keyed, []string{why, "never"}[:members])
							})
						})
					}
				}
			}
		}
	}
}

func poisonTakesNoOther(t *testing.T, x *fixture, partitions int32, attempts int32, keyed bool, ends []string) {
	x.configure("t", &topicv1.TopicConfig{
		Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: partitions,
	})
	c := &topicv1.SubscriptionConfig{
		Retry:     &topicv1.RetryPolicy{MaxAttempts: attempts, InitialBackoff: seconds(1)},
		Exhausted: topicv1.Exhausted_EXHAUSTED_DEAD_LETTER,
	}
	if keyed {
		c.Ordering = topicv1.Ordering_ORDERING_KEY
	}
	x.subscribe("t", "g", c)
	list := messages(0, healthy+1)
	for i, m := range list {
		m.Key = fmt.Sprint(i % 20)
	}
	_, err := x.Publish(t.Context(), op, &topicv1.PublishRequest{Topic: "t", Messages: list})
	testkit.Must(t, err)
	acked := map[string]int{}
	var consumers []*consumer
	for i, why := range ends {
		polled := why == serving.Silent
		consumers = append(consumers, &consumer{x: x, name: fmt.Sprint(i), polled: polled, ends: why, acked: acked})
	}
	for range 200 {
		for _, c := range consumers {
			c.round()
		}
		if len(acked) == healthy && len(x.scanned("t")) > 0 {
			break
		}
	}
	testkit.Advance(time.Minute)
	testkit.Equal(t, "messages that are acknowledged", len(acked), healthy)
	deadLetters := x.scanned("t")
	if len(deadLetters) != 1 || deadLetters[0].Attempts != int(attempts) {
		t.Fatalf("dead letters: %+v, want one after %d attempts", deadLetters, attempts)
	}
	if n := acked[poison]; n > 0 {
		t.Errorf("the poison is acknowledged %d times", n)
	}
}

// Of what a session had in all partitions an abnormal end charges the message that it got first.
func TestAbnormalEndChargesTheFirst(t *testing.T) {
	bubble(t, func(t *testing.T, x *fixture) {
		x.configure("t", &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 4})
		x.subscribe("t", "g", nil)
		s := x.attach("t", "g", "m")
		var had []got
		for i := range 6 {
			x.publish("t", 10*i, 10)
			had = append(had, x.receive(s)...)
		}
		first := had[2]
		for _, g := range had[2:] { // the first that is not of the lowest partition
			if g.partition > 0 {
				first = g
				break
			}
		}
		var done []got
		kept := map[int32]bool{first.partition: true}
		for i, g := range had { // one message of each partition is left, that of the first is the earliest
			switch {
			case g == first:
			case i > slices.Index(had, first) && !kept[g.partition]:
				kept[g.partition] = true
			default:
				done = append(done, g)
			}
		}
		x.ack(s, done)
		if len(kept) < 2 {
			t.Fatalf("the messages left are of %d partitions", len(kept))
		}
		s.End(serving.Broken)
		again := x.work(x.attach("t", "g", "m"))
		testkit.Equal(t, "messages delivered again", len(again), len(had)-len(done))
		for _, g := range again {
			if is := g.payload == first.payload; is != (g.attempt == 2) {
				t.Errorf("%s is delivered for the %dth time, the first was %s", g.payload, g.attempt, first.payload)
			}
		}
	})
}
