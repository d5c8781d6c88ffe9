package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Request is what makes a command safe to repeat; without a Scope it is not.
type Request struct {
	Scope string
	Hash  []byte
}

// NewRequest makes the request of a command: its scope is procedure, user, parent
// and id, its hash that of the content. Without an id it is empty.
func NewRequest(procedure, user, parent, id string, content ...string) Request {
	if id == "" {
		return Request{}
	}
	return Request{Scope: table.Scope(procedure, user, parent, id), Hash: Hash(content...)}
}

// Hash is SHA-256 over a canonical encoding of strings: each behind its length,
// so that no two lists share an encoding.
func Hash(content ...string) []byte {
	var buf [1024]byte // enough for most
	b := buf[:0]
	for _, c := range content {
		b = binary.AppendUvarint(b, uint64(len(c)))
		b = append(b, c...)
	}
	sum := sha256.Sum256(b)
	return sum[:]
}

// Replay decides on the row of a request that was carried out before: its result,
// or ErrKeyReused if the content was another. A nil item is no result.
func (r Request) Replay(it store.Item) (*table.Request, error) {
	if it == nil {
		return nil, nil
	}
	row := table.RequestFrom(r.Scope, it)
	if !bytes.Equal(row.Hash, r.Hash) {
		return nil, ErrKeyReused
	}
	return &row, nil
}

// Remember is the write that remembers what a request did: the chat that it was
// about, and the version that its change gave the chat. It fails as CondRequest if
// the request is remembered already.
func (r Request) Remember(chatID string, version, sequence, at int64) store.Write {
	row := table.Request{
		Scope: r.Scope, Hash: r.Hash, ChatID: chatID, Version: version, Sequence: sequence,
		CreatedAt: at, ExpiresAt: at/1000 + int64(table.RequestRetention/time.Second),
	}
	return store.Write{Op: store.OpPut, Key: table.RequestKey(r.Scope), Item: row.Item(), Cond: absent, Name: CondRequest}
}

// remember adds the row of a request, as the first write of the plan.
func (d *Draft) remember(r Request, version int64) {
	if r.Scope != "" {
		d.writes = append(d.writes, r.Remember(d.Head.ChatID, version, d.Head.Sequence, d.At))
	}
}
