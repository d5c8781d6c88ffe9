package consume

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event/eventtest"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

// K-043, K-147: a dead letter is where the contract puts the key of its record.
func TestPartitionVectors(t *testing.T) {
	b := kafkatest.Embedded(t)
	c, err := kafka.NewProducer(b.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	bury := Publisher(c, func(payload []byte) ([]byte, error) { return payload, nil })
	want := map[string]int{}
	for i, v := range eventtest.Vectors() {
		if v.Key == "" {
			continue
		}
		want[v.Key] = v.Partitions[int(kafka.Partitions(kafka.DeadLetters))]
		rec := &kafka.Record{Topic: kafka.ChatsCreated, Partition: 1, Offset: int64(i), Key: []byte(v.Key), Value: []byte("x")}
		if err := bury(t.Context(), DeadLetter{Record: rec, Group: "g", Consumer: "c", Reason: "r", FailedAt: time.Unix(1, 0), Attempts: 1}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	b.Read(t, kafkatest.Beginning(), func(r *kafka.Record) bool {
		if p, ok := want[string(r.Key)]; !ok || int(r.Partition) != p || r.Topic != kafka.DeadLetters {
			t.Errorf("the letter of %.20q is in %s/%d, not in partition %d", r.Key, r.Topic, r.Partition, p)
		}
		n++
		return n == len(want)
	})
}
