package topic

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

func cpu() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func benchService(b *testing.B, change ...func(*Config)) *Service {
	b.Helper()
	st, err := embedded.Open(embedded.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	cfg := Config{
		Store: st, Log: commitlog.NewLocal(records.Of(st), time.Now), Clock: time.Now, Logger: slog.New(slog.DiscardHandler),
		Audit: func(context.Context, string, string, string) (func(string, string), error) {
			return func(string, string) {}, nil
		},
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, func() {}) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
		if err := st.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// BenchmarkDelivery publishes b.N messages of 300 bytes, 100 at a time, durably, to groups
// that acknowledge each delivery, and waits until all have all.
func BenchmarkDelivery(b *testing.B) {
	for _, mode := range []topicv1.CompletionMode{
		topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK, topicv1.CompletionMode_COMPLETION_MODE_REFERENCE_COUNTING,
	} {
		for _, groups := range []int{1, 4, 16, 64} {
			b.Run(fmt.Sprintf("%s/%d", mode.String()[16:], groups), func(b *testing.B) { benchDelivery(b, mode, groups) })
		}
	}
}

func benchDelivery(b *testing.B, mode topicv1.CompletionMode, groups int) {
	s := benchService(b)
	ctx := b.Context()
	_, err := s.Configure(ctx, op, &topicv1.ConfigureTopicRequest{Topic: "t", Config: &topicv1.TopicConfig{
		Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, CompletionMode: mode,
	}})
	if err != nil {
		b.Fatal(err)
	}
	var all sync.WaitGroup
	for g := range groups {
		name := fmt.Sprintf("g%d", g)
		if _, err := s.CreateSubscription(ctx, op, &topicv1.CreateSubscriptionRequest{Topic: "t", Group: name}); err != nil {
			b.Fatal(err)
		}
		in, err := s.Attach(ctx, op, &topicv1.Attach{
			Topic: "t", Group: name, RenewCredits: true, Credits: &topicv1.Credits{Messages: 10_000},
		}, false)
		if err != nil {
			b.Fatal(err)
		}
		all.Go(func() {
			for got := 0; got < b.N; {
				e, err := in.Receive(ctx, 1000)
				if err != nil {
					b.Error(err)
					return
				}
				set := &topicv1.AckSet{}
				for _, d := range e.Deliveries {
					got += d.Count
					set.Positions = append(set.Positions, &topicv1.Positions{
						Partition: d.Partition, Base: d.Base, Count: int64(d.Count),
					})
				}
				if r, err := in.Ack(ctx, set); err != nil || len(r) > 0 {
					b.Error(r, err)
					return
				}
			}
		})
	}
	payload := make([]byte, 300)
	var next atomic.Int64
	b.ResetTimer()
	start, before := time.Now(), cpu()
	for range 8 {
		all.Go(func() {
			for {
				from := next.Add(100) - 100
				n := min(100, b.N-int(from))
				if n <= 0 {
					return
				}
				list := make([]*topicv1.TopicMessage, n)
				for i := range list {
					list[i] = &topicv1.TopicMessage{Payload: payload}
				}
				if _, err := s.Publish(ctx, op, &topicv1.PublishRequest{Topic: "t", Messages: list}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	total := float64(b.N * groups)
	b.ReportMetric(total/time.Since(start).Seconds(), "deliveries/s")
	b.ReportMetric(float64((cpu()-before).Nanoseconds())/total, "cpu-ns/delivery")
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "messages/s")
}

// BenchmarkPublish is publishes of one message of 300 bytes by 64 publishers, each
// answered when it is durable: without more, with a number of its producer, with an id, and with a delay.
func BenchmarkPublish(b *testing.B) {
	var n atomic.Int64
	for name, request := range map[string]func(r *topicv1.PublishRequest){
		"plain": func(*topicv1.PublishRequest) {},
		"number": func(r *topicv1.PublishRequest) {
			r.Producer = &topicv1.Producer{Id: fmt.Sprint("p", n.Add(1)), Number: 1}
		},
		"id":    func(r *topicv1.PublishRequest) { r.Messages[0].DeduplicationId = fmt.Sprint(n.Add(1)) },
		"delay": func(r *topicv1.PublishRequest) { r.Messages[0].Delay = durationpb.New(100 * time.Millisecond) },
	} {
		b.Run(name, func(b *testing.B) { benchPublish(b, request) })
	}
}

func benchPublish(b *testing.B, change func(*topicv1.PublishRequest)) {
	s := benchService(b)
	if _, err := s.Configure(b.Context(), op, &topicv1.ConfigureTopicRequest{Topic: "t"}); err != nil {
		b.Fatal(err)
	}
	payload := make([]byte, 300)
	b.SetParallelism(32)
	before := cpu()
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			r := &topicv1.PublishRequest{Topic: "t", Messages: []*topicv1.TopicMessage{{Payload: payload}}}
			change(r)
			if _, err := s.Publish(context.Background(), op, r); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N), "cpu-ns/publish")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "publishes/s")
}
