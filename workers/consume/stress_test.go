package consume

import (
	"testing"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
)

func TestStress(t *testing.T) {
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		r := newStoreFixture(t)
		r.publish("good-1", "good-2")
		return lifecycle.Service{Name: "consumer", Run: r.engine(nil).Run}
	})
}
