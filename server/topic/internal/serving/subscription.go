package serving

import (
	"log/slog"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// SubscriptionsConfig is what a Manager stands on. All fields are required.
type SubscriptionsConfig struct {
	Store    store.Store
	Catalog  *storage.Catalog
	Topics   *TopicCache
	Sources  *Sources
	Flusher  *Flusher
	Counters *Counters
	Clock    func() time.Time
	Logger   *slog.Logger
	// Watch says that there is a group more whose heartbeats count.
	Watch func()
}

// SubscriptionManager changes subscriptions.
type SubscriptionManager struct{ cfg SubscriptionsConfig }

// NewSubscriptionManager makes a Manager.
func NewSubscriptionManager(c SubscriptionsConfig) *SubscriptionManager {
	return &SubscriptionManager{c}
}
