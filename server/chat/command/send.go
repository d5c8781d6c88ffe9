package command

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Send asks for a message to be stored.
type Send struct {
	Caller          string
	ChatID          string
	ClientMessageID string // 1 to 64 letters, digits, "-" and "_"; empty: the service makes a UUID
	Content         string
	ContentType     int64 // number of the API's enum
	SeenSequence    int64 // the sender has read up to there; 0: nothing is said
	Cause           event.Cause
	Forwarded       bool // by another process: it goes no further
}

// Message is a Send whose content was checked, with the key by which a repetition is
// recognized.
type Message struct {
	Send
	Idempotency Idempotency
	// Fresh says that the server has just made the ClientMessageID at random, and that no
	// plan had it: no request with it is recorded. The first plan ends that.
	Fresh bool
}

// Sent says where a message stands.
type Sent struct {
	MessageID       string
	ClientMessageID string
	Sequence        int64
	Version         int64
	CreatedAt       int64 // unix ms
	Replayed        bool  // the answer to an earlier request with the same id
}

// Message checks a send, which must have its ClientMessageID. Errors: ErrInvalidArgument.
func (s Send) Message() (*Message, error) {
	if len(s.Content) == 0 || len(s.Content) > MaxContent || !utf8.ValidString(s.Content) {
		return nil, fmt.Errorf("%w: a message has 1 to %d bytes of UTF-8", ErrInvalidArgument, MaxContent)
	}
	if err := CheckChat(s.ChatID); err != nil {
		return nil, err
	}
	if err := checkKeys(s.Caller, s.ClientMessageID); err != nil {
		return nil, err
	}
	return &Message{Send: s, Idempotency: s.Idempotency()}, nil
}

// Idempotency is the key by which a repetition of the send is recognized.
func (s Send) Idempotency() Idempotency {
	return Idempotency{
		Key:  table.Scope("send", s.Caller, s.ChatID, s.ClientMessageID),
		Hash: hash(strconv.FormatInt(s.ContentType, 10), s.Content),
	}
}

// Duplicates reports whether a message repeats another by its ids.
func (m *Message) Duplicates(other *Message) bool {
	return m.ClientMessageID == other.ClientMessageID && m.Idempotency.Key == other.Idempotency.Key
}

// CopyResult answers a duplicate of a message that was stored. Errors: ErrKeyReused.
func (m *Message) CopyResult(original *Message, sent Sent) (Sent, error) {
	if !bytes.Equal(m.Idempotency.Hash, original.Idempotency.Hash) {
		return Sent{}, ErrKeyReused
	}
	sent.Replayed = true
	return sent, nil
}

// Replay answers the repetition of a message that was stored before, by the row of its
// request, which must be there. Errors: ErrKeyReused.
func (m *Message) Replay(it store.Item) (Sent, error) {
	row, err := m.Idempotency.Replay(it)
	if err != nil {
		return Sent{}, err
	}
	return Sent{
		MessageID: row.MessageID, ClientMessageID: m.ClientMessageID,
		Sequence: row.Sequence, Version: row.Version, CreatedAt: row.CreatedAt, Replayed: true,
	}, nil
}
