package table

import (
	"fmt"

	"github.com/parley-chat/parley/server/store"
)

// Attempts counts what a consumer group tried in vain with a record. Table
// consumer_attempts, key group#topic#partition and offset. It expires.
type Attempts struct {
	Offset    int64
	Attempts  int64 // that failed for an unknown reason
	Ends      int64 // of the process, while it worked on the record and nothing else
	ExpiresAt int64 // unix s
}

// Names of attributes that updates set.
const (
	AttrAttempts = "attempts"
	AttrEnds     = "ends"
	AttrAlone    = "alone"
)

// AttemptsPartition is the partition key of a group's counts in a partition.
func AttemptsPartition(group, topic string, partition int32) string {
	return fmt.Sprintf("%s#%s#%d", group, topic, partition)
}

// AttemptsKey is the key of the counts of a record.
func AttemptsKey(pk string, offset int64) store.Key {
	return store.Key{Table: store.ConsumerAttempts, PK: pk, SK: Number(offset)}
}

// Item returns the row as an item.
func (a Attempts) Item() store.Item {
	list := make(attrs, 0, 3)
	list.optInt(AttrAttempts, a.Attempts)
	list.optInt(AttrEnds, a.Ends)
	list.optInt(store.ExpiresAtField, a.ExpiresAt)
	return list.item()
}

// AttemptsFrom reads a row of consumer_attempts that is not an Ownership.
func AttemptsFrom(r store.Row) (Attempts, error) {
	offset, err := parseNumber(r.Key.SK)
	return Attempts{
		Offset: offset, Attempts: num(r.Item, AttrAttempts), Ends: num(r.Item, AttrEnds),
		ExpiresAt: num(r.Item, store.ExpiresAtField),
	}, err
}

// Ownership records the worker of a partition for a group, from its first record until it
// releases the partition: if the row is there when another begins, the process ended in
// between. Table consumer_attempts, key group#topic#partition and "owner".
type Ownership struct {
	Consumer string
	Since    int64 // unix ms
	Alone    int64 // 1 + offset of the only record that the process works on; 0: none, or many
}

// OwnershipKey is the key of the owner of a group's partition.
func OwnershipKey(pk string) store.Key {
	return store.Key{Table: store.ConsumerAttempts, PK: pk, SK: "owner"}
}

// Item returns the row as an item.
func (o Ownership) Item() store.Item {
	list := make(attrs, 0, 3)
	list.str(AttrConsumer, o.Consumer)
	list.int("since", o.Since)
	list.optInt(AttrAlone, o.Alone)
	return list.item()
}

// OwnershipFrom reads an ownership.
func OwnershipFrom(it store.Item) Ownership {
	return Ownership{Consumer: str(it, AttrConsumer), Since: num(it, "since"), Alone: num(it, AttrAlone)}
}
