package plan

import (
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// mayDepart decides on the departure of a deleted account. An owner has a successor, so
// that every group has a member who can manage it.
func (s *State) mayDepart() error {
	if err := s.mayChange(command.DirectChatMembersAreFixed); err != nil {
		return err
	}
	if err := s.mayShrink(); err != nil {
		return err
	}
	if s.Caller.Role == table.Owner && s.Target == nil {
		return command.ErrMemberNotFound
	}
	return nil
}

// depart makes the plan that ends the membership of a deleted account and, if it owned the
// group, makes its successor the owner before.
func (p Planner) depart(s *State, c command.Change, at int64) (*Plan, error) {
	cause := c.Cause
	cause.Actor = c.Caller
	b := p.builder(s.Head, at, cause, 13, 2)
	if s.Caller.Role == table.Owner {
		b.updateRole(s, c)
	}
	md := b.next(event.TypeMembershipChanged)
	b.delete(CondCaller, hasRole(store.Exists(), s.Caller.Role), table.MembershipKey(c.ChatID, c.Caller))
	b.markLeft(*s.Caller, s.Chat.History)
	b.Events = append(b.Events, &eventv1.MembershipChanged{
		Metadata: md, ChatId: c.ChatID, UserId: c.Caller,
		ChangeType: eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED,
		Role:       protoRole(s.Caller.Role), ChangedBy: c.Caller,
		MemberCountAfter: int32(s.Chat.MemberCount - 1), ChangedAt: b.time,
	})
	b.updateCount(s.Chat, -1, activeGroup().Gt(table.AttrMemberCount, store.Int(1)))
	return b.finish()
}
