package lease

import (
	"context"
	"errors"
	"time"
)

// Holder returns the holder of a slot when the leases were last read. It is empty if there
// was none, or if they were not read yet.
func (m *Manager) Holder(slot int) string {
	if all := *m.holders.Load(); slot < len(all) {
		return all[slot]
	}
	return ""
}

// ErrStopped says that Run has ended.
var ErrStopped = errors.New("lease: the manager has stopped")

// Refresh reads the leases again, acquires those that are free, and returns when that is
// done. Callers that come together share it.
func (m *Manager) Refresh(ctx context.Context) error {
	done := make(chan struct{})
	select {
	case m.asked <- done:
	case <-m.stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-m.stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// await waits until a round is due or requested, and returns the channels of the waiting
// callers.
func (m *Manager) await(ctx context.Context, tick <-chan time.Time) (waiting []chan struct{}) {
	var due <-chan time.Time // of a round that was asked for
	for {
		select {
		case <-ctx.Done():
			return waiting
		case <-tick:
			return waiting
		case <-due:
			return waiting
		case w := <-m.asked:
			if waiting = append(waiting, w); due == nil {
				due = time.After(refreshPause)
			}
		}
	}
}

// publish shows the holders as they were last read.
func (m *Manager) publish() {
	all := make([]string, len(m.observed))
	for n, o := range m.observed {
		all[n] = o.lease.Holder
	}
	m.holders.Store(&all)
}
