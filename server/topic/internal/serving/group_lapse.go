package serving

import (
	"context"
	"errors"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
)

const (
	lapseBatch = 10_000 // messages that Lapse settles under the lock of a partition
	probeBytes = 1      // of the first read of a front: one batch
)

// Lapse settles the messages of a partition whose time is over, at the front of the group: no member has to ask
// for that, and the log is not held for them. It takes the reads that it needs from reads, and stops without
// any: a front that does not end now is read once. A group whose members proceed finds what is over itself.
func (g *Group) Lapse(ctx context.Context, n int, reads *int) error {
	p := g.cfg.Parts[n]
	p.read(1)
	defer p.read(-1)
	for size := probeBytes; ; size = fetchBytes {
		w, ok := g.lapse(n)
		switch {
		case !ok, w.Reason == machine.Idle, w.Reason == machine.Fetch && *reads <= 0:
			return nil
		case w.Reason == machine.Limit:
			continue
		}
		*reads--
		if err := p.fetchSome(ctx, w.Position, size); errors.Is(err, commitlog.ErrTrimmed) {
			return nil // it ended in another way
		} else if err != nil {
			return err
		}
	}
}

// lapse settles what it can without a read. It returns false for a group whose members proceed. The timers of the group
// handle everything else that is due: their failures must be visible.
func (g *Group) lapse(n int) (w machine.Wait, ok bool) {
	members, changed := g.Members(), false
	p := g.cfg.Parts[n]
	p.Do(func(m *machine.Machine) {
		h := m.Group(g.cfg.Name)
		if h == nil {
			return
		}
		front := &g.parts[n].front
		if floor := h.Floor(); members > 0 && *front != floor {
			*front = floor
			return
		}
		version := h.Version()
		p.elapsedLocked()
		_, w = h.Lapse(lapseBatch)
		ok, changed, *front = true, h.Version() != version, h.Floor()
	})
	if changed {
		g.do(n, func(*machine.GroupState) {})
		g.Wake(n) // messages that waited are checked again
	}
	return w, ok
}
