package revocation

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestStress(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprint("shared ", shared), func(t *testing.T) {
			st := storetest.NewMemory(time.Now)
			lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
				s := testkit.Value(New(Config{Store: st, Clock: time.Now, Apply: func(auth.Revocation) {}, Shared: shared,
					Logger: slog.New(slog.DiscardHandler)}))(t)
				return lifecycle.Service{Name: "revocations", Run: s.Run}
			})
		})
	}
}
