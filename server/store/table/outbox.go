package table

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/parley-chat/parley/server/store"
)

// Outbox points to the events of one plan that may not be on Kafka yet. Table
// outbox, key shard and aggregate_id#first_version, with an "r" and the replay's id behind it
// if it replays.
type Outbox struct {
	Shard int
	// AggregateID is the id of the chat that the events are of, or of the stream of search events.
	AggregateID  string
	FirstVersion int64
	Count        int64
	CreatedAt    int64 // unix ms
	// Replay says that the events were published before and are wanted again; the row
	// has no place in the order of the chat's others.
	Replay bool
	// ReplayID tells the rows of several replays apart: each of them publishes its events,
	// regardless of the others. Empty in rows of earlier versions.
	ReplayID string
}

// AttrLastError is the reason why the relay cannot publish a row; AttrAttempts counts
// beside it how often the relay has recorded one.
const AttrLastError = "last_error"

// replayMark follows the version in the sort key of a row that replays events.
const replayMark = "r"

// ShardKey is the partition key of an outbox shard.
func ShardKey(shard int) string { return string([]byte{byte('0' + shard/10), byte('0' + shard%10)}) }

// Key is the row's key.
func (o Outbox) Key() store.Key {
	sk := o.AggregateID + "#" + Number(o.FirstVersion)
	if o.Replay { // beside the row of the same events, should it still be there
		sk += replayMark + o.ReplayID
	}
	return store.Key{Table: store.Outbox, PK: ShardKey(o.Shard), SK: sk}
}

// Item returns the row as an item.
func (o Outbox) Item() store.Item {
	a := make(attrs, 0, 2)
	a.int("count", o.Count)
	a.int("created_at", o.CreatedAt)
	return a.item()
}

// OutboxFrom reads a row of outbox.
func OutboxFrom(r store.Row) (Outbox, error) {
	aggregateID, number, ok := strings.Cut(r.Key.SK, "#")
	if !ok {
		return Outbox{}, fmt.Errorf("table: %q is not a key of the outbox", r.Key.SK)
	}
	number, replayID, replay := strings.Cut(number, replayMark)
	first, err := parseNumber(number)
	if err != nil {
		return Outbox{}, err
	}
	shard, err := strconv.Atoi(r.Key.PK)
	if err != nil || len(r.Key.PK) != 2 || shard < 0 {
		return Outbox{}, fmt.Errorf("table: %q is not a shard", r.Key.PK)
	}
	return Outbox{Shard: shard, AggregateID: aggregateID, FirstVersion: first, Count: num(r.Item, "count"),
		CreatedAt: num(r.Item, "created_at"), Replay: replay, ReplayID: replayID}, nil
}
