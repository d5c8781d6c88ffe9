package table

import (
	"github.com/parley-chat/parley/server/store"
)

// Lease says which process holds one of the slots of a kind of work. It contains no time: a
// lease is free if others have not seen it change for its duration, by their own clocks.
// Table leases, key kind/slot.
type Lease struct {
	Holder      string
	Count       int64  // of renewals
	TotalSlots  int64  // of the kind
	RequestedBy string // process that requests the slot from the holder
}

// Names of attributes that conditions and updates use.
const (
	AttrHolder      = "holder"
	AttrCount       = "count"
	AttrRequestedBy = "wanted"
	AttrReported    = "seen" // revision of the topics that the holder's relay has reported
)

// LeaseKey is the key of a slot's lease.
func LeaseKey(kind string, slot int) store.Key {
	return store.Key{Table: store.Leases, PK: kind + "/" + string([]byte{byte('0' + slot/10), byte('0' + slot%10)})}
}

// Item returns the row as an item.
func (l Lease) Item() store.Item {
	list := make(attrs, 0, 4)
	list.str(AttrHolder, l.Holder)
	list.int(AttrCount, l.Count)
	list.int("of", l.TotalSlots)
	list.optStr(AttrRequestedBy, l.RequestedBy)
	return list.item()
}

// LeaseFrom reads a row of leases.
func LeaseFrom(it store.Item) Lease {
	return Lease{Holder: str(it, AttrHolder), Count: num(it, AttrCount), TotalSlots: num(it, "of"),
		RequestedBy: str(it, AttrRequestedBy)}
}
