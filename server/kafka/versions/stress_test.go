package versions

import (
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestStress(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		w := testkit.Value(NewWatch(t.Context(), st, slog.New(slog.DiscardHandler)))(t)
		return lifecycle.Service{Name: "topics", Run: w.Run}
	})
}
