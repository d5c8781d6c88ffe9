package delivery

import (
	"time"

	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/event"
)

// chatState is what the hub knows of a chat that at least one stream is attached
// to, or was when changes came that are not walked yet. It walks the chat's changes
// one by one in version order, so it sees every change of the membership after its
// first position.
type chatState struct {
	id      string
	known   bool  // version is set; until then changes are only collected
	version int64 // every change up to here was walked
	wanted  int64 // newest version that is known to exist

	// checked is a membership version: each stream of this process whose user
	// was a member at that version is attached, or opening and will attach by
	// itself.
	checked int64

	buffer    map[int64]*frame.Change // changes newer than version+1
	recent    []*frame.Change         // the last changes walked, oldest first
	attached  []*attachment           // in no order; an attachment knows its index
	fetchDue  bool                    // a read of missing events is scheduled or under way
	holeSince time.Time

	mark     uint64 // the head was read after this mark of the hub's
	markedAt int64  // version that it had
}

// Bounds of one chat's memory: what does not fit is read from the store.
const (
	maxBuffer = 64
	maxRecent = 32
)

// attachment is one stream's part in one chat.
type attachment struct {
	stream *Stream
	chat   *chatState
	index  int   // in chat.attached
	live   bool  // pos is set; until then the opening has yet to find it
	pos    int64 // the stream has, or was told of, everything up to here
	floor  int64 // changes below are hidden from the user (SINCE_JOINED)
	// gone is the version of a removal of the user that was walked while the
	// attachment was not live, 0 if an addition followed.
	gone int64
}

// receive takes a change in, unless it was walked already or does not fit.
func (cs *chatState) receive(h *Hub, e event.Event) {
	v := e.GetMetadata().GetVersion()
	if cs.known && v <= cs.version {
		h.stats.Duplicates++
		return
	}
	if len(cs.buffer) < maxBuffer || (cs.known && v == cs.version+1) {
		if cs.buffer == nil {
			cs.buffer = map[int64]*frame.Change{}
		}
		if cs.buffer[v] == nil {
			cs.buffer[v] = frame.NewChange(e)
		}
	}
	cs.wanted = max(cs.wanted, v)
}

// advance walks all changes that follow without a hole, and schedules a read of
// what is missing. Callers hold mu.
func (h *Hub) advance(cs *chatState) {
	if !cs.known {
		return
	}
	moved := false
	for {
		c := cs.buffer[cs.version+1]
		if c == nil {
			break
		}
		delete(cs.buffer, c.Version)
		h.walk(cs, c)
		moved = true
	}
	if cs.wanted <= cs.version {
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
// membership of the stream's own user. Callers hold mu; c.Version is
// cs.version+1.
func (h *Hub) walk(cs *chatState, c *frame.Change) {
	cs.version = c.Version
	cs.remember(c)
	for _, s := range h.users[c.Target] {
		switch {
		case s.attached[cs.id] != nil:
		case c.Effect == frame.Added:
			// Attached at the position before, the stream gets the change itself like
			// all others.
			h.attachAdded(s, cs, c)
		case c.Effect == frame.Removed:
			// Never attached, because the addition did not come this way; the client
			// may have the chat by other means.
			h.requestJoin(s, cs.id)
		}
	}
	dead := false
	// From the end, because emit may detach the attachment it is given.
	for i := len(cs.attached) - 1; i >= 0; i-- {
		a := cs.attached[i]
		h.emit(a, c)
		dead = dead || a.stream.dead
	}
	if dead {
		var streams []*Stream
		for _, a := range cs.attached {
			streams = append(streams, a.stream)
		}
		h.dropDead(streams)
	}
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
		h.detach(a)
	}
}

// attachAdded attaches a stream whose user a change made a member. Callers hold
// mu.
func (h *Hub) attachAdded(s *Stream, cs *chatState, c *frame.Change) {
	if s.opening {
		s.late[cs.id] = true
		return
	}
	a := h.attach(s, cs.id)
	a.live, a.pos, a.floor = true, c.Version-1, c.Version
}

func (cs *chatState) remember(c *frame.Change) {
	if len(cs.recent) == maxRecent {
		copy(cs.recent, cs.recent[1:])
		cs.recent[maxRecent-1] = c
		return
	}
	cs.recent = append(cs.recent, c)
}

// attach makes an attachment that is not live yet. Callers hold mu and know that
// there is none.
func (h *Hub) attach(s *Stream, chatID string) *attachment {
	cs := h.chats[chatID]
	if cs == nil {
		cs = &chatState{id: chatID, checked: h.checked[chatID]}
		h.chats[chatID] = cs
		delete(h.checked, chatID)
	}
	a := &attachment{stream: s, chat: cs, index: len(cs.attached)}
	cs.attached = append(cs.attached, a)
	s.attached[chatID] = a
	return a
}

// detach ends an attachment, and with the last one the state of the chat, unless
// changes are known of that were not walked: one of them may be an addition, or a
// removal that concerns a stream which is not attached. Callers hold mu.
func (h *Hub) detach(a *attachment) {
	cs := a.chat
	if a.stream.attached[cs.id] != a {
		return
	}
	delete(a.stream.attached, cs.id)
	last := len(cs.attached) - 1
	cs.attached[a.index] = cs.attached[last]
	cs.attached[a.index].index = a.index
	cs.attached[last] = nil
	cs.attached = cs.attached[:last]
	if !cs.known || cs.wanted <= cs.version {
		h.dropIdle(cs)
	}
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
		h.push(a.stream, frame.Left(cs.id, a.stream.user, a.gone))
		h.detach(a)
		return
	}
	a.live, a.pos, a.floor = true, pos, floor
	switch {
	case !cs.known:
		cs.known, cs.version = true, pos
		for v := range cs.buffer {
			if v <= pos {
				delete(cs.buffer, v)
			}
		}
		cs.wanted = max(cs.wanted, pos)
		h.advance(cs)
	case cs.version < pos:
		cs.wanted = max(cs.wanted, pos)
		h.advance(cs)
	case cs.version > pos:
		if len(cs.recent) > 0 && cs.recent[0].Version <= pos+1 {
			h.catchUp(a)
			return
		}
		// Too far behind for what is in memory. What lies between is unknown, and may
		// be the removal of the stream's own user: look again.
		h.detach(a)
		h.requestJoin(a.stream, cs.id)
	}
}

// catchUp shows a stream the changes in memory that are newer than its position.
// Callers hold mu.
func (h *Hub) catchUp(a *attachment) {
	user, recent := a.stream.user, a.chat.recent
	for i, c := range recent {
		if c.Version <= a.pos {
			continue
		}
		if c.Effect == frame.Removed && c.Target == user {
			// The chat's state must outlive a removal that an addition follows, and
			// nothing in between is for the user.
			if again := frame.IndexOfAddition(recent[i+1:], user); again >= 0 {
				h.push(a.stream, c.Frame())
				a.pos, a.floor = c.Version, recent[i+1+again].Version
				continue
			}
		}
		h.emit(a, c)
		if a.stream.attached[a.chat.id] != a {
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
