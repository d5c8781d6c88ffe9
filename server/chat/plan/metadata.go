package plan

import (
	"strconv"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Reconciler is the actor of corrections. It is no user: "/" is not in their ids.
const Reconciler = "system/reconcile"

// mayChangeRole decides on another role (L-094…L-098).
func (s *State) mayChangeRole(c Change) error {
	if err := s.may(directChatHasNoRoles); err != nil {
		return err
	}
	switch {
	case c.Role != table.Admin && c.Role != table.Member:
		return roleNotAssignable
	case s.Caller.Role != table.Owner:
		return onlyOwnerChangesRoles
	case c.UserID == c.Caller:
		return ownerRoleIsFixed
	case s.Target == nil && !s.IsPending(c.UserID):
		return ErrMemberNotFound
	}
	return nil
}

// mayRename decides on a change of the metadata (L-134).
func (s *State) mayRename(c Change) error {
	if err := s.may(directChatHasNoName); err != nil {
		return err
	}
	switch {
	case s.Caller.Role == table.Member:
		return membersCannotUpdateChat
	case c.Expected != 0 && c.Expected != s.Chat.Version:
		return mismatch(s.Chat.Version)
	}
	return nil
}

// Role makes the plan that gives a member another role (L-094…L-100). Somebody
// who is on the way in becomes a member now, with that role: so the chunk that
// comes later cannot take it back. A member who has the role already keeps it, in
// a plan without events.
func (m Maker) Role(s *State, c Change, at int64) (*Draft, table.Membership, error) {
	if err := s.mayChangeRole(c); err != nil {
		return nil, table.Membership{}, err
	}
	if s.Target != nil && s.Target.Role == c.Role {
		return m.unchanged(s, c, at, s.Target.Version), *s.Target, nil
	}
	d := m.change(s, c, at)
	if s.Target == nil {
		row := d.arrived(c.UserID, c.Role, s.Chat, c.Caller, s.Chat.MemberCount)
		d.pending(s.Pending, without(s.Pending.Members, c.UserID))
		d.count(s.Chat, 0, activeGroup())
		return d, row, d.finish()
	}
	md := d.next(event.TypeMembershipChanged)
	row := *s.Target
	row.Role, row.Version = c.Role, d.Head.Version
	d.update(CondTarget,
		store.Exists().Eq(table.AttrRole, store.String(string(s.Target.Role))).Ne(table.AttrRole, store.String(string(table.Owner))),
		table.MembershipKey(c.ChatID, c.UserID), store.Update{Set: []store.Attr{
			{Name: table.AttrRole, Value: store.String(string(c.Role))},
			{Name: table.AttrVersion, Value: store.Int(row.Version)},
		}})
	d.update(CondUser, table.IsMember(), table.UserChatKey(c.UserID, c.ChatID), store.Update{Set: []store.Attr{
		{Name: table.AttrChangedAt, Value: store.Int(d.At)},
		{Name: table.AttrRole, Value: store.String(string(c.Role))},
	}, Add: raised})
	d.Events = append(d.Events, &eventv1.MembershipChanged{
		Metadata: md, ChatId: c.ChatID, UserId: c.UserID,
		ChangeType: eventv1.MembershipChangeType_MEMBERSHIP_CHANGE_TYPE_ROLE_CHANGED,
		Role:       protoRole(c.Role), ChangedBy: c.Caller,
		MemberCountAfter: int32(s.Chat.MemberCount), ChangedAt: d.time,
	})
	d.count(s.Chat, 0, activeGroup())
	return d, row, d.finish()
}

// Rename makes the plan that gives a group another name. One that has the name
// already keeps it, in a plan without events.
func (m Maker) Rename(s *State, c Change, at int64) (*Draft, table.Chat, error) {
	if err := s.mayRename(c); err != nil {
		return nil, table.Chat{}, err
	}
	row := *s.Chat
	if c.Name == nil || *c.Name == row.Name {
		return m.unchanged(s, c, at, s.Head.Version), row, nil
	}
	d := m.change(s, c, at)
	row.Name = *c.Name
	d.updated(s.Chat, &row, c.Caller)
	return d, row, d.finish()
}

// Correct makes the plan that sets a group's member count to what was counted at
// the state's head, when nobody was pending (L-053). Everything it stands on is a
// condition: the count is as it was observed, the head too, nobody is pending.
func (m Maker) Correct(s *State, counted, at int64) (*Draft, error) {
	d := m.draft(s.Head, at, event.Cause{Actor: Reconciler}, 5, 1)
	row := *s.Chat
	row.MemberCount = counted
	d.writes = append(d.writes, store.Write{Op: store.OpCheck, Key: table.PendingKey(row.ChatID), Cond: absent, Name: CondPending})
	d.updated(s.Chat, &row, Reconciler)
	return d, d.finish()
}

// updated changes the chats row from old to row, with an event.
func (d *Draft) updated(old, row *table.Chat, by string) {
	md := d.next(event.TypeChatUpdated)
	row.UpdatedAt, row.Version = d.At, d.Head.Version
	cond := activeGroup().Eq(table.AttrVersion, store.Int(old.Version)).Eq(table.AttrMemberCount, store.Int(old.MemberCount))
	d.update(CondChat, cond, table.ChatKey(row.ChatID), store.Update{Set: []store.Attr{
		{Name: table.AttrMemberCount, Value: store.Int(row.MemberCount)},
		{Name: table.AttrName, Value: store.String(row.Name)},
		{Name: table.AttrUpdatedAt, Value: store.Int(row.UpdatedAt)},
		{Name: table.AttrVersion, Value: store.Int(row.Version)},
	}})
	kind, history := protoChat(row)
	d.Events = append(d.Events, &eventv1.ChatUpdated{
		Metadata: md, ChatId: row.ChatID, Name: row.Name, UpdatedBy: by, UpdatedAt: d.time,
		ChatType: kind, Status: eventv1.ChatStatus_CHAT_STATUS_ACTIVE, History: history,
		CreatedBy: row.CreatedBy, CreatedAt: protoTime(row.CreatedAt), MemberCount: int32(row.MemberCount),
	})
}

// ChatOf is the chat as an event of a change left it.
func ChatOf(e *eventv1.ChatUpdated) table.Chat {
	row := table.Chat{
		ChatID: e.GetChatId(), Type: table.Group, Name: e.GetName(), CreatedBy: e.GetCreatedBy(), Status: table.Active, History: table.All,
		MemberCount: int64(e.GetMemberCount()), CreatedAt: e.GetCreatedAt().AsTime().UnixMilli(), UpdatedAt: e.GetUpdatedAt().AsTime().UnixMilli(),
		Version: e.GetMetadata().GetVersion(),
	}
	if e.GetHistory() == eventv1.HistoryMode_HISTORY_MODE_SINCE_JOINED {
		row.History = table.SinceJoined
	}
	return row
}

// unchanged makes the plan of a change that is there already. It changes nothing,
// but is remembered, so that a repetition which comes after a later change does
// not undo that one, and answers with the version given. It checks what it was decided
// on: the answer is that of one moment.
func (m Maker) unchanged(s *State, c Change, at, version int64) *Draft {
	d := m.draft(s.Head, at, c.Cause, 5, 0)
	d.Head = s.Head
	d.remember(c.Request, version)
	check := func(name string, key store.Key, cond store.Condition) {
		d.writes = append(d.writes, store.Write{Op: store.OpCheck, Key: key, Cond: cond, Name: name})
	}
	check(CondCaller, table.MembershipKey(c.ChatID, c.Caller), store.Condition{}.Eq(table.AttrRole, store.String(string(s.Caller.Role))))
	if s.Target != nil {
		check(CondTarget, table.MembershipKey(c.ChatID, c.UserID), store.Condition{}.Eq(table.AttrRole, store.String(string(s.Target.Role))))
	}
	check(CondChat, table.ChatKey(c.ChatID), activeGroup().Eq(table.AttrVersion, store.Int(s.Chat.Version)))
	check(CondHead, table.HeadKey(c.ChatID), store.Condition{}.Eq(table.AttrVersion, store.Int(s.Head.Version)))
	return d
}

// Own is a change of a user's own row of a chat, which concerns nobody else; it
// does not pass the chat's head.
type Own struct {
	Caller     string
	ChatID     string
	MutedUntil *int64 // unix ms, 0 for not muted; nil leaves it
	Archived   *bool  // nil leaves it
	Request    Request
}

// OwnContent is what tells requests for a change of an own row apart.
func OwnContent(mutedUntil *int64, archived *bool) []string {
	var content []string
	if mutedUntil != nil {
		content = append(content, "muted_until", strconv.FormatInt(*mutedUntil, 10))
	}
	if archived != nil {
		content = append(content, "archived", strconv.FormatBool(*archived))
	}
	return content
}

// Apply returns the row after the change.
func (o Own) Apply(row table.UserChat, at int64) table.UserChat {
	if o.MutedUntil != nil {
		row.MutedUntil = *o.MutedUntil
	}
	if o.Archived != nil {
		row.Archived = *o.Archived
	}
	row.ChangedAt = at
	row.Revision++
	return row
}

// Plan makes the writes of the plan that changes the row was to what Apply
// returned.
func (o Own) Plan(was, row table.UserChat, head table.Head) []store.Write {
	d := &Draft{Head: head, At: row.ChangedAt}
	d.remember(o.Request, head.Version)
	u := RowUpdate(row)
	if row.MutedUntil != 0 {
		u.Set = append(u.Set, store.Attr{Name: table.AttrMutedUntil, Value: store.Int(row.MutedUntil)})
	} else {
		u.Remove = append(u.Remove, table.AttrMutedUntil)
	}
	if row.Archived {
		u.Set = append(u.Set, store.Attr{Name: table.AttrArchived, Value: store.Bool(true)})
	} else {
		u.Remove = append(u.Remove, table.AttrArchived)
	}
	d.update(CondUser, Unchanged(was), table.UserChatKey(o.Caller, o.ChatID), u)
	return d.writes
}

// raised is the part of an update of a user's row that counts the change.
var raised = []store.Increment{{Name: table.AttrRevision, N: 1}}

// RowUpdate is the part of an update of a user's row that all changes share: time,
// revision, and the role, which rows of earlier releases lack.
func RowUpdate(row table.UserChat) store.Update {
	u := store.Update{Set: []store.Attr{{Name: table.AttrChangedAt, Value: store.Int(row.ChangedAt)}}, Add: raised}
	if row.Role != "" {
		u.Set = append(u.Set, store.Attr{Name: table.AttrRole, Value: store.String(string(row.Role))})
	}
	return u
}

// Unchanged is the condition that a member's row is as it was read: its revision
// says so, and where an earlier release changed it meanwhile, its time.
func Unchanged(was table.UserChat) store.Condition {
	cond := table.IsMember().Eq(table.AttrChangedAt, store.Int(was.ChangedAt))
	if was.Revision == 0 {
		return cond.Without(table.AttrRevision)
	}
	return cond.Eq(table.AttrRevision, store.Int(was.Revision))
}
