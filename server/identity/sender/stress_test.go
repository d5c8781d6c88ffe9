package sender_test

import (
	"testing"

	"github.com/parley-chat/parley/server/identity/sender"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
)

func TestStress(t *testing.T) {
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		way := &way{wait: make(chan struct{})}
		close(way.wait)
		q := sender.NewQueue(way, func(error) {}) // the code has expired
		q.Send(message(t, "+491512345678"))
		return lifecycle.Service{Name: "codes", Run: q.Run}
	})
}
