package explorer

import (
	"context"

	"github.com/parley-chat/parley/server/store"
)

// outboxStore is a relay's way to the store. Empty shards make no stop: there are
// too many of them.
type outboxStore struct {
	stops
	h *relayHost
}

// seldom pauses now and then: a relay that stopped at every call would be far behind
// when the trouble ends.
func (s *stops) seldom() error {
	if !s.w.choose.chance(300) {
		if s.p.dead || s.w.over {
			return store.ErrClosed
		}
		return nil
	}
	return s.stop()
}

func (o *outboxStore) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := o.begin(); err != nil {
		return store.Page{}, err
	}
	page, err := o.w.store.Query(ctx, q)
	switch whole := q.From == ""; {
	case q.Table != store.Outbox:
	case whole && o.w.bug.noSweep:
		page.Rows = nil
	case !whole && o.w.bug.missedRow && len(page.Rows) > 1:
		page.Rows = page.Rows[1:]
	}
	if len(page.Rows) == 0 {
		return page, err
	}
	if o.w.trace != nil {
		o.w.tracef("%s queries %s %s: %d", o.p.name, q.Table, q.PK, len(page.Rows))
	}
	if stopped := o.seldom(); stopped != nil {
		return store.Page{}, stopped
	}
	return page, err
}

// BatchWrite implements store.Store. The relay calls it on goroutines of its own, several at
// a time, which neither stop nor choose: which of them fail was chosen with the flush before.
func (o *outboxStore) BatchWrite(ctx context.Context, writes []store.Write) error {
	o.h.mu.Lock()
	defer o.h.mu.Unlock()
	if o.p.dead || o.w.over {
		return store.ErrClosed
	}
	if o.h.fails(writes[0].Key) {
		return store.ErrUnavailable
	}
	n := 0
	for _, wr := range writes {
		if o.w.peek(wr.Key) != nil {
			n++
		}
	}
	o.w.spine.rows -= n
	o.h.deleted += n
	return o.w.store.BatchWrite(ctx, writes)
}

// fails reports whether the batch that begins with a key is one of those that fail: about
// half of them, whatever their order.
func (h *relayHost) fails(k store.Key) bool {
	sum := h.unwritten
	for i := range len(k.SK) {
		sum = (sum ^ uint64(k.SK[i])) * 1099511628211
	}
	return h.unwritten != 0 && sum>>32&1 == 1
}
