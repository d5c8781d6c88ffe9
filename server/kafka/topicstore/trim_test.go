package topicstore_test

import (
	"errors"
	"fmt"
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

var first = commitlog.Partition{Topic: number}

// filled is a log with a topic of some publishes, of which the middle one begins at middle.
func filled(t *testing.T, l *topicstore.Log, b *kafkatest.Broker) (middle int64) {
	t.Helper()
	create(t, l, b)
	for n := range int64(6) {
		got, err := l.Append(t.Context(), publish("p", n))
		if err != nil {
			t.Fatal(err)
		}
		if n == 3 {
			middle = got[0].Base
		}
	}
	return middle
}

// begins is where a partition begins, for who has the log and in Kafka.
func begins(t *testing.T, l *topicstore.Log, b *kafkatest.Broker, p commitlog.Partition) (start, there int64) {
	t.Helper()
	start, _, err := l.Bounds(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	name := "parley.t." + b.Name("orders")
	starts, err := kadm.NewClient(b.Client(t)).ListStartOffsets(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	o, _ := starts.Lookup(name, p.Number)
	return start, o.Offset
}

// An owner that sleeps in the middle of a trim while another takes over removes nothing that
// the later one shows: either that one begins where the trim ended, or nothing is removed.
func TestTrimOfASleeper(t *testing.T) { each(t, testTrimOfASleeper) }

func testTrimOfASleeper(t *testing.T, b *kafkatest.Broker) {
	for _, step := range []string{"begin", "state", "end", "start"} {
		t.Run(step, func(t *testing.T) {
			sleeper := fresh(t, b, 3)
			var next *topicstore.Log
			var before int64
			var armed atomic.Bool
			sleeper.AtStep(func(at string) error {
				if at == step && armed.CompareAndSwap(true, false) {
					next = open(t, b, 3, time.Now)
					create(t, next, b)
					before, _ = begins(t, next, b, first)
				}
				return nil
			})
			middle := filled(t, sleeper, b)
			armed.Store(true)
			start, err := sleeper.Trim(t.Context(), first, middle)
			stored := step == "end" || step == "start"
			if stored && (err != nil || start != middle) || !stored && !errors.Is(err, commitlog.ErrFenced) {
				t.Fatalf("the sleeper's trim ends with %d, %v", start, err)
			}
			want := map[bool]int64{true: middle, false: 0}[stored]
			after, there := begins(t, next, b, first)
			if before != want || after != want || there > want {
				t.Errorf("the later owner begins with %d, then with %d, Kafka with %d; not %d", before, after, there, want)
			}
			all := contents(t, next)
			if n := map[bool]int{true: 15, false: 18}[stored]; len(all) != n {
				t.Errorf("%d messages, not %d", len(all), n)
			}
			if _, err := next.Read(t.Context(), first, 0, 1); stored != errors.Is(err, commitlog.ErrTrimmed) {
				t.Errorf("what was trimmed: %v", err)
			}
		})
	}
}

// What Kafka does not remove is gone for all who read, and is removed with a later trim, also
// by the next owner.
func TestRemovalFails(t *testing.T) {
	for _, anew := range []bool{false, true} {
		t.Run(fmt.Sprint("next owner: ", anew), func(t *testing.T) {
			b, c := kafkatest.Fake(t)
			var counters topicstore.Counters
			cfg := config(b, 3, time.Now)
			cfg.Counters = &counters
			l, err := topicstore.Open(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(l.Close)
			middle := filled(t, l, b)
			c.ControlKey(int16(kmsg.DeleteRecords), func(r kmsg.Request) (kmsg.Response, error, bool) {
				res := r.ResponseKind().(*kmsg.DeleteRecordsResponse)
				for _, topic := range r.(*kmsg.DeleteRecordsRequest).Topics {
					rt := kmsg.NewDeleteRecordsResponseTopic()
					rt.Topic = topic.Topic
					for _, p := range topic.Partitions {
						rp := kmsg.NewDeleteRecordsResponseTopicPartition()
						rp.Partition, rp.ErrorCode = p.Partition, kerr.TopicAuthorizationFailed.Code
						rt.Partitions = append(rt.Partitions, rp)
					}
					res.Topics = append(res.Topics, rt)
				}
				return res, nil, true
			})
			if start, err := l.Trim(t.Context(), first, middle); err != nil || start != middle {
				t.Fatal(start, err)
			}
			if n := counters.RemovalsFailed.Load(); n != 1 {
				t.Errorf("%d removals failed", n)
			}
			if anew {
				l = open(t, b, 3, time.Now)
				create(t, l, b)
			}
			if start, there := begins(t, l, b, first); start != middle || there != 0 {
				t.Errorf("it begins with %d, in Kafka with %d", start, there)
			}
			if _, err := l.Read(t.Context(), first, middle-1, 1); !errors.Is(err, commitlog.ErrTrimmed) {
				t.Errorf("what was trimmed: %v", err)
			}
			if at, err := l.PositionAt(t.Context(), first, time.Unix(0, 0)); err != nil || at != middle {
				t.Errorf("the first position is %d, %v", at, err)
			}
			second := commitlog.Partition{Topic: number, Number: 1}
			if _, err := l.Trim(t.Context(), second, middle); err != nil {
				t.Fatal(err)
			}
			for _, p := range []commitlog.Partition{first, second} {
				if start, there := begins(t, l, b, p); start != middle || there != middle {
					t.Errorf("partition %s begins with %d, in Kafka with %d", p, start, there)
				}
			}
			if n := len(contents(t, l)); n != 12 {
				t.Errorf("%d messages", n)
			}
		})
	}
}

// What a log did is counted, and what it waits for is gone in the end.
func TestCounters(t *testing.T) {
	b, _ := kafkatest.Fake(t)
	var counters topicstore.Counters
	cfg := config(b, 3, time.Now)
	cfg.Counters = &counters
	l, err := topicstore.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	filled(t, l, b)
	if n, m := counters.Transactions.Load(), counters.Messages.Load(); n != 7 || m != 18 { // the topic's row, too
		t.Errorf("%d transactions of %d messages", n, m)
	}
	open(t, b, 3, time.Now)
	if _, err := l.Append(t.Context(), publish("p", 9)); !errors.Is(err, commitlog.ErrFenced) {
		t.Fatal(err)
	}
	if n, m, w := counters.Refused.Load(), counters.Ended.Load(), counters.Waiting.Load(); n != 1 || m != 1 || w != 0 {
		t.Errorf("%d refused, %d ended, %d bytes wait", n, m, w)
	}
	if counters.Time.Load() <= 0 {
		t.Error("transactions take no time")
	}
}
