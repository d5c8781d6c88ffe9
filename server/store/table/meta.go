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
// what it lost whose events are not back in the outbox yet. Once the log has been moved into the
// store, the row has instead when that was, in unix ms.
const (
	AttrLogMarks = "marks"
	AttrLogLost  = "lost"
	AttrLogMoved = "moved"
)

// LogGivenUpKey is the key of the ledger of the event log, in table meta: what was removed from the
// log before a group of Parley had read it. AttrGivenUp has a line for each range.
func LogGivenUpKey() store.Key { return store.Key{Table: store.Meta, PK: "log_given_up"} }

// AttrGivenUp holds the lines of that row.
const AttrGivenUp = "given_up"

// TopicsKey is the key of the versions of topics, in table meta.
func TopicsKey() store.Key { return store.Key{Table: store.Meta, PK: "topics"} }

// AttrTopics holds what package versions knows, as JSON; AttrRevision counts the changes.
const AttrTopics = "topics"

// ImportKey is the key of how far an import into the store has come, in table meta. While it is there, no
// process may use the store.
func ImportKey() store.Key { return store.Key{Table: store.Meta, PK: "import"} }

// ExportKey is the key of the row that says that the store was exported, in table meta. While it is there,
// no process may use the store.
func ExportKey() store.Key { return store.Key{Table: store.Meta, PK: "export"} }

// Import is how far an import has come.
type Import struct {
	Export   string // its id
	Frames   int64  // so many of its frames are there
	Verified bool   // all are, and were read back
}

// Item returns the row as an item.
func (i Import) Item() store.Item {
	a := make(attrs, 0, 3)
	a.str("export", i.Export)
	a.int("frames", i.Frames)
	a.optBool("verified", i.Verified)
	return a.item()
}

// ImportFrom reads the row.
func ImportFrom(it store.Item) Import {
	return Import{Export: str(it, "export"), Frames: num(it, "frames"), Verified: it.Get("verified").True()}
}
