package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A publisher keeps working after errors that a client of the library never gets over, and
// nobody has to restart anything: at most four tries later it publishes again (EV14).
func TestPublisherReplacesItsClient(t *testing.T) {
	t.Parallel()
	c := cluster(t, nil)
	addr := strings.Join(c.ListenAddrs(), ",")
	for i, fault := range []kfake.Fault{
		{Keys: []kmsg.Key{kmsg.EndTxn}, TopLevel: true, Err: kerr.InvalidTxnState},
		{Keys: []kmsg.Key{kmsg.EndTxn}, TopLevel: true, Err: kerr.TransactionalIDAuthorizationFailed},
		{Keys: []kmsg.Key{kmsg.InitProducerID}, TopLevel: true, Err: kerr.TransactionalIDAuthorizationFailed},
		{Keys: []kmsg.Key{kmsg.AddPartitionsToTxn, kmsg.EndTxn}, Err: kerr.InvalidProducerIDMapping},
		{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.UnknownTopicID, Count: 30},
		{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.TopicAuthorizationFailed},
		{Keys: []kmsg.Key{kmsg.Produce}, Err: kerr.ClusterAuthorizationFailed},
	} {
		t.Run(fmt.Sprintf("%s on %s", fault.Err.Message, kmsg.NameForKey(int16(fault.Keys[0]))), func(t *testing.T) {
			key := fmt.Sprint("slot", i)
			record := func(v string) []*Record {
				return []*Record{{Topic: ChatsCreated, Partition: 3, Key: []byte(key), Value: []byte(v)}}
			}
			p, err := NewPublisher(addr, key)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if fault.Keys[0] != kmsg.InitProducerID {
				if err := p.Publish(ctx, record("before")); err != nil {
					t.Fatal(err)
				}
			}
			handle := c.Fault(fault)
			if err := p.Publish(ctx, record("spoiled")); errors.Is(err, ErrFenced) {
				t.Fatalf("nobody fenced it: %v", err)
			}
			handle.Remove()
			var last error
			for range 4 {
				if last = p.Publish(ctx, record("after")); last == nil {
					break
				}
			}
			if last != nil {
				t.Fatalf("still after four tries: %v", last)
			}
			if got := valuesOf(t, addr, key); !slices.Contains(got, "after") {
				t.Fatalf("the partition holds %q", got)
			}
		})
	}
}

// Topics that were deleted and made again are other topics with other ids. A publisher
// finds that out by itself.
func TestPublisherAfterTopicsWereMadeAgain(t *testing.T) {
	t.Parallel()
	c := cluster(t, nil)
	addr := strings.Join(c.ListenAddrs(), ",")
	p, err := NewPublisher(addr, "slot")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	record := []*Record{{Topic: ChatsCreated, Partition: 3, Key: []byte("k"), Value: []byte("v")}}
	if err := p.Publish(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	a, err := NewAdmin(Cluster{Brokers: c.ListenAddrs()})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	client, err := NewReader(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).DeleteTopics(t.Context(), ChatsCreated); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Apply(t.Context(), Replication); err != nil {
		t.Fatal(err)
	}
	var last error
	for range 4 {
		if last = p.Publish(t.Context(), record); last == nil {
			break
		}
		t.Log(last)
	}
	if last != nil {
		t.Fatalf("still after four tries: %v", last)
	}
	if got := valuesOf(t, addr, "k"); len(got) != 1 {
		t.Fatalf("the new topic holds %q", got)
	}
}

// A partition that takes nothing is named, where others took their records; nothing of
// the transaction is there, and without that partition the rest goes.
func TestPartitionThatTakesNothing(t *testing.T) {
	t.Parallel()
	c := cluster(t, nil)
	addr := strings.Join(c.ListenAddrs(), ",")
	p, err := NewPublisher(addr, "slot")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	of := func(partition int32) *Record {
		return &Record{Topic: ChatsCreated, Partition: partition, Key: []byte("k"), Value: []byte(fmt.Sprint(partition))}
	}
	if err := p.Publish(t.Context(), []*Record{of(1), of(2), of(3)}); err != nil {
		t.Fatal(err)
	}
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: ChatsCreated, Partitions: []int32{2},
		Err: kerr.NotEnoughReplicas, Count: -1})
	var refused *PartitionError
	err = p.Publish(t.Context(), []*Record{of(1), of(2), of(3)})
	if !errors.As(err, &refused) || len(refused.Partitions) != 1 ||
		refused.Partitions[0] != (Partition{Topic: ChatsCreated, ID: 2}) {
		t.Fatalf("%v", err)
	}
	if refused.All {
		t.Fatal("two of three partitions took their records")
	}
	if err := p.Publish(t.Context(), []*Record{of(2)}); !errors.As(err, &refused) || refused.All {
		t.Fatalf("%v: there is no other partition that could have taken anything", err)
	}
	if err := p.Publish(t.Context(), []*Record{of(1), of(3)}); err != nil {
		t.Fatal(err)
	}
	got := valuesOf(t, addr, "k")
	slices.Sort(got)
	if want := []string{"1", "1", "2", "3", "3"}; !slices.Equal(got, want) {
		t.Fatalf("%q, not %q", got, want)
	}
	c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: ChatsCreated, Partitions: []int32{3},
		Err: kerr.NotEnoughReplicas, Count: -1})
	err = p.Publish(t.Context(), []*Record{of(2), of(3)})
	if !errors.As(err, &refused) || !refused.All || len(refused.Partitions) != 2 {
		t.Fatalf("%v, expected that it names both partitions", err)
	}
}

// valuesOf returns the committed values under a key.
func valuesOf(t *testing.T, addr, key string) (values []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := scan(ctx, addr, ChatsCreated, func(r *Record) error {
		if string(r.Key) == key {
			values = append(values, string(r.Value))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return values
}

// A partition that is away is not named beside one that refuses its record for good, in either
// order; partitions that refuse alike are, and then none has accepted.
func TestRefusalsOfTwoKindsAreApart(t *testing.T) {
	result := func(id int32, err error) kgo.ProduceResult {
		return kgo.ProduceResult{Record: &Record{Topic: "t", Partition: id}, Err: err}
	}
	away, large := result(1, kerr.NotEnoughReplicas), result(2, kerr.MessageTooLarge)
	larger := result(3, kerr.RecordListTooLarge)
	for name, x := range map[string]struct {
		results   kgo.ProduceResults
		named     []int32
		permanent bool
		all       bool
	}{
		"away first":  {kgo.ProduceResults{away, large}, []int32{1}, false, false},
		"large first": {kgo.ProduceResults{large, away, larger}, []int32{2, 3}, true, false},
		"large alone": {kgo.ProduceResults{large, larger}, []int32{2, 3}, true, true},
	} {
		var e *PartitionError
		if !errors.As(Refused(x.results), &e) {
			t.Fatalf("%s: not a *PartitionError", name)
		}
		var named []int32
		for _, p := range e.Partitions {
			named = append(named, p.ID)
		}
		if !slices.Equal(named, x.named) || e.Permanent() != x.permanent || e.All != x.all {
			t.Errorf("%s: partitions %v, permanent %v, all %v", name, named, e.Permanent(), e.All)
		}
	}
}
