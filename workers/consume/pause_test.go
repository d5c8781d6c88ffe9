package consume

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/eventlog/session"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/storetest"
)

// lines counts occurrences in what is written to it.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

// Fetches that brokers refuse are not repeated in a tight loop: a minute has some thirty
// attempts, and reading resumes when the brokers recover. The engine reports that it is
// stalled then, and while all its records wait, but not when it is idle.
func TestPauseAfterErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &kfake.VirtualNetwork{}
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ListenFn(network.Listen), kfake.SeedTopics(1, topic))
		testkit.Must(t, err)
		defer cluster.Close()
		var sick atomic.Bool
		sick.Store(true)
		cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			if !sick.Load() {
				return nil, nil, false
			}
			res := req.ResponseKind().(*kmsg.FetchResponse)
			for _, rt := range req.(*kmsg.FetchRequest).Topics {
				one := kmsg.NewFetchResponseTopic()
				one.Topic, one.TopicID = rt.Topic, rt.TopicID
				for _, rp := range rt.Partitions {
					part := kmsg.NewFetchResponseTopicPartition()
					part.Partition, part.ErrorCode = rp.Partition, kerr.TopicAuthorizationFailed.Code
					one.Partitions = append(one.Partitions, part)
				}
				res.Topics = append(res.Topics, one)
			}
			return res, nil, true
		})
		log := &lines{}
		var handled atomic.Int64
		var refuse atomic.Bool
		e, err := New(Config{
			Addr: cluster.ListenAddrs()[0], Kafka: []kafka.Option{kgo.Dialer(network.DialContext)}, Group: "g", Consumer: "me",
			Topics: []string{topic},
			Handle: func(context.Context, *kafka.Record) error {
				if refuse.Load() {
					return Fail(Authoritative, "refused", nil)
				}
				handled.Add(1)
				return nil
			},
			WriteDeadLetter: func(context.Context, DeadLetter) error { return nil },
			Store:           storetest.NewMemory(time.Now), Clock: time.Now, Logger: slog.New(slog.NewTextHandler(log, nil)),
		})
		testkit.Must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx, func() {}) }()
		testkit.Advance(10 * time.Second) // the consumer joins
		before := log.count("a poll failed and is retried")
		testkit.Advance(time.Minute)
		if n := log.count("a poll failed and is retried") - before; n < 10 || n > 40 {
			t.Errorf("%d attempts in a minute, expected 10 to 40", n)
		}
		if s := e.Stats(); s.Stalled < time.Minute {
			t.Errorf("stalled for %v after more than a minute of errors, expected at least a minute", s.Stalled)
		}
		sick.Store(false)
		producer, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.Dialer(network.DialContext))
		testkit.Must(t, err)
		defer producer.Close()
		testkit.Must(t, producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr())
		testkit.Advance(15 * time.Second)
		if handled.Load() != 1 {
			t.Errorf("%d records were handled, expected 1", handled.Load())
		}
		testkit.Advance(time.Minute) // without any records
		if s := e.Stats(); s.Stalled > 10*time.Second {
			t.Errorf("stalled for %v while idle, expected up to 10 s", s.Stalled)
		}
		refuse.Store(true)
		testkit.Must(t, producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr())
		testkit.Advance(70 * time.Second)
		if s := e.Stats(); s.Stalled < 55*time.Second || s.Pauses == 0 {
			t.Errorf("%+v after a partition waited for 70 s, expected it as stalled and paused", s)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the engine ended with %v, expected nil", err)
		}
	})
}

// sickLog is a log that cannot be read for a while.
type sickLog struct {
	session.Log
	sick  atomic.Bool
	reads atomic.Int64
}

func (l *sickLog) Read(ctx context.Context, p kafka.Partition, from int64, maxBytes int) ([]*kafka.Record, error) {
	if l.reads.Add(1); l.sick.Load() {
		return nil, errors.New("the disk is broken")
	}
	return l.Log.Read(ctx, p, from, maxBytes)
}

// A log in the store that cannot be read is asked again as seldom as brokers that refuse, the engine
// reports its lag and that it is stalled, and it continues at the same record.
func TestPauseAfterReadErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newStoreCommitFixture(t, deadLetters(3, nil))
		sick := &sickLog{Log: l.log}
		var handled atomic.Int64
		e := l.engine("g", func(context.Context, *kafka.Record) error { handled.Add(1); return nil },
			func(context.Context, DeadLetter) error { return nil })
		e.cfg.Join = func(cfg kafka.SessionConfig) (Session, error) { return session.Join(sick, l.log, cfg), nil }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx, func() {}) }()
		testkit.Advance(10 * time.Second)
		sick.sick.Store(true)
		for _, v := range deadLetters(4, nil) {
			testkit.Must(t, l.log.publish(t.Context(), &kafka.Record{Topic: topic, Value: []byte(v)}))
		}
		testkit.Advance(10 * time.Second)
		before := sick.reads.Load()
		testkit.Advance(time.Minute)
		if n := sick.reads.Load() - before; n < 10 || n > 40 {
			t.Errorf("%d attempts in a minute, expected 10 to 40", n)
		}
		if s := e.Stats(); s.Stalled < time.Minute || s.Lag != 4 || s.Oldest < time.Minute {
			t.Errorf("%+v after more than a minute of errors, expected it as stalled, with a lag of 4", s)
		}
		sick.sick.Store(false)
		testkit.Advance(10 * time.Second)
		if s := e.Stats(); handled.Load() != 7 || s.Stalled > 10*time.Second || l.committed("g") != 7 || s.Lag != 0 {
			t.Errorf("%d records are handled, committed is %d, %+v; expected 7 and no lag", handled.Load(), l.committed("g"), s)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the engine ended with %v, expected nil", err)
		}
	})
}
