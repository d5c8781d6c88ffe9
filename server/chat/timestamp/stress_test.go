package timestamp_test

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat/timestamp"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestStress(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	lifecycletest.Stress(t, func(*testing.T) lifecycle.Service {
		return lifecycle.Service{Name: "clock", Run: timestamp.New(st, time.Now).Run}
	})
}
