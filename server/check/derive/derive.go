// Package derive computes the rows of a chat from its events alone.
//
// The events of a chat are its log: they never change, and every other row of the chat was
// written in one transaction with one of them. So all these rows can be derived from the
// events, except a user's own state, which has no events: the read position, muted and
// archived.
//
// It owns this one fold. It reads nothing, writes nothing and compares nothing. A Chat
// belongs to one goroutine.
package derive

import (
	"fmt"
	"slices"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store/table"
)

// MaxDeparted bounds how many users who left a chat are remembered.
const MaxDeparted = 10_000

// Chat is a chat after the events that were applied.
type Chat struct {
	Head    table.Head
	Row     table.Chat // without an id before the creation
	Members map[string]table.Membership
	Pending []string // on their way in, in the order in which they come
	// Departed are the rows of those who left last, as [table.LeftKey] has them; not all
	// if there are more than MaxDeparted.
	Departed map[string]table.UserChat

	own     map[string]own // of members
	pending table.Pending  // as the creation made it
}

// New begins with a chat that has no events yet.
func New(chatID string) *Chat {
	return &Chat{
		Head: table.Head{ChatID: chatID}, Members: map[string]table.Membership{}, Departed: map[string]table.UserChat{},
		own: map[string]own{},
	}
}

// Apply adds the next event. Errors say why it cannot be the next one; the chat is as
// it was then.
func (c *Chat) Apply(e event.Event) error {
	md := e.GetMetadata()
	created, isCreation := e.(*eventv1.ChatCreated)
	switch {
	case e.GetChatId() != c.Head.ChatID:
		return fmt.Errorf("it is of chat %s", e.GetChatId())
	case md.GetVersion() != c.Head.Version+1:
		return fmt.Errorf("it is version %d of the chat, not %d", md.GetVersion(), c.Head.Version+1)
	case isCreation != (c.Head.Version == 0):
		return fmt.Errorf("it is a %s as version %d", md.GetEventType(), md.GetVersion())
	}
	if m, ok := e.(*eventv1.MessagePersisted); ok && m.GetSequence() != c.Head.Sequence+1 {
		return fmt.Errorf("its message is number %d, not %d", m.GetSequence(), c.Head.Sequence+1)
	}
	at := md.GetEventTime().AsTime().UnixMilli()
	c.Head.Version++
	c.Head.ChangedAt = at
	if m, ok := e.(*eventv1.MessagePersisted); ok {
		c.message(m)
		return nil
	}
	c.Head.MembershipVersion++
	switch e := e.(type) {
	case *eventv1.ChatCreated:
		c.create(created, at)
	case *eventv1.ChatUpdated:
		c.Row.Name = e.GetName()
	case *eventv1.MembershipChanged:
		c.membership(e, at)
	}
	c.Row.UpdatedAt, c.Row.Version = at, c.Head.Version
	c.Row.MemberCount = int64(len(c.Members) + len(c.Pending))
	return nil
}

// Skip continues behind events that are lost, of which the last one left the chat with these versions. It returns how
// many of them were no messages: their effects on the chat and its members are not known, so that only Head is right
// afterwards. Errors say why there cannot be such events; the chat is as it was then.
func (c *Chat) Skip(version, membership int64) (changes int64, err error) {
	lost := version - c.Head.Version
	changes = membership - c.Head.MembershipVersion
	if lost <= 0 || changes < 0 || changes > lost {
		return 0, fmt.Errorf("the chat cannot come to version %d with membership version %d from %d with %d", version,
			membership, c.Head.Version, c.Head.MembershipVersion)
	}
	c.Head.Version += lost
	c.Head.MembershipVersion += changes
	c.Head.Sequence += lost - changes
	return changes, nil
}

func (c *Chat) message(e *eventv1.MessagePersisted) {
	m := Message(e)
	c.Head.Sequence = m.Sequence
	c.Head.LastAt, c.Head.LastSequence, c.Head.LastSender, c.Head.LastPreview = c.Head.ChangedAt, m.Sequence, m.SenderID,
		table.Preview(m.Content)
	if _, ok := c.Members[m.SenderID]; ok {
		c.own[m.SenderID] = own{last: m.Sequence, count: c.own[m.SenderID].count + 1}
	}
}

// Message is the row of a message.
func Message(e *eventv1.MessagePersisted) table.Message {
	return table.Message{
		ChatID: e.GetChatId(), Sequence: e.GetSequence(), MessageID: e.GetMessageId(), SenderID: e.GetSenderId(),
		Content:     e.GetContent(),
		ContentType: int64(e.GetContentType()), ClientMessageID: e.GetClientMessageId(),
		CreatedAt: e.GetCreatedAt().AsTime().UnixMilli(),
		Version:   e.GetMetadata().GetVersion(),
		ServiceID: e.GetMetadata().GetServiceId(),
	}
}

func (c *Chat) create(e *eventv1.ChatCreated, at int64) {
	c.Head.LastAt = at
	c.Row = table.Chat{
		ChatID: c.Head.ChatID, Type: table.Group, Name: e.GetName(), CreatedBy: e.GetCreatedBy(), Status: table.Active,
		History:   table.All,
		CreatedAt: at,
	}
	if e.GetHistory() == eventv1.HistoryMode_HISTORY_MODE_SINCE_JOINED {
		c.Row.History = table.SinceJoined
	}
	role := table.Owner
	if e.GetChatType() == eventv1.ChatType_CHAT_TYPE_DIRECT {
		role, c.Row.Type, c.Row.DirectUsers = table.Member, table.Direct, e.GetInitialMembers()
	} else {
		c.Pending = slices.DeleteFunc(slices.Clone(e.GetInitialMembers()),
			func(u string) bool { return u == e.GetCreatedBy() })
	}
	md := e.GetMetadata()
	c.pending = table.Pending{
		ChatID: c.Head.ChatID, CreatedBy: e.GetCreatedBy(), CreatedAt: at, Correlation: md.GetCorrelationId(),
		Causation: md.GetCausationId(), Trace: md.GetTraceId(), ServiceID: md.GetServiceId(),
	}
	c.join(e.GetCreatedBy(), role, at, 0, 1)
}

func (c *Chat) join(user string, role table.Role, at, sequence, version int64) {
	c.Members[user] = table.Membership{
		ChatID: c.Head.ChatID, UserID: user, Role: role, JoinedAt: at, JoinedSequence: sequence, JoinedVersion: version,
		Version: c.Head.Version,
	}
	delete(c.own, user)
	delete(c.Departed, user)
}

func (c *Chat) membership(e *eventv1.MembershipChanged, at int64) {
	user := e.GetUserId()
	i := slices.Index(c.Pending, user)
	if i >= 0 {
		c.Pending = slices.Delete(c.Pending, i, i+1)
	}
	switch e.GetChangeType() {
	case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ADDED:
		version := c.Head.Version
		if i >= 0 { // their membership begins with the group's
			version = 1
		}
		c.join(user, roleOf(e.GetRole()), at, e.GetJoinedSequence(), version)
	case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ROLE_CHANGED:
		if m, ok := c.Members[user]; ok {
			m.Role, m.Version = roleOf(e.GetRole()), c.Head.Version
			c.Members[user] = m
		}
	case eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED:
		m, ok := c.Members[user]
		delete(c.Members, user)
		delete(c.own, user)
		if ok && len(c.Departed) < MaxDeparted {
			c.Departed[user] = table.UserChat{
				UserID: user, ChatID: c.Head.ChatID, History: c.Row.History, JoinedSequence: m.JoinedSequence,
				JoinedVersion: m.JoinedVersion,
				LeftVersion:   c.Head.Version, ChangedAt: at, ExpiresAt: at/1000 + int64(table.LeftRetention/time.Second),
			}
		}
	}
}

func roleOf(r eventv1.MemberRole) table.Role {
	switch r {
	case eventv1.MemberRole_MEMBER_ROLE_OWNER:
		return table.Owner
	case eventv1.MemberRole_MEMBER_ROLE_ADMIN:
		return table.Admin
	default:
		return table.Member
	}
}

// PendingRow is the row of the pending members, if there are any.
func (c *Chat) PendingRow() (row table.Pending, ok bool) {
	row = c.pending
	row.Members = c.Pending
	return row, len(c.Pending) > 0
}

// own are the messages that a member has sent since joining.
type own struct{ last, count int64 }

// Own is the sequence of the last message that a member has sent since joining, and how many they are.
func (c *Chat) Own(user string) (last, count int64) { return c.own[user].last, c.own[user].count }

// remade is added to the revision of a derived row: clients keep the highest revision, and
// that of the lost row was lower.
const remade = 1 << 23

// UserChat is the row that a member has, as far as events say. They do not say what was read: nothing
// counts as read.
func (c *Chat) UserChat(user string) table.UserChat {
	m := c.Members[user]
	return table.UserChat{
		UserID: user, ChatID: c.Head.ChatID, Role: m.Role, History: c.Row.History, JoinedSequence: m.JoinedSequence,
		JoinedVersion: m.JoinedVersion,
		ReadSequence:  m.JoinedSequence, DeliveredSequence: m.JoinedSequence, ChangedAt: c.Head.ChangedAt,
		OwnCount: c.own[user].count, OwnLast: c.own[user].last, OwnFrom: m.JoinedSequence,
		Revision: table.FirstRevision(m.JoinedVersion) + remade, Peer: c.peer(user),
	}
}

// peer is the other person of a direct chat.
func (c *Chat) peer(user string) string {
	for _, u := range c.Row.DirectUsers {
		if u != user {
			return u
		}
	}
	return ""
}
