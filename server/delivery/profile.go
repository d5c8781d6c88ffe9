package delivery

import "github.com/parley-chat/parley/server/delivery/frame"

// profileBatch bounds the chats that are checked under one hold of the lock: others must
// not wait for a user who has very many.
const profileBatch = 256

// ProfileChanged notifies the user's own streams, and those of people who share one of the
// user's chats, that the user has a newer profile. Each stream is notified once, unless it
// opens or ends meanwhile; nothing is read for it. It does not wait.
func (h *Hub) ProfileChanged(user string, version int64, chats []string) {
	f := frame.Profile(user, version)
	notified := map[*Stream]bool{}
	h.mu.Lock()
	defer h.unlock()
	h.sendProfile(h.users[user], f, notified)
	for i, id := range chats {
		if i%profileBatch == profileBatch-1 {
			h.unlock()
			h.mu.Lock()
		}
		cs := h.chats[id]
		if cs == nil {
			continue
		}
		members := make([]*Stream, 0, len(cs.subscriptions))
		for _, a := range cs.subscriptions {
			members = append(members, a.stream)
		}
		h.sendProfile(members, f, notified)
	}
}

// sendProfile sends a frame to streams that were not notified yet. Callers hold mu.
func (h *Hub) sendProfile(streams []*Stream, f *frame.Frame, notified map[*Stream]bool) {
	for _, s := range streams {
		if notified[s] || h.streams[s.id] != s {
			continue
		}
		notified[s] = true
		h.push(s, f)
	}
	h.endOverflowed(streams)
}
