package table

import (
	"encoding/hex"
	"strings"
	"unicode/utf8"

	"github.com/parley-chat/parley/server/store"
)

// Parked says that a consumer group has given up a record of a key: the key's later records
// follow it to the dead letters until all of them are done with. Table consumer_attempts,
// key "parked" and group#topic#key. It expires after its last dead letter has.
type Parked struct {
	Group string
	Topic string // as declared, without the number of a version
	Key   []byte // of the records
	// Failed is the position of the first record, TOPIC/PARTITION/OFFSET; Class, Reason and
	// Attempts are what its dead letter says.
	Failed        string
	Class, Reason string
	Attempts      int64
	// At, Partition and Last are the position of the last record, which may have no dead
	// letter yet.
	At        string
	Partition int64
	Last      int64
	Records   int64
	Bytes     int64
	Since     int64 // unix ms
	HoldUntil int64 // unix ms; until then nothing is added: the key is being released
	ExpiresAt int64 // unix s
}

// Names of attributes in conditions.
const (
	AttrLast      = "last"
	AttrHoldUntil = "hold_until"
	AttrConsumer  = "consumer"
)

// ParkedPartition is the partition key of all parked keys.
const ParkedPartition = "parked"

// MaxParkedKey is the size of the longest key that can be parked, in bytes.
const MaxParkedKey = 200

// ParkedPrefix begins the sort keys of a group's keys of a declared topic.
func ParkedPrefix(group, topic string) string { return group + "#" + topic + "#" }

// ParkedKey is the key of a parked key's row.
func ParkedKey(group, topic string, key []byte) store.Key {
	form := "=" + string(key)
	if !utf8.Valid(key) || strings.ContainsRune(form, 0) {
		form = "x" + hex.EncodeToString(key)
	}
	return store.Key{Table: store.ConsumerAttempts, PK: ParkedPartition, SK: ParkedPrefix(group, topic) + form}
}

// RowKey is the key of the row.
func (p Parked) RowKey() store.Key { return ParkedKey(p.Group, p.Topic, p.Key) }

// Item returns the row as an item.
func (p Parked) Item() store.Item {
	a := make(attrs, 0, 15)
	a.str(AttrAt, p.At)
	a.int(AttrAttempts, p.Attempts)
	a.int("bytes", p.Bytes)
	a.str("class", p.Class)
	a.int(store.ExpiresAtField, p.ExpiresAt)
	a.str("failed", p.Failed)
	a.str("group", p.Group)
	a.int(AttrHoldUntil, p.HoldUntil)
	a.bytes("key", p.Key)
	a.int(AttrLast, p.Last)
	a.int("partition", p.Partition)
	a.str("reason", p.Reason)
	a.int("records", p.Records)
	a.int("since", p.Since)
	a.str("topic", p.Topic)
	return a.item()
}

// ParkedFrom reads a parked key.
func ParkedFrom(it store.Item) Parked {
	return Parked{
		Group: str(it, "group"), Topic: str(it, "topic"), Key: it.Get("key").Blob(), Failed: str(it, "failed"),
		Class: str(it, "class"), Reason: str(it, "reason"), Attempts: num(it, AttrAttempts), At: str(it, AttrAt),
		Partition: num(it, "partition"), Last: num(it, AttrLast), Records: num(it, "records"), Bytes: num(it, "bytes"),
		Since: num(it, "since"), HoldUntil: num(it, AttrHoldUntil), ExpiresAt: num(it, store.ExpiresAtField),
	}
}
