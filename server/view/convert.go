package view

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/store/table"
)

// State is a user's own state in a chat.
func (r *Reader) State(head table.Head, row table.UserChat) *chatv1.MemberState {
	own, last := row.OwnUnread()
	s := &chatv1.MemberState{
		ReadSequence:      row.ReadSequence,
		UnreadCount:       row.Unread(head.Sequence),
		OwnUnreadCount:    own,
		OwnSequence:       last,
		JoinedSequence:    row.JoinedSequence,
		DeliveredSequence: row.DeliveredSequence,
		Archived:          row.Archived,
		Role:              memberRole(row.Role),
		Revision:          row.Revision,
	}
	if !r.noReadReceipts {
		s.PeerReadSequence = row.PeerReadSequence
	}
	if row.MutedUntil > r.clock().UnixMilli() {
		s.MutedUntil = timestampOf(row.MutedUntil)
	}
	return s
}

// overview puts together what a user's list shows of a chat. row must be read
// last.
func (r *Reader) overview(head table.Head, c table.Chat, row table.UserChat) *chatv1.ChatOverview {
	return &chatv1.ChatOverview{Chat: Chat(c), Head: headMessage(head, row), State: r.State(head, row)}
}

func headMessage(h table.Head, row table.UserChat) *chatv1.ChatHead {
	m := &chatv1.ChatHead{
		Version:           h.Version,
		Sequence:          h.Sequence,
		MembershipVersion: h.MembershipVersion,
		ChangedAt:         timestampOf(h.ChangedAt),
	}
	if h.Sequence > 0 && h.Sequence >= row.FirstSequence() {
		m.LastMessage = &chatv1.MessagePreview{Sequence: h.Sequence, SenderId: h.LastSender, Text: h.LastPreview}
		if h.LastAt != 0 {
			m.LastMessage.CreatedAt = timestampOf(h.LastAt)
		}
	}
	return m
}

// Chat is what all members of a chat share.
func Chat(c table.Chat) *chatv1.Chat {
	return &chatv1.Chat{
		ChatId:        c.ChatID,
		Type:          chatType(c.Type),
		Name:          c.Name,
		Status:        chatStatus(c.Status),
		History:       historyMode(c.History),
		CreatedBy:     c.CreatedBy,
		MemberCount:   int32(c.MemberCount),
		DirectUserIds: c.DirectUsers,
		CreatedAt:     timestampOf(c.CreatedAt),
		UpdatedAt:     timestampOf(c.UpdatedAt),
		Version:       c.Version,
	}
}

// Member is one membership.
func Member(m table.Membership) *chatv1.Member {
	return &chatv1.Member{UserId: m.UserID, Role: memberRole(m.Role), JoinedAt: timestampOf(m.JoinedAt),
		Version: m.Version}
}

func messageMessage(m table.Message) *messagev1.Message {
	return &messagev1.Message{
		MessageId:       m.MessageID,
		ChatId:          m.ChatID,
		Sequence:        m.Sequence,
		SenderId:        m.SenderID,
		Content:         m.Content,
		ContentType:     messagev1.ContentType(m.ContentType),
		ClientMessageId: m.ClientMessageID,
		CreatedAt:       timestampOf(m.CreatedAt),
		Version:         m.Version,
		ServiceId:       m.ServiceID,
	}
}

func timestampOf(ms int64) *timestamppb.Timestamp { return timestamppb.New(time.UnixMilli(ms)) }

func chatType(t table.Type) chatv1.ChatType {
	switch t {
	case table.Direct:
		return chatv1.ChatType_CHAT_TYPE_DIRECT
	case table.Group:
		return chatv1.ChatType_CHAT_TYPE_GROUP
	}
	return chatv1.ChatType_CHAT_TYPE_UNSPECIFIED
}

func chatStatus(s table.Status) chatv1.ChatStatus {
	if s == table.Active {
		return chatv1.ChatStatus_CHAT_STATUS_ACTIVE
	}
	return chatv1.ChatStatus_CHAT_STATUS_UNSPECIFIED
}

func historyMode(h table.History) chatv1.HistoryMode {
	switch h {
	case table.All:
		return chatv1.HistoryMode_HISTORY_MODE_ALL
	case table.SinceJoined:
		return chatv1.HistoryMode_HISTORY_MODE_SINCE_JOINED
	}
	return chatv1.HistoryMode_HISTORY_MODE_UNSPECIFIED
}

func memberRole(r table.Role) chatv1.MemberRole {
	switch r {
	case table.Owner:
		return chatv1.MemberRole_MEMBER_ROLE_OWNER
	case table.Admin:
		return chatv1.MemberRole_MEMBER_ROLE_ADMIN
	case table.Member:
		return chatv1.MemberRole_MEMBER_ROLE_MEMBER
	}
	return chatv1.MemberRole_MEMBER_ROLE_UNSPECIFIED
}
