package table

import (
	"strings"
	"time"

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

// Worker is the sign of life of a process of workers. As a lease it contains no time: others
// take the process for dead if they have not seen the count change for the patience, by their
// own clocks. Table leases, key worker/name.
type Worker struct {
	Process  string // its id, different after each start
	Count    int64
	Patience time.Duration // in ms
}

// AttrPatience is the name of an attribute that updates use, in ms.
const AttrPatience = "patience"

// workerPrefix begins the keys of workers. It is no kind of leases.
const workerPrefix = "worker/"

// WorkerKey is the key of a worker with a name.
func WorkerKey(name string) store.Key {
	return store.Key{Table: store.Leases, PK: workerPrefix + name}
}

// WorkerName returns the name of the worker whose row has a key, and whether it is one.
func WorkerName(key store.Key) (name string, ok bool) {
	if key.Table != store.Leases {
		return "", false
	}
	return strings.CutPrefix(key.PK, workerPrefix)
}

// Item returns the row as an item.
func (w Worker) Item() store.Item {
	list := make(attrs, 0, 3)
	list.str(AttrHolder, w.Process)
	list.int(AttrCount, w.Count)
	list.int(AttrPatience, w.Patience.Milliseconds())
	return list.item()
}

// WorkerFrom reads the row of a worker.
func WorkerFrom(it store.Item) Worker {
	return Worker{Process: str(it, AttrHolder), Count: num(it, AttrCount),
		Patience: time.Duration(num(it, AttrPatience)) * time.Millisecond}
}
