package routing_test

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/routing/routingtest"
)

func TestStress(t *testing.T) {
	table := routingtest.New(time.Now)
	var made atomic.Int64
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		l := testkit.Value(routing.NewLease(routing.LeaseConfig{
			Table: table, Server: routing.Server{ID: fmt.Sprint("s", made.Add(1)), Addr: "h:1", Generation: "g"},
			Lost: func() {}, Clock: time.Now, Logger: slog.New(slog.DiscardHandler), TTL: 9 * time.Millisecond, Patience: -1,
		}))(t)
		return lifecycle.Service{Name: "routing", Run: l.Run}
	})
	list, err := table.Servers(t.Context())
	testkit.Must(t, err)
	testkit.Equal(t, "servers that remain listed", len(list), 0)
}
