package command

import (
	"fmt"
	"maps"
	"strconv"
)

// Refusal is a rule's refusal of a command. It wraps one of the package's errors, and
// says which rule refused and what can be done.
type Refusal struct {
	Rule string // stable, for programs
	Text string // for people
	// Values are what the rule compared with, by the name that programs read them by.
	Values map[string]string
	is     error
}

// Error implements error.
func (r *Refusal) Error() string { return r.is.Error() + ": " + r.Text }

// Unwrap returns the package's error that this refusal is.
func (r *Refusal) Unwrap() error { return r.is }

// with returns the refusal with a value.
func (r *Refusal) with(name, value string) *Refusal {
	out := *r
	out.Values = maps.Clone(r.Values)
	if out.Values == nil {
		out.Values = map[string]string{}
	}
	out.Values[name] = value
	return &out
}

// The one table of rules. Rule is part of the API: none is ever changed or used again.
var (
	MembersCannotAdd = &Refusal{Rule: "MEMBERS_CANNOT_ADD", is: ErrForbidden,
		Text: "only the owner and admins add members"}
	AdminsCannotAddAdmins = &Refusal{Rule: "ADMINS_CANNOT_ADD_ADMINS", is: ErrForbidden,
		Text: "only the owner adds admins"}
	MembersCannotRemove = &Refusal{Rule: "MEMBERS_CANNOT_REMOVE", is: ErrForbidden,
		Text: "only the owner and admins remove members"}
	AdminsCannotRemoveAdmins = &Refusal{Rule: "ADMINS_CANNOT_REMOVE_ADMINS", is: ErrForbidden,
		Text: "only the owner removes an admin"}
	OnlyOwnerChangesRoles = &Refusal{Rule: "ONLY_OWNER_CHANGES_ROLES", is: ErrForbidden,
		Text: "only the owner changes roles"}
	MembersCannotUpdateChat = &Refusal{Rule: "MEMBERS_CANNOT_UPDATE_CHAT", is: ErrForbidden,
		Text: "only the owner and admins change the chat"}
	DirectChatMembersAreFixed = &Refusal{Rule: "DIRECT_CHAT_MEMBERS_ARE_FIXED", is: ErrInvalidOperation,
		Text: "the two members of a direct chat never change"}
	DirectChatHasNoRoles = &Refusal{Rule: "DIRECT_CHAT_HAS_NO_ROLES", is: ErrInvalidOperation,
		Text: "a direct chat has no roles"}
	DirectChatHasNoName = &Refusal{Rule: "DIRECT_CHAT_HAS_NO_NAME", is: ErrInvalidOperation,
		Text: "a direct chat has no name and nothing else to change"}
	DirectChatWithSelf = &Refusal{Rule: "DIRECT_CHAT_WITH_SELF", is: ErrInvalidOperation,
		Text: "a direct chat has two people, the caller and another one"}
	ChatNotActive     = &Refusal{Rule: "CHAT_NOT_ACTIVE", is: ErrInvalidOperation, Text: "the chat is not active"}
	RoleNotAssignable = &Refusal{Rule: "ROLE_NOT_ASSIGNABLE", is: ErrInvalidOperation,
		Text: "the role must be admin or member: a chat has one owner, who created it"}
	CannotRemoveSelf = &Refusal{Rule: "CANNOT_REMOVE_SELF", is: ErrInvalidOperation,
		Text: "you cannot remove yourself: leave the chat instead"}
	OwnerCannotBeRemoved = &Refusal{Rule: "OWNER_CANNOT_BE_REMOVED", is: ErrInvalidOperation,
		Text: "the owner cannot be removed"}
	OwnerCannotLeave = &Refusal{Rule: "OWNER_CANNOT_LEAVE", is: ErrInvalidOperation,
		Text: "the owner cannot leave the chat"}
	OwnerRoleIsFixed = &Refusal{Rule: "OWNER_ROLE_IS_FIXED", is: ErrInvalidOperation,
		Text: "the owner's role does not change"}
	LastMemberStays = &Refusal{Rule: "LAST_MEMBER_STAYS", is: ErrInvalidOperation,
		Text: "the last member of a chat stays"}
	CallerBlocks = &Refusal{Rule: "CALLER_BLOCKS", is: ErrForbidden,
		Text: "the caller has blocked this person: unblock first"}
	NotReachable = &Refusal{Rule: "NOT_REACHABLE", is: ErrForbidden,
		Text: "this person cannot be added or written to by the caller"}
	InvitationRequired = &Refusal{Rule: "INVITATION_REQUIRED", is: ErrInvalidOperation,
		Text: "this person is not added by the caller: send an invitation, which the person accepts"}
	tooLarge = &Refusal{Rule: "COMMAND_TOO_LARGE", is: ErrInvalidOperation,
		Text: "the command's events do not fit into one transaction: make several commands of it"}
	groupFull = &Refusal{Rule: "MEMBERS_LIMIT", is: ErrChatFull,
		Text: "the chat has as many members as it can have, those on their way in included"}
	versionDiffers = &Refusal{Rule: "EXPECTED_VERSION", is: ErrVersionMismatch,
		Text: "the chat has another version than expected_version: read it, and decide again"}
)

// GroupFull refuses another member of a group that has as many as it can have.
func GroupFull(limit int64) error { return groupFull.with("max_members", strconv.FormatInt(limit, 10)) }

// TooLarge refuses a command whose events do not fit into one plan of the store.
func TooLarge(events, maxWrites int) error {
	return tooLarge.with("events", strconv.Itoa(events)).with("max_writes", strconv.Itoa(maxWrites))
}

// VersionDiffers refuses a change that is based on another version than the chat's.
func VersionDiffers(current int64) error {
	return versionDiffers.with("current_version", strconv.FormatInt(current, 10))
}

// UnknownUser refuses what needs a user who does not exist.
func UnknownUser(user string) error {
	r := &Refusal{Rule: "USER_EXISTS", is: ErrUserNotFound, Text: "there is no user " + strconv.Quote(user)}
	return r.with("user_id", user)
}

// NeedsInvitation refuses the addition of a user who wants to be asked.
func NeedsInvitation(user string) error { return InvitationRequired.with("user_id", user) }

// Unreachable refuses what a user has blocked the caller for.
func Unreachable(user string) error { return NotReachable.with("user_id", user) }

// TooManyChats is ErrTooManyChats with the user whom it is about.
type TooManyChats struct {
	UserID string
	Limit  int64
}

// Error names the user and the limit.
func (e *TooManyChats) Error() string {
	return fmt.Sprintf("%v: %s is in %d or more", ErrTooManyChats, e.UserID, e.Limit)
}

// Is makes the error ErrTooManyChats.
func (e *TooManyChats) Is(target error) bool { return target == ErrTooManyChats }
