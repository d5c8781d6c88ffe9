package delivery

import (
	"context"
	"time"
)

// gap is what a chat's changes lack: versions up to the newest one known, of which the
// first has not come. A gap may close by itself; after Config.GapWait it is filled from
// the store.
type gap struct {
	since   time.Time // when it opened; zero: there is none
	filling bool      // a read of the missing events is scheduled or under way
}

// watchGap schedules a read of a chat's missing events, if there are any. moved says that
// changes were applied since the last call: then it is another gap. Callers hold mu.
func (h *Hub) watchGap(cs *chatState, moved bool) {
	if cs.Newest <= cs.Version {
		cs.gap.since = time.Time{}
		h.dropIdle(cs)
		return
	}
	if moved || cs.gap.since.IsZero() {
		cs.gap.since = h.cfg.Clock()
	}
	if !cs.gap.filling {
		cs.gap.filling = true
		h.schedule(cs.gap.since.Add(h.cfg.GapWait), Work{kind: workFillGap, chat: cs})
	}
}

// fillGap reads the events that a chat lacks, once for all its streams.
func (h *Hub) fillGap(ctx context.Context, w Work) error {
	cs := w.chat
	h.mu.Lock()
	if h.chats[cs.id] != cs || cs.Newest <= cs.Version { // dropped, or the gap has closed
		cs.gap.filling = false
		h.unlock()
		return nil
	}
	after, newest := cs.Version, cs.Newest
	h.stats.GapFills++
	h.unlock()

	events, err := h.cfg.Source.Events(ctx, cs.id, after, pageSize)
	if err == nil {
		err = h.cfg.Durable(ctx)
	}

	h.mu.Lock()
	defer h.unlock()
	if err != nil {
		h.schedule(h.cfg.Clock().Add(retryAfter), w)
		return err
	}
	if h.chats[cs.id] != cs { // dropped meanwhile: no stream needs what was read
		cs.gap.filling = false
		return nil
	}
	more := len(events) == pageSize
	if !more && cs.Newest == newest {
		// A consistent read shows all that is committed, and nothing is delivered
		// before it is: there is no more than this and what has come by itself.
		cs.Complete()
	}
	for _, e := range events {
		cs.Fill(e)
	}
	cs.gap.filling = more // the next page is read at once
	h.applyPending(cs)
	if more {
		h.schedule(h.cfg.Clock(), w)
	}
	return nil
}
