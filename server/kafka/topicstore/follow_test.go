package topicstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/store"
)

// Who follows hears of what a producer of Kafka writes also when somebody has seen before that
// the partition is longer.
func TestFollowAfterARefresh(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	l := open(t, b, 0, time.Now)
	shared := commitlog.Topic{Number: 1, Name: "shared", Partitions: 1, Shared: true}
	if err := l.Create(t.Context(), shared); err != nil {
		t.Fatal(err)
	}
	p := commitlog.Partition{Topic: 1}
	if _, _, err := l.Bounds(t.Context(), p); err != nil { // it is in use
		t.Fatal(err)
	}
	c := b.Client(t)
	for n := range int64(5) {
		r := &kgo.Record{Topic: record.Name("shared"), Value: []byte("x")}
		if err := c.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if _, _, err := l.Bounds(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		err := l.Follow(ctx, func(_ commitlog.Partition, end int64) {
			if end == n+1 {
				stop()
			}
		})
		if err != nil || ctx.Err() != context.Canceled {
			t.Fatalf("record %d is not reported: %v, %v", n, err, ctx.Err())
		}
		stop()
	}
}

// A topic that was just made is not known to all brokers at once: its partitions are tried
// again, and an append is not refused as one to a partition that does not exist.
func TestBrokersThatDoNotKnowYet(t *testing.T) {
	b, c := kafkatest.Fake(t)
	l := open(t, b, 0, time.Now)
	create(t, l, b)
	unknown := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.UnknownTopicOrPartition, Count: 3})
	if _, err := l.Append(t.Context(), publish("p", 1)); err != nil || unknown.Hits() != 3 {
		t.Errorf("%d answers, then %v", unknown.Hits(), err)
	}
	unknown.Remove()
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Err: kerr.UnknownTopicOrPartition, Count: -1})
	p := commitlog.Partition{Topic: number, Number: 9}
	unavailable := func(err error) {
		t.Helper()
		if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, commitlog.ErrInvalid) {
			t.Errorf("a partition that no broker knows: %v", err)
		}
	}
	_, _, err := l.Bounds(t.Context(), p)
	unavailable(err)
	p.Number = 0 // which was read already
	_, _, err = l.Bounds(t.Context(), p)
	unavailable(err)
	_, err = l.PositionAt(t.Context(), p, time.Unix(0, 0))
	unavailable(err)
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Err: kerr.UnknownTopicOrPartition, Count: -1})
	_, err = l.Read(t.Context(), p, 0, 1<<20)
	unavailable(err)
}
