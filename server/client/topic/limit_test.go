package topic_test

import (
	"context"
	"errors"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// ended waits for a consumer that ends by itself.
func (r *runs) ended(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.done:
		testkit.Must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("the consumer still runs")
	}
}

// Of a consumer with a limit no handler is called for more messages, those that fail
// included, and no more are asked for, over as many sessions as it takes.
func TestLimit(t *testing.T) {
	t.Parallel()
	for name, window := range map[string]int{"at once": 0, "three at a time": 3} {
		t.Run(name, func(t *testing.T) {
			bothWays(t, func(t *testing.T, old bool) {
				f := newFake(t, old)
				f.store(numbered(40)...)
				var s seen
				f.consume(t, old, topic.ConsumerConfig{Limit: 10, MaxMessages: window, Concurrency: 2,
					Handler: func(_ context.Context, m *topic.Received) error {
						s.add(m.Position)
						if m.Position == 9 {
							return topic.After(time.Hour, errors.New("no"))
						}
						return nil
					}}).ended(t)
				testkit.Equal(t, "handled", len(s.order), 10)
				testkit.Equal(t, "acknowledged", f.ackedCount(), 9)
				delivered := uint32(0)
				for _, n := range get(f, func() map[int64]uint32 { return f.attempts }) {
					delivered += n
				}
				testkit.Equal(t, "delivered", delivered, 10)
				testkit.Equal(t, "returned", len(get(f, func() []*topicv1.NackSet { return f.nacks })), 1)
				testkit.Equal(t, "detached", len(get(f, func() []*topicv1.DetachRequest { return f.detached })), 1)
				sessions := len(get(f, func() []*topicv1.Attach { return f.attached }))
				if window == 0 && sessions != 1 || window == 3 && sessions != 4 {
					t.Errorf("%d sessions", sessions)
				}
			})
		})
	}
}

// What comes again after a connection was lost uses credits, and the rest comes nevertheless.
func TestLimitOverLostConnections(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, old bool) {
		f := newFake(t, old)
		f.store(numbered(40)...)
		var s seen
		f.consume(t, old, topic.ConsumerConfig{Limit: 20,
			Handler: func(_ context.Context, m *topic.Received) error {
				s.add(m.Position)
				if m.Position == 3 || m.Position == 11 {
					f.web.CloseClientConnections()
				}
				return nil
			}}).ended(t)
		testkit.Equal(t, "handled", len(s.order), 20)
		testkit.Equal(t, "of them once", len(s.count), 20)
		testkit.Equal(t, "acknowledged", f.ackedCount(), 20)
	})
}

// A handler that ends the consumer is the last that is called; what waits behind its message
// goes to others without an attempt, as what is beyond a limit does.
func TestWhatIsNotHandledIsNotTried(t *testing.T) {
	t.Parallel()
	client, stop := serve()
	defer stop()
	_, err := client.Topics().ConfigureTopic(t.Context(), &topicv1.ConfigureTopicRequest{Topic: "t",
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
	testkit.Must(t, err)
	_, err = client.Subscriptions().CreateSubscription(t.Context(),
		&topicv1.CreateSubscriptionRequest{Topic: "t", Group: "g"})
	testkit.Must(t, err)
	publisher, err := client.Publisher("t", topic.PublisherConfig{})
	testkit.Must(t, err)
	_, err = publisher.Publish(t.Context(), numbered(50)...)
	testkit.Must(t, err)
	testkit.Must(t, publisher.Close(t.Context()))
	var next int64
	take := func(n int64, cfg topic.ConsumerConfig) {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		until := next + n
		cfg.Handler = func(_ context.Context, m *topic.Received) error {
			if m.Position != next || m.Attempt != 1 {
				t.Errorf("position %d, attempt %d, after %d messages", m.Position, m.Attempt, next)
			}
			if next++; next == until && cfg.Limit == 0 {
				stop()
			}
			return nil
		}
		consumer, err := client.Consumer("t", "g", cfg)
		testkit.Must(t, err)
		testkit.Must(t, consumer.Run(ctx))
		testkit.Equal(t, "handled until", next, until)
		res, err := client.Subscriptions().GetSubscription(t.Context(),
			&topicv1.GetSubscriptionRequest{Topic: "t", Group: "g"})
		testkit.Must(t, err)
		position := res.GetSubscription().GetPartitions()[0]
		testkit.Equal(t, "acknowledged", position.GetFloor(), until)
		testkit.Equal(t, "with members", position.GetInFlight(), 0)
		testkit.Equal(t, "failed", res.GetSubscription().GetFailed(), 0)
	}
	take(7, topic.ConsumerConfig{})
	take(5, topic.ConsumerConfig{Limit: 5})
	take(8, topic.ConsumerConfig{Limit: 8, MaxMessages: 3})
	take(30, topic.ConsumerConfig{})
}
