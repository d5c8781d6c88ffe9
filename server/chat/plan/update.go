package plan

import (
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Reconciler is the actor of corrections. It is no user: "/" is not in their ids.
const Reconciler = "system/reconcile"

// update makes the plan that gives a group another name. One that has the name
// already keeps it, in a plan without events.
func (p Planner) update(s *State, c command.Change, at int64) (*Plan, table.Chat, error) {
	row := *s.Chat
	if c.Name == nil || *c.Name == row.Name {
		return p.unchanged(s, c, at, s.Head.Version), row, nil
	}
	b := p.change(s, c, at)
	row.Name = *c.Name
	b.updateChat(s.Chat, &row, c.Caller)
	made, err := b.finish()
	return made, row, err
}

// CorrectCount makes the plan that sets a group's member count to the number of members
// counted at the state's head, while no member was pending. Conditions check everything
// that it relies on: the count and the head are as they were observed, and no member is
// pending.
func (p Planner) CorrectCount(s *State, counted, at int64) (*Plan, error) {
	b := p.builder(s.Head, at, event.Cause{Actor: Reconciler}, 5, 1)
	row := *s.Chat
	row.MemberCount = counted
	b.check(CondPending, absent, table.PendingKey(row.ChatID))
	b.updateChat(s.Chat, &row, Reconciler)
	return b.finish()
}

// updateChat changes the chats row from old to row, with an event.
func (b *builder) updateChat(old, row *table.Chat, by string) {
	md := b.next(event.TypeChatUpdated)
	row.UpdatedAt, row.Version = b.At, b.Head.Version
	cond := activeGroup().Eq(table.AttrVersion, store.Int(old.Version)).Eq(table.AttrMemberCount,
		store.Int(old.MemberCount))
	b.update(CondChat, cond, table.ChatKey(row.ChatID), store.Update{Set: []store.Attr{
		{Name: table.AttrMemberCount, Value: store.Int(row.MemberCount)},
		{Name: table.AttrName, Value: store.String(row.Name)},
		{Name: table.AttrUpdatedAt, Value: store.Int(row.UpdatedAt)},
		{Name: table.AttrVersion, Value: store.Int(row.Version)},
	}})
	kind, history := protoChat(row)
	b.Events = append(b.Events, &eventv1.ChatUpdated{
		Metadata: md, ChatId: row.ChatID, Name: row.Name, UpdatedBy: by, UpdatedAt: b.time,
		ChatType: kind, Status: eventv1.ChatStatus_CHAT_STATUS_ACTIVE, History: history,
		CreatedBy: row.CreatedBy, CreatedAt: protoTime(row.CreatedAt), MemberCount: int32(row.MemberCount),
	})
}

// ChatOf is the chat as an event of a change left it.
func ChatOf(e *eventv1.ChatUpdated) table.Chat {
	row := table.Chat{
		ChatID: e.GetChatId(), Type: table.Group, Name: e.GetName(), CreatedBy: e.GetCreatedBy(), Status: table.Active,
		History:     table.All,
		MemberCount: int64(e.GetMemberCount()), CreatedAt: e.GetCreatedAt().AsTime().UnixMilli(),
		UpdatedAt: e.GetUpdatedAt().AsTime().UnixMilli(),
		Version:   e.GetMetadata().GetVersion(),
	}
	if e.GetHistory() == eventv1.HistoryMode_HISTORY_MODE_SINCE_JOINED {
		row.History = table.SinceJoined
	}
	return row
}
