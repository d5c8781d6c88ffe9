package table

import "github.com/parley-chat/parley/server/store"

// ClockKey is the key of the last stamp that a process took, in table meta.
func ClockKey() store.Key { return store.Key{Table: store.Meta, PK: "clock"} }

// AttrStamp holds that stamp, in unix ms.
const AttrStamp = "stamp"

// Attributes of that row about stamps that went back because a clock had been ahead;
// missing if none did.
const (
	AttrSetbacks    = "setbacks"     // how often
	AttrSetbackFrom = "setback_from" // the earliest time that they went back to, in unix ms
	AttrSetbackTo   = "setback_to"   // the greatest stamp that they went back from, in unix ms
)

// LogKey is the key of the state of the embedded log, in table meta. It is in the
// store so that the removal of the log, whole or in parts, is detected.
func LogKey() store.Key { return store.Key{Table: store.Meta, PK: "log"} }

// Attributes of that row, a line for each partition: what of it is on the disk, and
// what it lost whose events are not back in the outbox yet.
const (
	AttrLogMarks = "marks"
	AttrLogLost  = "lost"
)

// TopicsKey is the key of the versions of topics, in table meta.
func TopicsKey() store.Key { return store.Key{Table: store.Meta, PK: "topics"} }

// AttrTopics holds what package versions knows, as JSON; AttrRevision counts the changes.
const AttrTopics = "topics"
