package consume

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event/eventtest"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

// K-043, K-147: a dead letter is in the partition that the contract gives its record's key.
func TestPartitionVectors(t *testing.T) {
	b := kafkatest.InProcess(t)
	c, err := kafka.NewProducer(b.Addr)
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	write := Publisher(c, func(payload []byte) ([]byte, error) { return payload, nil })
	want := map[string]int{}
	for i, v := range eventtest.Vectors() {
		if v.Key == "" {
			continue
		}
		want[v.Key] = v.Partitions[int(kafka.Partitions(kafka.DeadLetters))]
		rec := &kafka.Record{Topic: kafka.ChatsCreated, Partition: 1, Offset: int64(i), Key: []byte(v.Key),
			Value: []byte("x")}
		if err := write(t.Context(), DeadLetter{Record: rec, Group: "g", Consumer: "c", Reason: "r",
			FailedAt: time.Unix(1, 0),
			Attempts: 1}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	b.Read(t, kafkatest.Beginning(), func(r *kafka.Record) bool {
		if p, ok := want[string(r.Key)]; !ok || int(r.Partition) != p || r.Topic != kafka.DeadLetters {
			t.Errorf("the letter of %.20q is in %s/%d, expected partition %d", r.Key, r.Topic, r.Partition, p)
		}
		n++
		return n == len(want)
	})
}
