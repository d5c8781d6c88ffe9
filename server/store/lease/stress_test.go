package lease

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestStress(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	var made atomic.Int64
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		m := testkit.Value(New(Config{Store: st, Kind: kind, Holder: fmt.Sprint("p", made.Add(1)), Slots: 4,
			Logger: slog.New(slog.DiscardHandler),
			Start:  func(ctx context.Context, _ int) error { <-ctx.Done(); return nil }}))(t)
		return lifecycle.Service{Name: "slots", Run: m.Run}
	})
}
