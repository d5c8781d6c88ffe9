package consume

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// partition is all that an Engine keeps of one partition, from its assignment until it is
// revoked.
type partition struct {
	id kafka.Partition

	// Guarded by Engine.mu: rebalances, the lag watch and Stats use them beside Run.
	ownership ownership
	backlog   backlog

	// Used by Run alone.
	buffer     buffer
	quarantine *quarantine // nil: the previous owner did not crash
	// finishedOutOfOrder has the offsets that are finished behind a record that waits.
	finishedOutOfOrder map[int64]bool
}

// ownership says whose a partition is.
type ownership uint8

const (
	unowned  ownership = iota // another member may have it
	assigned                  // ours, as the group says; no record has come yet
	owned                     // ours, as the store says, too
)

func comparePartitions(a, b kafka.Partition) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID, b.ID))
}

// partition returns what is kept of a partition. The caller holds e.mu.
func (e *Engine) partition(id kafka.Partition) *partition {
	p := e.partitions[id]
	if p == nil {
		p = &partition{id: id, finishedOutOfOrder: map[int64]bool{}}
		e.partitions[id] = p
	}
	return p
}

// current returns the partitions that are kept now, in no order.
func (e *Engine) current() []*partition {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Values(e.partitions))
}

// rebalanceSpan is how long after an assignment others belong to the same rebalance.
// Cooperative members need two generations for one change of their number, and a process
// that restarts leaves and joins.
const rebalanceSpan = 30 * time.Second

// onAssigned and onRevoked are called by the client, never while a round is worked on.
func (e *Engine) onAssigned(ids []kafka.Partition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := e.cfg.Clock(); e.lastRebalance.IsZero() || now.Sub(e.lastRebalance) >= rebalanceSpan {
		e.lastRebalance = now // the first of a series: a series that does not end is counted again and again
		e.rebalances.Add(1)
	}
	for _, id := range ids {
		e.partition(id).ownership = assigned
	}
}

// onRevoked moves partitions aside, since Run may be reading their buffers: it drops them
// before its next round. They may be assigned again by then, and start from where their
// last owner committed.
func (e *Engine) onRevoked(ids []kafka.Partition, lost bool) {
	e.mu.Lock()
	var release []kafka.Partition
	for _, id := range ids {
		p := e.partitions[id]
		if p == nil {
			continue
		}
		if p.ownership == owned && !lost {
			release = append(release, id)
		}
		delete(e.partitions, id)
		e.revoked = append(e.revoked, p)
	}
	e.mu.Unlock()
	e.crashes.Release(release)
}

// markLost says that all partitions may belong to other members by now.
func (e *Engine) markLost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.partitions {
		p.ownership = unowned
	}
}

// dropRevoked drops the revoked partitions.
func (e *Engine) dropRevoked(s Fetching) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.revoked {
		p.resumeFetching(s) // or it would stay paused after its next assignment
	}
	e.revoked = nil
}

// reset drops all partitions.
func (e *Engine) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.partitions)
	e.revoked = nil
}
