package topic_test

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/topictest"
)

func TestStress(t *testing.T) {
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		c := newCluster(t, 1)
		s, _, err := c.Open(&topictest.Gate{}, c.Store)(t.Context(), storage.Slot{Of: 1})
		testkit.Must(t, err)
		return lifecycle.Service{Name: "topics", Run: s.Run}
	})
}

// The managers share the slots: what one gives up another takes.
func TestStressSlots(t *testing.T) {
	c := newCluster(t, 4)
	var made atomic.Int64
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		p := testkit.Value(topic.NewSlotManager(topic.SlotManagerConfig{Store: c.Store, Process: fmt.Sprint("p", made.Add(1)),
			Slots: 4, Open: c.Open(&topictest.Gate{}, c.Store), Logger: slog.New(slog.DiscardHandler),
			TTL: 900 * time.Millisecond}))(t)
		return lifecycle.Service{Name: "topics", Run: p.Run}
	})
}
