package migrate

import (
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
		m := testkit.Value(New(Config{Store: st, Cluster: &Live{Store: st}, Clock: time.Now, Logger: discard}))(t)
		return lifecycle.Service{Name: "migration", Run: m.Guard().Run}
	})
}
