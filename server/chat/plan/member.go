package plan

import (
	"slices"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Change names a change of a group's membership or metadata.
type Change struct {
	Caller string
	ChatID string
	UserID string     // the target; the caller itself for Leave; empty for Rename
	Role   table.Role // Add and Role: admin or member
	Name   *string    // Rename: nil leaves the name
	// Expected is the version that the chats row must have; 0: any.
	Expected int64
	Request  Request
	Cause    event.Cause
}

// State is what a change is decided on. Its parts may have been
// read at different moments: plans have conditions on all of them.
type State struct {
	Head    table.Head
	Chat    *table.Chat       // nil: no such chat
	Caller  *table.Membership // nil: not a member
	Target  *table.Membership // nil: not a member
	Pending *table.Pending    // nil: nobody is pending
	Known   bool              // the target exists as a user
	User    table.User        // the target's row
}

// IsPending reports whether a user is on the way in.
func (s *State) IsPending(user string) bool {
	return s.Pending != nil && slices.Contains(s.Pending.Members, user)
}

// Learn takes over the present rows from failed conditions. The state then is that
// of the moment in which the plan failed in all that a decision needs: what a plan
// has no condition on cannot have changed (users stay, and nobody becomes
// pending). So what is decided next is exact, without another read. It reports
// false if there was nothing to learn.
func (s *State) Learn(c Change, failed *store.ConditionError) bool {
	learned := false
	for _, f := range failed.Failures {
		switch f.Name {
		case CondCaller:
			s.Caller = member(c.ChatID, c.Caller, f.Current)
		case CondTarget:
			s.Target = member(c.ChatID, c.UserID, f.Current)
			if c.UserID == c.Caller {
				s.Caller = s.Target
			}
		case CondChat:
			s.Chat = nil
			if f.Current != nil {
				row := table.ChatFrom(c.ChatID, f.Current)
				s.Chat = &row
			}
		case CondPending:
			s.Pending = nil
			if f.Current != nil {
				row := table.PendingFrom(c.ChatID, f.Current)
				s.Pending = &row
			}
		case CondChats:
			s.User = table.UserFrom(c.UserID, f.Current)
		case CondHead:
			s.Head = table.Head{ChatID: c.ChatID}
			if f.Current != nil {
				s.Head = table.HeadFrom(c.ChatID, f.Current)
			}
		default:
			continue
		}
		learned = true
	}
	return learned
}

func member(chatID, user string, it store.Item) *table.Membership {
	if it == nil {
		return nil
	}
	m := table.MembershipFrom(chatID, user, it)
	return &m
}

// Keys returns the keys of the rows that a change is decided on, for Read.
func (c Change) Keys() []store.Key {
	keys := make([]store.Key, 0, 6)
	keys = append(keys, table.ChatKey(c.ChatID), table.PendingKey(c.ChatID), table.MembershipKey(c.ChatID, c.Caller))
	if c.UserID != "" {
		keys = append(keys, table.UserKey(c.UserID))
		if c.UserID != c.Caller {
			keys = append(keys, table.MembershipKey(c.ChatID, c.UserID))
		}
	}
	if c.Request.Scope != "" {
		keys = append(keys, table.RequestKey(c.Request.Scope))
	}
	return keys
}

// Read makes the state from the items of Keys, and returns the result if the
// request was carried out before. Errors: ErrKeyReused.
func (c Change) Read(head table.Head, items []store.Item) (*State, *table.Request, error) {
	s := &State{Head: head, Caller: member(c.ChatID, c.Caller, items[2])}
	if items[0] != nil {
		row := table.ChatFrom(c.ChatID, items[0])
		s.Chat = &row
	}
	if items[1] != nil {
		row := table.PendingFrom(c.ChatID, items[1])
		s.Pending = &row
	}
	if c.UserID != "" {
		s.Known, s.User = items[3] != nil, table.UserFrom(c.UserID, items[3])
		s.Target = s.Caller
		if c.UserID != c.Caller {
			s.Target = member(c.ChatID, c.UserID, items[4])
		}
	}
	if c.Request.Scope == "" {
		return s, nil, nil
	}
	done, err := c.Request.Replay(items[len(items)-1])
	return s, done, err
}

// may is what every change of a group's membership begins with. Direct chats
// refuse before any role is looked at (L-098), with a reason of the command's.
func (s *State) may(direct *Refusal) error {
	switch {
	case s.Chat == nil || s.Caller == nil || s.Head.Version == 0:
		return ErrNotAMember
	case s.Chat.Type != table.Group:
		return direct
	case s.Chat.Status != table.Active:
		return chatNotActive
	}
	return nil
}

// mayAdd decides on an addition (L-066…L-075).
func (s *State) mayAdd(c Change, limit int64) error {
	if err := s.may(directChatMembersAreFixed); err != nil {
		return err
	}
	switch {
	case c.Role != table.Admin && c.Role != table.Member:
		return roleNotAssignable
	case s.Caller.Role == table.Member:
		return membersCannotAdd
	case s.Caller.Role == table.Admin && c.Role == table.Admin:
		return adminsCannotAddAdmins
	case !s.Known:
		return Unknown(c.UserID)
	case s.Target != nil, s.IsPending(c.UserID):
		return ErrAlreadyMember
	case s.Chat.MemberCount >= limit:
		return full(limit)
	}
	return nil
}

// mayRemove decides on a removal (L-079…L-087).
func (s *State) mayRemove(c Change) error {
	if err := s.may(directChatMembersAreFixed); err != nil {
		return err
	}
	switch {
	case c.UserID == c.Caller:
		return cannotRemoveSelf
	case s.Caller.Role == table.Member:
		return membersCannotRemove
	case s.Target == nil && !s.IsPending(c.UserID):
		return ErrMemberNotFound
	case s.Target == nil: // pending members are plain members
	case s.Target.Role == table.Owner:
		return ownerCannotBeRemoved
	case s.Caller.Role == table.Admin && s.Target.Role == table.Admin:
		return adminsCannotRemoveAdmins
	}
	return s.mayShrink()
}

// mayLeave decides on leaving (L-088…L-093).
func (s *State) mayLeave() error {
	if err := s.may(directChatMembersAreFixed); err != nil {
		return err
	}
	if s.Caller.Role == table.Owner {
		return ownerCannotLeave
	}
	return s.mayShrink()
}

func (s *State) mayShrink() error {
	if s.Chat.MemberCount <= 1 {
		return lastMemberStays
	}
	return nil
}

// Add makes the plan that makes a user a member of a group. Someone pending is a
// member for this purpose. That the target is not pending needs no condition: a
// list of pending members only ever gets shorter.
func (m Maker) Add(s *State, c Change, at int64) (*Draft, table.Membership, error) {
	if err := s.mayAdd(c, m.limit()); err != nil {
		return nil, table.Membership{}, err
	}
	if err := m.CheckRoom(s.User); err != nil {
		return nil, table.Membership{}, err
	}
	d := m.change(s, c, at)
	d.room = m.chats()
	row := d.added(c.UserID, c.Role, s.Chat, c.Caller, s.Chat.MemberCount+1)
	d.count(s.Chat, 1, activeGroup().Lt(table.AttrMemberCount, store.Int(m.limit())))
	return d, row, d.finish()
}

// Remove makes the plan that ends another user's membership, pending or not.
func (m Maker) Remove(s *State, c Change, at int64) (*Draft, error) {
	if err := s.mayRemove(c); err != nil {
		return nil, err
	}
	d := m.change(s, c, at)
	return d, d.removed(s, c)
}

// Leave makes the plan that ends the caller's own membership.
func (m Maker) Leave(s *State, c Change, at int64) (*Draft, error) {
	if err := s.mayLeave(); err != nil {
		return nil, err
	}
	d := m.change(s, c, at)
	return d, d.removed(s, c)
}

// change begins a plan that stands on the caller's role. Where caller and target
// are the same, the write of the target's membership carries the check.
func (m Maker) change(s *State, c Change, at int64) *Draft {
	cause := c.Cause
	cause.Actor = c.Caller
	d := m.draft(s.Head, at, cause, 11, 1)
	d.remember(c.Request, s.Head.Version+1)
	if c.UserID != c.Caller {
		d.writes = append(d.writes, store.Write{
			Op: store.OpCheck, Key: table.MembershipKey(c.ChatID, c.Caller), Name: CondCaller,
			Cond: store.Condition{}.Eq(table.AttrRole, store.String(string(s.Caller.Role))),
		})
	}
	return d
}

// removed ends a membership. The conditions demand the role that the decision was
// made on, and again in words what must never happen: an owner who goes.
func (d *Draft) removed(s *State, c Change) error {
	role := table.Member
	md := d.next(event.TypeMembershipChanged)
	if s.Target != nil {
		role = s.Target.Role
		d.writes = append(d.writes, store.Write{
			Op: store.OpDelete, Key: table.MembershipKey(c.ChatID, c.UserID), Name: CondTarget,
			Cond: store.Exists().Eq(table.AttrRole, store.String(string(role))).Ne(table.AttrRole, store.String(string(table.Owner))),
		})
		d.left(*s.Target, s.Chat.History)
	} else {
		// There is no row of the user that must be ended. The pending list demands
		// that the target is still on it, so there cannot be a membership either; it
		// is checked so that a failure tells where the target is now.
		d.writes = append(d.writes, store.Write{Op: store.OpCheck, Key: table.MembershipKey(c.ChatID, c.UserID), Cond: absent, Name: CondTarget})
		d.pending(s.Pending, without(s.Pending.Members, c.UserID))
	}
	d.Events = append(d.Events, &eventv1.MembershipChanged{
		Metadata: md, ChatId: c.ChatID, UserId: c.UserID,
		ChangeType: eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_REMOVED,
		Role:       protoRole(role), ChangedBy: c.Caller,
		MemberCountAfter: int32(s.Chat.MemberCount - 1), ChangedAt: d.time,
	})
	d.count(s.Chat, -1, activeGroup().Gt(table.AttrMemberCount, store.Int(1)))
	return d.finish()
}

// left takes a user's row out of the chats that the user is a member of and keeps,
// for table.LeftRetention, that the chat was left.
func (d *Draft) left(m table.Membership, history table.History) {
	d.writes = append(d.writes, store.Write{
		Op: store.OpDelete, Key: table.UserChatKey(m.UserID, m.ChatID), Cond: table.IsMember(), Name: CondUser,
	})
	row := table.UserChat{
		History: history, JoinedSequence: m.JoinedSequence, JoinedVersion: m.JoinedVersion, LeftVersion: d.Head.Version,
		ChangedAt: d.At, ExpiresAt: d.At/1000 + int64(table.LeftRetention/time.Second),
	}
	d.put(table.LeftKey(m.UserID, m.ChatID), row.Item())
	d.put(table.LeftLogKey(m.UserID, d.At, m.ChatID), row.Item())
	d.update(CondChats, isCounted, table.UserKey(m.UserID), store.Update{Add: []store.Increment{{Name: table.AttrChats, N: -1}}})
}

func without(users []string, user string) []string {
	return slices.DeleteFunc(slices.Clone(users), func(u string) bool { return u == user })
}

// activeGroup is what every change of a group demands of the chats row, also of
// callers that go around the rules (L-006, L-101…L-105).
func activeGroup() store.Condition {
	return store.Condition{}.Eq(table.AttrChatType, store.String(string(table.Group))).Eq(table.AttrStatus, store.String(string(table.Active)))
}

// count changes the chats row with the membership. It must be as it was read,
// because the events hold the count after the change (L-113).
func (d *Draft) count(c *table.Chat, n int64, cond store.Condition) {
	d.update(CondChat, cond.Eq(table.AttrVersion, store.Int(c.Version)), table.ChatKey(d.Head.ChatID), store.Update{Set: []store.Attr{
		{Name: table.AttrMemberCount, Value: store.Int(c.MemberCount + n)},
		{Name: table.AttrUpdatedAt, Value: store.Int(d.At)},
		{Name: table.AttrVersion, Value: store.Int(d.Head.Version)},
	}})
}
