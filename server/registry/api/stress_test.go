package api

import (
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestStress(t *testing.T) {
	r := registry.New(storetest.NewMemory(time.Now))
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		s := testkit.Value(Listen(t.Context(), Config{Registry: r, Listen: "127.0.0.1:0",
			Logger: slog.New(slog.DiscardHandler)}))(t)
		return lifecycle.Service{Name: "registry", Run: s.Run}
	})
}
