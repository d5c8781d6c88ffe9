package delivery

import (
	"context"
	"maps"
	"slices"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/view"
)

// Receipt sends a user's own state in a chat to all the user's streams.
func (h *Hub) Receipt(user, chatID string, state *chatv1.MemberState) {
	f := frame.Receipt(chatID, state)
	h.mu.Lock()
	defer h.unlock()
	for _, s := range h.users[user] {
		h.push(s, f)
	}
	h.endOverflowed(h.users[user])
}

// OpenParams describe a stream to open.
type OpenParams struct {
	Principal auth.Principal // the caller that opens it
	Token     string         // of the last synchronisation; empty for none
	Known     []*deliveryv1.KnownChat
}

// Open registers a stream and queues its hello. The caller then calls
// [Stream.Step] until the catch-up is done, and must call [Hub.Close] in the end.
// Errors: ErrDraining, ErrSessionRevoked, and those of Source.Token.
func (h *Hub) Open(ctx context.Context, p OpenParams) (*Stream, error) {
	s, err := h.register(ctx, p)
	if err == nil && h.cfg.Revoked(p.Principal) {
		h.Close(s)
		return nil, ErrSessionRevoked
	}
	return s, err
}

func (h *Hub) register(ctx context.Context, p OpenParams) (*Stream, error) {
	now := h.cfg.Clock()
	tok := view.Token{Full: true}
	if p.Token != "" {
		var err error
		if tok, err = h.cfg.Source.Token(ctx, p.Principal.UserID, p.Token); err != nil {
			return nil, err
		}
	}
	s := newStream(h, p, tok, now)
	h.mu.Lock()
	defer h.unlock()
	if h.draining {
		return nil, ErrDraining
	}
	user := p.Principal.UserID
	if mine := h.users[user]; len(mine) >= h.cfg.MaxStreams {
		h.end(mine[0], deliveryv1.EndCode_END_CODE_REPLACED, 0)
	}
	h.streams[s.id] = s
	h.users[user] = append(h.users[user], s)
	h.stats.Opened++
	h.push(s, s.hello())
	return s, nil
}

// Close drops a stream. Closing twice is harmless.
func (h *Hub) Close(s *Stream) {
	h.mu.Lock()
	defer h.unlock()
	h.remove(s)
	s.queue.Close(nil)
}

// remove removes a stream from all indexes. Callers hold mu.
func (h *Hub) remove(s *Stream) {
	if h.streams[s.id] != s {
		return
	}
	delete(h.streams, s.id)
	mine := h.users[s.owner.UserID]
	for i, t := range mine {
		if t == s {
			// A copy, because callers may be iterating over the old slice.
			mine = append(append([]*Stream(nil), mine[:i]...), mine[i+1:]...)
			break
		}
	}
	if len(mine) == 0 {
		delete(h.users, s.owner.UserID)
	} else {
		h.users[s.owner.UserID] = mine
	}
	h.unsubscribeAll(s)
}

// Stream returns an open stream of a user by its id.
func (h *Hub) Stream(user, id string) (*Stream, error) {
	h.mu.Lock()
	defer h.unlock()
	s := h.streams[id]
	if s == nil || s.owner.UserID != user {
		return nil, ErrStreamGone
	}
	return s, nil
}

// Extend lets a stream live until a later time. Errors: ErrStreamGone,
// ErrNotYours.
func (h *Hub) Extend(user, session, id string, until time.Time) error {
	h.mu.Lock()
	defer h.unlock()
	s := h.streams[id]
	switch {
	case s == nil || s.owner.UserID != user: // a user learns nothing of others' streams
		return ErrStreamGone
	case s.owner.SessionID != session:
		return ErrNotYours
	}
	s.expires = until
	return nil
}

// EndRevoked ends the streams whose opener covers selects. Streams that are registered
// meanwhile may be left out: see Config.Revoked.
func (h *Hub) EndRevoked(covers func(auth.Principal) bool) {
	var revoked []*Stream
	for _, s := range h.all() { // the function is asked without the lock: there may be many streams
		if covers(s.owner) {
			revoked = append(revoked, s)
		}
	}
	if len(revoked) == 0 {
		return
	}
	h.mu.Lock()
	defer h.unlock()
	for _, s := range revoked {
		if h.streams[s.id] == s {
			h.end(s, deliveryv1.EndCode_END_CODE_SESSION_REVOKED, 0)
		}
	}
}

// all returns the streams that are registered.
func (h *Hub) all() []*Stream {
	h.mu.Lock()
	defer h.unlock()
	return slices.Collect(maps.Values(h.streams))
}

// EndAll ends all streams, to be reopened over Config.Spread.
func (h *Hub) EndAll() {
	h.mu.Lock()
	defer h.unlock()
	h.endSpread(deliveryv1.EndCode_END_CODE_RESYNC, h.cfg.Spread)
}

// Drain ends all streams, each with another time to reconnect, spread over a
// period, and takes no new ones.
func (h *Hub) Drain(spread time.Duration) {
	h.mu.Lock()
	defer h.unlock()
	h.draining = true
	h.endSpread(deliveryv1.EndCode_END_CODE_DRAIN, spread)
}

// endSpread ends all streams, each with another time to reconnect. Callers hold mu.
func (h *Hub) endSpread(code deliveryv1.EndCode, spread time.Duration) {
	n, i := time.Duration(len(h.streams)), time.Duration(0)
	for _, s := range h.streams {
		h.end(s, code, spread*i/n)
		i++
	}
}

// Tick ends the streams whose time is over. It is to be called about once a
// second.
func (h *Hub) Tick() {
	now := h.cfg.Clock()
	h.mu.Lock()
	defer h.unlock()
	for _, s := range h.streams {
		switch {
		case !now.Before(s.expires):
			h.end(s, deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED, 0)
		case now.Sub(s.opened) >= h.cfg.Lifetime:
			h.end(s, deliveryv1.EndCode_END_CODE_RESYNC, 0)
		case s.queue.Overdue(now):
			h.stats.Slow++
			h.end(s, deliveryv1.EndCode_END_CODE_SLOW, 0)
		}
	}
}

// end queues the end frame as the stream's last and drops the stream. Callers
// hold mu.
func (h *Hub) end(s *Stream, code deliveryv1.EndCode, after time.Duration) {
	s.queue.Close(frame.End(code, after, s.token))
	h.remove(s)
}

// push queues a frame for a stream. A stream whose queue is full has overflowed, and
// must be ended with endOverflowed once the caller's iteration is over. Callers hold
// mu.
func (h *Hub) push(s *Stream, f *frame.Frame) {
	if s.overflowed {
		return
	}
	queued, full := s.queue.Push(f)
	if s.overflowed = full; !queued {
		return
	}
	h.stats.Frames++
	if !s.pushed {
		s.pushed = true
		h.pushed = append(h.pushed, s)
	}
}

// unlock releases mu, and wakes the streams that were pushed frames meanwhile: all that one
// delivery brings them is one response. Every holder of mu releases it with unlock.
func (h *Hub) unlock() {
	for i, s := range h.pushed {
		s.pushed = false
		s.queue.Signal()
		h.pushed[i] = nil
	}
	h.pushed = h.pushed[:0]
	h.mu.Unlock()
}

// endOverflowed ends the streams whose queues push found full. Callers hold mu.
func (h *Hub) endOverflowed(streams []*Stream) {
	for _, s := range streams {
		if s.overflowed {
			h.stats.Slow++
			h.end(s, deliveryv1.EndCode_END_CODE_SLOW, 0)
		}
	}
}
