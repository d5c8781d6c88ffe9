package delivery

import "slices"

// attachment is one stream's part in one chat.
type attachment struct {
	stream *Stream
	chat   *chatState
	index  uint32 // in chat.attached
	live   bool   // pos is set; until then the opening has yet to find it
	pos    int64  // the stream has, or was told of, everything up to here
	floor  int64  // changes below are hidden from the user (SINCE_JOINED)
	// gone is the version of a removal of the user that was walked while the
	// attachment was not live, 0 if an addition followed.
	gone int64
}

// Key implements ordered.Keyed.
func (a *attachment) Key() string { return a.chat.id }

// attach makes an attachment that is not live yet. Callers hold mu and know that
// there is none.
func (h *Hub) attach(s *Stream, chatID string) *attachment {
	return h.attachAs(&attachment{}, s, chatID)
}

func (h *Hub) attachAs(a *attachment, s *Stream, chatID string) *attachment {
	cs := h.chats[chatID]
	if cs == nil {
		h.serial++
		cs = &chatState{id: chatID, serial: h.serial, checked: h.checked[chatID]}
		h.chats[chatID] = cs
		delete(h.checked, chatID)
	}
	*a = attachment{stream: s, chat: cs, index: uint32(len(cs.attached))}
	cs.attached = append(cs.attached, a)
	s.attached.Add(a)
	delete(s.departed, chatID)
	return a
}

// attachAtOnce bounds the chats that a stream is attached to under one hold of the
// lock, and whose attachments are freed together.
const attachAtOnce = 256

// attachAll attaches a stream that is opening to chats, in order of their ids. It takes
// mu itself, again and again: others must not wait for a user who has very many.
func (h *Hub) attachAll(s *Stream, chatIDs []string) {
	for chunk := range slices.Chunk(chatIDs, attachAtOnce) {
		fresh := make([]attachment, len(chunk))
		h.mu.Lock()
		if h.streams[s.id] != s {
			h.mu.Unlock()
			return
		}
		s.attached = slices.Grow(s.attached, min(len(chatIDs), 4*attachAtOnce))
		for i, id := range chunk {
			if s.attached.Of(id) == nil {
				h.attachAs(&fresh[i], s, id)
			}
		}
		h.mu.Unlock()
	}
}

// detach ends an attachment, and with the last one the state of the chat, unless
// changes are known of that were not walked: one of them may be an addition, or a
// removal that concerns a stream which is not attached. Callers hold mu.
func (h *Hub) detach(a *attachment) {
	if a.stream.attached.Remove(a) {
		h.unlink(a)
	}
}

// detachAll ends all attachments of a stream. Callers hold mu.
func (h *Hub) detachAll(s *Stream) {
	all := s.attached
	s.attached = nil
	for _, a := range all {
		h.unlink(a)
	}
}

// unlink takes an attachment that is no longer its stream's out of the chat. Callers
// hold mu.
func (h *Hub) unlink(a *attachment) {
	cs := a.chat
	last := len(cs.attached) - 1
	cs.attached[a.index] = cs.attached[last]
	cs.attached[a.index].index = a.index
	cs.attached[last] = nil
	cs.attached = cs.attached[:last]
	if !cs.Known || cs.Wanted <= cs.Version {
		h.dropIdle(cs)
	}
}
