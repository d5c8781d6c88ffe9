package command

import (
	"fmt"
	"strconv"

	"github.com/parley-chat/parley/server/store/table"
)

// MemberSettings asks for a change of what a chat holds for the caller alone.
type MemberSettings struct {
	Caller     string
	ChatID     string
	MutedUntil *int64 // unix ms, in the future; 0: not muted; nil leaves it
	Archived   *bool  // nil leaves it
	Procedure  string // of the API, under which RequestID is recorded
	RequestID  string
}

// MarkRead asks for the caller's read position to be raised.
type MarkRead struct {
	Caller    string
	ChatID    string
	Sequence  int64 // more than the chat has counts as all
	RequestID string
}

// Check checks the command, but for the time. Errors: ErrInvalidArgument.
func (c MemberSettings) Check() error {
	if err := checkKeys(c.Caller, c.RequestID); err != nil {
		return err
	}
	if err := CheckChat(c.ChatID); err != nil {
		return err
	}
	if !isID(c.Procedure) {
		return fmt.Errorf("%w: a procedure has 1 to %d letters", ErrInvalidArgument, maxID)
	}
	return nil
}

// CheckTime checks that the chat is muted until a time after now, in unix ms. A
// repetition is answered without it: its time may have passed. Errors: ErrInvalidArgument.
func (c MemberSettings) CheckTime(now int64) error {
	if until := c.MutedUntil; until != nil && *until != 0 && (*until <= now || *until > table.Forever) {
		return fmt.Errorf("%w: a chat is muted until a time in the future", ErrInvalidArgument)
	}
	return nil
}

// Idempotency is the key by which a repetition of the checked command is recognized.
func (c MemberSettings) Idempotency() Idempotency {
	var content []string
	if c.MutedUntil != nil {
		content = append(content, "muted_until", strconv.FormatInt(*c.MutedUntil, 10))
	}
	if c.Archived != nil {
		content = append(content, "archived", strconv.FormatBool(*c.Archived))
	}
	return newIdempotency(c.Procedure, c.Caller, c.ChatID, c.RequestID, content...)
}

// Check checks the command. Errors: ErrInvalidArgument.
func (c MarkRead) Check() error {
	if err := checkKeys(c.Caller, c.RequestID); err != nil {
		return err
	}
	if err := CheckChat(c.ChatID); err != nil {
		return err
	}
	if c.Sequence < 1 {
		return fmt.Errorf("%w: a sequence is 1 or more", ErrInvalidArgument)
	}
	return nil
}

// Idempotency is the key by which a repetition of the checked command is recognized.
func (c MarkRead) Idempotency() Idempotency {
	return newIdempotency("read", c.Caller, c.ChatID, c.RequestID, strconv.FormatInt(c.Sequence, 10))
}
