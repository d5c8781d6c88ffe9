package session_test

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestStress(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		f := &fixture{t: t, now: time.Now(), revoked: map[string]time.Time{}}
		return lifecycle.Service{Name: "sessions", Run: f.service(st, 'p').Run}
	})
}
