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

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store/storetest"
)

// lines counts what is written to it.
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

// Brokers that refuse every fetch are not asked in a loop: a minute of it is some
// thirty attempts, and what there is is read when they are well again. The engine says
// that it stands still, then and while all that there is waits, and not when it is idle.
func TestPauseAfterErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := &kfake.VirtualNetwork{}
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ListenFn(network.Listen), kfake.SeedTopics(1, topic))
		if err != nil {
			t.Fatal(err)
		}
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
			Addr: cluster.ListenAddrs()[0], Kafka: []kafka.Option{kgo.Dialer(network.DialContext)}, Group: "g", Consumer: "me", Topics: []string{topic},
			Handle: func(context.Context, *kafka.Record) error {
				if refuse.Load() {
					return Fail(Authoritative, "refused", nil)
				}
				handled.Add(1)
				return nil
			},
			WriteDeadLetter: func(context.Context, DeadLetter) error { return nil },
			Store:           storetest.NewMap(time.Now), Clock: time.Now, Logger: slog.New(slog.NewTextHandler(log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		time.Sleep(10 * time.Second) // to join
		before := log.count("a poll failed and is retried")
		time.Sleep(time.Minute)
		if n := log.count("a poll failed and is retried") - before; n < 10 || n > 40 {
			t.Errorf("%d attempts in a minute", n)
		}
		if s := e.Stats(); s.Stalled < time.Minute {
			t.Errorf("stalled for %v after more than a minute of errors", s.Stalled)
		}
		sick.Store(false)
		producer, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.Dialer(network.DialContext))
		if err != nil {
			t.Fatal(err)
		}
		defer producer.Close()
		if err := producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Second)
		if handled.Load() != 1 {
			t.Errorf("%d records were handled", handled.Load())
		}
		time.Sleep(time.Minute) // there is nothing to do
		if s := e.Stats(); s.Stalled > 10*time.Second {
			t.Errorf("stalled for %v, and well", s.Stalled)
		}
		refuse.Store(true)
		if err := producer.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(70 * time.Second)
		if s := e.Stats(); s.Stalled < 55*time.Second || s.Pauses == 0 {
			t.Errorf("%+v: a partition has waited for more than a minute", s)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
