package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
)

// benchFixture is a store in memory, a broker, and a relay from one to the other. It measures the
// relay and the log, not the commits.
type benchFixture struct {
	b      *testing.B
	broker *kafkatest.Broker
	chats  *chat.Service
	relay  *Relay
	ids    []string

	mu      sync.Mutex
	commits []chat.Commit
}

// each runs a benchmark on each kind of broker.
func each(b *testing.B, bench func(b *testing.B, br *kafkatest.Broker)) {
	b.Helper()
	b.Run("process", func(b *testing.B) { bench(b, kafkatest.InProcess(b)) })
	b.Run("apache", func(b *testing.B) { bench(b, kafkatest.Apache(b)) })
}

func newBenchFixture(b *testing.B, br *kafkatest.Broker, chats int) *benchFixture {
	b.Helper()
	s := &benchFixture{b: b, broker: br}
	st := storetest.NewMemory(time.Now)
	client, err := kafka.NewTransactional(br.Addr, br.Name("bench"))
	testkit.Must(b, err)
	b.Cleanup(client.Close)
	ids, err := registry.New(st).Events(b.Context())
	testkit.Must(b, err)
	serde, err := event.NewSerde(ids, nil)
	testkit.Must(b, err)
	s.chats, err = chat.New(b.Context(),
		chat.Config{Store: st, Clock: time.Now, Generation: "g", Producer: "p", Committed: func(c chat.Commit) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.commits = append(s.commits, c)
		}})
	testkit.Must(b, err)
	testkit.Must(b, s.chats.EnsureUser(b.Context(), "alice"))
	testkit.Must(b, s.chats.EnsureUser(b.Context(), "bob"))
	cfg := Config{
		Store: st, Serde: serde, Clock: time.Now, Logger: discard,
		Publish: Flatten(func(ctx context.Context, records []*kafka.Record) error {
			return kafka.Transact(ctx, client, records)
		}),
	}
	s.relay, err = New(cfg)
	testkit.Must(b, err)
	for range chats {
		c, err := s.chats.CreateGroup(b.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
		testkit.Must(b, err)
		s.ids = append(s.ids, c.ChatID)
	}
	for tries := 1; ; tries++ { // a busy cluster may refuse a first transaction of many partitions
		if err := s.relay.Cycle(b.Context()); err == nil {
			break
		} else if tries == 10 {
			b.Fatal(err)
		}
		s.relay.lastSweep = time.Time{}
	}
	s.commits = nil
	return s
}

var text = string(slices.Repeat([]byte("x"), 128))

func (s *benchFixture) send(n int) {
	s.b.Helper()
	for i := range n {
		if _, err := s.chats.Send(s.b.Context(),
			chat.Send{Caller: "alice", ChatID: s.ids[i%len(s.ids)], Content: text}); err != nil {
			s.b.Fatal(err)
		}
	}
}

// waiting returns the number of events of nudges that are not published.
func (r *Relay) waiting() int {
	r.inbox.mu.Lock()
	defer r.inbox.mu.Unlock()
	return r.inbox.events
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	testkit.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A sweep publishes a backlog.
func BenchmarkBacklog(b *testing.B) {
	each(b, func(b *testing.B, br *kafkatest.Broker) {
		for _, n := range []int{1_000, 100_000} {
			b.Run(fmt.Sprint(n), func(b *testing.B) { benchBacklog(b, br, n) })
		}
	})
}

func benchBacklog(b *testing.B, br *kafkatest.Broker, n int) {
	s := newBenchFixture(b, br, 256)
	var took, used time.Duration
	for range b.N {
		b.StopTimer()
		s.send(n)
		s.relay.lastSweep = time.Time{}
		b.StartTimer()
		start, before := time.Now(), cpu(b)
		for s.relay.sweep(b.Context()) != nil { // as Run does
		}
		took, used = took+time.Since(start), used+cpu(b)-before
		testkit.Must(b, s.relay.deletePublished(b.Context(), true))
	}
	b.ReportMetric(float64(n*b.N)/took.Seconds(), "events/s")
	b.ReportMetric(float64(used.Microseconds())/float64(n*b.N), "cpu-µs/event")
}

// Nudges as fast as the relay accepts them, without a backlog; b.N events.
func BenchmarkNudged(b *testing.B) { each(b, benchNudged) }

func benchNudged(b *testing.B, br *kafkatest.Broker) {
	s := newBenchFixture(b, br, 256)
	s.send(b.N)
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	s.relay.lastSweep = time.Now().Add(time.Hour)
	before := s.relay.Stats().Published
	start := cpu(b)
	b.ResetTimer()
	done := make(chan error, 1)
	go func() { done <- s.relay.Run(ctx) }()
	for _, c := range s.commits {
		for s.relay.waiting() >= 4000 { // the inbox is nearly full
			time.Sleep(100 * time.Microsecond) // the load yields to the relay
		}
		s.relay.Nudge(c)
	}
	for s.relay.Stats().Published-before < int64(b.N) {
		time.Sleep(100 * time.Microsecond) // finer than a condition of a test: it is in the figure
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((cpu(b)-start).Microseconds())/float64(b.N), "cpu-µs/event")
	stop()
	<-done
}

// From a commit to a reader of committed records, at 500 sends a second.
func BenchmarkVisible(b *testing.B) { each(b, benchVisible) }

func benchVisible(b *testing.B, br *kafkatest.Broker) {
	from := br.Mark(b, kafka.MessagesPersisted)
	s := newBenchFixture(b, br, 64)
	reader := br.Client(b, kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
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
		time.Sleep(time.Until(next)) // the rate of the load, in real time
	}
	<-seen
	b.StopTimer()
	stop()
	<-done
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// The events of 100 rows, read and made into records; no broker is asked.
func BenchmarkLoad(b *testing.B) {
	serde, err := newSerde()
	testkit.Must(b, err)
	st := storetest.NewMemory(time.Now)
	chats, err := chat.New(b.Context(), chat.Config{Store: st, Clock: time.Now, Generation: "g", Producer: "p"})
	testkit.Must(b, err)
	testkit.Must(b, errors.Join(chats.EnsureUser(b.Context(), "alice"), chats.EnsureUser(b.Context(), "bob")))
	c, err := chats.CreateGroup(b.Context(), chat.CreateGroup{Caller: "alice", Name: "g", Members: []string{"bob"}})
	testkit.Must(b, err)
	for range 100 {
		if _, err := chats.Send(b.Context(), chat.Send{Caller: "alice", ChatID: c.ChatID, Content: text}); err != nil {
			b.Fatal(err)
		}
	}
	re, err := New(Config{Store: st, Serde: serde, Clock: time.Now, Logger: discard,
		Publish: Flatten(func(context.Context, []*kafka.Record) error { return nil })})
	testkit.Must(b, err)
	rows, err := re.rows(b.Context(), c.ChatID)
	if err != nil || len(rows.list) != 102 {
		b.Fatal(len(rows.list), err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := re.load(b.Context(), rows.list); err != nil {
			b.Fatal(err)
		}
	}
}
