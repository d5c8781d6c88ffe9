package kafka

import (
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// What producers put on the wire: acknowledged by all replicas in sync (K-058), by an
// idempotent producer (K-062), compressed with LZ4 (K-063); and how large a batch may be:
// K-067 asks for K-065's 65,536 bytes or for more, where the largest event would not fit.
func TestProduceOnTheWire(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(16, ChatsCreated),
		kfake.SeedTopics(8, DeadLetters))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	type seen struct {
		acks, codec   int16
		transactional bool
		producer      int64
	}
	var mu sync.Mutex
	var all []seen
	cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		produce := req.(*kmsg.ProduceRequest)
		for _, topic := range produce.Topics {
			for _, p := range topic.Partitions {
				var b kmsg.RecordBatch
				if err := b.ReadFrom(p.Records); err != nil {
					t.Error(err)
				}
				mu.Lock()
				all = append(all, seen{produce.Acks, b.Attributes & 7, b.Attributes&16 != 0, b.ProducerID})
				mu.Unlock()
			}
		}
		return nil, nil, false
	})
	addr := cluster.ListenAddrs()[0]
	relay, err := NewTransactional(addr, "slot")
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	deadLetters, err := NewProducer(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer deadLetters.Close()
	value := make([]byte, 4096) // worth compressing
	if err := Transact(limited(t), relay, []*Record{{Topic: ChatsCreated, Partition: 3, Value: value}}); err != nil {
		t.Fatal(err)
	}
	if err := Publish(limited(t), deadLetters, &Record{Topic: DeadLetters, Partition: 5, Value: value}); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(all) != 2 || !all[0].transactional || all[1].transactional {
		t.Fatalf("%+v", all)
	}
	for _, s := range all {
		if s.acks != -1 || s.codec != 3 || s.producer < 0 {
			t.Errorf("%+v", s)
		}
	}
	for name, c := range map[string]*kgo.Client{"relay": relay, "dead letters": deadLetters} {
		size := c.OptValue(kgo.ProducerBatchMaxBytes).(int32)
		if size < 65_536 || size < 256<<10 || size > 1_048_588 { // K-065, the largest event, and what topics take
			t.Errorf("%s: a batch holds %d bytes", name, size)
		}
	}
	if size := relay.OptValue(kgo.ProducerBatchMaxBytes).(int32); size != 1_048_576 {
		t.Errorf("a batch of the relay holds %d bytes, 1,048,576 are documented", size)
	}
}
