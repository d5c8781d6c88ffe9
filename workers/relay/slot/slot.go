// Package slot says what the slots of relays are: the parts of the outbox that package lease
// deals to processes, and what a relay reports on its lease.
//
// It owns the assignment of shards to slots. Concurrency: functions only.
package slot

import (
	"fmt"

	"github.com/parley-chat/parley/server/event"
)

// Kind is the kind of these slots' leases.
const Kind = "relay"

// SearchKind is the kind of the lease of search events, which have one slot.
const SearchKind = "search"

// Search returns the slot of search events.
func Search() Slot {
	s := Slot{TransactionalID: "parley-relay-search"}
	for shard := event.Shards; shard < event.AllShards; shard++ {
		s.Shards = append(s.Shards, shard)
	}
	return s
}

// Slot is one part of the outbox.
type Slot struct {
	Number          int
	Shards          []int
	TransactionalID string // the same for every holder
}

// Numbered returns the slot with a number.
func Numbered(number, totalSlots int) Slot {
	s := Slot{Number: number, TransactionalID: fmt.Sprintf("parley-relay-%d", number)}
	for shard := number; shard < event.Shards; shard += totalSlots {
		s.Shards = append(s.Shards, shard)
	}
	return s
}
