// Package engine opens what a process stands on: the store, and later the event
// log, the registry and routing. It is the only place that knows the modes; to
// everything else embedded and distributed look alike.
package engine

import (
	"errors"
	"log/slog"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
)

// Config says what to open.
type Config struct {
	DataDir string
	Logger  *slog.Logger
	Fatal   func(error) // called when nothing that is promised can be kept any more
}

// Validate checks a configuration.
func (c Config) Validate() error {
	if c.DataDir == "" {
		return errors.New("engine: a data directory is required")
	}
	return nil
}

// Engine is what is open.
type Engine struct {
	Store      store.Store
	Generation string

	embedded *embedded.Store
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
	return &Engine{Store: st, Generation: st.Generation(), embedded: st}, nil
}

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
func (e *Engine) Close() error { return e.Store.Close() }
