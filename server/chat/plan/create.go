package plan

import (
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// MaxChunk is the number of members that one plan moves from pending to
// membership: four writes each besides the event's, and four for chat, pending
// row, head and outbox row. A chunk has at most 25 members.
const MaxChunk = min(25, (store.MaxPlanWrites-4)/4)

// Direct makes the plan of a direct chat, complete in one.
//
// Version 1 is ChatCreated, which makes the creator a member, as in a group; version 2 is a
// MembershipChanged of the other person. So every membership but a creator's starts with
// the same event. Code that routes by it, such as for the person's open streams, needs no
// other rule for direct chats.
func (p Planner) Direct(chatID string, c command.CreateDirect, at int64) (*Plan, error) {
	row := table.Chat{
		ChatID: chatID, Type: table.Direct, CreatedBy: c.Caller, History: c.History,
		MemberCount: 2, DirectUsers: []string{c.Caller, c.Other}, Version: 2,
	}
	b := p.builder(table.Head{ChatID: chatID}, at, c.Cause, 15, 2)
	b.chatLimit = p.maxChats()
	b.recordIdempotency(c.Idempotency(), 2)
	b.putIf(CondPair, absent, table.DirectIndexKey(c.Caller, c.Other),
		table.DirectIndex{ChatID: chatID, CreatedAt: at}.Item())
	b.check(CondBlock, absent, people.BlockKey(c.Caller, c.Other))
	b.check(CondBlock, absent, people.BlockKey(c.Other, c.Caller))
	b.create(row, table.Member, row.DirectUsers)
	b.add(newMember{user: c.Other, role: table.Member, history: c.History, peer: c.Caller, access: people.NotDeleted},
		c.Caller, 2)
	return b.finish()
}

// Group makes the plan of the first phase of a group: the group with its owner,
// and the other members as pending.
func (p Planner) Group(chatID string, c command.CreateGroup, at int64) (*Plan, error) {
	row := table.Chat{
		ChatID: chatID, Type: table.Group, Name: c.Name, CreatedBy: c.Caller, History: c.History,
		MemberCount: int64(len(c.Members)) + 1, Version: 1,
	}
	b := p.builder(table.Head{ChatID: chatID}, at, c.Cause, 9, 1)
	b.chatLimit = p.maxChats()
	b.recordIdempotency(c.Idempotency(), 1)
	b.create(row, table.Owner, append([]string{c.Caller}, c.Members...))
	pending := table.Pending{
		Members: c.Members, CreatedBy: c.Caller, CreatedAt: at, Correlation: b.cause.Correlation,
		Causation: b.cause.Causation, Trace: b.cause.Trace, ServiceID: b.cause.Service,
	}
	b.putIf(CondPending, absent, table.PendingKey(chatID), pending.Item())
	return b.finish()
}

// create adds a new chat and its creator, and the event.
func (b *builder) create(c table.Chat, role table.Role, members []string) {
	b.cause.Actor = c.CreatedBy
	md := b.next(event.TypeChatCreated)
	c.Status, c.CreatedAt, c.UpdatedAt = table.Active, b.At, b.At
	b.putIf(CondChat, absent, table.ChatKey(c.ChatID), c.Item())
	first := newMember{user: c.CreatedBy, role: role, history: c.History, access: people.NotDeleted}
	if c.Type == table.Direct {
		first.peer = c.DirectUsers[1]
	}
	b.join(first)
	kind, history := protoChat(&c)
	b.Events = append(b.Events, &eventv1.ChatCreated{
		Metadata: md, ChatId: c.ChatID, ChatType: kind, Name: c.Name, Status: eventv1.ChatStatus_CHAT_STATUS_ACTIVE,
		CreatedBy: c.CreatedBy, MemberCount: int32(c.MemberCount), InitialMembers: members, CreatedAt: b.time,
		History: history,
	})
}

// Chunk makes the plan that moves up to size pending members to membership, each with an
// event. The pending row must be as it was read: a member removed meanwhile is never
// resurrected, and no member is added twice. The member count stays, because pending
// members count already. Whether they can be in one more chat was checked when the group
// was created, and is not checked again: a group that was announced with them must not get
// stuck.
func (p Planner) Chunk(s *State, size int, at int64) (*Plan, error) {
	list := s.Pending
	n := min(size, len(list.Members))
	b := p.builder(s.Head, at, CreationCause(list), 4*n+4, n)
	for _, user := range list.Members[:n] {
		b.add(newMember{user: user, role: table.Member, history: s.Chat.History, pending: true}, list.CreatedBy,
			s.Chat.MemberCount)
	}
	b.updatePending(list, list.Members[n:])
	b.updateCount(s.Chat, 0, activeGroup())
	return b.finish()
}

// CreationCause is the cause of the command that created a group, by the list of its pending
// members: the plans that complete the group, in any process, belong to that command.
func CreationCause(p *table.Pending) event.Cause {
	return event.Cause{Actor: p.CreatedBy, Trace: p.Trace, Correlation: p.Correlation, Causation: p.Causation,
		Service: p.ServiceID}
}

// updatePending shortens the list of pending members to the remaining ones.
func (b *builder) updatePending(p *table.Pending, remaining []string) {
	key := table.PendingKey(b.Head.ChatID)
	unchanged := store.Condition{}.Eq(table.AttrMembers, store.List(p.Members))
	if len(remaining) == 0 {
		b.delete(CondPending, unchanged, key)
		return
	}
	b.update(CondPending, unchanged, key,
		store.Update{Set: []store.Attr{{Name: table.AttrMembers, Value: store.List(remaining)}}})
}
