package topicrpc

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
)

// A start that fails says why: a store may be opened with so little room that it takes nothing.
func TestStartWithoutRoom(t *testing.T) {
	t.Parallel()
	b, err := backend.Open(backend.Config{Embedded: &backend.Embedded{DataDir: t.TempDir(), Kafka: "127.0.0.1:0"}})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, b.Close()) })
	b.Store = faulty.New(b.Store, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
		if c.Method.Writes() {
			return faulty.Fault{When: faulty.Before, Err: store.ErrFull}
		}
		return faulty.Fault{}
	}})
	p, err := NewModule(t.Context(), ModuleConfig{Backend: b, Clock: time.Now, Metrics: telemetry.NewMetrics(),
		Logger: slog.New(slog.DiscardHandler), Process: "one"})
	if p != nil || !errors.Is(err, store.ErrFull) {
		t.Errorf("%v, %v", p, err)
	}
}
