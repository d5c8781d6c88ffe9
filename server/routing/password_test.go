package routing_test

import (
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
)

// A password that is replaced while a process runs is used from the next connection on.
func TestPasswordIsReplaced(t *testing.T) {
	m := miniredis.RunT(t)
	m.RequireUserAuth("parley", "first")
	var now atomic.Value
	now.Store("first")
	r, err := routing.OpenRedis(routing.Options{URL: "redis://parley@" + m.Addr(), Password: "first",
		PasswordNow: func() string { return now.Load().(string) }})
	testkit.Must(t, err)
	defer r.Close()
	testkit.Must(t, r.Ping(t.Context()))
	addr := m.Addr()
	m.Close()
	m.RequireUserAuth("parley", "second")
	testkit.Must(t, m.StartAddr(addr))
	if err := r.Ping(t.Context()); err == nil {
		t.Error("the password before was taken")
	}
	now.Store("second")
	testkit.Must(t, r.Ping(t.Context()))
}
