package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// cluster is brokers of their own with the declared topics, whose answers a test can
// spoil.
func cluster(t *testing.T, configs map[string]string) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.BrokerConfigs(configs))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	a, err := NewAdmin(Cluster{Brokers: c.ListenAddrs()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Apply(t.Context(), Replication); err != nil {
		t.Fatal(err)
	}
	return c
}

// A client keeps working after whatever a coordinator or a leader has answered: its next
// transaction, or the one after, is committed. What had failed is there as a whole or
// not at all, and later ones never take it along (EV15).
func TestTransactionsGoOnAfterErrors(t *testing.T) {
	t.Parallel()
	c := cluster(t, nil)
	addr := strings.Join(c.ListenAddrs(), ",")
	for i, fault := range []kfake.Fault{
		{Keys: []kmsg.Key{kmsg.EndTxn}, TopLevel: true, Err: kerr.UnknownServerError},
		{Keys: []kmsg.Key{kmsg.EndTxn}, TopLevel: true, Err: kerr.RequestTimedOut, Count: 2},
		{Keys: []kmsg.Key{kmsg.EndTxn}, TopLevel: true, Err: kerr.NotCoordinator, Count: 2},
		{Keys: []kmsg.Key{kmsg.EndTxn}, TopLevel: true, Err: kerr.ConcurrentTransactions, Count: 2},
		{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: kerr.CoordinatorLoadInProgress, Count: 2},
		{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn}, Err: kerr.UnknownServerError},
		{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotLeaderForPartition, Count: 2},
		{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: 2},
		{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.MessageTooLarge},
		{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.TransactionAbortable},
	} {
		name := fmt.Sprintf("%s on %s", fault.Err.Message, kmsg.NameForKey(int16(fault.Keys[0])))
		t.Run(name, func(t *testing.T) {
			key := fmt.Sprint("chat", i)
			pair := func(v string) []*Record { // over two partitions
				return []*Record{{Topic: ChatsCreated, Partition: 1, Key: []byte(key), Value: []byte(v)},
					{Topic: ChatsCreated, Partition: 2, Key: []byte(key), Value: []byte(v)}}
			}
			producer, err := NewTransactional(addr, key)
			if err != nil {
				t.Fatal(err)
			}
			defer producer.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if fault.Keys[0] != kmsg.InitProducerID {
				if err := Transact(ctx, producer, pair("before")); err != nil {
					t.Fatal(err)
				}
			}
			handle := c.Fault(fault)
			spoiled := Transact(ctx, producer, pair("spoiled"))
			if errors.Is(spoiled, ErrFenced) {
				t.Fatalf("nobody fenced it: %v", spoiled)
			}
			handle.Remove()
			if err := Transact(ctx, producer, pair("after")); err != nil {
				t.Logf("once more: %v", err)
				if err := Transact(ctx, producer, pair("after")); err != nil {
					t.Fatal(err)
				}
			}
			seen := map[int32][]string{}
			if err := scan(ctx, addr, ChatsCreated, func(r *Record) error {
				if string(r.Key) == key {
					seen[r.Partition] = append(seen[r.Partition], string(r.Value))
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(seen[1], seen[2]) || !slices.Contains(seen[1], "after") {
				t.Errorf("the partitions hold %q and %q", seen[1], seen[2])
			}
			if spoiled == nil && !slices.Contains(seen[1], "spoiled") {
				t.Errorf("what was committed is not there: %q", seen[1])
			}
			t.Logf("%v, %q", spoiled, seen[1])
		})
	}
}

// K-059, L-117: records are tried once and three times more; then the transaction is
// given up, and its records are the caller's to bring again.
func TestProduceIsTriedFourTimes(t *testing.T) {
	t.Parallel()
	c := cluster(t, nil)
	addr := strings.Join(c.ListenAddrs(), ",")
	producer, err := NewTransactional(addr, "slot")
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	handle := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.NotEnoughReplicas, Count: -1})
	record := []*Record{{Topic: ChatsCreated, Partition: 1, Key: []byte("k"), Value: []byte("v")}}
	if err := Transact(t.Context(), producer, record); err == nil || errors.Is(err, ErrFenced) {
		t.Fatal(err)
	}
	if n := handle.Hits(); n != 4 {
		t.Errorf("tried %d times", n)
	}
	handle.Remove()
	if err := Transact(t.Context(), producer, record); err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := scan(t.Context(), addr, ChatsCreated, func(*Record) error { n++; return nil }); err != nil || n != 1 {
		t.Fatalf("%d records, %v", n, err)
	}
}
