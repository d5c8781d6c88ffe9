package device

import (
	"fmt"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// View is a chat as the device knows it. The values that it points to must not be changed.
type View struct {
	Record
	// Unread is the number of messages of others that the user has not read.
	Unread int64
	// PeerRead is the sequence up to which the other person of a direct chat has read, as
	// far as it is known; 0 in groups.
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
	last := max(c.Head.GetSequence(), c.State.GetOwnSequence()) // a state may be newer than the head
	v.Unread = max(last-c.State.GetReadSequence()-c.State.GetOwnUnreadCount(), 0)
	v.PeerRead = c.State.GetPeerReadSequence()
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
