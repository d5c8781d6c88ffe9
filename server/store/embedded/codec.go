package embedded

import (
	"encoding/binary"
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/itemcodec"
)

// Key spaces of the engine, the first byte of each key.
const (
	spaceItems  = 0x01 // table, pk, 0, sk → item
	spaceExpiry = 0x02 // expires_at, item key → nothing
	// 0x03 is the seal's (seal.go)
	spaceRecords = 0x04 // key → value, both of package records' users
)

// tableNumbers gives each table its byte, by its place in store.Tables.
var tableNumbers = func() map[store.Table]byte {
	m := map[store.Table]byte{}
	for i, d := range store.Tables() {
		m[d.Name] = byte(i + 1)
	}
	return m
}()

func appendPartition(b []byte, t store.Table, pk string) []byte {
	b = append(b, spaceItems, tableNumbers[t])
	b = append(b, pk...)
	return append(b, 0)
}

// appendKey encodes a key; the order of encoded keys is that of table, pk, sk.
func appendKey(b []byte, k store.Key) []byte {
	return append(appendPartition(b, k.Table, k.PK), k.SK...)
}

// parseKey splits an encoded key of a known table.
func parseKey(t store.Table, b []byte) (store.Key, error) {
	if len(b) < 3 || b[0] != spaceItems {
		return store.Key{}, itemcodec.ErrCorrupt
	}
	pk, sk, ok := strings.Cut(string(b[2:]), "\x00")
	if !ok {
		return store.Key{}, itemcodec.ErrCorrupt
	}
	return store.Key{Table: t, PK: pk, SK: sk}, nil
}

// endOf is the end of the range of keys that begin with a partition's prefix.
func endOf(prefix []byte) []byte {
	end := slices.Clone(prefix)
	end[len(end)-1]++ // from the zero byte that ends the partition key
	return end
}

const expiryPrefix = 1 + 8 // bytes of an expiry entry before the item's key

// appendExpiry encodes an entry of the expiry index, in order of time.
func appendExpiry(b []byte, at int64, itemKey []byte) []byte {
	b = append(b, spaceExpiry)
	b = binary.BigEndian.AppendUint64(b, uint64(at)^1<<63) // negative ones first
	return append(b, itemKey...)
}

func expiryTime(entry []byte) int64 {
	return int64(binary.BigEndian.Uint64(entry[1:]) ^ 1<<63)
}
