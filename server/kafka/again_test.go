package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
)

// The same on Apache Kafka: a topic is deleted and made again while a publisher has met
// the old one.
func TestPublisherAfterATopicWasMadeAgainOnApache(t *testing.T) {
	b := kafkatest.Apache(t)
	topic := b.Name("again")
	admin := kadm.NewClient(b.Client(t))
	create := func() {
		t.Helper()
		var err error
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if _, err = admin.CreateTopic(t.Context(), 4, int16(min(b.Brokers(), 3)), nil, topic); err == nil {
				return
			}
		}
		t.Fatal(err)
	}
	create()
	t.Cleanup(func() { _, _ = admin.DeleteTopics(context.Background(), topic) })
	p, err := kafka.NewPublisher(b.Addr, b.Name("slot"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	record := []*kafka.Record{{Topic: topic, Partition: 3, Key: []byte("k"), Value: []byte("v")}}
	publish := func() (err error) {
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if err = p.Publish(t.Context(), record); err == nil {
				return nil
			}
			t.Log(err)
		}
		return err
	}
	if err := publish(); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.DeleteTopics(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	create()
	if err := publish(); err != nil {
		t.Fatalf("after two minutes: %v", err)
	}
}
