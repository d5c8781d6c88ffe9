package plan

import (
	"fmt"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// Allows decides on a change without making its plan.
func (p Planner) Allows(s *State, c command.Change) error {
	switch c.Op {
	case command.OpAdd:
		return s.mayAdd(c, p.MaxMembers())
	case command.OpRemove:
		return s.mayRemove(c)
	case command.OpLeave:
		return s.mayLeave()
	case command.OpDepart:
		return s.mayDepart()
	case command.OpRole:
		return s.mayChangeRole(c)
	case command.OpUpdate:
		return s.mayUpdate(c)
	}
	return errNoOperation
}

var errNoOperation = fmt.Errorf("%w: no such operation", command.ErrInvalidArgument)

// mayChange is what every change of a group begins with. Direct chats refuse before any
// role is checked, with a reason of the command's: the answer is the same for every
// member.
func (s *State) mayChange(direct *command.Refusal) error {
	switch {
	case s.Chat == nil || s.Caller == nil || s.Head.Version == 0:
		return command.ErrNotAMember
	case s.Chat.Type != table.Group:
		return direct
	case s.Chat.Status != table.Active:
		return command.ChatNotActive
	}
	return nil
}

func (s *State) mayAdd(c command.Change, maxMembers int64) error {
	if err := s.mayChange(command.DirectChatMembersAreFixed); err != nil {
		return err
	}
	switch {
	case c.Role != table.Admin && c.Role != table.Member:
		return command.RoleNotAssignable
	case s.Caller.Role == table.Member:
		return command.MembersCannotAdd
	case s.Caller.Role == table.Admin && c.Role == table.Admin:
		return command.AdminsCannotAddAdmins
	case !s.TargetExists, s.TargetAccess.Deleted():
		return command.UnknownUser(c.UserID)
	case s.Target != nil, s.isPending(c.UserID):
		return command.ErrAlreadyMember
	case s.Chat.MemberCount >= maxMembers:
		return command.GroupFull(maxMembers)
	case s.Blocked:
		return command.Unreachable(c.UserID)
	case !c.Invited && (s.Meets || NeedsInvitation(s.TargetAccess, func() bool { return s.Shares })):
		return command.NeedsInvitation(c.UserID)
	}
	return nil
}

// NeedsInvitation reports whether a user can be added to a group only by an invitation.
// shares says whether the user shares a chat with the caller that adds; it is called if it
// matters.
func NeedsInvitation(a people.Access, shares func() bool) bool {
	return a.WhoAdds == people.Nobody || a.WhoAdds == people.SharedChat && !shares()
}

func (s *State) mayRemove(c command.Change) error {
	if err := s.mayChange(command.DirectChatMembersAreFixed); err != nil {
		return err
	}
	switch {
	case c.UserID == c.Caller:
		return command.CannotRemoveSelf
	case s.Caller.Role == table.Member:
		return command.MembersCannotRemove
	case s.Target == nil && !s.isPending(c.UserID):
		return command.ErrMemberNotFound
	case s.Target == nil: // pending members are plain members
	case s.Target.Role == table.Owner:
		return command.OwnerCannotBeRemoved
	case s.Caller.Role == table.Admin && s.Target.Role == table.Admin:
		return command.AdminsCannotRemoveAdmins
	}
	return s.mayShrink()
}

func (s *State) mayLeave() error {
	if err := s.mayChange(command.DirectChatMembersAreFixed); err != nil {
		return err
	}
	if s.Caller.Role == table.Owner {
		return command.OwnerCannotLeave
	}
	return s.mayShrink()
}

func (s *State) mayShrink() error {
	if s.Chat.MemberCount <= 1 {
		return command.LastMemberStays
	}
	return nil
}

func (s *State) mayChangeRole(c command.Change) error {
	if err := s.mayChange(command.DirectChatHasNoRoles); err != nil {
		return err
	}
	switch {
	case c.Role != table.Admin && c.Role != table.Member:
		return command.RoleNotAssignable
	case s.Caller.Role != table.Owner:
		return command.OnlyOwnerChangesRoles
	case c.UserID == c.Caller:
		return command.OwnerRoleIsFixed
	case s.Target == nil && !s.isPending(c.UserID):
		return command.ErrMemberNotFound
	}
	return nil
}

func (s *State) mayUpdate(c command.Change) error {
	if err := s.mayChange(command.DirectChatHasNoName); err != nil {
		return err
	}
	switch {
	case s.Caller.Role == table.Member:
		return command.MembersCannotUpdateChat
	case c.Expected != 0 && c.Expected != s.Chat.Version:
		return command.VersionDiffers(s.Chat.Version)
	}
	return nil
}
