package topic

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// BenchmarkDeliveryBesideTrims publishes messages, 500 a second, to a group that takes them at
// once, and reports how long each takes from its publish to the group: while nothing is
// removed, while what is acknowledged is removed each second, and in the two seconds after
// the removal of 100,000 messages has begun.
func BenchmarkDeliveryBesideTrims(b *testing.B) {
	b.Run("alone", func(b *testing.B) { besideTrims(b, 0, 0) })
	b.Run("each second", func(b *testing.B) { besideTrims(b, 0, time.Second) })
	b.Run("of 100,000", func(b *testing.B) { besideTrims(b, 100_000, 2*time.Second) })
}

func besideTrims(b *testing.B, backlog int, each time.Duration) {
	s := benchService(b)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	_, err := s.Configure(ctx, op, &topicv1.ConfigureTopicRequest{Topic: "t", Config: &topicv1.TopicConfig{
		Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, MessageRetention: durationpb.New(0),
		CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK,
	}})
	if err != nil {
		b.Fatal(err)
	}
	if _, err = s.CreateSubscription(ctx, op, &topicv1.CreateSubscriptionRequest{Topic: "t", Group: "g"}); err != nil {
		b.Fatal(err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	received := make(chan int, 1000)
	tallied(ctx, b, s, &all, received)
	publish := func(n int) (took time.Duration) {
		r := &topicv1.PublishRequest{Topic: "t"}
		for range n {
			r.Messages = append(r.Messages, &topicv1.TopicMessage{Payload: make([]byte, 300)})
		}
		begin := time.Now()
		if _, err := s.Publish(ctx, op, r); err != nil {
			b.Fatal(err)
		}
		for n > 0 {
			n -= <-received
		}
		return time.Since(begin)
	}
	for n := backlog; n > 0; n -= 1000 {
		publish(1000)
	}
	if each > 0 {
		all.Go(func() {
			for ctx.Err() == nil {
				s.jobs.Retain(ctx)
				select {
				case <-ctx.Done():
				case <-time.After(each):
				}
			}
		})
	}
	due := time.NewTicker(2 * time.Millisecond)
	defer due.Stop()
	var list []time.Duration
	for b.Loop() {
		<-due.C
		list = append(list, publish(1))
	}
	if backlog > 0 {
		list = list[:min(len(list), 1000)]
	}
	slices.Sort(list)
	b.ReportMetric(list[len(list)/2].Seconds()*1000, "p50-ms")
	b.ReportMetric(list[len(list)*95/100].Seconds()*1000, "p95-ms")
	b.ReportMetric(float64(s.engine.Counters.Trimmed.Load()), "removed")
}

// tallied runs a member of the group g that acknowledges all it gets and says how much that is.
func tallied(ctx context.Context, b *testing.B, s *Service, all *sync.WaitGroup, received chan<- int) {
	b.Helper()
	in, err := s.Attach(ctx, op, &topicv1.Attach{
		Topic: "t", Group: "g", RenewCredits: true, Credits: &topicv1.Credits{Messages: 20_000},
	}, false)
	if err != nil {
		b.Fatal(err)
	}
	all.Go(func() {
		for {
			e, err := in.Receive(ctx, 1000)
			if ctx.Err() != nil {
				return
			}
			if err != nil || e.Gone != "" {
				b.Errorf("the group receives no more: %v, %s", err, e.Gone)
				return
			}
			set, n := &topicv1.AckSet{}, 0
			for _, d := range e.Deliveries {
				set.Positions = append(set.Positions, whole(d)...)
				n += d.Count
			}
			if r, err := in.Ack(ctx, set); ctx.Err() == nil && (err != nil || len(r) > 0) {
				b.Errorf("the group acknowledges: %v, %v", r, err)
				return
			}
			received <- n
		}
	})
}
