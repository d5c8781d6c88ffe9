package table

import (
	"fmt"

	"github.com/parley-chat/parley/server/store"
)

// DeadLetter is what became of a dead letter; the dead letter itself is on Kafka, or in a topic
// of dead letters. Table dead_letters, key group and topic/partition/offset of the record, or
// number of the topic and partition/position of the dead letter. It expires after the dead
// letter has.
type DeadLetter struct {
	Status    string
	By        string // the actor
	At        int64  // unix ms
	Result    string // class and reason of a failure, or what was said at the discarding
	Tries     int64
	ExpiresAt int64 // unix s
}

// DeadLetterKey is the key of the outcome of a record's dead letter.
func DeadLetterKey(group, topic string, partition int32, offset int64) store.Key {
	return store.Key{Table: store.DeadLetters, PK: group, SK: fmt.Sprintf("%s/%d/%s", topic, partition, Number(offset))}
}

// TopicDeadLetterKey is the key of the outcome of a dead letter that stands in a topic, whose
// number is never used again.
func TopicDeadLetterKey(topic uint64, partition int32, position int64) store.Key {
	return store.Key{Table: store.DeadLetters, PK: fmt.Sprintf("topic/%d", topic),
		SK: fmt.Sprintf("%d/%s", partition, Number(position))}
}

// AttrAt is what conditions on a row use beside AttrStatus.
const AttrAt = "at"

// Item returns the row as an item.
func (d DeadLetter) Item() store.Item {
	a := make(attrs, 0, 6)
	a.int(AttrAt, d.At)
	a.str("by", d.By)
	a.optInt(store.ExpiresAtField, d.ExpiresAt)
	a.optStr("result", d.Result)
	a.str(AttrStatus, d.Status)
	a.optInt("tries", d.Tries)
	return a.item()
}

// DeadLetterFrom reads a row of dead_letters.
func DeadLetterFrom(it store.Item) DeadLetter {
	return DeadLetter{
		Status: str(it, AttrStatus), By: str(it, "by"), At: num(it, AttrAt), Result: str(it, "result"),
		Tries:     num(it, "tries"),
		ExpiresAt: num(it, store.ExpiresAtField),
	}
}
