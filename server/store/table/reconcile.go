package table

import "github.com/parley-chat/parley/server/store"

// Progress is how far the reconciler has come on its way round a table. Table meta,
// one row for each table that it goes round.
type Progress struct {
	Revision  int64  // rises with each change of the row
	After     string // the chat that the round has come to; empty at its start
	Began     int64  // start of the round under way, unix ms; 0 between rounds
	Rows      int64  // that it has read
	LastBegan int64  // start of the last round that reached the table's end; 0 before it
	LastRows  int64  // that it read
}

// ProgressKey is the key of the reconciler's progress through a table.
func ProgressKey(of store.Table) store.Key {
	return store.Key{Table: store.Meta, PK: "reconcile/" + string(of)}
}

// Item returns the row as an item.
func (p Progress) Item() store.Item {
	a := make(attrs, 0, 6)
	a.optStr("after", p.After)
	a.optInt("began", p.Began)
	a.optInt("last_began", p.LastBegan)
	a.optInt("last_rows", p.LastRows)
	a.int(AttrRevision, p.Revision)
	a.optInt("rows", p.Rows)
	return a.item()
}

// ProgressFrom reads a row of progress.
func ProgressFrom(it store.Item) Progress {
	return Progress{
		Revision: num(it, AttrRevision), After: str(it, "after"), Began: num(it, "began"), Rows: num(it, "rows"),
		LastBegan: num(it, "last_began"), LastRows: num(it, "last_rows"),
	}
}
