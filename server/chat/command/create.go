package command

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store/table"
)

// CreateDirect asks for the direct chat of two people.
type CreateDirect struct {
	Caller    string
	Other     string
	History   table.History // empty: table.All
	RequestID string
	Cause     event.Cause
}

// CreateGroup asks for a group.
type CreateGroup struct {
	Caller    string
	Name      string
	Members   []string      // the others; repetitions and the caller are dropped
	History   table.History // empty: table.All
	RequestID string
	Cause     event.Cause
}

// Check checks the command and returns it with its defaults. Errors: ErrInvalidArgument,
// and ErrInvalidOperation for a chat with oneself.
func (c CreateDirect) Check() (CreateDirect, error) {
	if err := checkKeys(c.Caller, c.RequestID); err != nil {
		return c, err
	}
	if err := CheckUser(c.Other); err != nil {
		return c, err
	}
	if c.Caller == c.Other {
		return c, DirectChatWithSelf
	}
	c.History = cmp.Or(c.History, table.All)
	return c, checkHistory(c.History)
}

// Idempotency is the key by which a repetition of the checked command is recognized.
func (c CreateDirect) Idempotency() Idempotency {
	return newIdempotency("create", c.Caller, "", c.RequestID, "direct", c.Other, string(c.History))
}

// Check checks the command and returns it with its defaults, and its members sorted,
// without repetitions and the caller. maxMembers includes the caller. Errors:
// ErrInvalidArgument.
func (c CreateGroup) Check(maxMembers int64) (CreateGroup, error) {
	if err := checkKeys(c.Caller, c.RequestID); err != nil {
		return c, err
	}
	if err := checkName(c.Name); err != nil {
		return c, err
	}
	c.History = cmp.Or(c.History, table.All)
	if err := checkHistory(c.History); err != nil {
		return c, err
	}
	others := slices.Clone(c.Members)
	slices.Sort(others)
	c.Members = slices.DeleteFunc(slices.Compact(others), func(u string) bool { return u == c.Caller })
	if limit := maxMembers - 1; len(c.Members) < 1 || int64(len(c.Members)) > limit {
		return c, fmt.Errorf("%w: a group has 1 to %d other members", ErrInvalidArgument, limit)
	}
	for _, u := range c.Members {
		if err := CheckUser(u); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Idempotency is the key by which a repetition of the checked command is recognized.
func (c CreateGroup) Idempotency() Idempotency {
	return newIdempotency("create", c.Caller, "", c.RequestID, "group", c.Name, string(c.History),
		strings.Join(c.Members, "#"))
}

func checkHistory(h table.History) error {
	if h != table.All && h != table.SinceJoined {
		return fmt.Errorf("%w: unknown history mode %q", ErrInvalidArgument, h)
	}
	return nil
}
