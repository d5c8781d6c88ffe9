package delivery

import (
	"slices"

	"github.com/parley-chat/parley/server/delivery/frame"
)

// subscription is one stream's part in one chat. It begins inactive: changes that come are
// kept with the chat until the position is read from which the stream continues.
type subscription struct {
	stream *Stream
	chat   *chatState
	index  uint32 // in chat.subscriptions
	active bool   // pos is set
	pos    int64  // the stream was sent, or need not see, everything up to here
	// minVisible is the version below which changes are hidden from the user
	// (SINCE_JOINED).
	minVisible int64
	// removedAt is the version of a removal of the user that was applied while the
	// subscription was inactive, 0 if an addition followed.
	removedAt int64
}

// Key implements sortedlist.Keyed.
func (a *subscription) Key() string { return a.chat.id }

// subscribe makes an inactive subscription. Callers hold mu and know that there is
// none.
func (h *Hub) subscribe(s *Stream, chatID string) *subscription {
	return h.subscribeAs(&subscription{}, s, chatID)
}

func (h *Hub) subscribeAs(a *subscription, s *Stream, chatID string) *subscription {
	cs := h.chats[chatID]
	if cs == nil {
		h.serial++
		cs = &chatState{id: chatID, serial: h.serial, verified: h.verified[chatID]}
		h.chats[chatID] = cs
		delete(h.verified, chatID)
	}
	*a = subscription{stream: s, chat: cs, index: uint32(len(cs.subscriptions))}
	cs.subscriptions = append(cs.subscriptions, a)
	s.subscriptions.Add(a)
	delete(s.departed, chatID)
	return a
}

// subscribeBatch bounds the chats that a stream subscribes to under one hold of the
// lock, and whose subscriptions are freed together.
const subscribeBatch = 256

// subscribeAll subscribes a stream that is catching up to chats, in order of their ids.
// It takes mu once for each batch: others must not wait for a user who has very many.
func (h *Hub) subscribeAll(s *Stream, chatIDs []string) {
	for chunk := range slices.Chunk(chatIDs, subscribeBatch) {
		made := make([]subscription, len(chunk))
		h.mu.Lock()
		if h.streams[s.id] != s {
			h.unlock()
			return
		}
		s.subscriptions = slices.Grow(s.subscriptions, min(len(chatIDs), 4*subscribeBatch))
		for i, id := range chunk {
			if s.subscriptions.Of(id) == nil {
				h.subscribeAs(&made[i], s, id)
			}
		}
		h.unlock()
	}
}

// subscribeAdded subscribes a stream whose user a change made a member. Callers hold
// mu.
func (h *Hub) subscribeAdded(s *Stream, cs *chatState, c *frame.Change) {
	if s.catchingUp {
		delete(s.departed, cs.id)
		s.pendingChats[cs.id] = true
		return
	}
	a := h.subscribe(s, cs.id)
	a.active, a.pos, a.minVisible = true, c.Version-1, c.Version
}

// activate sets the position that was read for a subscription, and sends the stream
// what the hub has applied beyond it. Callers hold mu.
func (h *Hub) activate(a *subscription, pos, minVisible int64) {
	cs := a.chat
	if a.removedAt > pos {
		h.sendLeft(a.stream, cs.id, a.removedAt)
		h.unsubscribe(a)
		return
	}
	a.active, a.pos, a.minVisible = true, pos, minVisible
	switch {
	case !cs.Started:
		cs.Start(pos)
		h.applyPending(cs)
	case cs.Version < pos:
		cs.Newest = max(cs.Newest, pos)
		h.applyPending(cs)
	case cs.Version > pos:
		if missed, ok := cs.Since(pos); ok {
			h.deliverMissed(a, missed)
			return
		}
		// Too far behind for what is in memory. The changes between are unknown, and may
		// include the removal of the stream's own user: read again.
		h.unsubscribe(a)
		h.requestReconcile(a.stream, cs.id, cs.Version)
	}
}

// deliverMissed sends a stream the changes that were applied since its position. Callers
// hold mu.
func (h *Hub) deliverMissed(a *subscription, missed []*frame.Change) {
	user := a.stream.owner.UserID
	for i, c := range missed {
		if c.Effect == frame.Removed && c.Target == user {
			// The chat's state must outlive a removal that an addition follows, and
			// nothing in between is for the user.
			if again := frame.IndexOfAddition(missed[i+1:], user); again >= 0 {
				h.push(a.stream, c.Frame())
				a.pos, a.minVisible = c.Version, missed[i+1+again].Version
				continue
			}
		}
		h.deliver(a, c)
		if a.stream.subscriptions.Of(a.chat.id) != a {
			return
		}
	}
}

// unsubscribe ends a subscription, and with the last one the state of the chat, unless
// changes are known that were not applied: one of them may be an addition, or a
// removal that concerns a stream which is not subscribed. Callers hold mu.
func (h *Hub) unsubscribe(a *subscription) {
	if a.stream.subscriptions.Remove(a) {
		h.removeFromChat(a)
	}
}

// unsubscribeAll ends all subscriptions of a stream. Callers hold mu.
func (h *Hub) unsubscribeAll(s *Stream) {
	all := s.subscriptions
	s.subscriptions = nil
	for _, a := range all {
		h.removeFromChat(a)
	}
}

// removeFromChat removes a subscription from the chat that is no longer its stream's.
// Callers hold mu.
func (h *Hub) removeFromChat(a *subscription) {
	cs := a.chat
	last := len(cs.subscriptions) - 1
	cs.subscriptions[a.index] = cs.subscriptions[last]
	cs.subscriptions[a.index].index = a.index
	cs.subscriptions[last] = nil
	cs.subscriptions = cs.subscriptions[:last]
	if !cs.Started || cs.Newest <= cs.Version {
		h.dropIdle(cs)
	}
}

// sendLeft sends a stream that its user is not a member of a chat since a version,
// unless it was sent. 0 stands for a chat that was never the user's. Callers hold mu.
func (h *Hub) sendLeft(s *Stream, chatID string, version int64) {
	if version == 0 || s.departed.Add(chatID, version, 0) {
		h.push(s, frame.Left(chatID, s.owner.UserID, version))
	}
}

// knowsRemoval reports whether a stream was sent that its user has left a chat, and no
// change up to a version can have made the user a member again. Callers hold mu.
func (h *Hub) knowsRemoval(s *Stream, chatID string, version int64) bool {
	if cs := h.chats[chatID]; cs != nil {
		return s.departed.Covers(chatID, version, cs.serial, cs.Version)
	}
	return s.departed.Covers(chatID, version, 0, 0)
}
