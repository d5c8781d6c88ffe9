package topicstore_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/kafka/topicstore"
	"github.com/parley-chat/parley/server/store"
)

// Logs of another engine stand in Kafka at the positions that they had there, with what does not exist between
// them, also if a part was written before. They are carried out of it as they came, from any position on, and
// the slot's owner continues them.
func TestCarry(t *testing.T) {
	each(t, func(t *testing.T, b *kafkatest.Broker) {
		const slot = 5
		fresh(t, b, slot).Close()
		list := carriedRecords(t)
		write := func(list []store.Record) {
			t.Helper()
			c := testkit.Value(topicstore.NewCarrier(t.Context(), config(b, slot, time.Now)))(t)
			defer c.Close()
			testkit.Must(t, c.Create(t.Context(), carriedTopic(b)))
			for _, r := range list {
				x := testkit.Value(commitlog.ParseCarried(r.Key, r.Value))(t)
				switch {
				case x.Batch != nil:
					testkit.Must(t, c.Append(t.Context(), x.Partition, x.Batch))
				case x.Published != nil:
					testkit.Must(t, c.Published(t.Context(), x.Partition, *x.Published))
				default:
					testkit.Must(t, c.Start(t.Context(), x.Partition, x.Start))
				}
			}
		}
		write(list[:4])
		write(list)
		want := facts(t, list)
		read := func(after []byte) (got []store.Record) {
			t.Helper()
			err := topicstore.Carried(t.Context(), config(b, 0, time.Now), after, func(key, value []byte) bool {
				x := testkit.Value(commitlog.ParseCarried(key, value))(t)
				if x.Partition.Topic == carriedNumber { // others are of other tests
					got = append(got, store.Record{Key: key, Value: value})
				}
				return true
			})
			testkit.Must(t, err)
			return got
		}
		got := read(nil)
		if f := facts(t, got); !maps.Equal(f, want) {
			t.Errorf("%d facts, %d were written", len(f), len(want))
		}
		for i := range got { // the export was cut off there
			rest := read(got[i].Key)
			testkit.Equal(t, fmt.Sprint("records behind ", i), len(rest), len(got)-i-1)
			for n, r := range rest {
				if string(r.Key) != string(got[i+1+n].Key) || string(r.Value) != string(got[i+1+n].Value) {
					t.Errorf("behind %d: record %d differs", i, n)
				}
			}
		}
		l := open(t, b, slot, time.Now)
		testkit.Must(t, l.Create(t.Context(), carriedTopic(b)))
		p := commitlog.Partition{Topic: carriedNumber}
		start, end, err := l.Bounds(t.Context(), p)
		testkit.Must(t, err)
		testkit.Equal(t, "start and end", [2]int64{start, end}, [2]int64{12, 24})
		if _, err := l.Read(t.Context(), p, 11, 1<<20); !errors.Is(err, commitlog.ErrTrimmed) {
			t.Errorf("what was trimmed before: %v", err)
		}
		again := commitlog.Append{Partition: p, Producer: commitlog.Producer{ID: "p", Number: 4},
			Messages: []*commitlog.Message{{}, {}}}
		if a := testkit.Value(l.Append(t.Context(), []commitlog.Append{again}))(t); !a[0].Replayed || a[0].Base != 22 {
			t.Errorf("a number that was carried: %+v", a[0])
		}
		again.Producer.Number = 5
		if a := testkit.Value(l.Append(t.Context(), []commitlog.Append{again}))(t); a[0].Replayed || a[0].Base < 24 {
			t.Errorf("a new number: %+v", a[0])
		}
	})
}

// carriedNumber is of a topic that no other test has in any slot.
const carriedNumber = number + 1000

func carriedTopic(b *kafkatest.Broker) commitlog.Topic {
	topic := orders(b)
	topic.Number, topic.Name = carriedNumber, topic.Name+"-carried"
	return topic
}

// carriedRecords are two partitions: one from position 12 on, with positions that do not exist, and one of
// which everything was trimmed.
func carriedRecords(t *testing.T) (list []store.Record) {
	t.Helper()
	p, at := commitlog.Partition{Topic: carriedNumber}, time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	list = append(list, commitlog.CarriedStart(p, 12))
	next := int64(12)
	for n, gap := range []int64{0, 0, 3, 1} {
		at = at.Add(time.Second)
		b := testkit.Value(commitlog.NewBatch(next+gap, at, []*commitlog.Message{
			{Key: "k", Type: "t", CorrelationId: "c", Headers: map[string]string{"h": "v"}, Payload: fmt.Append(nil, n)}, {},
		}))(t)
		b.Gap = gap
		if n == 2 {
			b.Producer = commitlog.Redriven("g", "letter")
		}
		list, next = append(list, commitlog.CarriedBatch(p, b)), b.End()
	}
	list = append(list, commitlog.CarriedPublished(p, commitlog.Published{Producer: "p", Slot: 0,
		Published: producers.Published{Number: 4, Base: 22, Time: at.UnixMilli(), Count: 2}}))
	return append(list, commitlog.CarriedStart(commitlog.Partition{Topic: carriedNumber, Number: 3}, 40))
}

func facts(t *testing.T, list []store.Record) map[string]int {
	t.Helper()
	m := map[string]int{}
	for _, r := range list {
		testkit.Must(t, commitlog.Facts(r.Key, r.Value, func(f []byte) { m[string(f)]++ }))
	}
	return m
}
