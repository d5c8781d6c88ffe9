package delivery_test

import (
	"testing"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
)

func TestStress(t *testing.T) {
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		return lifecycle.Service{Name: "delivery", Run: newFixture(t, nil).hub.Run}
	})
}
