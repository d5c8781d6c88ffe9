package table

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/parley-chat/parley/server/store"
)

// Subscription is a group's subscription to a topic. Table topics, key name of the topic
// and "group#" with the group, so that all that a topic is stands together.
type Subscription struct {
	Generation   int64
	State        string
	Version      int64  // counts the changes of state and configuration
	Config       string // JSON, all of it
	SubscribedAt int64  // unix ms
	LastActiveAt int64  // unix ms
	HeartbeatAt  int64  // unix ms; 0 if there was none
	Heartbeats   int64  // how many intervals in which a member was heard from
	Restarts     int64  // of its members since it last acknowledged anything
	Gap          bool   // it began later than asked for
	Backfill     string // JSON of the last one; empty: there was none
	Push         string // JSON of what a webhook has beside its settings, secrets among it; empty: there is none
}

// SubscriptionKey is the key of a group's subscription.
func SubscriptionKey(topic, group string) store.Key {
	return store.Key{Table: store.Topics, PK: topic, SK: subscriptionSK + group}
}

// SubscribedGroup returns the group of a subscription's key.
func SubscribedGroup(k store.Key) (string, bool) { return strings.CutPrefix(k.SK, subscriptionSK) }

// Item returns the row as an item.
func (s Subscription) Item() store.Item {
	a := make(attrs, 0, 12)
	a.optStr(AttrBackfill, s.Backfill)
	a.str("config", s.Config)
	a.optBool("gap", s.Gap)
	a.int(AttrGeneration, s.Generation)
	a.optInt("heartbeat_at", s.HeartbeatAt)
	a.optInt("heartbeats", s.Heartbeats)
	a.int("last_active_at", s.LastActiveAt)
	a.optStr("push", s.Push)
	a.optInt("restarts", s.Restarts)
	a.str("state", s.State)
	a.int("subscribed_at", s.SubscribedAt)
	a.int(AttrVersion, s.Version)
	return a.item()
}

// Heartbeat returns what a heartbeat sets of the row.
func (s Subscription) Heartbeat() []store.Attr {
	var a attrs
	a.int("heartbeat_at", s.HeartbeatAt)
	a.int("heartbeats", s.Heartbeats)
	a.int("last_active_at", s.LastActiveAt)
	a.int("restarts", s.Restarts)
	return a
}

// AttrBackfill is what a backfill changes of a subscription.
const AttrBackfill = "backfill"

// AttrGeneration is what conditions on a subscription use.
const AttrGeneration = "generation"

// SubscriptionFrom reads a subscription.
func SubscriptionFrom(it store.Item) Subscription {
	return Subscription{
		Generation: num(it, AttrGeneration), State: str(it, "state"), Version: num(it, AttrVersion),
		Config: str(it, "config"), SubscribedAt: num(it, "subscribed_at"), LastActiveAt: num(it, "last_active_at"),
		HeartbeatAt: num(it, "heartbeat_at"), Heartbeats: num(it, "heartbeats"), Restarts: num(it, "restarts"),
		Gap: it.Get("gap").True(), Backfill: str(it, AttrBackfill), Push: str(it, "push"),
	}
}

// Cursor is the position of a subscription in a partition. Table subscriptions, key number
// of the topic with the partition, and group with generation.
type Cursor struct {
	Epoch int64  // of the process that wrote it; a later one's is not overwritten
	State []byte // as the state machine of topics writes it
	At    int64  // unix ms
	// MovedAt is when its floor moved last, unix ms.
	MovedAt int64
}

// MachineKey is the key of what a partition has beside the cursors, a row of their form.
func MachineKey(number int64, partition int32) store.Key {
	return store.Key{Table: store.Subscriptions, PK: CursorPartition(number, partition), SK: "#"}
}

// CursorPartition is the partition key of the cursors of a topic's partition.
func CursorPartition(number int64, partition int32) string {
	return fmt.Sprintf("%d/%03d", number, partition)
}

// CursorKey is the key of a cursor.
func CursorKey(number int64, partition int32, group string, generation int64) store.Key {
	return store.Key{
		Table: store.Subscriptions, PK: CursorPartition(number, partition), SK: group + "#" + Number(generation),
	}
}

// CursorOf returns whose cursor a key is; ok is false for a machine's.
func CursorOf(k store.Key) (group string, generation int64, ok bool) {
	i := strings.LastIndexByte(k.SK, '#')
	if i <= 0 {
		return "", 0, false
	}
	generation, err := strconv.ParseInt(k.SK[i+1:], 10, 64)
	return k.SK[:i], generation, err == nil
}

// Item returns the row as an item.
func (c Cursor) Item() store.Item {
	a := make(attrs, 0, 4)
	a.int(AttrAt, c.At)
	a.int(AttrEpoch, c.Epoch)
	a.optInt("moved_at", c.MovedAt)
	a.bytes("state", c.State)
	return a.item()
}

// CursorFrom reads a cursor.
func CursorFrom(it store.Item) Cursor {
	return Cursor{
		Epoch: num(it, AttrEpoch), State: it.Get("state").Blob(), At: num(it, AttrAt), MovedAt: num(it, "moved_at"),
	}
}
