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

// BenchmarkBackfill has b.N messages of 300 bytes caught up by a group that acknowledges each
// delivery, as fast as it can.
func BenchmarkBackfill(b *testing.B) {
	s := benchService(b)
	history(b, s, b.N)
	b.ResetTimer()
	start, before := time.Now(), cpu()
	catchUp(b, s, &topicv1.BackfillLimits{Batch: 100_000, MaxRate: 1_000_000, // what was published before slows nothing
		TargetLatency: durationpb.New(time.Hour)})
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "messages/s")
	b.ReportMetric(float64((cpu()-before).Nanoseconds())/float64(b.N), "cpu-ns/message")
}

// BenchmarkLiveBesideBackfill publishes messages, 500 a second, to a group that takes them
// at once, alone and beside a backfill of 2,000,000 messages by each preset, and reports how
// long publishes take, and how fast the backfill was.
func BenchmarkLiveBesideBackfill(b *testing.B) {
	b.Run("alone", func(b *testing.B) { besideBackfill(b, 0) })
	for _, preset := range []topicv1.BackfillPreset{
		topicv1.BackfillPreset_BACKFILL_PRESET_CONSERVATIVE, topicv1.BackfillPreset_BACKFILL_PRESET_BALANCED,
		topicv1.BackfillPreset_BACKFILL_PRESET_AGGRESSIVE,
	} {
		b.Run(preset.String()[16:], func(b *testing.B) { besideBackfill(b, preset) })
	}
}

func besideBackfill(b *testing.B, preset topicv1.BackfillPreset) {
	const messages = 2_000_000
	s := benchService(b)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	history(b, s, messages)
	_, err := s.CreateSubscription(ctx, op, &topicv1.CreateSubscriptionRequest{Topic: "t", Group: "live"})
	if err != nil {
		b.Fatal(err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	consume(ctx, b, s, &all, "live")
	if preset != 0 {
		_, err := s.CreateSubscription(ctx, op, &topicv1.CreateSubscriptionRequest{Topic: "t", Group: "g"})
		if err != nil {
			b.Fatal(err)
		}
		consume(ctx, b, s, &all, "g")
		_, err = s.StartBackfill(ctx, op, &topicv1.StartBackfillRequest{Topic: "t", Group: "g", Preset: preset,
			Scope: topicv1.BackfillScope_BACKFILL_SCOPE_ALL_RETAINED, MaxMessages: -1, Async: true})
		if err != nil {
			b.Fatal(err)
		}
	}
	var took []time.Duration
	due := time.NewTicker(2 * time.Millisecond)
	defer due.Stop()
	start := time.Now()
	for b.Loop() { // not b.N: what is before it is done once
		at := <-due.C
		r := &topicv1.PublishRequest{Topic: "t", Messages: []*topicv1.TopicMessage{{Payload: make([]byte, 300)}}}
		if _, err := s.Publish(ctx, op, r); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(at))
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds()*1000, "p50-ms")
	b.ReportMetric(took[len(took)*95/100].Seconds()*1000, "p95-ms")
	b.ReportMetric(took[len(took)*99/100].Seconds()*1000, "p99-ms")
	if preset != 0 {
		f, err := s.Backfill(ctx, op, "t", "g")
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(f.GetProcessed())/time.Since(start).Seconds(), "backfilled/s")
	}
}

// history makes a topic with n messages of 300 bytes.
func history(b *testing.B, s *Service, n int) {
	b.Helper()
	ctx := b.Context()
	_, err := s.Configure(ctx, op, &topicv1.ConfigureTopicRequest{Topic: "t", Config: &topicv1.TopicConfig{
		Semantics:      topicv1.Semantics_SEMANTICS_PUB_SUB,
		CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK,
	}})
	if err != nil {
		b.Fatal(err)
	}
	payload := make([]byte, 300)
	for n > 0 {
		r := &topicv1.PublishRequest{Topic: "t"}
		for range min(n, 1000) {
			r.Messages = append(r.Messages, &topicv1.TopicMessage{Payload: payload})
		}
		if _, err := s.Publish(ctx, op, r); err != nil {
			b.Fatal(err)
		}
		n -= len(r.GetMessages())
	}
}

// consume runs a member of a group that acknowledges all it gets.
func consume(ctx context.Context, b *testing.B, s *Service, all *sync.WaitGroup, group string) {
	b.Helper()
	in, err := s.Attach(ctx, op, &topicv1.Attach{
		Topic: "t", Group: group, RenewCredits: true, Credits: &topicv1.Credits{Messages: 20_000},
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
				b.Errorf("%s receives no more: %v, %s", group, err, e.Gone)
				return
			}
			set := &topicv1.AckSet{}
			for _, d := range e.Deliveries {
				set.Positions = append(set.Positions, whole(d)...)
			}
			if r, err := in.Ack(ctx, set); ctx.Err() == nil && (err != nil || len(r) > 0) {
				b.Errorf("%s acknowledges: %v, %v", group, r, err)
				return
			}
		}
	})
}

// catchUp has all that is kept caught up by a new group.
func catchUp(b *testing.B, s *Service, limits *topicv1.BackfillLimits) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	_, err := s.CreateSubscription(ctx, op, &topicv1.CreateSubscriptionRequest{Topic: "t", Group: "g"})
	if err != nil {
		b.Fatal(err)
	}
	consume(ctx, b, s, &all, "g")
	_, err = s.StartBackfill(ctx, op, &topicv1.StartBackfillRequest{Topic: "t", Group: "g", Limits: limits,
		Scope: topicv1.BackfillScope_BACKFILL_SCOPE_ALL_RETAINED, MaxMessages: -1, Async: true})
	if err != nil {
		b.Fatal(err)
	}
	for {
		f, err := s.Backfill(ctx, op, "t", "g")
		if err != nil {
			b.Fatal(err)
		}
		if f.GetStatus() == topicv1.BackfillStatus_BACKFILL_STATUS_COMPLETED {
			return
		}
		if b.Failed() || f.GetStatus() != topicv1.BackfillStatus_BACKFILL_STATUS_IN_PROGRESS {
			b.Fatal(f)
		}
		time.Sleep(time.Millisecond)
	}
}
