//go:build !windows

package app_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/client/topic"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/infra/wait"
)

// topicLoad is programs that publish to topics and consume them for as long as the test
// lasts: of each topic the publisher is at the one server, the consumer at the other. A
// publisher gives no message up.
type topicLoad struct {
	t      *testing.T
	ctx    context.Context
	topics []*loadedTopic
	admin  *topic.Client

	stopPublishing, stopConsuming func() // both wait until all have stopped
}

// The load is bounded as that of chats is.
const (
	loadTopics     = 6
	topicLoadPause = 250 * time.Millisecond // of a publisher after each message
)

type loadedTopic struct {
	name      string
	publisher *topic.Publisher
	consumer  *topic.Consumer

	mu        sync.Mutex
	answered  int // publishes of the numbers from 0 on
	handled   map[string]int
	positions map[string]logged // where a message was when it came for the first time
	floors    map[int32]int64   // by partition, as they were seen last
}

// logged is where a message is in the log.
type logged struct {
	partition int32
	position  int64
}

// loadKeys is how many keys there are: the number of a message modulo this is its key.
const loadKeys = 7

// ofTopics returns a user's clients, one for each server.
func (in *installation) ofTopics(user string) (clients []*topic.Client) {
	in.t.Helper()
	bearer := in.token(user)
	for _, s := range in.servers {
		c, err := topic.Dial(topic.Config{BaseURL: "http://" + s.addr,
			Token: func(context.Context, bool) (string, error) { return bearer, nil }})
		testkit.Must(in.t, err)
		clients = append(clients, c)
	}
	return clients
}

func newTopicLoad(ctx context.Context, t *testing.T, in *installation) *topicLoad {
	t.Helper()
	l := &topicLoad{t: t, ctx: ctx}
	clients := in.ofTopics("alice")
	l.admin = clients[0]
	publish, stopPublishing := context.WithCancel(ctx)
	consume, stopConsuming := context.WithCancel(ctx)
	var publishing, consuming sync.WaitGroup
	for i := range loadTopics {
		// Kafka may have the topics of another installation.
		name := fmt.Sprintf("%s-load-%d", strings.TrimSuffix(in.keys, ":"), i)
		of := &loadedTopic{name: name, handled: map[string]int{}, positions: map[string]logged{}, floors: map[int32]int64{}}
		l.topics = append(l.topics, of)
		l.begin(of, clients[i%2], clients[(i+1)%2])
		publishing.Go(func() { l.publish(publish, of) })
		consuming.Go(func() {
			if err := of.consumer.Run(consume); err != nil && consume.Err() == nil {
				t.Errorf("the consumer of %s ended: %v", of.name, err)
			}
		})
	}
	l.stopPublishing = func() { stopPublishing(); publishing.Wait() }
	l.stopConsuming = func() { stopConsuming(); consuming.Wait() }
	t.Cleanup(func() { l.stopPublishing(); l.stopConsuming() })
	return l
}

// begin makes a topic, as soon as its slot has an owner.
func (l *topicLoad) begin(of *loadedTopic, one, two *topic.Client) {
	l.t.Helper()
	testkit.Succeeds(l.t, "the topic "+of.name, func() error {
		_, err := one.Topics().ConfigureTopic(l.ctx, &topicv1.ConfigureTopicRequest{Topic: of.name,
			Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB, Partitions: 2}})
		return err
	})
	var err error
	of.consumer, err = two.Consumer(of.name, "g", topic.ConsumerConfig{
		Subscribe: &topicv1.SubscriptionConfig{Start: &topicv1.Position{At: &topicv1.Position_Earliest{Earliest: true}}},
		Handler: func(_ context.Context, m *topic.Received) error {
			of.mu.Lock()
			defer of.mu.Unlock()
			payload, at := string(m.GetPayload()), logged{m.Partition, m.Position}
			of.handled[payload]++
			if was, ok := of.positions[payload]; ok && was != at { // two owners, or a repetition that was stored
				l.t.Errorf("%s: message %s is at %v and at %v", of.name, payload, was, at)
			}
			of.positions[payload] = at
			return nil
		}})
	testkit.Must(l.t, err)
	of.publisher, err = one.Publisher(of.name, topic.PublisherConfig{})
	testkit.Must(l.t, err)
}

func (l *topicLoad) publish(ctx context.Context, of *loadedTopic) {
	for n := 0; ctx.Err() == nil; {
		// The test's context, so that the last message is not given up either.
		_, err := of.publisher.Publish(l.ctx, &topic.Message{Payload: fmt.Append(nil, n), Key: fmt.Sprint(n % loadKeys)})
		if err != nil {
			if l.ctx.Err() == nil {
				l.t.Errorf("%s: %v", of.name, err)
			}
			return
		}
		n++
		of.mu.Lock()
		of.answered = n
		of.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(topicLoadPause):
		}
	}
}

// drain waits until all that was answered so far is handled and acknowledged. It returns how
// long that took.
func (l *topicLoad) drain(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	want := make([]int, len(l.topics))
	for i, of := range l.topics {
		of.mu.Lock()
		want[i] = of.answered
		of.mu.Unlock()
	}
	for i, of := range l.topics {
		for {
			err := of.caughtUp(want[i])
			if err == nil {
				err = l.floors(ctx, of)
			}
			if err == nil {
				err = of.acknowledged(want[i])
			}
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return 0, fmt.Errorf("%s: %w", of.name, err)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return time.Since(began), nil
}

// more waits until a message more was answered of each topic.
func (l *topicLoad) more(ctx context.Context) error {
	count := func(of *loadedTopic) int {
		of.mu.Lock()
		defer of.mu.Unlock()
		return of.answered
	}
	were := make([]int, len(l.topics))
	for i, of := range l.topics {
		were[i] = count(of)
	}
	for i, of := range l.topics {
		for count(of) == were[i] {
			if err := wait.For(ctx, 50*time.Millisecond); err != nil {
				return fmt.Errorf("%s takes no message: %w", of.name, err)
			}
		}
	}
	return nil
}

func (of *loadedTopic) caughtUp(n int) error {
	of.mu.Lock()
	defer of.mu.Unlock()
	for i := range n {
		if of.handled[fmt.Sprint(i)] == 0 {
			return fmt.Errorf("message %d of %d was not handled", i, n)
		}
	}
	return nil
}

// acknowledged returns an error as long as the group is not beyond the first n messages, by
// what floors has seen.
func (of *loadedTopic) acknowledged(n int) error {
	of.mu.Lock()
	defer of.mu.Unlock()
	for i := range n {
		if at := of.positions[fmt.Sprint(i)]; of.floors[at.partition] <= at.position {
			return fmt.Errorf("message %d of %d is at %v, the group at %v", i, n, at, of.floors)
		}
	}
	return nil
}

// floors measures how far the group is: never less far than before.
func (l *topicLoad) floors(ctx context.Context, of *loadedTopic) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	res, err := l.admin.Subscriptions().GetSubscription(ctx,
		&topicv1.GetSubscriptionRequest{Topic: of.name, Group: "g"})
	if err != nil {
		return err
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	for _, p := range res.GetSubscription().GetPartitions() {
		if was := of.floors[p.GetPartition()]; p.GetFloor() < was {
			l.t.Errorf("%s, partition %d: the group went back from %d to %d", of.name, p.GetPartition(), was, p.GetFloor())
		}
		of.floors[p.GetPartition()] = p.GetFloor()
	}
	return nil
}

// check ends the load and compares: what was answered came, and nothing stands there that
// nobody published, or twice, or in another order.
func (l *topicLoad) check() {
	l.t.Helper()
	l.stopPublishing()
	ctx, cancel := context.WithTimeout(l.ctx, catchUp)
	defer cancel()
	if _, err := l.drain(ctx); err != nil {
		l.t.Error(err)
	}
	testkit.Succeeds(l.t, "all is acknowledged", func() error { return l.pending(ctx) })
	l.stopConsuming()
	for _, of := range l.topics {
		testkit.Equal(l.t, of.name+": messages that came", len(of.handled), of.answered)
		for n := range of.answered - loadKeys { // those of a key are in order
			a, b := of.positions[fmt.Sprint(n)], of.positions[fmt.Sprint(n+loadKeys)]
			if a.partition != b.partition || a.position >= b.position {
				l.t.Errorf("%s: message %d is at %v, %d of its key at %v", of.name, n, a, n+loadKeys, b)
			}
		}
		again := 0
		for _, n := range of.handled {
			again += n - 1
		}
		l.t.Logf("%s: %d messages, %d of them came again, floors %v", of.name, of.answered, again,
			slices.Collect(maps.Values(of.floors)))
	}
}

// pending returns an error as long as the group has something to do.
func (l *topicLoad) pending(ctx context.Context) error {
	for _, of := range l.topics {
		res, err := l.admin.Subscriptions().GetSubscription(ctx,
			&topicv1.GetSubscriptionRequest{Topic: of.name, Group: "g"})
		if err != nil {
			return err
		}
		for _, p := range res.GetSubscription().GetPartitions() {
			if p.GetPending() > 0 {
				return errors.New(of.name + " has messages that are not acknowledged")
			}
		}
	}
	return nil
}
