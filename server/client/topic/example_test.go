package topic_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
)

// A group handles what is published to a topic, and acknowledges it.
func Example() {
	client, stop := serve() // a program calls topic.Dial instead
	defer stop()
	ctx := context.Background()
	_, err := client.Topics().ConfigureTopic(ctx, &topicv1.ConfigureTopicRequest{
		Topic: "orders", Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
	must(err)

	publisher, err := client.Publisher("orders", topic.PublisherConfig{})
	must(err)
	results, err := publisher.Publish(ctx, &topic.Message{Key: "table-4", Payload: []byte("tea for two")})
	must(err)
	fmt.Println("stored as", results[0].GetMessageId())
	must(publisher.Close(ctx))

	running, cancel := context.WithCancel(ctx)
	consumer, err := client.Consumer("orders", "kitchen", topic.ConsumerConfig{
		Subscribe: &topicv1.SubscriptionConfig{
			Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}},
		Handler: func(_ context.Context, m *topic.Received) error {
			fmt.Println("handled", string(m.GetPayload()))
			cancel() // a program runs until it is told to end
			return nil
		},
	})
	must(err)
	must(consumer.Run(running))
	// Output:
	// stored as 0-0
	// handled tea for two
}

// Workers share a queue. What fails is delivered again.
func ExampleConsumer_queue() {
	client, stop := serve()
	defer stop()
	ctx := context.Background()
	publisher, err := client.Publisher("jobs", topic.PublisherConfig{}) // made as a queue when it is not there
	must(err)
	_, err = publisher.Publish(ctx, &topic.Message{Payload: []byte("wash up")})
	must(err)

	running, cancel := context.WithCancel(ctx)
	worker, err := client.Consumer("jobs", topic.Queue, topic.ConsumerConfig{
		Concurrency: 4,
		Handler: func(_ context.Context, m *topic.Received) error {
			if m.Attempt == 1 {
				fmt.Println("no water")
				return topic.After(time.Millisecond, errors.New("no water"))
			}
			fmt.Println("done:", string(m.GetPayload()))
			cancel()
			return nil
		},
	})
	must(err)
	must(worker.Run(running))
	// Output:
	// no water
	// done: wash up
}

// A batch handler takes what is there at once, and may fail some of it.
func ExampleFailures() {
	client, stop := serve()
	defer stop()
	ctx := context.Background()
	publisher, err := client.Publisher("jobs", topic.PublisherConfig{})
	must(err)
	for _, text := range []string{"one", "two", "three"} {
		_, err = publisher.Publish(ctx, &topic.Message{Payload: []byte(text)})
		must(err)
	}

	running, cancel := context.WithCancel(ctx)
	worker, err := client.Consumer("jobs", topic.Queue, topic.ConsumerConfig{
		BatchHandler: func(_ context.Context, batch []*topic.Received) error {
			failed := topic.Failures{}
			for i, m := range batch {
				if string(m.GetPayload()) == "two" && m.Attempt == 1 {
					failed[i] = topic.After(0, errors.New("again, please"))
				} else if m.Attempt == 2 {
					fmt.Println(string(m.GetPayload()), "was delivered again")
					cancel()
				}
			}
			return failed
		},
	})
	must(err)
	must(worker.Run(running))
	// Output: two was delivered again
}
