package people_test

import (
	"testing"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestStress(t *testing.T) {
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		w := &fixture{T: t, now: epoch}
		w.open(storetest.NewMemory(w.clock))
		testkit.Must(t, w.people.Delete(t.Context(), "ann", "ann"))
		return lifecycle.Service{Name: "people", Run: w.people.Run}
	})
}
