package topic_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/topictest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var op = topic.Caller{Principal: "operator", Operator: true}

// cluster is a cluster with what tests of this package do in it.
type cluster struct {
	*topictest.Cluster
	t *testing.T
}

func newCluster(t *testing.T, slots int) *cluster { return &cluster{topictest.NewCluster(t, slots), t} }

func (c *cluster) do(name string, f func(*topic.Service) error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	testkit.Must(c.t, c.In(ctx, name, f))
}

// topic makes a topic with groups.
func (c *cluster) topic(name string, groups ...string) {
	c.t.Helper()
	c.do(name, func(s *topic.Service) error {
		_, err := s.Configure(c.t.Context(), op, &topicv1.ConfigureTopicRequest{
			Topic: name, Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB},
		})
		for _, g := range groups {
			if err == nil {
				_, err = s.CreateSubscription(c.t.Context(), op, &topicv1.CreateSubscriptionRequest{Topic: name, Group: g})
			}
		}
		return err
	})
}

func (c *cluster) publish(ctx context.Context, name, payload string) error {
	return c.In(ctx, name, func(s *topic.Service) error {
		_, err := s.Publish(ctx, op, &topicv1.PublishRequest{Topic: name,
			Messages: []*topicv1.TopicMessage{{Payload: []byte(payload)}}})
		return err
	})
}

func (c *cluster) mustPublish(name, payload string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	testkit.Must(c.t, c.publish(ctx, name, payload))
}

// got is a message that was delivered.
type got struct {
	payload string
	at      *topicv1.Positions
}

func decode(t *testing.T, e topic.Event) (list []got) {
	t.Helper()
	for _, d := range e.Deliveries {
		n := 0
		for _, piece := range d.Pieces {
			for len(piece) > 0 {
				_, _, tag := protowire.ConsumeTag(piece)
				body, size := protowire.ConsumeBytes(piece[tag:])
				m := &topicv1.TopicMessage{}
				testkit.Must(t, proto.Unmarshal(body, m))
				position := d.Base + int64(n)
				if d.Offsets != nil {
					position = d.Base + int64(d.Offsets[n])
				}
				list = append(list, got{string(m.GetPayload()), &topicv1.Positions{Partition: d.Partition, Base: position}})
				piece = piece[tag+size:]
				n++
			}
		}
	}
	return list
}

// consumer is a member that attaches again whenever its session ends.
type consumer struct {
	cluster      *cluster
	topic, group string
	mu           sync.Mutex
	received     map[string]int
	acknowledged map[string]bool
	again        []string // that came after they were acknowledged
	attached     atomic.Int64
}

func (c *cluster) consumer(topicName, group string) *consumer {
	return &consumer{cluster: c, topic: topicName, group: group, received: map[string]int{},
		acknowledged: map[string]bool{}}
}

// run consumes until ctx ends.
func (k *consumer) run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = k.cluster.In(ctx, k.topic, func(s *topic.Service) error { return k.attend(ctx, s) })
		select { // whatever ended it, it attaches again
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (k *consumer) attend(ctx context.Context, s *topic.Service) error {
	in, err := s.Attach(ctx, op, &topicv1.Attach{Topic: k.topic, Group: k.group}, false)
	if err != nil {
		return err
	}
	k.attached.Add(1)
	defer in.End("DETACHED")
	for {
		e, err := in.Receive(ctx, 10)
		if err != nil || e.Gone != "" {
			return err
		}
		list := decode(k.cluster.t, e)
		if len(list) == 0 {
			continue
		}
		set := &topicv1.AckSet{}
		k.mu.Lock()
		for _, g := range list {
			set.Positions = append(set.Positions, g.at)
			k.received[g.payload]++
			if k.acknowledged[g.payload] {
				k.again = append(k.again, g.payload)
			}
		}
		k.mu.Unlock()
		refused, err := in.Ack(ctx, set)
		if err != nil {
			return err
		}
		if len(refused) > 0 {
			continue
		}
		k.mu.Lock()
		for _, g := range list {
			k.acknowledged[g.payload] = true
		}
		k.mu.Unlock()
	}
}

func (k *consumer) has(payload string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.received[payload] > 0
}
