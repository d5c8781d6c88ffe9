package topic_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/topictest"
)

// metered counts what plans cost by DynamoDB's rules: a unit for each KB of an item begun,
// twice that in a transaction.
type metered struct {
	store.Store
	mu    sync.Mutex
	units int
}

func (m *metered) Transact(ctx context.Context, p store.Plan) error {
	per := 1
	if len(p.Writes) > 1 {
		per = 2
	}
	m.mu.Lock()
	for _, w := range p.Writes {
		m.units += per * max(1, (w.Item.Size()+1023)/1024)
	}
	m.mu.Unlock()
	return m.Store.Transact(ctx, p)
}

func (m *metered) spent() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.units
	m.units = 0
	return n
}

// What the store costs follows subscriptions and flushes, not messages (HQ-E01): with one flush
// a second it is two units for each group's position and for the check of the epoch, and as much
// with a hundred times as many messages.
func TestCostFollowsSubscriptions(t *testing.T) {
	const groups, seconds = 4, 20
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := newCluster(t, 1)
		m := &metered{Store: c.Store}
		s, _, err := c.Open(&topictest.Gate{}, m)(ctx, storage.Slot{Number: 0, Of: 1})
		testkit.Must(t, err)
		var wg sync.WaitGroup
		wg.Go(func() { _ = s.Run(ctx, func() {}) })
		_, err = s.Configure(ctx, op, &topicv1.ConfigureTopicRequest{Topic: "t", Config: &topicv1.TopicConfig{
			Semantics:      topicv1.Semantics_SEMANTICS_PUB_SUB,
			CompletionMode: topicv1.CompletionMode_COMPLETION_MODE_OFFSET_WATERMARK,
		}})
		testkit.Must(t, err)
		for g := range groups {
			name := fmt.Sprint("g", g)
			_, err := s.CreateSubscription(ctx, op, &topicv1.CreateSubscriptionRequest{Topic: "t", Group: name})
			testkit.Must(t, err)
			k := c.consumer("t", name)
			wg.Go(func() { _ = k.attend(ctx, s) })
		}
		synctest.Wait()
		costs := map[int]int{}
		for _, rate := range []int{1, 100} {
			m.spent()
			for range seconds {
				for range rate {
					publishTo(ctx, t, s)
					time.Sleep(time.Second / time.Duration(rate))
				}
			}
			costs[rate] = m.spent()
		}
		const bound = 2*(groups+1)*(seconds+1) + 2*(groups+1) // and one write of heartbeats
		if costs[100] > bound || costs[1] < seconds {
			t.Errorf("%d s cost %d units with one message a second, %d with a hundred; expected up to %d", seconds, costs[1],
				costs[100], bound)
		}
		cancel()
		wg.Wait()
	})
}

func publishTo(ctx context.Context, t *testing.T, s *topic.Service) {
	t.Helper()
	_, err := s.Publish(ctx, op, &topicv1.PublishRequest{Topic: "t",
		Messages: []*topicv1.TopicMessage{{Payload: []byte("x")}}})
	testkit.Must(t, err)
}
