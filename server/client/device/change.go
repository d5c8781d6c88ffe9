package device

import (
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// body is what a change shows: one of the fields, or none that is known here.
type body struct {
	message    *messagev1.Message
	membership *messagev1.MembershipChange
	chat       *chatv1.Chat
	merged     bool // several changes look like this one
}

// change applies a change that follows on after, if it does follow.
func (c *chat) change(after, version int64, b body) {
	own := b.membership.GetUserId() == c.m.cfg.UserID && b.membership != nil
	switch {
	case c.Loaded && after <= c.Version && c.Version < version:
		if own && b.membership.GetKind() == messagev1.MembershipChange_KIND_ADDED {
			// A new membership, which may hide what the old one showed.
			c.forgetState()
			c.restart()
			return
		}
		c.apply(b)
		c.Version = version
		if c.KnownAt >= c.Base {
			c.KnownAt = max(c.KnownAt, version)
		}
		c.follow(after, version, b)
		if own {
			c.forgetState() // for the role
		}
		c.changed()
	case !c.Loaded && c.KnownAt > 0 && after <= c.KnownAt && c.KnownAt < version:
		c.apply(b)
		c.KnownAt = version
		c.follow(after, version, b)
		if own {
			c.forgetState()
		}
		c.changed()
	default:
		c.wake()
	}
}

// forgetState has the chat read for the list again.
func (c *chat) forgetState() {
	c.KnownAt, c.chatCall = 0, 0
	c.Newest = max(c.Newest, 1) // every chat has a version: so it is requested
	c.changed()
}

// follow moves the head on by a change.
func (c *chat) follow(after, version int64, b body) {
	h := c.Head
	if h == nil || after > h.GetVersion() || h.GetVersion() >= version {
		return
	}
	next := &chatv1.ChatHead{
		Version: version, Sequence: h.GetSequence(), MembershipVersion: h.GetMembershipVersion(),
		ChangedAt: h.GetChangedAt(), LastMessage: h.GetLastMessage(),
	}
	switch {
	case b.message != nil:
		if msg := b.message; msg.GetSequence() > next.Sequence {
			next.Sequence, next.ChangedAt = msg.GetSequence(), msg.GetCreatedAt()
			next.LastMessage = &chatv1.MessagePreview{Sequence: msg.GetSequence(), SenderId: msg.GetSenderId(),
				Text: preview(msg.GetContent())}
		}
	case b.membership != nil:
		next.MembershipVersion++
		next.ChangedAt = b.membership.GetChangedAt()
	case b.chat != nil:
		next.MembershipVersion++
		next.ChangedAt = b.chat.GetUpdatedAt()
	}
	c.Head = next
}

// apply keeps what a change shows, each object in its newest version.
func (c *chat) apply(b body) {
	switch {
	case b.message != nil:
		if b.message.GetSenderId() == c.m.cfg.UserID {
			c.ownMessage(b.message.GetSequence())
		}
		if c.Loaded && b.message.GetSequence() >= c.First {
			c.keep(b.message)
		}
	case b.membership != nil:
		mc := b.membership
		if c.Chat == nil || b.merged || (c.Loaded && c.KnownAt < c.Base) {
			// Nothing to count in, or it is not known when the last of several changes
			// was, or what is there lacks earlier ones, a new name perhaps: the chat must be
			// read with this change.
			c.Base = max(c.Base, mc.GetVersion())
		} else if mc.GetVersion() > c.Chat.GetVersion() && mc.GetMemberCount() > 0 {
			c.Chat = withCount(c.Chat, mc.GetMemberCount(), mc.GetChangedAt(), mc.GetVersion())
		}
		if c.Loaded {
			c.memberChanged(mc)
		}
	case b.chat != nil:
		c.metadata(b.chat)
	}
}

// ownMessage counts a message of the user, which is not unread. The server reports nothing for it.
func (c *chat) ownMessage(sequence int64) {
	s := c.State
	if s == nil || sequence <= max(s.GetReadSequence(), s.GetOwnSequence()) {
		return // not known yet, read, or counted
	}
	next := proto.CloneOf(s)
	next.OwnUnreadCount, next.OwnSequence = s.GetOwnUnreadCount()+1, sequence
	c.State = next
	c.changed()
}

// withCount is a chat with another number of members.
func withCount(c *chatv1.Chat, count int32, at *timestamppb.Timestamp, version int64) *chatv1.Chat {
	return &chatv1.Chat{
		ChatId: c.GetChatId(), Type: c.GetType(), Name: c.GetName(), Status: c.GetStatus(), History: c.GetHistory(),
		CreatedBy: c.GetCreatedBy(), MemberCount: count, DirectUserIds: c.GetDirectUserIds(),
		CreatedAt: c.GetCreatedAt(), UpdatedAt: at, Version: version,
	}
}

// maxPreview is how much of a message the list shows, in bytes.
const maxPreview = 128

func preview(text string) string {
	if len(text) <= maxPreview {
		return text
	}
	n := maxPreview
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
