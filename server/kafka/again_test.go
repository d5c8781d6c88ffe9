package kafka_test

import (
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/infra/testkit"
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
		testkit.Succeeds(t, "create the topic", func() error {
			_, err := admin.CreateTopic(t.Context(), 4, int16(min(b.Brokers(), 3)), nil, topic)
			return err
		})
	}
	create()
	t.Cleanup(func() { _, _ = admin.DeleteTopics(context.Background(), topic) })
	p, err := kafka.NewPublisher(b.Addr, b.Name("slot"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	record := []*kafka.Record{{Topic: topic, Partition: 3, Key: []byte("k"), Value: []byte("v")}}
	publish := func() {
		t.Helper()
		testkit.Succeeds(t, "publish", func() error { return p.Publish(t.Context(), record) })
	}
	publish()
	if _, err := admin.DeleteTopics(t.Context(), topic); err != nil {
		t.Fatal(err)
	}
	create()
	publish()
}
