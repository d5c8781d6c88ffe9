package command

import (
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/parley-chat/parley/server/store/table"
)

// Rows of earlier versions have the whole hash.
func TestHashesOfEarlierRows(t *testing.T) {
	i := Send{Caller: "u", ChatID: "c", ClientMessageID: "k", Content: "x", ContentType: 1}.Idempotency()
	whole := sha256.Sum256([]byte("\x011\x01x"))
	for name, c := range map[string]struct {
		hash []byte
		want error
	}{
		"whole": {whole[:], nil}, "of now": {i.Hash, nil}, "a byte short": {i.Hash[:15], ErrKeyReused},
		"another": {append([]byte{whole[0] ^ 1}, whole[1:]...), ErrKeyReused}, "none": {nil, ErrKeyReused},
	} {
		row, err := i.Replay(table.Request{Scope: i.Key, Hash: c.hash, MessageID: "msg_1"}.Item())
		if !errors.Is(err, c.want) || (err == nil && row.MessageID != "msg_1") {
			t.Errorf("%s: %v, %v", name, row, err)
		}
	}
}

func TestHashIsCanonical(t *testing.T) {
	a, b := hash("ab", "c"), hash("a", "bc")
	if string(a) == string(b) || string(a) != string(hash("ab", "c")) || len(a) != 16 {
		t.Error("lists share a hash")
	}
	text := Send{Caller: "u", ChatID: "c", ClientMessageID: "k", Content: "x", ContentType: 1}
	other := text
	other.ContentType = 2
	if string(text.Idempotency().Hash) == string(other.Idempotency().Hash) {
		t.Error("the content type is not in the hash")
	}
}
