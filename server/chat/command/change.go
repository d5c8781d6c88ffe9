package command

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store/table"
)

// Operation is what is done to a membership, or to a chat. Its text is part of the keys
// under which requests are recorded.
type Operation string

// The operations.
const (
	OpAdd    Operation = "add"
	OpRemove Operation = "remove"
	OpLeave  Operation = "leave"
	OpRole   Operation = "role"
	OpUpdate Operation = "update"
	OpDepart Operation = "depart" // of a deleted account
)

// ChangeType is the kind of change that an operation on a membership makes: "added",
// "removed" or "role_changed".
func (o Operation) ChangeType() string {
	switch o {
	case OpAdd:
		return "added"
	case OpRole:
		return "role_changed"
	default:
		return "removed"
	}
}

// MemberChange names a change of a group's membership.
type MemberChange struct {
	Caller    string
	ChatID    string
	UserID    string     // the target; OpLeave ignores it
	Role      table.Role // OpAdd and OpRole: admin or member
	Invited   bool       // OpAdd: the target has accepted an invitation of the caller
	RequestID string
	Cause     event.Cause
}

// ChatChange names a change of a group's metadata.
type ChatChange struct {
	Caller    string
	ChatID    string
	Name      *string // nil leaves it
	Expected  int64   // version of the chat that the change is based on; 0: any
	RequestID string
	Cause     event.Cause
}

// Change is a MemberChange or a ChatChange whose content was checked, with the key by
// which a repetition is recognized.
type Change struct {
	Op           Operation
	MemberChange         // UserID is the caller for OpLeave, and empty for OpUpdate
	Name         *string // OpUpdate: nil leaves the name
	Expected     int64   // OpUpdate: version that the chats row must have; 0: any
	Idempotency  Idempotency
}

// Check checks the command, for an operation on a membership. Errors: ErrInvalidArgument.
func (c MemberChange) Check(op Operation) (Change, error) {
	if op == OpLeave {
		c.UserID = c.Caller
	}
	if err := CheckChat(c.ChatID); err != nil {
		return Change{}, err
	}
	if err := checkKeys(c.Caller, c.RequestID); err != nil {
		return Change{}, err
	}
	if err := CheckUser(c.UserID); err != nil {
		return Change{}, err
	}
	var content []string
	switch op {
	case OpAdd, OpRole:
		content = []string{c.UserID, string(c.Role)}
	case OpRemove:
		content = []string{c.UserID}
	case OpLeave:
	default:
		return Change{}, fmt.Errorf("%w: no such operation", ErrInvalidArgument)
	}
	return Change{Op: op, MemberChange: c,
		Idempotency: newIdempotency(string(op), c.Caller, c.ChatID, c.RequestID, content...)}, nil
}

// Departure is the change that ends the membership of a deleted account. If it is the
// owner's, successor becomes the owner; otherwise that is empty. All departures of an account
// have one cause, also after a restart and in other processes: an account is deleted once.
func Departure(user, chatID, successor string) Change {
	deletion := sha256.Sum256([]byte("delete#" + user))
	return Change{Op: OpDepart, MemberChange: MemberChange{Caller: user, ChatID: chatID, UserID: successor,
		Role: table.Owner, Cause: event.Cause{Correlation: "del_" + hex.EncodeToString(deletion[:16])}}}
}

// Check checks the command. Errors: ErrInvalidArgument.
func (c ChatChange) Check() (Change, error) {
	if err := CheckChat(c.ChatID); err != nil {
		return Change{}, err
	}
	if err := checkKeys(c.Caller, c.RequestID); err != nil {
		return Change{}, err
	}
	var content []string
	if c.Name != nil {
		if err := checkName(*c.Name); err != nil {
			return Change{}, err
		}
		content = append(content, "name", *c.Name)
	}
	if c.Expected != 0 {
		content = append(content, "expected_version", strconv.FormatInt(c.Expected, 10))
	}
	return Change{
		Op: OpUpdate, MemberChange: MemberChange{Caller: c.Caller, ChatID: c.ChatID, RequestID: c.RequestID, Cause: c.Cause},
		Name: c.Name, Expected: c.Expected,
		Idempotency: newIdempotency(string(OpUpdate), c.Caller, c.ChatID, c.RequestID, content...),
	}, nil
}
