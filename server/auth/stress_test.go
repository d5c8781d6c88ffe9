package auth

import (
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
)

func TestStress(t *testing.T) {
	now := time.Now()
	p := newProcess(t, nil, &now)
	lifecycletest.Stress(t, func(*testing.T) lifecycle.Service {
		return lifecycle.Service{Name: "keys", Run: (&KeyWatch{Key: p.key, Logger: slog.New(slog.DiscardHandler)}).Run}
	})
}
