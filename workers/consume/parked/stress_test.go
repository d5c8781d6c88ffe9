package parked

import (
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
)

func TestStress(t *testing.T) {
	st := rows(t, time.Now())
	lifecycletest.Stress(t, func(*testing.T) lifecycle.Service {
		w := &Watch{Store: st, Clock: time.Now, Logger: slog.New(slog.DiscardHandler)}
		return lifecycle.Service{Name: "parked keys", Run: w.Run}
	})
}
