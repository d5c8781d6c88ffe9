package topicstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topicstore"
)

// Appends that come while a transaction is under way go together into the next.
func TestAppendsShareTransactions(t *testing.T) {
	b, c := kafkatest.Fake(t)
	l := open(t, b, 3, time.Now)
	create(t, l, b)
	var ends atomic.Int64
	c.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		ends.Add(1)
		return nil, nil, false
	})
	const publishers, each = 40, 5
	var wg sync.WaitGroup
	for n := range publishers {
		wg.Go(func() {
			for i := range each {
				if _, err := l.Append(t.Context(), publish(fmt.Sprint("p", n), int64(i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := len(contents(t, l)); got != publishers*each*3 {
		t.Errorf("%d messages", got)
	}
	if n := ends.Load(); n > publishers*each/2 {
		t.Errorf("%d transactions for %d appends", n, publishers*each)
	}
}

// Brokers that refuse one partition fail the publishes to it and no others.
func TestPartitionThatRefuses(t *testing.T) {
	b, c := kafkatest.Fake(t)
	l := open(t, b, 4, time.Now) // whose state is not in partition 3
	var together sync.WaitGroup
	var first atomic.Bool
	release := make(chan struct{})
	l.AtStep(func(step string) error {
		if step == "begin" && first.CompareAndSwap(true, false) {
			<-release
		}
		return nil
	})
	create(t, l, b)
	c.ControlKey(int16(kmsg.Produce), refuse(c.KeepControl))
	first.Store(true)
	topics, err := kadm.NewClient(b.Client(t)).Metadata(t.Context(), "parley.t."+b.Name("orders"))
	if err != nil {
		t.Fatal(err)
	}
	var parts []int32 // with other leaders, whose answers come alone
	for _, p := range topics.Topics["parley.t."+b.Name("orders")].Partitions.Sorted() {
		if p.Leader != topics.Topics["parley.t."+b.Name("orders")].Partitions[refusing].Leader {
			parts = append(parts, p.Partition)
		}
	}
	results := make(map[int32]error)
	var mu sync.Mutex
	for _, part := range append(parts, refusing) {
		together.Go(func() {
			a := commitlog.Append{Partition: commitlog.Partition{Topic: number, Number: part},
				Messages: []*commitlog.Message{{Payload: fmt.Append(nil, part)}}}
			_, err := l.Append(t.Context(), []commitlog.Append{a})
			mu.Lock()
			defer mu.Unlock()
			results[part] = err
		})
	}
	time.AfterFunc(100*time.Millisecond, func() { close(release) }) // real: so that they come together
	together.Wait()
	all := contents(t, l)
	for part, err := range results {
		if stored := all[fmt.Sprint(part)] == 1; stored != (err == nil) || stored != (part != refusing) {
			t.Errorf("the publish to partition %d ends with %v; stored: %v", part, err, stored)
		}
	}
	if len(parts) == 0 {
		t.Error("no partition has another leader")
	}
}

// refusing is the partition of topics of which brokers take no records.
const refusing = 3

func refuse(keep func()) func(kmsg.Request) (kmsg.Response, error, bool) {
	return func(r kmsg.Request) (kmsg.Response, error, bool) {
		keep()
		req := r.(*kmsg.ProduceRequest)
		res := req.ResponseKind().(*kmsg.ProduceResponse)
		bad := false
		for _, topic := range req.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, kerr.MessageTooLarge.Code
				bad = bad || p.Partition == refusing
				rt.Partitions = append(rt.Partitions, rp)
			}
			res.Topics = append(res.Topics, rt)
		}
		return res, nil, bad
	}
}

// A topic of Kafka that was removed, or recreated, is not silently begun from 0.
func TestLostTopic(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	l := open(t, b, 3, time.Now)
	create(t, l, b)
	if _, err := l.Append(t.Context(), publish("p", 1)); err != nil {
		t.Fatal(err)
	}
	admin := kadm.NewClient(b.Client(t))
	name := "parley.t." + b.Name("orders")
	if _, err := admin.DeleteTopic(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	topic := commitlog.Topic{Number: number, Name: b.Name("orders"), Partitions: partitions}
	for _, anew := range []bool{false, true} {
		if anew {
			if _, err := admin.CreateTopic(t.Context(), partitions, 1, nil, name); err != nil {
				t.Fatal(err)
			}
		}
		next := open(t, b, 3, time.Now)
		if err := next.Create(t.Context(), topic); !errors.Is(err, commitlog.ErrLost) {
			t.Errorf("recreated: %v: %v", anew, err)
		}
	}
}

// A caller that does not wait until its messages are durable is not forgotten: whoever
// follows hears of them.
func TestCallerThatLeaves(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	l := open(t, b, 3, time.Now)
	reached, release := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	l.AtStep(func(step string) error {
		if step == "state" && armed.CompareAndSwap(true, false) {
			close(reached)
			<-release
		}
		return nil
	})
	create(t, l, b)
	armed.Store(true)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		<-reached
		leave()
	}()
	if _, err := l.Append(ctx, publish("p", 1)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(release)
	heard := map[int32]bool{}
	follow, stop := context.WithCancel(t.Context())
	err := l.Follow(follow, func(p commitlog.Partition, end int64) {
		if end != 1 {
			t.Errorf("partition %s ends with %d", p, end)
		}
		if heard[p.Number] = true; len(heard) == 3 {
			stop()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := l.Append(t.Context(), publish("p", 1)); err != nil || !got[0].Replayed {
		t.Errorf("the repetition is %+v, %v", got, err)
	}
}

// Random publishes, repetitions and takeovers: each number is stored once, whatever happened.
func TestRandomTakeovers(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	rng := rand.New(rand.NewPCG(1, 7))
	steps := []string{"begin", "messages", "state", "end"}
	want := map[string]bool{}
	next := map[string]int64{}
	var l *topicstore.Log
	var kill atomic.Pointer[string]
	for round := range 120 {
		if l == nil {
			l = open(t, b, 5, time.Now)
			l.AtStep(func(at string) error {
				if s := kill.Load(); s != nil && *s == at {
					return errKilled
				}
				return nil
			})
			create(t, l, b)
		}
		producer := fmt.Sprint("p", rng.IntN(3))
		n := max(0, next[producer]-int64(rng.IntN(4)))
		kill.Store(nil)
		if rng.IntN(6) == 0 {
			kill.Store(&steps[rng.IntN(len(steps))])
		}
		list := publish(producer, n)
		if _, err := l.Append(t.Context(), list); err != nil {
			if kill.Load() == nil {
				t.Fatalf("round %d: %v", round, err)
			}
			l = nil
			continue
		}
		next[producer] = max(next[producer], n+1)
		for _, a := range list {
			want[string(a.Messages[0].GetPayload())] = true
		}
	}
	kill.Store(nil)
	l = open(t, b, 5, time.Now)
	create(t, l, b)
	for producer, n := range next { // what was killed may be stored or not
		if _, err := l.Append(t.Context(), publish(producer, n)); err != nil {
			t.Fatal(err)
		}
		for _, a := range publish(producer, n) {
			want[string(a.Messages[0].GetPayload())] = true
		}
	}
	all := contents(t, l)
	for payload, n := range all {
		if n != 1 || !want[payload] {
			t.Errorf("%q stands there %d times", payload, n)
		}
	}
	if len(all) != len(want) {
		t.Errorf("%d messages, not %d", len(all), len(want))
	}
}
