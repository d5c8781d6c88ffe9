package liveness

import (
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
		m := testkit.Value(New(Config{Store: st, Process: fmt.Sprint("p", made.Add(1)),
			Logger: slog.New(slog.DiscardHandler)}))(t)
		return lifecycle.Service{Name: "liveness", Run: m.Run}
	})
}
