// Package subscription changes subscriptions: it begins them, moves them from state to
// state, and moves their places.
//
// It owns what a change is for the messages and for the members, and in which order that
// becomes durable. It does not know who may ask for it; which state follows on which is
// package lifecycle's.
//
// Concurrency: a Manager may be used by many goroutines. Changes hold the topic's lock for
// writing.
package subscription

import (
	"log/slog"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/catalog"
	"github.com/parley-chat/parley/server/topic/live"
	"github.com/parley-chat/parley/server/topic/owner"
	"github.com/parley-chat/parley/server/topic/source"
	"github.com/parley-chat/parley/server/topic/workingset"
)

// Config is what a Manager stands on. All fields are required.
type Config struct {
	Store    store.Store
	Catalog  *catalog.Catalog
	Topics   *workingset.Set
	Sources  *source.Sources
	Flusher  *owner.Flusher
	Counters *live.Counters
	Clock    func() time.Time
	Logger   *slog.Logger
	// Watch says that there is a group more whose heartbeats count.
	Watch func()
}

// Manager changes subscriptions.
type Manager struct{ cfg Config }

// New makes a Manager.
func New(c Config) *Manager { return &Manager{c} }
