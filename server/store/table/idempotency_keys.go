package table

import (
	"strings"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// How long requests are recorded.
const (
	SendRetention    = 7 * 24 * time.Hour
	RequestRetention = 24 * time.Hour
)

// Request is a request that was carried out, with its result. Table
// idempotency_keys, key scope.
type Request struct {
	Scope     string // procedure # user # parent # request id
	Hash      []byte // of the request's content
	ChatID    string // left out of the row where it is the parent in the scope
	MessageID string
	Sequence  int64
	Version   int64
	CreatedAt int64 // unix ms
	ExpiresAt int64 // unix s
}

// Scope joins the parts that make a request id unique: a user cannot find another user's
// request by guessing its id.
func Scope(procedure, user, parent, requestID string) string {
	return strings.Join([]string{procedure, user, parent, requestID}, "#")
}

// scopeChat returns the parent that a scope was joined from. Users and parents have no "#".
func scopeChat(scope string) string {
	_, rest, _ := strings.Cut(scope, "#")
	_, rest, _ = strings.Cut(rest, "#")
	parent, _, _ := strings.Cut(rest, "#")
	return parent
}

// RequestKey is the key of a request.
func RequestKey(scope string) store.Key { return store.Key{Table: store.IdempotencyKeys, PK: scope} }

// Item returns the row as an item.
func (r Request) Item() store.Item {
	a := make(attrs, 0, 7)
	if r.ChatID != scopeChat(r.Scope) {
		a.optStr("chat_id", r.ChatID)
	}
	a.int("created_at", r.CreatedAt)
	a.int(store.ExpiresAtField, r.ExpiresAt)
	a.bytes("hash", r.Hash)
	a.optStr("message_id", r.MessageID)
	a.optInt("sequence", r.Sequence)
	a.optInt(AttrVersion, r.Version)
	return a.item()
}

// RequestFrom reads the row of a request.
func RequestFrom(scope string, it store.Item) Request {
	chat := str(it, "chat_id")
	if chat == "" {
		chat = scopeChat(scope)
	}
	return Request{
		Scope:     scope,
		Hash:      it.Get("hash").Blob(),
		ChatID:    chat,
		MessageID: str(it, "message_id"),
		Sequence:  num(it, "sequence"),
		Version:   num(it, AttrVersion),
		CreatedAt: num(it, "created_at"),
		ExpiresAt: num(it, store.ExpiresAtField),
	}
}
