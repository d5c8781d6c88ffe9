package device

import (
	"time"
)

// leave drops the chat: the user is not a member as of a version.
func (m *Machine) leave(chatID string, version int64) {
	m.left[chatID] = max(m.left[chatID], version)
	if m.chats[chatID] != nil {
		delete(m.chats, chatID)
		m.removedChats = append(m.removedChats, chatID)
		m.events = append(m.events, Event{Removed: chatID})
	}
}

// removed handles a removal of the user in a version. Every version that the
// device received, it received for a chat of the user: a removal that is not
// newer was followed by an addition.
func (m *Machine) removed(chatID string, version int64) {
	if c := m.chats[chatID]; c == nil || version > c.Newest {
		m.leave(chatID, version)
	}
}

// notAMember handles the answer to a read or a subscription that was requested
// when newest was the newest version. A user who has been added since became a
// member again in a version newer than that.
func (m *Machine) notAMember(c *chat, newest int64) {
	if c.Newest > newest {
		c.wake()
		return
	}
	// The removal itself has a version that is not known here, at least the next.
	m.leave(c.ChatID, c.Newest+1)
}

// member returns the chat, because something of it reached the device that only
// members get; nil if that is older than the removal that the device knows of.
// listed says whether it came by a list or a stream, not as an answer about this
// chat.
func (m *Machine) member(chatID string, version int64, listed bool) *chat {
	c := m.chats[chatID]
	if c == nil {
		if left, ok := m.left[chatID]; ok {
			if version < left {
				return nil
			}
			delete(m.left, chatID)
		}
		c = m.add(chatID)
	}
	c.seen, c.askAt = m.step, time.Time{}
	if listed {
		c.listed = m.step
	}
	c.raise(version)
	return c
}
