package versions

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// FollowEvery is how often a process reads the state.
const FollowEvery = time.Second

// Watch follows the state for readers that may be late: consumers, metrics, listings. A
// relay reads the state itself, because its records depend on it.
type Watch struct {
	store  store.Store
	logger *slog.Logger
	state  atomic.Pointer[State]
}

// NewWatch makes a Watch and reads the state once.
func NewWatch(ctx context.Context, st store.Store, logger *slog.Logger) (*Watch, error) {
	s, err := Load(ctx, st)
	if err != nil {
		return nil, err
	}
	w := &Watch{store: st, logger: logger}
	w.state.Store(&s)
	return w, nil
}

// State returns the state as it was last read.
func (w *Watch) State() State { return *w.state.Load() }

// Readable returns a function that returns State.Readable of the present state.
func (w *Watch) Readable(bases ...string) func() []string {
	return func() []string { return w.State().Readable(bases...) }
}

// Frozen returns for how long a topic has been frozen; 0 if none is.
func (w *Watch) Frozen(now time.Time) time.Duration {
	m := w.State().Move
	if m == nil || !w.State().Frozen(m.Topic) {
		return 0
	}
	return max(0, now.Sub(time.UnixMilli(m.FrozenAt)))
}

// Run follows the state until ctx ends. While the store does not answer, the last state
// remains.
func (w *Watch) Run(ctx context.Context, ready func()) error {
	ready()
	t := time.NewTicker(FollowEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		s, err := Load(ctx, w.store)
		switch {
		case err == nil:
			if s.Revision != w.State().Revision {
				w.state.Store(&s)
			}
		case ctx.Err() == nil:
			w.logger.Warn("cannot read the versions of topics; using the last ones", "error", err)
		}
	}
}
