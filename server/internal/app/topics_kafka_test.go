//go:build !windows

package app_test

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
)

// gathered is what a group of a topic has got, by payload.
type gathered struct {
	mu  sync.Mutex
	all map[string]*topic.Received
}

// gather consumes a topic from its beginning for as long as the test lasts.
func gather(ctx context.Context, t *testing.T, c *topic.Client, name string) *gathered {
	t.Helper()
	g := &gathered{all: map[string]*topic.Received{}}
	consumer, err := c.Consumer(name, "g", topic.ConsumerConfig{
		Subscribe: &topicv1.SubscriptionConfig{Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}},
		Handler: func(_ context.Context, m *topic.Received) error {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.all[string(m.GetPayload())] = m
			return nil
		}})
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := consumer.Run(ctx); err != nil && ctx.Err() == nil {
			t.Errorf("the consumer of %s ended: %v", name, err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	return g
}

// get waits for a message.
func (g *gathered) get(ctx context.Context, t *testing.T, payload string) (m *topic.Received) {
	t.Helper()
	until(ctx, t, payload+" is delivered", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		m = g.all[payload]
		return m != nil
	})
	return m
}

// sharedTopic makes a topic that producers of Kafka may write into.
func (in *installation) sharedTopic(ctx context.Context, c *topic.Client, partitions int32) (name string) {
	in.t.Helper()
	name = strings.TrimSuffix(in.keys, ":") + "-shared"
	testkit.Succeeds(in.t, "the topic is made", func() error { // as soon as its slot has an owner
		_, err := c.Topics().ConfigureTopic(ctx, &topicv1.ConfigureTopicRequest{Topic: name, Config: &topicv1.TopicConfig{
			Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Source: topicv1.Source_SOURCE_SHARED, Partitions: partitions}})
		return err
	})
	return name
}

// An integrator who knows Kafka finds a topic there: kcat reads what is published, what kcat and
// Kafka's own producer write is delivered, and all three agree on the partition of a key.
func TestKafkaBesideTopics(t *testing.T) {
	kcat, tool := readerTool(t, "PARLEY_TEST_KCAT"), newKafkaTool(t, readerTool(t, "PARLEY_TEST_KAFKA_LIBS"))
	in := newInstallation(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	clients := in.ofTopics("alice")
	const partitions, keys = 7, 20
	name := in.sharedTopic(ctx, clients[0], partitions)
	there := record.Name(name) // in Kafka
	got := gather(ctx, t, clients[1], name)
	publisher, err := clients[0].Publisher(name, topic.PublisherConfig{})
	testkit.Must(t, err)
	of := map[string]int32{} // partition by key
	var want, ofKcat, ofJava []string
	for i := range keys {
		key := fmt.Sprint("key ", i, "ä")
		results, err := publisher.Publish(ctx, &topic.Message{Key: key, Type: "made", Payload: fmt.Append(nil, "parley ", i),
			Headers: map[string]string{"h": fmt.Sprint(i)}})
		testkit.Must(t, err)
		of[key] = results[0].GetPartition()
		want = append(want, fmt.Sprintf("|%s|%d|parley %d|parley-type=made,", key, of[key], i), fmt.Sprintf(",h=%d|", i))
		ofKcat, ofJava = append(ofKcat, fmt.Sprintf("%s|kcat %d", key, i)), append(ofJava, fmt.Sprintf("%s|java %d", key, i))
	}
	testkit.Must(t, publisher.Close(ctx))
	for _, text := range want {
		shows(t, text, func(ctx context.Context) *exec.Cmd {
			return exec.CommandContext(ctx, kcat, "-b", in.kafka, "-C", "-e", "-q", "-t", there, "-X",
				"isolation.level=read_committed", "-f", "|%k|%p|%s|%h|\n")
		})
	}
	feed := func(lines []string, command *exec.Cmd) {
		t.Helper()
		command.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v %s", command.Args, err, out)
		}
	}
	feed(ofKcat, exec.CommandContext(ctx, kcat, "-b", in.kafka, "-P", "-t", there, "-K", "|", "-H", "parley-type=foreign",
		"-H", "h=kcat", "-X", "topic.partitioner=murmur2_random"))
	feed(ofJava, tool.producer(ctx, in.kafka, there))
	for i := range keys {
		key := fmt.Sprint("key ", i, "ä")
		for _, by := range []string{"parley", "kcat", "java"} {
			m := got.get(ctx, t, fmt.Sprint(by, " ", i))
			if m.GetKey() != key || m.Partition != of[key] {
				t.Errorf("%s's message %d has key %q in partition %d, want %q in %d", by, i, m.GetKey(), m.Partition, key, of[key])
			}
			if by == "kcat" && (m.GetType() != "foreign" || m.GetHeaders()["h"] != "kcat") {
				t.Errorf("kcat's message is %v", m.Message)
			}
		}
	}
	in.replicated(ctx, there, partitions)
}
