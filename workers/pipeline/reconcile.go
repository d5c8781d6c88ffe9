package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/workers/observe"
	"github.com/parley-chat/parley/workers/reconcile"
)

// Reconcile completes what crashes left half done.
type Reconcile struct {
	Chats *chat.Service
}

func (c Reconcile) addTo(_ context.Context, p *Pipeline) error {
	r, err := reconcile.New(reconcile.Config{Store: p.cfg.Backend.Store, Chats: c.Chats, Clock: time.Now,
		Logger: p.cfg.Logger})
	if err != nil {
		return err
	}
	observe.Reconcile(p.cfg.Metrics, r)
	p.checks = append(p.checks, func() error {
		if s := r.Stats(); !s.LastPass.IsZero() && time.Since(s.LastPass) > 3*reconcile.Every {
			return errors.New("reconcile makes no passes")
		}
		return nil
	})
	p.run("reconcile", r.Run)
	return nil
}
