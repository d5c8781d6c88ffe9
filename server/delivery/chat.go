package delivery

import (
	"time"

	"github.com/parley-chat/parley/server/delivery/changes"
	"github.com/parley-chat/parley/server/delivery/frame"
)

// chatState is what the hub knows of a chat that at least one stream is attached
// to, or was when changes came that are not walked yet. It walks the chat's changes
// one by one in version order, so it sees every change of the membership after its
// first position.
type chatState struct {
	changes.Log
	id     string
	serial uint64 // tells it from earlier states of the same chat

	// checked is a membership version: each stream of this process whose user
	// was a member at that version is attached, or opening and will attach by
	// itself.
	checked int64

	attached  []*attachment // in no order; an attachment knows its index
	fetchDue  bool          // a read of missing events is scheduled or under way
	holeSince time.Time

	mark     uint64 // the head was read after this mark of the hub's
	markedAt int64  // version that it had
}

// advance walks all changes that follow without a hole, and schedules a read of
// what is missing. Callers hold mu.
func (h *Hub) advance(cs *chatState) {
	if !cs.Known {
		return
	}
	moved := false
	for c := cs.Next(h.cfg.MaxRecent); c != nil; c = cs.Next(h.cfg.MaxRecent) {
		h.walk(cs, c)
		moved = true
	}
	if cs.Wanted <= cs.Version {
		cs.holeSince = time.Time{}
		h.dropIdle(cs)
		return
	}
	if moved || cs.holeSince.IsZero() {
		cs.holeSince = h.cfg.Clock()
	}
	if !cs.fetchDue {
		cs.fetchDue = true
		h.schedule(cs.holeSince.Add(h.cfg.HoleWait), Work{kind: workFetch, chat: cs})
	}
}

// walk applies the next change: frames for the attached streams, and the
// membership of the stream's own user. Callers hold mu; c.Version is cs.Version.
func (h *Hub) walk(cs *chatState, c *frame.Change) {
	for _, s := range h.users[c.Target] {
		switch {
		case s.attached.Of(cs.id) != nil:
		case c.Effect == frame.Added:
			// Attached at the position before, the stream gets the change itself like
			// all others.
			h.attachAdded(s, cs, c)
		case c.Effect == frame.Removed:
			// Never attached, because the addition did not come this way; the client
			// may have the chat by other means.
			if !h.knowsLeft(s, cs.id, c.Version) {
				h.requestJoin(s, cs.id, c.Version)
			}
		}
	}
	var dead []*Stream // whose mailbox had no room, a removed member's among them
	// From the end, because emit may detach the attachment it is given.
	for i := len(cs.attached) - 1; i >= 0; i-- {
		a := cs.attached[i]
		h.emit(a, c)
		if a.stream.dead {
			dead = append(dead, a.stream)
		}
	}
	h.dropDead(dead)
	if c.Membership && cs.checked == c.MembershipVersion-1 {
		cs.checked = c.MembershipVersion
	}
	if cs.checked < c.MembershipVersion {
		h.requestCheck(cs.id, c.MembershipVersion)
	}
}

// emit shows a change to one attached stream. Callers hold mu.
func (h *Hub) emit(a *attachment, c *frame.Change) {
	own := c.Target == a.stream.user
	if !a.live {
		// The opening reads the head and then the user's row; what it finds at its
		// position p covers a removal at or before p.
		if own && c.Effect == frame.Removed {
			a.gone = c.Version
		} else if own && c.Effect == frame.Added {
			a.gone = 0
		}
		return
	}
	if c.Version <= a.pos {
		return
	}
	if c.Version >= a.floor || (own && c.Effect == frame.Removed) {
		h.push(a.stream, c.Frame())
	}
	a.pos = c.Version
	if own && c.Effect == frame.Removed {
		a.stream.departed.Show(a.chat.id, c.Version, a.chat.serial)
		h.detach(a)
	}
}

// attachAdded attaches a stream whose user a change made a member. Callers hold
// mu.
func (h *Hub) attachAdded(s *Stream, cs *chatState, c *frame.Change) {
	if s.opening {
		delete(s.departed, cs.id)
		s.late[cs.id] = true
		return
	}
	a := h.attach(s, cs.id)
	a.live, a.pos, a.floor = true, c.Version-1, c.Version
}

// dropIdle forgets a chat that no stream is attached to. Callers hold mu.
func (h *Hub) dropIdle(cs *chatState) {
	if len(cs.attached) > 0 || h.chats[cs.id] != cs {
		return
	}
	delete(h.chats, cs.id)
	h.setChecked(cs.id, cs.checked)
}

// goLive sets the position that an opening found for its attachment, and shows
// the stream what the hub has walked beyond it. Callers hold mu.
func (h *Hub) goLive(a *attachment, pos, floor int64) {
	cs := a.chat
	if a.gone > pos {
		h.left(a.stream, cs.id, a.gone)
		h.detach(a)
		return
	}
	a.live, a.pos, a.floor = true, pos, floor
	switch {
	case !cs.Known:
		cs.Begin(pos)
		h.advance(cs)
	case cs.Version < pos:
		cs.Wanted = max(cs.Wanted, pos)
		h.advance(cs)
	case cs.Version > pos:
		if missed, ok := cs.Since(pos); ok {
			h.catchUp(a, missed)
			return
		}
		// Too far behind for what is in memory. What lies between is unknown, and may
		// be the removal of the stream's own user: look again.
		h.detach(a)
		h.requestJoin(a.stream, cs.id, cs.Version)
	}
}

// catchUp shows a stream the changes that were walked since its position. Callers hold
// mu.
func (h *Hub) catchUp(a *attachment, missed []*frame.Change) {
	user := a.stream.user
	for i, c := range missed {
		if c.Effect == frame.Removed && c.Target == user {
			// The chat's state must outlive a removal that an addition follows, and
			// nothing in between is for the user.
			if again := frame.IndexOfAddition(missed[i+1:], user); again >= 0 {
				h.push(a.stream, c.Frame())
				a.pos, a.floor = c.Version, missed[i+1+again].Version
				continue
			}
		}
		h.emit(a, c)
		if a.stream.attached.Of(a.chat.id) != a {
			return
		}
	}
}

// setChecked remembers a checked membership version for a chat. Callers hold mu.
func (h *Hub) setChecked(chatID string, version int64) {
	if cs := h.chats[chatID]; cs != nil {
		cs.checked = max(cs.checked, version)
		return
	}
	if len(h.checked) >= maxChecked {
		clear(h.checked)
	}
	h.checked[chatID] = max(h.checked[chatID], version)
}

// left shows a stream that its user is not a member of a chat since a version, unless
// it was shown. 0 stands for a chat that was never the user's. Callers hold mu.
func (h *Hub) left(s *Stream, chatID string, version int64) {
	if version == 0 || s.departed.Show(chatID, version, 0) {
		h.push(s, frame.Left(chatID, s.user, version))
	}
}

// knowsLeft reports whether a stream was shown that its user has left a chat, and no
// change up to a version can have made the user a member again. Callers hold mu.
func (h *Hub) knowsLeft(s *Stream, chatID string, version int64) bool {
	if cs := h.chats[chatID]; cs != nil {
		return s.departed.Covers(chatID, version, cs.serial, cs.Version)
	}
	return s.departed.Covers(chatID, version, 0, 0)
}
