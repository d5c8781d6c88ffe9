package reconcile_test

import (
	"testing"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestStress(t *testing.T) {
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		w := &fixture{T: t, log: &buffer{}}
		w.store = storetest.NewMemory(w.clock)
		return lifecycle.Service{Name: "reconcile", Run: w.reconciler().Run}
	})
}
