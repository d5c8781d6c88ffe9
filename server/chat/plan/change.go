package plan

import (
	"slices"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// Result is what a change leaves: the membership after OpAdd and OpRole, the chat after
// OpUpdate.
type Result struct {
	Member table.Membership
	Chat   table.Chat
}

// Change decides on a change, like Allows, and makes its plan.
func (p Planner) Change(s *State, c command.Change, at int64) (made *Plan, out Result, err error) {
	if err := p.Allows(s, c); err != nil {
		return nil, Result{}, err
	}
	switch c.Op {
	case command.OpAdd:
		made, out.Member, err = p.add(s, c, at)
	case command.OpRemove, command.OpLeave:
		made, err = p.remove(s, c, at)
	case command.OpDepart:
		made, err = p.depart(s, c, at)
	case command.OpRole:
		made, out.Member, err = p.changeRole(s, c, at)
	case command.OpUpdate:
		made, out.Chat, err = p.update(s, c, at)
	default:
		err = errNoOperation
	}
	return made, out, err
}

// change begins a plan that stands on the caller's role. Where caller and target
// are the same, the write of the target's membership carries the check.
func (p Planner) change(s *State, c command.Change, at int64) *builder {
	cause := c.Cause
	cause.Actor = c.Caller
	b := p.builder(s.Head, at, cause, 12, 1)
	b.recordIdempotency(c.Idempotency, s.Head.Version+1)
	if c.UserID != c.Caller {
		b.check(CondCaller, hasRole(store.Condition{}, s.Caller.Role), table.MembershipKey(c.ChatID, c.Caller))
	}
	return b
}

// add makes the plan that makes a user a member of a group. Someone pending is a
// member for this purpose. That the target is not pending needs no condition: a
// list of pending members only ever gets shorter.
func (p Planner) add(s *State, c command.Change, at int64) (*Plan, table.Membership, error) {
	if err := p.CheckChatCount(s.TargetUser); err != nil {
		return nil, table.Membership{}, err
	}
	b := p.change(s, c, at)
	b.chatLimit = p.maxChats()
	b.check(CondBlock, absent, people.BlockKey(c.UserID, c.Caller))
	m := newMember{user: c.UserID, role: c.Role, history: s.Chat.History, access: s.TargetAccess.Unchanged}
	if c.Invited {
		m.access = people.NotDeleted
	}
	row := b.add(m, c.Caller, s.Chat.MemberCount+1)
	b.updateCount(s.Chat, 1, activeGroup().Lt(table.AttrMemberCount, store.Int(p.MaxMembers())))
	made, err := b.finish()
	return made, row, err
}

// remove makes the plan that ends a membership, the caller's own or another user's,
// pending or not. The conditions demand the role that the decision was made on, and
// state again what must never happen: an owner who leaves.
func (p Planner) remove(s *State, c command.Change, at int64) (*Plan, error) {
	b := p.change(s, c, at)
	role := table.Member
	md := b.next(event.TypeMembershipChanged)
	if s.Target != nil {
		role = s.Target.Role
		b.delete(CondTarget, hasRole(store.Exists(), role).Ne(table.AttrRole, store.String(string(table.Owner))),
			table.MembershipKey(c.ChatID, c.UserID))
		b.markLeft(*s.Target, s.Chat.History)
	} else {
		// There is no row of the user that must be ended. The pending list demands
		// that the target is still on it, so there cannot be a membership either; it
		// is checked so that a failure brings the target's present row.
		b.check(CondTarget, absent, table.MembershipKey(c.ChatID, c.UserID))
		b.updatePending(s.Pending, without(s.Pending.Members, c.UserID))
	}
	b.Events = append(b.Events, &eventv1.MembershipChanged{
		Metadata: md, ChatId: c.ChatID, UserId: c.UserID,
		ChangeType: eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED,
		Role:       protoRole(role), ChangedBy: c.Caller,
		MemberCountAfter: int32(s.Chat.MemberCount - 1), ChangedAt: b.time,
	})
	b.updateCount(s.Chat, -1, activeGroup().Gt(table.AttrMemberCount, store.Int(1)))
	return b.finish()
}

// markLeft takes a user's row out of the chats that the user is a member of and keeps,
// for table.LeftRetention, that the chat was left.
func (b *builder) markLeft(m table.Membership, history table.History) {
	b.delete(CondUser, table.IsMember(), table.UserChatKey(m.UserID, m.ChatID))
	row := table.UserChat{
		History: history, JoinedSequence: m.JoinedSequence, JoinedVersion: m.JoinedVersion, LeftVersion: b.Head.Version,
		ChangedAt: b.At, ExpiresAt: b.At/1000 + int64(table.LeftRetention/time.Second),
	}
	b.put(table.LeftKey(m.UserID, m.ChatID), row.Item())
	b.put(table.LeftLogKey(m.UserID, b.At, m.ChatID), row.Item())
	b.update(CondChats, isCounted, table.UserKey(m.UserID),
		store.Update{Add: []store.Increment{{Name: table.AttrChats, N: -1}}})
}

// changeRole makes the plan that gives a member another role. A pending user becomes a
// member now, with that role: so the chunk that comes later cannot take it back. A
// member who has the role already keeps it, in a plan without events.
func (p Planner) changeRole(s *State, c command.Change, at int64) (*Plan, table.Membership, error) {
	if s.Target != nil && s.Target.Role == c.Role {
		return p.unchanged(s, c, at, s.Target.Version), *s.Target, nil
	}
	b := p.change(s, c, at)
	var row table.Membership
	if s.Target == nil {
		row = b.add(newMember{user: c.UserID, role: c.Role, history: s.Chat.History, pending: true}, c.Caller,
			s.Chat.MemberCount)
		b.updatePending(s.Pending, without(s.Pending.Members, c.UserID))
	} else {
		row = b.updateRole(s, c)
	}
	b.updateCount(s.Chat, 0, activeGroup())
	made, err := b.finish()
	return made, row, err
}

func (b *builder) updateRole(s *State, c command.Change) table.Membership {
	md := b.next(event.TypeMembershipChanged)
	row := *s.Target
	row.Role, row.Version = c.Role, b.Head.Version
	b.update(CondTarget,
		hasRole(store.Exists(), s.Target.Role).Ne(table.AttrRole, store.String(string(table.Owner))),
		table.MembershipKey(c.ChatID, c.UserID), store.Update{Set: []store.Attr{
			{Name: table.AttrRole, Value: store.String(string(c.Role))},
			{Name: table.AttrVersion, Value: store.Int(row.Version)},
		}})
	b.update(CondUser, table.IsMember(), table.UserChatKey(c.UserID, c.ChatID), store.Update{Set: []store.Attr{
		{Name: table.AttrChangedAt, Value: store.Int(b.At)},
		{Name: table.AttrRole, Value: store.String(string(c.Role))},
	}, Add: nextRevision})
	b.Events = append(b.Events, &eventv1.MembershipChanged{
		Metadata: md, ChatId: c.ChatID, UserId: c.UserID,
		ChangeType: eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ROLE_CHANGED,
		Role:       protoRole(c.Role), ChangedBy: c.Caller,
		MemberCountAfter: int32(s.Chat.MemberCount), ChangedAt: b.time,
	})
	return row
}

// unchanged makes the plan of a change whose effect is there already. It changes nothing,
// but records the request, so that a repetition which comes after a later change does
// not undo that one, and answers with the version given. It checks what it was decided
// on: the answer is that of one moment.
func (p Planner) unchanged(s *State, c command.Change, at, version int64) *Plan {
	b := p.builder(s.Head, at, c.Cause, 5, 0)
	b.Head = s.Head
	b.recordIdempotency(c.Idempotency, version)
	b.check(CondCaller, hasRole(store.Condition{}, s.Caller.Role), table.MembershipKey(c.ChatID, c.Caller))
	if s.Target != nil {
		b.check(CondTarget, hasRole(store.Condition{}, s.Target.Role), table.MembershipKey(c.ChatID, c.UserID))
	}
	b.check(CondChat, activeGroup().Eq(table.AttrVersion, store.Int(s.Chat.Version)), table.ChatKey(c.ChatID))
	b.check(CondHead, store.Condition{}.Eq(table.AttrVersion, store.Int(s.Head.Version)), table.HeadKey(c.ChatID))
	return &b.Plan
}

func hasRole(cond store.Condition, role table.Role) store.Condition {
	return cond.Eq(table.AttrRole, store.String(string(role)))
}

func without(users []string, user string) []string {
	return slices.DeleteFunc(slices.Clone(users), func(u string) bool { return u == user })
}

// activeGroup is what every change of a group demands of the chats row, also of
// callers that go around the rules.
func activeGroup() store.Condition {
	return store.Condition{}.Eq(table.AttrChatType, store.String(string(table.Group))).Eq(table.AttrStatus,
		store.String(string(table.Active)))
}

// updateCount changes the chats row with the membership. It must be as it was read,
// because the events hold the exact count after the change.
func (b *builder) updateCount(c *table.Chat, n int64, cond store.Condition) {
	b.update(CondChat, cond.Eq(table.AttrVersion, store.Int(c.Version)), table.ChatKey(b.Head.ChatID),
		store.Update{Set: []store.Attr{
			{Name: table.AttrMemberCount, Value: store.Int(c.MemberCount + n)},
			{Name: table.AttrUpdatedAt, Value: store.Int(b.At)},
			{Name: table.AttrVersion, Value: store.Int(b.Head.Version)},
		}})
}
