package group

import "time"

// Kept is a group as another coordinator had it, whose members are gone.
type Kept struct {
	Name       string
	Generation int32  // the highest that its members have had
	Kind       string // type of protocol of its members; "": there were none
	Owner      string // credential that the group is counted by
	Offsets    []KeptOffset
}

// KeptOffset is a committed offset.
type KeptOffset struct {
	Topic     string
	Partition int32
	Offset    int64
	Epoch     int32 // of the leader, or -1
	Metadata  string
	Committed time.Time
}

// Rows returns the rows of a group that comes from elsewhere, for a [Store] from which [New] reads them. When a
// group with members became empty is not known: it does when New reads it, so no offset expires earlier than it would
// have. Times before 1970 and beyond 146 years after it are taken for the nearest between.
func Rows(k Kept) []Row {
	h := header{generation: max(0, k.Generation), owner: k.Owner, kind: k.Kind}
	rows := make([]Row, 1, 1+len(k.Offsets))
	for _, o := range k.Offsets {
		committed := time.Duration(max(1, min(o.Committed.UnixMilli(), maxMilliseconds))) * time.Millisecond
		if k.Kind == "" && (h.empty == 0 || committed < h.empty) {
			h.empty = committed // the time of each commit counts
		}
		at := offset{at: o.Offset, epoch: o.Epoch, metadata: o.Metadata, committed: committed}
		rows = append(rows, Row{offsetKey(k.Name, partitionKey{o.Topic, o.Partition}), at.value()})
	}
	rows[0] = Row{groupKey(k.Name), h.value()}
	return rows
}
