package plan

import (
	"fmt"

	"github.com/parley-chat/parley/server/store/table"
)

// Operation is what is done to a membership, or to a chat. Its text is part of the keys
// under which requests are remembered.
type Operation string

// The operations.
const (
	OpAdd    Operation = "add"
	OpRemove Operation = "remove"
	OpLeave  Operation = "leave"
	OpRole   Operation = "role"
	OpUpdate Operation = "update"
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

// Result is what a change leaves: the membership after OpAdd and OpRole, the chat after
// OpUpdate.
type Result struct {
	Member table.Membership
	Chat   table.Chat
}

// Allows decides on a change without making its plan.
func (m Maker) Allows(op Operation, s *State, c Change) error {
	switch op {
	case OpAdd:
		return s.mayAdd(c, m.limit())
	case OpRemove:
		return s.mayRemove(c)
	case OpLeave:
		return s.mayLeave()
	case OpRole:
		return s.mayChangeRole(c)
	case OpUpdate:
		return s.mayRename(c)
	}
	return fmt.Errorf("%w: no such operation", ErrInvalidArgument)
}

// Make makes the plan of a change that is allowed.
func (m Maker) Make(op Operation, s *State, c Change, at int64) (d *Draft, out Result, err error) {
	switch op {
	case OpAdd:
		d, out.Member, err = m.Add(s, c, at)
	case OpRemove:
		d, err = m.Remove(s, c, at)
	case OpLeave:
		d, err = m.Leave(s, c, at)
	case OpRole:
		d, out.Member, err = m.Role(s, c, at)
	case OpUpdate:
		d, out.Chat, err = m.Rename(s, c, at)
	default:
		err = fmt.Errorf("%w: no such operation", ErrInvalidArgument)
	}
	return d, out, err
}
