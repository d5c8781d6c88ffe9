package backend_test

import (
	"log/slog"
	"testing"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/infra/testkit"
)

func open(t *testing.T) *backend.Backend {
	t.Helper()
	e := testkit.Value(backend.Open(config(t.TempDir())))(t)
	t.Cleanup(func() { testkit.Must(t, e.Close()) })
	return e
}

func TestStress(t *testing.T) {
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		return lifecycle.Service{Name: "engine", Run: open(t).Run}
	})
}

func TestStressLogKeeper(t *testing.T) {
	e := open(t)
	lifecycletest.Stress(t, func(*testing.T) lifecycle.Service {
		return lifecycle.Service{Name: "log", Run: e.LogKeeper(slog.New(slog.DiscardHandler)).Run}
	})
}
