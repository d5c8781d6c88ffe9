package delivery

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// resync is an open stream's synchronisation with the store after something may have
// been missed that was meant for it:
//
//  1. read the user's rows;
//  2. send the user's own state where it changed, which no event shows;
//  3. reconcile with chats that the user is in and the stream is not, and with those
//     left;
//  4. read the heads of the chats that the stream is subscribed to, and apply the
//     changes of those that are further: their events show removals, additions and the
//     first sequence of a new membership as they were;
//  5. once all that has reached the stream, send it a token whose time is before
//     the first read.
//
// It begins from the stream's own last synchronisation, and starts over if the
// streams are invalidated again meanwhile.
type resync struct {
	again   bool // invalidated again since it was begun
	reading bool // begun and not failed
	start   view.Start
	// invalidation is the number of the one that it answers.
	invalidation    int64
	until           map[string]int64 // version that the stream must reach, by chat
	reconciliations map[string]bool  // chats whose reconciliation must end
}

// recheckEvery is the pause between two checks whether a resync has reached its
// stream.
const recheckEvery = 50 * time.Millisecond

// InvalidateAll says that deliveries or receipts may have been lost, whichever they
// were. Each stream synchronises again, at a time of its own within Config.Spread.
func (h *Hub) InvalidateAll() {
	now := h.cfg.Clock()
	h.mu.Lock()
	defer h.unlock()
	h.stats.Invalidations++
	for _, s := range h.streams {
		switch {
		case s.resync != nil:
			s.resync.again = true
		case s.catchingUp: // the rows that it has read may be older than the lost changes
			s.needsResync = true
		default:
			h.beginResync(s, now.Add(h.spread(s)))
		}
	}
}

// spread is the stream's own part of the time over which resyncs are spread.
func (h *Hub) spread(s *Stream) time.Duration {
	f := fnv.New64a()
	_, _ = f.Write([]byte(s.id)) // never fails
	return time.Duration(f.Sum64() % uint64(h.cfg.Spread))
}

// beginResync schedules the resync of a stream that has none. Callers hold mu.
func (h *Hub) beginResync(s *Stream, due time.Time) {
	s.resync = &resync{}
	h.schedule(due, Work{kind: workResync, stream: s})
}

func (h *Hub) doResync(ctx context.Context, w Work) error {
	s, now := w.stream, h.cfg.Clock()
	h.mu.Lock()
	r := s.resync
	if h.streams[s.id] != s {
		s.resync = nil
		h.unlock()
		return nil
	}
	if r.reading {
		defer h.unlock()
		h.completeResync(s, w, now)
		return nil
	}
	*r = resync{reading: true, invalidation: h.stats.Invalidations, until: map[string]int64{},
		reconciliations: map[string]bool{}}
	h.stats.Resyncs++
	h.unlock()

	err := s.readMissed(ctx, r)

	h.mu.Lock()
	defer h.unlock()
	if err != nil {
		r.reading = false
		h.schedule(now.Add(retryAfter), w)
		return err
	}
	h.completeResync(s, w, now)
	return nil
}

// completeResync ends a resync that has reached its stream, or checks again later.
// Callers hold mu.
func (h *Hub) completeResync(s *Stream, w Work, now time.Time) {
	r := s.resync
	for id, version := range r.until {
		if a := s.subscriptions.Of(id); a == nil || (a.active && a.pos >= version) {
			delete(r.until, id) // applied up to there, or up to the own removal
		}
	}
	for id := range r.reconciliations {
		if a := s.subscriptions.Of(id); h.reconciliations[subscriptionKey{s, id}] == nil && (a == nil || a.active) {
			delete(r.reconciliations, id)
		}
	}
	switch {
	case r.again:
		s.resync = &resync{}
		h.schedule(now.Add(h.spread(s)), w)
	case len(r.until)+len(r.reconciliations) > 0:
		h.schedule(now.Add(recheckEvery), w)
	default:
		s.resync = nil
		h.completeSync(s, r.start)
	}
}

// readMissed reads what the stream may have missed, and has it sent.
func (s *Stream) readMissed(ctx context.Context, r *resync) (err error) {
	h := s.hub
	if r.start, err = h.cfg.Source.Begin(ctx); err != nil {
		return err
	}
	rows, err := h.cfg.Source.UserChats(ctx, s.owner.UserID)
	if err != nil {
		return err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return err
	}
	since := s.synced.Add(-view.Overlap).UnixMilli() // as a token of that time
	var own []string
	for _, row := range rows {
		if !row.Left() && row.ChangedAt >= since {
			own = append(own, row.ChatID)
		}
	}
	for len(own) > 0 {
		n := min(pageSize, len(own))
		if err := s.sendStates(ctx, own[:n], false); err != nil {
			return err
		}
		own = own[n:]
	}
	ids := s.requestMissed(r, rows, since)
	for len(ids) > 0 {
		n := min(pageSize, len(ids))
		if err := s.readHeads(ctx, r, ids[:n]); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// requestMissed requests reconciliations with the chats where the user's rows and the
// subscriptions differ, and returns the subscribed chats whose heads are to be read.
func (s *Stream) requestMissed(r *resync, rows []table.UserChat, since int64) []string {
	h := s.hub
	h.mu.Lock()
	defer h.unlock()
	ids := make([]string, 0, len(s.subscriptions))
	for _, a := range s.subscriptions {
		id := a.chat.id
		// A head that one stream reads serves all that answer the same invalidation.
		if a.chat.invalidation < r.invalidation {
			ids = append(ids, id)
		} else {
			r.until[id] = a.chat.headVersion
		}
	}
	for _, row := range rows {
		sent := s.departed.Version(row.ChatID)
		if s.subscriptions.Of(row.ChatID) == nil && (!row.Left() || (row.ChangedAt >= since && row.LeftVersion > sent)) {
			h.requestReconcile(s, row.ChatID, 0)
			r.reconciliations[row.ChatID] = true
		}
	}
	return ids
}

// readHeads reads heads and has the changes applied of the chats that are further.
func (s *Stream) readHeads(ctx context.Context, r *resync, ids []string) error {
	h := s.hub
	heads, err := h.cfg.Source.Heads(ctx, ids)
	if err != nil {
		return err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.unlock()
	for i, id := range ids {
		cs := h.chats[id]
		if heads[i] == nil || cs == nil {
			continue
		}
		r.until[id] = heads[i].Version
		cs.invalidation, cs.headVersion = max(cs.invalidation, r.invalidation), max(cs.headVersion, heads[i].Version)
		cs.Newest = max(cs.Newest, heads[i].Version)
		h.applyPending(cs)
	}
	return nil
}
