package link

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/infra/lifecycle"
	"github.com/parley-chat/parley/server/infra/lifecycle/lifecycletest"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing/routingtest"
)

func TestStressNudger(t *testing.T) {
	table := routingtest.New(time.Now)
	lifecycletest.Stress(t, func(*testing.T) lifecycle.Service {
		n := NewNudger(table, slog.New(slog.DiscardHandler))
		n.Nudge(chat.Commit{ChatID: "chat_1"})
		return lifecycle.Service{Name: "nudges", Run: n.Run}
	})
}

func TestStressMesh(t *testing.T) {
	lifecycletest.Stress(t, func(t *testing.T) lifecycle.Service {
		m := testkit.Value(New(newNet(t).config("sender", nil)))(t)
		return lifecycle.Service{Name: "peers", Run: func(ctx context.Context, ready func()) error {
			if err := m.Open(context.WithoutCancel(ctx)); err != nil {
				return err
			}
			return m.Run(ctx, ready)
		}}
	})
}
