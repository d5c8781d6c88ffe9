// Package command is the vocabulary that package chat and its parts share: what
// callers ask for, how a repeated request is recognized, and why one is refused.
//
// Each command checks its own content, in its Check or Message method, and nothing else
// checks it again. The package does not own permissions, which depend on the chat (package
// plan), nor how a command is carried out (package chat). Everything here is a value;
// functions may be called from many goroutines.
package command

import (
	"errors"
	"fmt"
	"regexp"
	"unicode/utf8"

	"github.com/parley-chat/parley/server/store/table"
)

// Limits of what a command contains.
const (
	MaxNameRunes = 128      // of a group's name
	MaxContent   = 16 << 10 // bytes of a message
	maxID        = 64       // bytes of a chat id, and of a request id
)

// Errors that commands end with.
var (
	ErrNotAMember       = errors.New("chat: not a member") // or no such chat
	ErrForbidden        = errors.New("chat: not allowed")
	ErrChatFull         = errors.New("chat: chat is full")
	ErrInvalidOperation = errors.New("chat: not possible in this chat")
	ErrAlreadyMember    = errors.New("chat: already a member")
	ErrMemberNotFound   = errors.New("chat: no such member")
	ErrUserNotFound     = errors.New("chat: no such user")
	ErrKeyReused        = errors.New("chat: request id used before with other content")
	ErrInvalidArgument  = errors.New("chat: invalid argument")
	ErrVersionMismatch  = errors.New("chat: another version than expected")
	ErrTooManyChats     = errors.New("chat: user is in too many chats") // see TooManyChats
)

// userID is the form of user ids, the same as in the API's contracts.
var userID = regexp.MustCompile(`^[^\p{C}\p{Z}#/]+$`)

// CheckUser checks a user id.
func CheckUser(id string) error {
	if len(id) > table.MaxUserID || !utf8.ValidString(id) || !userID.MatchString(id) || id == "." || id == ".." {
		return fmt.Errorf("%w: a user id has 1 to %d bytes of printable characters, no white space, '#' or '/'; . and .. are none", ErrInvalidArgument, table.MaxUserID)
	}
	return nil
}

// CheckChat checks a chat id.
func CheckChat(id string) error {
	if !isID(id) {
		return fmt.Errorf("%w: a chat id has 1 to %d letters, digits, - and _", ErrInvalidArgument, maxID)
	}
	return nil
}

// checkKeys checks what becomes part of store keys: "#" separates their parts, so it
// must not occur.
func checkKeys(user, requestID string) error {
	if err := CheckUser(user); err != nil {
		return err
	}
	if requestID != "" && !isID(requestID) {
		return fmt.Errorf("%w: a request id has at most %d letters, digits, - and _", ErrInvalidArgument, maxID)
	}
	return nil
}

func isID(s string) bool {
	if len(s) == 0 || len(s) > maxID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

func checkName(name string) error {
	if n := utf8.RuneCountInString(name); n < 1 || n > MaxNameRunes || !utf8.ValidString(name) {
		return fmt.Errorf("%w: a name has 1 to %d characters", ErrInvalidArgument, MaxNameRunes)
	}
	return nil
}
