package relay

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
)

// stage is a store in memory, a broker on disk, and a relay from one to the other:
// what it costs is the relay and the log, not the commits.
type stage struct {
	b      *testing.B
	broker *kafka.Broker
	chats  *chat.Service
	relay  *Relay
	ids    []string

	mu      sync.Mutex
	commits []chat.Commit
}

func newStage(b *testing.B, chats int) *stage {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	s := &stage{b: b}
	st := storetest.NewMap(time.Now)
	var err error
	s.broker, err = kafka.OpenBroker(kafka.BrokerConfig{Dir: b.TempDir(), Listen: "127.0.0.1:0"})
	must(err)
	b.Cleanup(s.broker.Close)
	client, err := kafka.NewTransactional(s.broker.Addr(), "bench")
	must(err)
	b.Cleanup(client.Close)
	ids, err := registry.New(st).Events(b.Context())
	must(err)
	serde, err := event.NewSerde(ids, nil)
	must(err)
	s.chats, err = chat.New(b.Context(), chat.Config{Store: st, Clock: time.Now, Generation: "g", Producer: "p", Committed: func(c chat.Commit) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.commits = append(s.commits, c)
	}})
	must(err)
	must(s.chats.EnsureUser(b.Context(), "alice"))
	must(s.chats.EnsureUser(b.Context(), "bob"))
	s.relay, err = New(Config{
		Store: st, Serde: serde, Clock: time.Now, Logger: discard, Stable: s.broker.Stable,
		Publish: func(ctx context.Context, records []*kafka.Record) error { return kafka.Transact(ctx, client, records) },
	})
	must(err)
	for range chats {
		c, err := s.chats.CreateGroup(b.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		must(err)
		s.ids = append(s.ids, c.ChatID)
	}
	must(s.relay.Cycle(b.Context()))
	s.commits = nil
	return s
}

var text = string(slices.Repeat([]byte("x"), 128))

func (s *stage) send(n int) {
	s.b.Helper()
	for i := range n {
		if _, err := s.chats.Send(s.b.Context(), chat.Send{Caller: "alice", ChatID: s.ids[i%len(s.ids)], Content: text}); err != nil {
			s.b.Fatal(err)
		}
	}
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// What waits in the outbox, published by a sweep.
func BenchmarkBacklog(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newStage(b, 256)
			var took, used time.Duration
			for range b.N {
				b.StopTimer()
				s.send(n)
				s.relay.swept = time.Time{}
				b.StartTimer()
				start, before := time.Now(), cpu(b)
				if err := s.relay.sweep(b.Context()); err != nil {
					b.Fatal(err)
				}
				took, used = took+time.Since(start), used+cpu(b)-before
				if err := s.relay.settle(b.Context(), true); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n*b.N)/took.Seconds(), "events/s")
			b.ReportMetric(float64(used.Microseconds())/float64(n*b.N), "cpu-µs/event")
		})
	}
}

// Nudges as fast as they can be taken, without a backlog; b.N events.
func BenchmarkNudged(b *testing.B) {
	s := newStage(b, 256)
	s.send(b.N)
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	s.relay.swept = time.Now().Add(time.Hour)
	before := s.relay.Stats().Published
	start := cpu(b)
	b.ResetTimer()
	done := make(chan error, 1)
	go func() { done <- s.relay.Run(ctx) }()
	for _, c := range s.commits {
		for len(s.relay.nudges) == cap(s.relay.nudges) {
			time.Sleep(100 * time.Microsecond)
		}
		s.relay.Nudge(c)
	}
	for s.relay.Stats().Published-before < int64(b.N) {
		time.Sleep(100 * time.Microsecond)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((cpu(b)-start).Microseconds())/float64(b.N), "cpu-µs/event")
	stop()
	<-done
}

// From a commit to a reader of committed records, at 500 sends a second.
func BenchmarkVisible(b *testing.B) {
	s := newStage(b, 64)
	reader, err := kafka.NewReader(s.broker.Addr(), kafka.MessagesPersisted)
	if err != nil {
		b.Fatal(err)
	}
	defer reader.Close()
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- s.relay.Run(ctx) }()
	sent := map[string]time.Time{}
	var mu sync.Mutex
	var took []time.Duration
	seen := make(chan struct{})
	go func() {
		defer close(seen)
		for len(took) < b.N && ctx.Err() == nil {
			reader.PollFetches(ctx).EachRecord(func(r *kafka.Record) {
				now := time.Now()
				mu.Lock()
				defer mu.Unlock()
				for _, h := range r.Headers {
					if at, ok := sent[string(h.Value)]; ok && h.Key == "event_id" {
						took = append(took, now.Sub(at))
					}
				}
			})
		}
	}()
	b.ResetTimer()
	next := time.Now()
	for i := range b.N {
		s.send(1)
		c := s.commits[i]
		mu.Lock()
		sent[c.Events[0].GetMetadata().GetEventId()] = time.Now()
		mu.Unlock()
		s.relay.Nudge(c)
		next = next.Add(2 * time.Millisecond)
		time.Sleep(time.Until(next))
	}
	<-seen
	b.StopTimer()
	stop()
	<-done
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
