package projection_test

import (
	"testing"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
)

func TestStress(t *testing.T) {
	f := newFixture(t, 20)
	f.talk(40)
	lifecycletest.Stress(t, func(*testing.T) lifecycle.Service {
		return lifecycle.Service{Name: "projections", Run: f.set(f.store, nil).Run}
	})
}
