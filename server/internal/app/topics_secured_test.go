//go:build !windows

package app_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/topicstore"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
)

// replicated checks that a topic is made for the loss of a broker.
func (in *installation) replicated(ctx context.Context, there string, partitions int, options ...kafka.Option) {
	t := in.t
	t.Helper()
	brokers := strings.Split(in.kafka, ",")
	c, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(brokers...)}, options...)...)
	testkit.Must(t, err)
	defer c.Close()
	admin := kadm.NewClient(c)
	topics, err := admin.ListTopics(ctx, there)
	testkit.Must(t, err)
	d := topics[there]
	if d.Err != nil || len(d.Partitions) != partitions || d.Partitions.NumReplicas() != len(brokers) {
		t.Errorf("%s has %d partitions, %d replicas of each, %v", there, len(d.Partitions), d.Partitions.NumReplicas(), d.Err)
	}
	configs, err := admin.DescribeTopicConfigs(ctx, there)
	testkit.Must(t, err)
	for _, x := range configs[0].Configs {
		if want := fmt.Sprint(min(2, len(brokers))); x.Key == "min.insync.replicas" && x.MaybeValue() != want {
			t.Errorf("%s is %s, want %s", x.Key, x.MaybeValue(), want)
		}
	}
}

// TestSecuredTopics: servers with the role topics and no other keep topics on a Kafka that lets
// nobody in who may not: what is published at one is delivered at the other, with what a
// producer of Kafka writes; how far groups are is seen. Nobody else reads or writes messages,
// and the servers no events. No log shows a secret.
func TestSecuredTopics(t *testing.T) {
	s := newSecured(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for i := range s.servers {
		s.servers[i] = &member{binary: binary(t), args: []string{
			"--config", s.file("server", map[string]string{"PARLEY_KAFKA_USER": "parley-topics"}),
			"--listen", "127.0.0.1:0", "--link-listen", "127.0.0.1:0", "--topic-creators", "alice"}}
		s.start(s.servers[i])
	}
	clients := s.ofTopics("alice")
	name := s.sharedTopic(ctx, clients[0], 4)
	there := record.Name(name)
	got := gather(ctx, t, clients[1], name)
	publisher, err := clients[0].Publisher(name, topic.PublisherConfig{})
	testkit.Must(t, err)
	for i := range 20 {
		_, err := publisher.Publish(ctx, &topic.Message{Key: fmt.Sprint(i), Payload: fmt.Append(nil, "canary ", i)})
		testkit.Must(t, err)
	}
	testkit.Must(t, publisher.Close(ctx))
	produce := func(user, topic string) error {
		c, err := kafka.NewProducer(s.kafka, s.as(t, user)...)
		testkit.Must(t, err)
		defer c.Close()
		return kafka.Publish(ctx, c, &kafka.Record{Topic: topic, Value: []byte("by " + user)})
	}
	testkit.Must(t, produce("admin", there))
	got.get(ctx, t, "by admin")
	for i := range 20 {
		got.get(ctx, t, fmt.Sprint("canary ", i))
	}
	group, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(s.kafka)}, s.as(t, "admin")...)...)
	testkit.Must(t, err)
	defer group.Close()
	until(ctx, t, "the group's offsets are shown in Kafka", func() bool {
		offsets, err := kadm.NewClient(group).FetchOffsets(ctx, topicstore.Group(name, "g"))
		o, ok := offsets.Lookup(there, 0)
		return err == nil && ok && o.At > 0
	})
	s.replicated(ctx, there, 4, s.as(t, "admin")...)
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "AUTHORIZATION_FAILED") {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("servers write events", produce("parley-topics", kafka.MessagesPersisted))
	for _, user := range []string{"parley-relay", "parley-fanout", "parley-ops", "parley-operator", "parley-nobody"} {
		refused(user+" publishes", produce(user, there))
		refused(user+" reads", lag.Read(ctx, s.kafka, []lag.Span{{Partition: kafka.Partition{Topic: there}, To: 1}},
			func(*kafka.Record) error { return errors.New("read") }, s.as(t, user)...))
	}
	token := s.token("alice")
	for _, m := range s.servers {
		text := m.log.String()
		if found := s.shows(text, token); len(found) > 0 || strings.Contains(text, "canary") {
			t.Errorf("%v in what is logged: %s", found, text)
		}
		if strings.Contains(text, "level=ERROR") || strings.Contains(text, "AUTHORIZATION") ||
			strings.Contains(text, "server may not") {
			t.Errorf("all is not well: %s", text)
		}
	}
}
