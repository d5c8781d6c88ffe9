package app_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// books is what programs keep of a topic in databases of their own: what publishers were answered, and
// what the handlers of a group were called for.
type books struct {
	t      *testing.T
	topic  string
	client *topic.Client
	sender *topic.Publisher
	stub   *stubPublisher
	admin  *topicClients

	mu        sync.Mutex
	published map[position]string
	handled   map[position]string
	sent      int // messages
	audits    int
	restarts  int // how often the group was told
}

// newBooks makes a topic with one group, and runs a publisher and a consumer until the test ends.
func newBooks(ctx context.Context, t *testing.T, dir, addr, name string) *books {
	bearer := token(t, dir, "alice")
	b := &books{t: t, topic: name, admin: newTopicClients(t, dir, addr), published: map[position]string{},
		handled: map[position]string{}}
	_, err := b.admin.topics.ConfigureTopic(ctx, &topicv1.ConfigureTopicRequest{Topic: name, Config: &topicv1.TopicConfig{
		Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 2,
		CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_REFERENCE_COUNTING}})
	testkit.Must(t, err)
	b.client, err = topic.Dial(topic.Config{BaseURL: "http://" + addr,
		Token: func(context.Context, bool) (string, error) { return bearer, nil }})
	testkit.Must(t, err)
	b.stub = &stubPublisher{topics: b.admin, topic: name, published: map[position]string{}}
	consumer, err := b.client.Consumer(name, "billing", topic.ConsumerConfig{Concurrency: 2,
		Subscribe: &topicv1.SubscriptionConfig{Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}},
		Handler:   b.handle, OnRestore: b.again})
	testkit.Must(t, err)
	b.sender, err = b.client.Publisher(name, topic.PublisherConfig{OnRestore: func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		clear(b.published)
	}})
	testkit.Must(t, err)
	run, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- consumer.Run(run) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Log("the consumer:", err) // the server may be gone by now
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = b.sender.Close(ended)
	})
	return b
}

// handle writes what came at a position.
func (b *books) handle(_ context.Context, m *topic.Received) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := position{m.Partition, m.Position}
	if was, twice := b.handled[at]; twice && was != string(m.GetPayload()) {
		b.t.Errorf("%v is %s and %s, and the group was not told", at, was, m.GetPayload())
	}
	b.handled[at] = string(m.GetPayload())
	return nil
}

// again discards what the group has handled, and has it handle everything again.
func (b *books) again(ctx context.Context) error {
	_, err := b.client.Subscriptions().SeekSubscription(ctx, &topicv1.SeekSubscriptionRequest{Topic: b.topic,
		Group: "billing", To: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}})
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.handled)
	b.restarts++
	return nil
}

// send publishes a message, by both publishers, without waiting for it.
func (b *books) send() {
	b.mu.Lock()
	b.sent++
	payload := fmt.Sprint("message ", b.sent)
	b.mu.Unlock()
	err := b.sender.Enqueue(b.t.Context(), &topic.Message{Key: payload, Payload: []byte(payload)},
		func(r *topic.Result, err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if err == nil {
				b.published[position{r.GetPartition(), r.GetPosition()}] = payload
			}
		})
	if err != nil {
		b.t.Error("publish:", err)
	}
}

// poke has both publishers make a request, by which they notice a restore.
func (b *books) poke(ctx context.Context) {
	_, err := b.sender.Publish(ctx, &topic.Message{Payload: []byte("poke")})
	testkit.Must(b.t, err)
	testkit.Must(b.t, b.stub.send(ctx))
}

// starts is how often the group started over.
func (b *books) starts() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.restarts
}

// stubPublisher publishes with generated code alone, by the rules of server/docs/topics.md.
type stubPublisher struct {
	topics    *topicClients
	topic     string
	number    int64
	history   string // empty: it was shown nothing
	published map[position]string
}

// send publishes a message until it is answered.
func (s *stubPublisher) send(ctx context.Context) error {
	s.number++
	payload := fmt.Sprint("stub ", s.number)
	req := &topicv1.PublishRequest{Topic: s.topic, Producer: &topicv1.Producer{Id: "stub", Number: s.number},
		Messages: []*topicv1.TopicMessage{{Payload: []byte(payload)}}}
	for {
		res, said, err := s.publish(ctx, req)
		switch {
		case err == nil:
			r := res.GetResults()[0]
			s.history, s.published[position{r.GetPartition(), r.GetPosition()}] = said, payload
			return nil
		case topic.Reason(err) == "HISTORY_CHANGED":
			s.history = ""
			clear(s.published)
		case connect.CodeOf(err) != connect.CodeUnavailable:
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *stubPublisher) publish(
	ctx context.Context, req *topicv1.PublishRequest,
) (res *topicv1.PublishResponse, said string, err error) {
	ctx, info := connect.NewClientContext(ctx)
	if s.history != "" {
		info.RequestHeader().Set("Parley-History", s.history)
	}
	res, err = s.topics.topics.Publish(ctx, req)
	return res, info.ResponseHeader().Get("Parley-History"), err
}

// differs says where the books have another topic than the store.
func (b *books) differs(ctx context.Context) string {
	stored := b.stored(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !maps.Equal(stored, b.handled) {
		return fmt.Sprintf("the group has handled %v, the store has %v", b.handled, stored)
	}
	for by, list := range map[string]map[position]string{"the publisher": b.published, "the stub": b.stub.published} {
		for at, payload := range list {
			if stored[at] != payload {
				return fmt.Sprintf("%s has %q at %v, the store %q", by, payload, at, stored[at])
			}
		}
	}
	return ""
}

// stored reads the topic from its beginning, by a group that was not there before.
func (b *books) stored(ctx context.Context) map[position]string {
	b.audits++
	group, found := fmt.Sprint("audit-", b.audits), map[position]string{}
	start := &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}
	_, err := call(ctx, b.admin.subscriptions.CreateSubscription, &topicv1.CreateSubscriptionRequest{Topic: b.topic,
		Group: group, Config: &topicv1.SubscriptionConfig{Start: start}})
	testkit.Must(b.t, err)
	for session := ""; ; {
		res, err := call(ctx, b.admin.consumers.Pull, &topicv1.PullRequest{Topic: b.topic, Group: group, Session: session,
			MaxMessages: 1000})
		testkit.Must(b.t, err)
		session = res.GetSession()
		set := &topicv1.AckSet{}
		for _, d := range res.GetDeliveries() {
			for i, m := range d.GetMessages() {
				at := position{d.GetPartition(), d.GetBase() + int64(i)}
				if d.GetOffsets() != nil {
					at.position = d.GetBase() + int64(d.GetOffsets()[i])
				}
				found[at] = string(m.GetPayload())
				set.Positions = append(set.Positions, &topicv1.Positions{Partition: at.partition, Base: at.position})
			}
		}
		if len(set.GetPositions()) > 0 {
			_, err = call(ctx, b.admin.consumers.Ack, &topicv1.AckRequest{Session: session, Set: set})
			testkit.Must(b.t, err)
			continue
		}
		sub, err := call(ctx, b.admin.subscriptions.GetSubscription,
			&topicv1.GetSubscriptionRequest{Topic: b.topic, Group: group})
		testkit.Must(b.t, err)
		read := true
		for _, p := range sub.GetSubscription().GetPartitions() {
			read = read && p.GetFloor() >= p.GetEnd()
		}
		if read {
			break
		}
	}
	_, err = call(ctx, b.admin.subscriptions.CancelSubscription,
		&topicv1.CancelSubscriptionRequest{Topic: b.topic, Group: group})
	testkit.Must(b.t, err)
	return found
}
