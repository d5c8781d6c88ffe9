package topicrpc

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// talkTo opens a stream in both directions and attaches.
func (c *userClients) talkTo(a *topicv1.Attach) (both, *topicv1.Attached) {
	c.Helper()
	stream, err := c.consumers.ConsumeBidi(c.Context())
	c.must(err)
	c.must(stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{Attach: a}}))
	res, err := stream.Receive()
	if c.must(err); res.GetAttached() == nil {
		c.Fatalf("the first response is %v", res)
	}
	return stream, res.GetAttached()
}

// follow acknowledges what a stream brings until it has brought so many messages.
func (c *userClients) follow(stream both, count int) {
	c.Helper()
	for count > 0 {
		res, err := stream.Receive()
		c.must(err)
		if refused := res.GetSettled().GetRefusals(); len(refused) > 0 {
			c.Fatalf("refused: %v", refused)
		}
		d := res.GetDelivery()
		if d == nil {
			continue
		}
		count -= len(d.GetMessages())
		c.must(stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{Ack: &topicv1.AckSet{
			Positions: positions(&topicv1.PullResponse{Deliveries: []*topicv1.Delivery{d}})}}}))
	}
}

// A consumer that never acknowledges, one that gives everything back, one that does not
// read, one that asks for a million credits, and a key that always fails: each is bounded,
// and none keeps another group from anything.
func TestHostileConsumers(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice := w.as("alice", connect.WithGRPC())
	alice.topic("news", pubSub, "good", "silent", "deaf", "greedy")
	alice.subscribe("news", "nacks", &topicv1.SubscriptionConfig{Retry: &topicv1.RetryPolicy{MaxAttempts: 2,
		InitialBackoff: durationpb.New(time.Millisecond), MaxBackoff: durationpb.New(time.Millisecond)}})
	alice.subscribe("news", "key", &topicv1.SubscriptionConfig{Ordering: topicv1.Ordering_ORDERING_KEY,
		Retry: &topicv1.RetryPolicy{MaxAttempts: 2, InitialBackoff: durationpb.New(time.Millisecond),
			MaxBackoff: durationpb.New(time.Millisecond)}})
	const published = 5000

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	silent, _ := w.as("alice").talkTo(&topicv1.Attach{Topic: "news", Group: "silent",
		Credits: &topicv1.Credits{Messages: 50}})
	got := make(chan int, published)
	go func() {
		for {
			res, err := silent.Receive()
			if err != nil {
				return
			}
			got <- len(res.GetDelivery().GetMessages())
		}
	}()
	deaf, err := w.as("alice").consumers.Consume(ctx, attachTo("news", "deaf", "m")) // and never reads
	must(t, err)
	defer deaf.Close()
	_, greedy := w.as("alice").talkTo(&topicv1.Attach{Topic: "news", Group: "greedy",
		Credits: &topicv1.Credits{Messages: 1_000_000, Bytes: 1 << 30}})
	added, err := alice.consumers.AddCredits(t.Context(), &topicv1.AddCreditsRequest{Session: greedy.GetSession(),
		Credits: &topicv1.Credits{Messages: 1_000_000, Bytes: 1 << 30}})
	must(t, err)
	if c := added.GetCredits(); c.GetMessages() > 65_536 || c.GetBytes() > 64<<20 {
		t.Errorf("credits: %v", c)
	}
	nacks, _ := w.as("alice").talkTo(&topicv1.Attach{Topic: "news", Group: "nacks", RenewCredits: true})
	go func() {
		for {
			res, err := nacks.Receive()
			if err != nil {
				return
			}
			if d := res.GetDelivery(); d != nil {
				_ = nacks.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Nack{Nack: &topicv1.NackSet{
					Positions: positions(&topicv1.PullResponse{Deliveries: []*topicv1.Delivery{d}})}}})
			}
		}
	}()

	alice.publish("news", published, "bad", "a", "b", "c")
	good, _ := alice.talkTo(&topicv1.Attach{Topic: "news", Group: "good", RenewCredits: true})
	alice.follow(good, published)

	key := &member{userClients: alice, topic: "news", group: "key", name: "m"}
	done := 0
	for done < published*3/4 {
		res := key.pull(1000, time.Second)
		var bad []*topicv1.Positions
		for _, d := range res.GetDeliveries() {
			for i, m := range d.GetMessages() {
				p := &topicv1.Positions{Partition: d.GetPartition(), Base: d.GetBase() + int64(i)}
				if d.GetOffsets() != nil {
					p.Base = d.GetBase() + int64(d.GetOffsets()[i])
				}
				if m.GetKey() == "bad" {
					bad = append(bad, p)
					continue
				}
				key.ack(p)
				done++
			}
		}
		if len(bad) > 0 {
			_, err := alice.consumers.Nack(t.Context(), &topicv1.NackRequest{Session: key.session,
				Set: &topicv1.NackSet{Positions: bad}})
			must(t, err)
		}
	}
	see := func(group string) *topicv1.Subscription {
		res, err := alice.subscriptions.GetSubscription(t.Context(),
			&topicv1.GetSubscriptionRequest{Topic: "news", Group: group})
		must(t, err)
		return res.GetSubscription()
	}
	testkit.Eventually(t, "the failing key to be parked", func() bool {
		return see("key").GetPartitions()[0].GetParked() > 0
	})
	testkit.Eventually(t, "all that was returned to be dead letters", func() bool {
		return see("nacks").GetPartitions()[0].GetPending() == 0
	})
	deadLetters, err := alice.topics.GetTopic(t.Context(), &topicv1.GetTopicRequest{Topic: "news.dlq"})
	must(t, err)
	testkit.Equal(t, "dead letters", deadLetters.GetTopic().GetPartitions()[0].GetEnd(), int64(published))
	total := 0
	for len(got) > 0 {
		total += <-got
	}
	if in := see("silent").GetPartitions()[0].GetInFlight(); total > 50 || in > 50 {
		t.Errorf("who never acknowledges got %d messages for 50 credits, and has %d", total, in)
	}
	if in := see("deaf").GetPartitions()[0].GetInFlight(); in > 1000 {
		t.Errorf("who does not read has %d messages for 1,000 credits", in)
	}
}

// A reader that is stuck is cut, and what it has goes to others.
func TestStuckReader(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	alice := w.as("alice")
	alice.topic("news", pubSub, "a")
	stuck, err := w.as("alice").consumers.Consume(t.Context(), &topicv1.ConsumeRequest{Attach: &topicv1.Attach{
		Topic: "news", Group: "a", Credits: &topicv1.Credits{Messages: 10_000, Bytes: 64 << 20}}})
	must(t, err)
	defer stuck.Close()
	big := make([]byte, 499_000)
	for range 4 { // more than fits between the two
		req := &topicv1.PublishRequest{Topic: "news"}
		for range 8 {
			req.Messages = append(req.Messages, &topicv1.TopicMessage{Payload: big})
		}
		_, err := alice.topics.Publish(t.Context(), req)
		must(t, err)
	}
	testkit.Eventually(t, "the stream to be cut", func() bool { return w.streams.Len() == 0 })
	m := &member{userClients: alice, topic: "news", group: "a", name: "n"}
	total := 0
	testkit.Eventually(t, "others to get its messages", func() bool {
		res := m.pull(1000, time.Second)
		if total += messages(res); messages(res) > 0 {
			m.ack(positions(res)...)
		}
		return total == 32
	})
}
