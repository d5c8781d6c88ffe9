package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

// What this package promises of brokers, on each kind of them. What only the embedded
// one has (its files, its guard) is tested beside it.

const patience = time.Minute

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// place is the topic and the partition of these tests.
const place = kafka.ChatsCreated

func record(key, value string) *kafka.Record {
	return &kafka.Record{Topic: place, Partition: 3, Key: []byte(key), Value: []byte(value)}
}

func records(key string, values ...string) (list []*kafka.Record) {
	for _, v := range values {
		list = append(list, record(key, v))
	}
	return list
}

func transactional(t *testing.T, b *kafkatest.Broker, id string) *kafka.Client {
	t.Helper()
	c, err := kafka.NewTransactional(b.Addr, id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func transact(t *testing.T, c *kafka.Client, list ...*kafka.Record) {
	t.Helper()
	if err := kafka.Transact(bounded(t), c, list); err != nil {
		t.Fatal(err)
	}
}

// open begins a transaction and leaves it so.
func open(t *testing.T, c *kafka.Client, list ...*kafka.Record) {
	t.Helper()
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := c.ProduceSync(bounded(t), list...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// until reads the values of a key up to one of them.
func until(t *testing.T, b *kafkatest.Broker, from kafkatest.Mark, key, last string) (values []string) {
	t.Helper()
	b.Read(t, from, func(r *kafka.Record) bool {
		if string(r.Key) != key {
			return false
		}
		values = append(values, string(r.Value))
		return string(r.Value) == last
	})
	return values
}

// A producer that comes later with the same id takes over: the transaction that the
// earlier left open is aborted at once, and nothing that the earlier does afterwards is
// committed, neither the end of that transaction nor another (K-073).
func TestFrozenProducerIsFenced(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		from, id, key := b.Mark(t, place), b.Name("slot"), b.Name("chat")
		early := transactional(t, b, id)
		transact(t, early, record(key, "1"))
		open(t, early, records(key, "frozen 2", "frozen 3")...)

		late := transactional(t, b, id)
		transact(t, late, records(key, "2", "3")...)

		// It thaws, and resumes where it stopped.
		if err := early.EndTransaction(bounded(t), kgo.TryCommit); err == nil {
			t.Error("the earlier one committed")
		}
		for range 2 {
			if err := kafka.Transact(bounded(t), early, records(key, "after")); !errors.Is(err, kafka.ErrFenced) {
				t.Errorf("the earlier one continues: %v", err)
			}
		}
		transact(t, late, record(key, "end"))
		if got := until(t, b, from, key, "end"); !slices.Equal(got, []string{"1", "2", "3", "end"}) {
			t.Errorf("read %q", got)
		}
	})
}

// A transaction that nobody ends is ended by the broker when its time is over, and
// holds other producers' records of its partitions back no longer. That time is 10 s,
// and Apache looks for such transactions every 10 s. Readers see none of it (EV12).
func TestAbandonedTransactionEnds(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		t.Parallel()
		from, key := b.Mark(t, place), b.Name("chat")
		dead := transactional(t, b, b.Name("dead"))
		open(t, dead, record(key, "given up"))
		list, err := kadm.NewClient(b.Client(t)).DescribeTransactions(bounded(t), b.Name("dead"))
		if err != nil {
			t.Fatal(err)
		}
		if d, err := list.On(b.Name("dead"), nil); err != nil || d.State != "Ongoing" || d.TimeoutMillis != 10_000 {
			t.Fatalf("%+v %v", d, err)
		}
		// The broker has the time of the relay's transactions. A transaction with a shorter one shows that it keeps to it.
		if err := dead.EndTransaction(bounded(t), kgo.TryAbort); err != nil {
			t.Fatal(err)
		}
		hasty, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(b.Addr, ",")...), kgo.TransactionalID(b.Name("hasty")),
			kgo.TransactionTimeout(2*time.Second), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(hasty.Close)
		open(t, hasty, record(key, "abandoned"))
		other := transactional(t, b, b.Name("other"))
		transact(t, other, record(key, "behind it"))
		if got := until(t, b, from, key, "behind it"); !slices.Equal(got, []string{"behind it"}) {
			t.Errorf("read %q", got)
		}
	})
}

// A transaction that is given up leaves nothing, and its client continues (EV16).
func TestAbortedTransactionLeavesNothing(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		from, key := b.Mark(t, place), b.Name("chat")
		c := transactional(t, b, b.Name("slot"))
		for n := range 5 {
			open(t, c, record(key, "given up"))
			if err := c.EndTransaction(bounded(t), kgo.TryAbort); err != nil {
				t.Fatal(err)
			}
			transact(t, c, record(key, fmt.Sprint(n)))
		}
		if got := until(t, b, from, key, "4"); !slices.Equal(got, []string{"0", "1", "2", "3", "4"}) {
			t.Errorf("read %q", got)
		}
	})
}

// What goes in one transaction is read as a whole, and the partition of a record is the
// one that was chosen (K-044, K-069).
func TestTransactionOfManyPartitions(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		from, key := b.Mark(t), b.Name("chat")
		c := transactional(t, b, b.Name("slot"))
		var list []*kafka.Record
		for _, topic := range kafka.Topics() {
			for p := range topic.Partitions {
				list = append(list, &kafka.Record{Topic: topic.Name, Partition: p, Key: []byte(key),
					Value: fmt.Append(nil, topic.Name, "/", p)})
			}
		}
		transact(t, c, list...)
		n := 0
		b.Read(t, from, func(r *kafka.Record) bool {
			if string(r.Key) != key {
				return false
			}
			if want := fmt.Sprint(r.Topic, "/", r.Partition); string(r.Value) != want {
				t.Errorf("%q is in %s", r.Value, want)
			}
			n++
			return n == len(list)
		})
	})
}

// K-024, K-027: another group reads all of a topic from its first record on, without
// moving what fanout's group has committed.
func TestGroupsAreIndependent(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		key := b.Name("chat")
		var values []string
		var list []*kafka.Record
		for n := range 100 {
			values = append(values, fmt.Sprint(n))
			list = append(list, &kafka.Record{Topic: kafka.MessagesPersisted, Partition: 7, Key: []byte(key),
				Value: fmt.Append(nil, n)})
		}
		transact(t, transactional(t, b, b.Name("slot")), list...)
		// readAs reads as the only member of a group until it has met n of the records.
		readAs := func(group string, n int) (got []string) {
			t.Helper()
			s, err := kafka.NewSession(kafka.SessionConfig{
				Addr: b.Addr, Group: group, Topics: []string{kafka.MessagesPersisted}, Assigned: func([]kafka.Partition) {},
				Gone: func([]kafka.Partition, bool) {},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ctx := bounded(t)
			for len(got) < n {
				batches, err := s.Poll(ctx)
				if err != nil || ctx.Err() != nil {
					t.Fatalf("%s has read %d of %d: %v", group, len(got), n, err)
				}
				next := map[kafka.Partition]int64{}
				for p, batch := range batches {
					for _, r := range batch.Records {
						if string(r.Key) == key && len(got) == n {
							break
						}
						if string(r.Key) == key {
							got = append(got, string(r.Value))
						}
						next[p] = r.Offset + 1
					}
				}
				if err := s.Commit(ctx, next); err != nil {
					t.Fatal(err)
				}
				s.Done()
			}
			return got
		}
		committed := func(group string) string {
			t.Helper()
			offsets, err := kadm.NewClient(b.Client(t)).FetchOffsets(bounded(t), group)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, o := range offsets.Sorted() {
				lines = append(lines, fmt.Sprint(o.Topic, "/", o.Partition, "=", o.At))
			}
			return strings.Join(lines, " ")
		}
		fanout, search := b.Name("fanout"), b.Name("search")
		if got := readAs(fanout, 40); !slices.Equal(got, values[:40]) {
			t.Fatalf("fanout read %q", got)
		}
		before := committed(fanout)
		if got := readAs(search, 100); !slices.Equal(got, values) {
			t.Fatalf("search read %q", got)
		}
		if after := committed(fanout); after != before || before == "" {
			t.Fatalf("fanout's offsets were %s and are %s", before, after)
		}
		// And it continues from there (K-104).
		if got := readAs(fanout, 60); !slices.Equal(got, values[40:]) {
			t.Fatalf("fanout read on with %q", got)
		}
	})
}

// A topic that is not declared is not made by writing to it (K-032).
func TestUnknownTopicIsNotMade(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		topic := b.Name("nobody.declared")
		c := b.Client(t, kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(0), kgo.RecordDeliveryTimeout(5*time.Second))
		if err := c.ProduceSync(bounded(t), &kafka.Record{Topic: topic, Value: []byte("x")}).FirstErr(); err == nil {
			t.Error("the record was taken")
		}
		topics, err := kadm.NewClient(c).ListTopics(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		if topics.Has(topic) {
			t.Error("the topic was made")
		}
	})
}

// The largest event is taken as it is, and so is its dead letter (K-028).
func TestLargestEventIsTaken(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		from, key := b.Mark(t, place, kafka.DeadLetters), b.Name("chat")
		noise := make([]byte, (256<<10)*4/3+60<<10) // does not compress
		seed := uint32(1)
		for i := range noise {
			seed = seed*1664525 + 1013904223
			noise[i] = byte(seed >> 24)
		}
		transact(t, transactional(t, b, b.Name("slot")),
			&kafka.Record{Topic: place, Key: []byte(key), Value: noise[:256<<10],
				Headers: []kafka.Header{{Key: "event_id", Value: []byte(key)}}})
		p, err := kafka.NewProducer(b.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		if err := kafka.Publish(bounded(t),
			p, &kafka.Record{Topic: kafka.DeadLetters, Key: []byte(key), Value: noise}); err != nil {
			t.Fatal(err)
		}
		sizes := map[string]int{}
		b.Read(t, from, func(r *kafka.Record) bool {
			if string(r.Key) == key {
				sizes[r.Topic] = len(r.Value)
			}
			return len(sizes) == 2
		})
		if sizes[place] != 256<<10 || sizes[kafka.DeadLetters] != len(noise) {
			t.Errorf("read %v", sizes)
		}
	})
}
