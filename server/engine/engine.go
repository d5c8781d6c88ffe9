// Package engine opens what a process stands on: the store and the event log. It
// is the only place that knows the modes; to everything else embedded and
// distributed look alike.
package engine

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
)

// Config says what to open.
type Config struct {
	DataDir string
	// Kafka is the address of the embedded broker's port; with KafkaFallback a free
	// port is taken where it is in use.
	Kafka         string
	KafkaFallback bool
	Groups        []string // consumer groups that must have read what is trimmed from the log
	Logger        *slog.Logger
	Fatal         func(error) // called when nothing that is promised can be kept any more
}

// Validate checks a configuration.
func (c Config) Validate() error {
	if c.DataDir == "" || c.Kafka == "" {
		return errors.New("engine: a data directory and an address for Kafka are required")
	}
	return nil
}

// Engine is what is open.
type Engine struct {
	Store      store.Store
	Generation string

	embedded *embedded.Store
	broker   *kafka.Broker
}

// Open opens everything. Errors fit into one line.
func Open(cfg Config) (*Engine, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	st, err := embedded.Open(embedded.Options{Dir: cfg.DataDir, Logger: cfg.Logger, Fatal: cfg.Fatal})
	if err != nil {
		return nil, err
	}
	// The store's lock on the data directory is the broker's, too.
	b, err := kafka.OpenBroker(kafka.BrokerConfig{
		Dir: filepath.Join(cfg.DataDir, "log"), Listen: cfg.Kafka, Fallback: cfg.KafkaFallback, Groups: cfg.Groups, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return &Engine{Store: st, Generation: st.Generation(), embedded: st, broker: b}, nil
}

// KafkaAddr is where the event log speaks Kafka.
func (e *Engine) KafkaAddr() string { return e.broker.Addr() }

// LogStable returns when all that was published before is on stable storage.
func (e *Engine) LogStable(ctx context.Context) error { return e.broker.Stable(ctx) }

// TrimLog keeps the log within its cap; full says that it could not.
func (e *Engine) TrimLog() (full bool, err error) { return e.broker.Trim() }

// LogBytes is the size of the log.
func (e *Engine) LogBytes() int64 { return e.broker.Bytes() }

// StoreStats are counters of the store.
type StoreStats struct {
	Plans, Failed, Compactions int64
	DiskBytes                  uint64
}

// Stats returns the counters.
func (e *Engine) Stats() StoreStats {
	s := e.embedded.Stats()
	return StoreStats{Plans: s.Plans, Failed: s.Failed, Compactions: s.Compactions, DiskBytes: s.DiskBytes}
}

// Close closes everything, in reverse order.
func (e *Engine) Close() error {
	e.broker.Close()
	return e.Store.Close()
}
