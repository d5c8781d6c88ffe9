package delivery

import (
	"context"
	"hash/fnv"
	"time"

	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// resync is a stream's synchronisation with the store after something may have been
// missed that was meant for it (design §8):
//
//  1. read the user's rows;
//  2. read the heads of the chats that the stream is attached to, and have those
//     that have moved on walked: their events show removals, additions and the
//     first sequence of a new membership as they were;
//  3. look at chats that the user is in and the stream is not, and at those left;
//  4. send the user's own state where it changed, which no event tells of;
//  5. once all that has reached the stream, give it a token whose time is before
//     the first read.
//
// It begins from the stream's own last synchronisation, and starts over if the
// stream is marked again meanwhile.
type resync struct {
	again   bool // marked since it was begun
	reading bool // begun and not failed
	start   view.Start
	mark    uint64           // the mark that it answers
	until   map[string]int64 // version that the stream must reach, by chat attached
	joins   map[string]bool  // chats that are looked at
}

// settleEvery is the pause between two looks whether a synchronisation has reached
// its stream.
const settleEvery = 50 * time.Millisecond

// MarkDirty says that deliveries or receipts may have been lost, whichever they
// were. Each stream synchronises anew, at a time of its own within Config.Spread.
func (h *Hub) MarkDirty() {
	now := h.cfg.Clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mark++
	h.stats.Marks++
	for _, s := range h.streams {
		switch {
		case s.resync != nil:
			s.resync.again = true
		case s.opening: // what it has read may be older than what was lost
			s.dirty = true
		default:
			h.beginResync(s, now.Add(h.spread(s)))
		}
	}
}

// spread is the stream's own part of the time over which synchronisations are
// spread.
func (h *Hub) spread(s *Stream) time.Duration {
	f := fnv.New64a()
	_, _ = f.Write([]byte(s.id)) // never fails
	return time.Duration(f.Sum64() % uint64(h.cfg.Spread))
}

// beginResync schedules a synchronisation of a stream that has none. Callers hold
// mu.
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
		h.mu.Unlock()
		return nil
	}
	if r.reading {
		defer h.mu.Unlock()
		h.settle(s, w, now)
		return nil
	}
	*r = resync{reading: true, mark: h.mark, until: map[string]int64{}, joins: map[string]bool{}}
	h.stats.Resyncs++
	h.mu.Unlock()

	err := s.read(ctx, r)

	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		r.reading = false
		h.schedule(now.Add(retryAfter), w)
		return err
	}
	h.settle(s, w, now)
	return nil
}

// settle ends a synchronisation that has reached its stream, or looks again later.
// Callers hold mu.
func (h *Hub) settle(s *Stream, w Work, now time.Time) {
	r := s.resync
	for id, version := range r.until {
		if a := s.attached.Of(id); a == nil || (a.live && a.pos >= version) {
			delete(r.until, id) // walked up to there, or up to the own removal
		}
	}
	for id := range r.joins {
		if a := s.attached.Of(id); h.joins[join{s, id}] == nil && (a == nil || a.live) {
			delete(r.joins, id)
		}
	}
	switch {
	case r.again:
		s.resync = &resync{}
		h.schedule(now.Add(h.spread(s)), w)
	case len(r.until)+len(r.joins) > 0:
		h.schedule(now.Add(settleEvery), w)
	default:
		s.resync = nil
		s.synced = r.start.At
		s.token = h.cfg.Source.NewToken(s.user, r.start)
		h.push(s, frame.Heartbeat(s.token))
		h.dropDead([]*Stream{s})
	}
}

// read reads what the stream may have missed, and has it shown.
func (s *Stream) read(ctx context.Context, r *resync) error {
	h := s.hub
	var err error
	if r.start, err = h.cfg.Source.Begin(ctx); err != nil {
		return err
	}
	rows, err := h.cfg.Source.UserChats(ctx, s.user)
	if err != nil {
		return err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return err
	}
	since := s.synced.Add(-view.Overlap).UnixMilli() // as a token of that time
	var own []table.UserChat
	for _, row := range rows {
		if !row.Left() && row.ChangedAt >= since {
			own = append(own, row)
		}
	}
	for len(own) > 0 {
		n := min(pageSize, len(own))
		if err := s.showStates(ctx, own[:n], false); err != nil {
			return err
		}
		own = own[n:]
	}
	h.mu.Lock()
	ids := make([]string, 0, len(s.attached))
	for _, a := range s.attached {
		id := a.chat.id
		// One stream's reading of a head serves all that answer the same mark.
		if a.chat.mark < r.mark {
			ids = append(ids, id)
		} else {
			r.until[id] = a.chat.markedAt
		}
	}
	for _, row := range rows {
		told := s.departed.Told(row.ChatID)
		if s.attached.Of(row.ChatID) == nil && (!row.Left() || (row.ChangedAt >= since && row.LeftVersion > told)) {
			h.requestJoin(s, row.ChatID, 0)
			r.joins[row.ChatID] = true
		}
	}
	h.mu.Unlock()
	for len(ids) > 0 {
		n := min(pageSize, len(ids))
		if err := s.readHeads(ctx, r, ids[:n]); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// readHeads has the chats walked that have moved on.
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
	defer h.mu.Unlock()
	for i, id := range ids {
		cs := h.chats[id]
		if heads[i] == nil || cs == nil {
			continue
		}
		r.until[id] = heads[i].Version
		cs.mark, cs.markedAt = max(cs.mark, r.mark), max(cs.markedAt, heads[i].Version)
		cs.Wanted = max(cs.Wanted, heads[i].Version)
		h.advance(cs)
	}
	return nil
}

// showStates sends the user's own state in chats, or the whole overviews, read with the user's rows
// last.
func (s *Stream) showStates(ctx context.Context, rows []table.UserChat, whole bool) error {
	h := s.hub
	list, err := h.cfg.Source.Overviews(ctx, s.user, rows)
	if err != nil {
		return err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ov := range list {
		id, head := ov.GetChat().GetChatId(), ov.GetHead()
		switch {
		case s.attached.Of(id) == nil:
		case whole:
			h.push(s, frame.Head(id, head.GetVersion(), head.GetSequence(), ov))
		default:
			h.push(s, frame.Receipt(id, ov.GetState()))
		}
	}
	h.dropDead([]*Stream{s})
	return nil
}
