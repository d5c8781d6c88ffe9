package table

import (
	"fmt"

	"github.com/parley-chat/parley/server/store"
)

// Projection says which builds of a projection there are. A build is one whole set of its
// rows; its number is never used again. Table meta, one row for each projection.
type Projection struct {
	Revision           int64    // rises with each change of the row
	Live               int64    // build that is read; 0: none yet
	LiveVersion        int64    // of the code that makes it
	Next               int64    // build that is made beside it; 0: none
	NextVersion        int64    // of the code that makes it
	Paused, AcceptGaps bool     // the making of Next waits; Next may become live although events are missing in it
	Last               int64    // greatest number that a build has had
	Dropped            []string // numbers of the builds whose rows are to be removed
	Generation         string   // of the store when the greatest build was begun
	By                 string   // the actor that changed the row last
	ChangedAt          int64    // unix ms
}

// ProjectionKey is the key of a projection's row.
func ProjectionKey(name string) store.Key {
	return store.Key{Table: store.Meta, PK: "projection/" + name}
}

// Item returns the row as an item.
func (p Projection) Item() store.Item {
	a := make(attrs, 0, 12)
	a.optBool("accept_gaps", p.AcceptGaps)
	a.str("by", p.By)
	a.int(AttrChangedAt, p.ChangedAt)
	a.list("dropped", p.Dropped)
	a.optStr("generation", p.Generation)
	a.optInt("last", p.Last)
	a.optInt("live", p.Live)
	a.optInt("live_version", p.LiveVersion)
	a.optInt("next", p.Next)
	a.optInt("next_version", p.NextVersion)
	a.optBool("paused", p.Paused)
	a.int(AttrRevision, p.Revision)
	return a.item()
}

// ProjectionFrom reads a projection's row.
func ProjectionFrom(it store.Item) Projection {
	return Projection{
		Revision: num(it, AttrRevision), Live: num(it, "live"), LiveVersion: num(it, "live_version"), Next: num(it, "next"),
		NextVersion: num(it, "next_version"), Paused: it.Get("paused").True(), AcceptGaps: it.Get("accept_gaps").True(),
		Last: num(it, "last"), Dropped: it.Get("dropped").Strings(), Generation: str(it, "generation"), By: str(it, "by"),
		ChangedAt: num(it, AttrChangedAt),
	}
}

// Rebuild is how far the making of a projection's build has come. Table meta, one row for
// each projection.
type Rebuild struct {
	Revision         int64  // rises with each change of the row
	Build            int64  // that it is about
	Holder           string // process that works on it; empty: none
	Planned, Blocked bool   // Total is known; it is at its end, and its gaps keep the build from becoming live
	// After is where it continues, in the words of its source; empty: at the start. Gaps names the first
	// gaps, with spaces between them: ids of chats, or TOPIC/PARTITION/OFFSET.
	After, Gaps      string
	Total, Done      int64 // events that there were at the start; of them, those that were read
	Stuck            int64 // gaps: chats that end before an event that cannot be read, or records without rows
	BeganAt, EndedAt int64 // unix ms; EndedAt 0: it is running
}

// RebuildKey is the key of the row of a projection's rebuild.
func RebuildKey(name string) store.Key {
	return store.Key{Table: store.Meta, PK: "projection/" + name + "/rebuild"}
}

// Item returns the row as an item.
func (r Rebuild) Item() store.Item {
	a := make(attrs, 0, 12)
	a.optStr("after", r.After)
	a.optInt("began", r.BeganAt)
	a.optBool("blocked", r.Blocked)
	a.int("build", r.Build)
	a.optInt("done", r.Done)
	a.optInt("ended", r.EndedAt)
	a.optStr("gaps", r.Gaps)
	a.optStr("holder", r.Holder)
	a.optBool("planned", r.Planned)
	a.int(AttrRevision, r.Revision)
	a.optInt("stuck", r.Stuck)
	a.optInt("total", r.Total)
	return a.item()
}

// RebuildFrom reads the row of a rebuild.
func RebuildFrom(it store.Item) Rebuild {
	return Rebuild{
		Revision: num(it, AttrRevision), Build: num(it, "build"), Holder: str(it, "holder"),
		Planned: it.Get("planned").True(), Blocked: it.Get("blocked").True(), After: str(it, "after"), Gaps: str(it, "gaps"),
		Total: num(it, "total"), Done: num(it, "done"), Stuck: num(it, "stuck"), BeganAt: num(it, "began"),
		EndedAt: num(it, "ended"),
	}
}

// ProjectionPartition is the partition of an aggregate's rows in a build of a projection, in
// whichever table it keeps them.
func ProjectionPartition(name string, build int64, aggregate string) string {
	return fmt.Sprintf("%s/%d/%s", name, build, aggregate)
}

// Folded is how far the events of an aggregate are folded into a build: up to this version,
// each once. Key partition and "#".
type Folded struct{ Version int64 }

// FoldedKey is the key of that row in a projection's table.
func FoldedKey(t store.Table, partition string) store.Key {
	return store.Key{Table: t, PK: partition, SK: "#"}
}

// Item returns the row as an item.
func (f Folded) Item() store.Item {
	return store.Item{{Name: AttrVersion, Value: store.Int(f.Version)}}
}

// FoldedFrom reads that row.
func FoldedFrom(it store.Item) Folded { return Folded{num(it, AttrVersion)} }

// ChatActivity is what was said in a chat on a day, by all or by one sender. Table
// projections, key partition and day/DAY, or sender/DAY/USER.
type ChatActivity struct {
	Messages int64
	Senders  int64 // how many different users sent them; 0 in the row of one sender
}

// Item returns the row as an item.
func (c ChatActivity) Item() store.Item {
	a := make(attrs, 0, 2)
	a.int("messages", c.Messages)
	a.optInt("senders", c.Senders)
	return a.item()
}

// ChatActivityFrom reads a row of a chat's activity.
func ChatActivityFrom(it store.Item) ChatActivity {
	return ChatActivity{Messages: num(it, "messages"), Senders: num(it, "senders")}
}
