package versions

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// FollowEvery is how often a process looks whether the state has changed.
const FollowEvery = time.Second

// Watch follows the state for those who may be late: consumers, metrics, listings. A
// relay reads the state itself, because what it publishes hangs on it.
type Watch struct {
	store  store.Store
	logger *slog.Logger
	state  atomic.Pointer[State]
}

// NewWatch reads the state once.
func NewWatch(ctx context.Context, st store.Store, logger *slog.Logger) (*Watch, error) {
	s, err := Load(ctx, st)
	if err != nil {
		return nil, err
	}
	w := &Watch{store: st, logger: logger}
	w.state.Store(&s)
	return w, nil
}

// State is the state as it was read last.
func (w *Watch) State() State { return *w.state.Load() }

// Readable is State.Readable, in a form that consumers ask again and again.
func (w *Watch) Readable(bases ...string) func() []string {
	return func() []string { return w.State().Readable(bases...) }
}

// Frozen is how long the relays have been waiting; 0 if they are not.
func (w *Watch) Frozen(now time.Time) time.Duration {
	m := w.State().Move
	if m == nil || !w.State().Frozen(m.Topic) {
		return 0
	}
	return max(0, now.Sub(time.UnixMilli(m.FrozenAt)))
}

// Run follows the state until ctx ends. While the store does not answer, the last state
// stays.
func (w *Watch) Run(ctx context.Context) error {
	t := time.NewTicker(FollowEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
		s, err := Load(ctx, w.store)
		switch {
		case err == nil:
			if s.Revision != w.State().Revision {
				w.state.Store(&s)
			}
		case ctx.Err() == nil:
			w.logger.Warn("the versions of topics cannot be read; the last ones stay", "error", err)
		}
	}
}
