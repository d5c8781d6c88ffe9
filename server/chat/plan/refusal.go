package plan

import (
	"maps"
	"strconv"
)

// Refusal is a rule's refusal of a command. It is one of the package's errors, and
// tells which rule refused and what can be done.
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

// The one table of rules. Names are part of the API: none is ever changed or used again.
var (
	membersCannotAdd          = &Refusal{Rule: "MEMBERS_CANNOT_ADD", is: ErrForbidden, Text: "only the owner and admins add members"}
	adminsCannotAddAdmins     = &Refusal{Rule: "ADMINS_CANNOT_ADD_ADMINS", is: ErrForbidden, Text: "only the owner adds somebody as an admin"}
	membersCannotRemove       = &Refusal{Rule: "MEMBERS_CANNOT_REMOVE", is: ErrForbidden, Text: "only the owner and admins remove members"}
	adminsCannotRemoveAdmins  = &Refusal{Rule: "ADMINS_CANNOT_REMOVE_ADMINS", is: ErrForbidden, Text: "only the owner removes an admin"}
	onlyOwnerChangesRoles     = &Refusal{Rule: "ONLY_OWNER_CHANGES_ROLES", is: ErrForbidden, Text: "only the owner changes roles"}
	membersCannotUpdateChat   = &Refusal{Rule: "MEMBERS_CANNOT_UPDATE_CHAT", is: ErrForbidden, Text: "only the owner and admins change the chat"}
	directChatMembersAreFixed = &Refusal{Rule: "DIRECT_CHAT_MEMBERS_ARE_FIXED", is: ErrInvalidOperation, Text: "the two members of a direct chat never change"}
	directChatHasNoRoles      = &Refusal{Rule: "DIRECT_CHAT_HAS_NO_ROLES", is: ErrInvalidOperation, Text: "a direct chat has no roles"}
	directChatHasNoName       = &Refusal{Rule: "DIRECT_CHAT_HAS_NO_NAME", is: ErrInvalidOperation, Text: "a direct chat has no name and nothing else to change"}
	// DirectChatWithSelf refuses a direct chat of one person.
	DirectChatWithSelf   error = &Refusal{Rule: "DIRECT_CHAT_WITH_SELF", is: ErrInvalidOperation, Text: "a direct chat has two people, the caller and another one"}
	chatNotActive              = &Refusal{Rule: "CHAT_NOT_ACTIVE", is: ErrInvalidOperation, Text: "the chat is not active"}
	roleNotAssignable          = &Refusal{Rule: "ROLE_NOT_ASSIGNABLE", is: ErrInvalidOperation, Text: "the role must be admin or member: a chat has one owner, who created it"}
	cannotRemoveSelf           = &Refusal{Rule: "CANNOT_REMOVE_SELF", is: ErrInvalidOperation, Text: "nobody removes themselves: leave the chat instead"}
	ownerCannotBeRemoved       = &Refusal{Rule: "OWNER_CANNOT_BE_REMOVED", is: ErrInvalidOperation, Text: "the owner cannot be removed"}
	ownerCannotLeave           = &Refusal{Rule: "OWNER_CANNOT_LEAVE", is: ErrInvalidOperation, Text: "the owner cannot leave the chat"}
	ownerRoleIsFixed           = &Refusal{Rule: "OWNER_ROLE_IS_FIXED", is: ErrInvalidOperation, Text: "the owner's role does not change"}
	lastMemberStays            = &Refusal{Rule: "LAST_MEMBER_STAYS", is: ErrInvalidOperation, Text: "the last member of a chat stays"}
	groupFull                  = &Refusal{Rule: "MEMBERS_LIMIT", is: ErrChatFull, Text: "the chat has as many members as it can have, those on their way in included"}
	versionDiffers             = &Refusal{Rule: "EXPECTED_VERSION", is: ErrVersionMismatch, Text: "the chat has another version than expected_version: read it, and decide anew"}
)

func full(limit int64) error { return groupFull.with("max_members", strconv.FormatInt(limit, 10)) }

func mismatch(current int64) error {
	return versionDiffers.with("current_version", strconv.FormatInt(current, 10))
}

// NotActive refuses a change of a chat that is not active.
func NotActive() error { return chatNotActive }

// Unknown refuses what needs a user who does not exist.
func Unknown(user string) error {
	r := &Refusal{Rule: "USER_EXISTS", is: ErrUserNotFound, Text: "there is no user " + strconv.Quote(user)}
	return r.with("user_id", user)
}
