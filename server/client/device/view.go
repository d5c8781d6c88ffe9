package device

import (
	"fmt"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// View is a chat as the device knows it. The values that it points to must not be changed.
type View struct {
	Record
	// Unread is the number of messages that the user has not read.
	Unread int64
	// PeerRead is the sequence up to which the other person of a direct chat has read, as
	// far as it is known; 0 in groups. It goes for the messages that are here: read
	// positions among older ones are not searched.
	PeerRead int64
	// Messages are complete from Record.First on, in order of sequence.
	Messages []*messagev1.Message
	// Present are the members, without former ones; nil until they were read.
	Present []Member
	// Outbox has the user's messages that the server has not confirmed.
	Outbox []OutboxEntry
}

// View returns a chat; false if it is not one of the user's, as far as known.
func (m *Machine) View(chatID string) (View, bool) {
	c := m.chats[chatID]
	if c == nil {
		return View{}, false
	}
	v := View{Record: c.Record, Messages: append([]*messagev1.Message(nil), c.messages...)}
	v.Unread, v.PeerRead = max(c.Head.GetSequence()-c.State.GetReadSequence(), 0), c.peerRead()
	if c.MembersLoaded {
		for _, member := range c.Members {
			if !member.Removed {
				v.Present = append(v.Present, member)
			}
		}
	}
	for _, u := range m.outbox {
		if u.ChatID == chatID {
			v.Outbox = append(v.Outbox, *u)
		}
	}
	return v, true
}

// peerRead is how far the other person of a direct chat has read, as reported by the server
// and by that person's messages: a sender has read everything before.
func (c *chat) peerRead() int64 {
	if c.Chat.GetType() != chatv1.ChatType_CHAT_TYPE_DIRECT {
		return 0
	}
	reported := c.State.GetPeerReadSequence()
	if last := c.Head.GetLastMessage(); last.GetSenderId() != c.m.cfg.UserID {
		reported = max(reported, last.GetSequence())
	}
	for i := len(c.messages) - 1; i >= 0 && c.messages[i].GetSequence() > reported; i-- {
		if c.messages[i].GetSenderId() != c.m.cfg.UserID {
			return c.messages[i].GetSequence()
		}
	}
	return reported
}

// Chats returns the ids of the user's chats, in order.
func (m *Machine) Chats() []string {
	var ids []string
	for _, c := range m.sorted() {
		if c.Chat != nil {
			ids = append(ids, c.ChatID)
		}
	}
	return ids
}

// Outbox returns the messages that the server has not confirmed, oldest first.
func (m *Machine) Outbox() []OutboxEntry {
	out := make([]OutboxEntry, len(m.outbox))
	for i, u := range m.outbox {
		out[i] = *u
	}
	return out
}

// Session returns the present token and generation.
func (m *Machine) Session() Session { return m.session }

// Check demands that the messages have no gap.
func (v *View) Check() error {
	for i, msg := range v.Messages {
		if want := v.First + int64(i); msg.GetSequence() != want {
			return fmt.Errorf("device: chat %s has message %d where %d should be", v.ChatID, msg.GetSequence(), want)
		}
	}
	return nil
}
