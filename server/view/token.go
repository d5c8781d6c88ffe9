package view

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/timestamp"
	"github.com/parley-chat/parley/server/store"
)

// MaxSkew is by how much the clock of a process may differ from the store's.
const MaxSkew = 20 * time.Second

// Lifetimes of tokens.
const (
	// Overlap is how much earlier than the reads that it stands for the time of a
	// token is. A change may have an old stamp when it becomes visible: its plan was
	// sent when it had almost its greatest age, the call took its time, the writer's
	// clock is slow and the reader's fast. Heads are states, so repetition is harmless.
	Overlap = chat.PlanAge + store.CallTimeout + 2*MaxSkew + overlapMargin
	// overlapMargin is for what is noticed late: a clock that has just gone off, a
	// request that reaches the store after its call was given up.
	overlapMargin = 10 * time.Second
	// MaxTokenAge is the age from which on a token gets all chats. Rows of chats
	// that were left are kept ten days longer.
	MaxTokenAge = 80 * 24 * time.Hour

	pageTokenLifetime = 24 * time.Hour
)

const (
	tokenVersion = 3
	// tokenUnnumbered is the version of tokens without a commit. Releases that made them began no
	// generations but for data that they knew to be lost.
	tokenUnnumbered = 2
	// tokenUncounted is the version of tokens that do not count setbacks either, of releases
	// that did not: they know of none.
	tokenUncounted = 1
	// pageVersion is raised when the form of a position changes: one of another release
	// must not be read as something else.
	pageVersion = 4
)

// Purposes of tokens, part of what is signed.
const (
	purposeSync    = "sync"
	purposeChats   = "page chats"
	purposeMembers = "page members"
	purposeChanged = "page sync"
)

// Token is what a synchronisation token says.
type Token struct {
	At   time.Time // what changed at or after it is to be sent
	Full bool      // too old, of another history, or of a wrong clock: all chats are to be sent
}

// Start is where reads begin.
type Start = timestamp.Start

// Begin returns where reads that follow begin. A token made of it later stands for what
// they show. Errors of the store come through wrapped.
func (r *Reader) Begin(ctx context.Context) (Start, error) { return r.stamps.Begin(ctx) }

// NewToken makes a synchronisation token of a user for reads that began there, and have ended.
func (r *Reader) NewToken(user string, from Start) string {
	body := make([]byte, 0, 96)
	generation := r.history.Generation()
	body = append(body, tokenVersion, byte(len(generation)))
	body = append(body, generation...)
	body = binary.BigEndian.AppendUint64(body, uint64(from.At.Add(-Overlap).UnixMilli()))
	body = binary.BigEndian.AppendUint32(body, uint32(from.Setbacks))
	body = binary.BigEndian.AppendUint64(body, uint64(r.history.Shown()))
	return r.key.Sign(body, purposeSync, user)
}

// Token checks a synchronisation token. A token that this store, in any history, did not
// make for the user is ErrInvalidToken. Errors of the store come through wrapped.
func (r *Reader) Token(ctx context.Context, user, token string) (Token, error) {
	body, ok := r.key.Verify(token, purposeSync, user)
	if !ok || !complete(body) {
		return Token{}, ErrInvalidToken
	}
	generation, rest := body[2:2+int(body[1])], body[2+int(body[1]):]
	t := Token{At: time.UnixMilli(int64(binary.BigEndian.Uint64(rest)))}
	var known uint32
	if body[0] >= tokenUnnumbered {
		known = binary.BigEndian.Uint32(rest[8:])
	}
	var commit int64
	if body[0] == tokenVersion {
		commit = int64(binary.BigEndian.Uint64(rest[12:]))
	}
	back, err := r.stamps.Setbacks(ctx)
	if err != nil {
		return Token{}, err
	}
	now := r.clock()
	// A token of the future means that clocks were set back: the changes that it would hide
	// are not known.
	t.Full = !r.history.Holds(string(generation), commit) || now.Sub(t.At) > MaxTokenAge || t.At.After(now)
	// Nor is it known later, when that future has come.
	behind := int64(known) < back.Count && !t.At.Before(time.UnixMilli(back.From).Add(-Overlap))
	t.Full = t.Full || behind
	return t, nil
}

// complete reports whether a token's body has a form that Token reads.
func complete(body []byte) bool {
	if len(body) < 2 {
		return false
	}
	size := 2 + int(body[1]) + 8
	switch body[0] {
	case tokenVersion:
		return len(body) == size+12
	case tokenUnnumbered:
		return len(body) == size+4
	}
	return body[0] == tokenUncounted && len(body) == size
}

// newPageToken signs a position in a list. It is bound to the purpose, the user and the query's
// other parts, and to the store's history.
func (r *Reader) newPageToken(position []byte, purpose, user, query string) string {
	generation := r.history.Generation()
	body := make([]byte, 0, 10+len(generation)+len(position))
	body = append(body, pageVersion, byte(len(generation)))
	body = append(body, generation...)
	body = binary.BigEndian.AppendUint64(body, uint64(r.clock().Add(pageTokenLifetime).UnixMilli()))
	body = append(body, position...)
	return r.key.Sign(body, purpose, user, query)
}

// pageToken checks a page token and returns the position.
func (r *Reader) pageToken(token, purpose, user, query string) ([]byte, error) {
	body, ok := r.key.Verify(token, purpose, user, query)
	if !ok || len(body) < 2 || body[0] != pageVersion || len(body) < 10+int(body[1]) {
		return nil, ErrInvalidPageToken
	}
	generation, rest := body[2:2+body[1]], body[2+body[1]:]
	if !r.history.Holds(string(generation), 0) || r.clock().UnixMilli() > int64(binary.BigEndian.Uint64(rest)) {
		return nil, ErrInvalidPageToken
	}
	return rest[8:], nil
}
