package events

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/check/derive"
)

// Limits of an answer about a chat.
const (
	maxMembers  = 2000
	maxDeparted = 1000
)

// stateTo shows a chat as its events made it.
func stateTo(c *derive.Chat) *opsv1.ChatState {
	h, row := c.Head, c.Row
	out := &opsv1.ChatState{
		ChatId: h.ChatID, Version: h.Version, MembershipVersion: h.MembershipVersion, Sequence: h.Sequence,
		ChangedAt: millis(h.ChangedAt), CreatedAt: millis(row.CreatedAt), CreatedBy: text(row.CreatedBy),
		ChatType: string(row.Type), HistoryType: string(row.History), Name: text(row.Name),
		PendingIds: c.Pending[:min(len(c.Pending), maxMembers)], DepartedCount: int64(len(c.Departed)),
	}
	for _, id := range first(c.Members, maxMembers) {
		m := c.Members[id]
		out.Members = append(out.Members, &opsv1.ChatStateMember{
			UserId: text(id), RoleType: string(m.Role), JoinedAt: millis(m.JoinedAt), JoinedSequence: m.JoinedSequence,
			JoinedVersion: m.JoinedVersion,
		})
	}
	for _, id := range first(c.Departed, maxDeparted) {
		d := c.Departed[id]
		out.Departed = append(out.Departed,
			&opsv1.ChatStateDeparted{UserId: text(id), LeftAt: millis(d.ChangedAt), LeftVersion: d.LeftVersion})
	}
	if h.LastSequence > 0 {
		out.LastMessage = &opsv1.ChatStateMessage{Sequence: h.LastSequence, SenderId: text(h.LastSender),
			SentAt: millis(h.LastAt), Preview: text(h.LastPreview)}
	}
	return out
}

// first returns the first keys of a map, in order.
func first[V any](m map[string]V, limit int) []string {
	keys := slices.Sorted(maps.Keys(m))
	return keys[:min(len(keys), limit)]
}

func millis(at int64) *timestamppb.Timestamp {
	if at == 0 {
		return nil
	}
	return timestamppb.New(time.UnixMilli(at))
}
