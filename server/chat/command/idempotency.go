package command

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// CondRequest names the condition that a request was not carried out before.
const CondRequest = "request"

// HashBytes is the size of a hash in bytes. It is enough because only the user who chose a
// key can search for another content with its hash, and deceives no other user by that.
// Rows of earlier versions have twice that many bytes, and start with the same ones.
const HashBytes = 16

// Idempotency makes a request safe to repeat; without a Key it is not.
type Idempotency struct {
	Key  string
	Hash []byte // of the request's content
}

// Matches reports whether a row's hash is of the same content.
func (i Idempotency) Matches(hash []byte) bool {
	return len(hash) >= HashBytes && bytes.Equal(hash[:HashBytes], i.Hash)
}

// newIdempotency makes the key of a request from procedure, user, parent and id, and
// hashes its content. Without an id the key is empty.
func newIdempotency(procedure, user, parent, id string, content ...string) Idempotency {
	if id == "" {
		return Idempotency{}
	}
	return Idempotency{Key: table.Scope(procedure, user, parent, id), Hash: hash(content...)}
}

// hash is the beginning of SHA-256 over a canonical encoding of strings: each behind its
// length, so that no two lists share an encoding.
func hash(content ...string) []byte {
	var buf [1024]byte // enough for most
	b := buf[:0]
	for _, c := range content {
		b = binary.AppendUvarint(b, uint64(len(c)))
		b = append(b, c...)
	}
	sum := sha256.Sum256(b)
	return sum[:HashBytes]
}

// Replay decides on the row of a request that was carried out before: its result,
// or ErrKeyReused if the content was another. A nil item is no result.
func (i Idempotency) Replay(it store.Item) (*table.Request, error) {
	if it == nil {
		return nil, nil
	}
	row := table.RequestFrom(i.Key, it)
	if !i.Matches(row.Hash) {
		return nil, ErrKeyReused
	}
	return &row, nil
}

// Record is the write that records what a request did: the chat that it was
// about, and the version that its change gave the chat. It fails as CondRequest if
// the request is recorded already.
func (i Idempotency) Record(chatID string, version, sequence, at int64) store.Write {
	row := table.Request{
		Scope: i.Key, Hash: i.Hash, ChatID: chatID, Version: version, Sequence: sequence,
		CreatedAt: at, ExpiresAt: at/1000 + int64(table.RequestRetention/time.Second),
	}
	return store.Write{Op: store.OpPut, Key: table.RequestKey(i.Key), Item: row.Item(), Cond: store.Absent(),
		Name: CondRequest}
}
