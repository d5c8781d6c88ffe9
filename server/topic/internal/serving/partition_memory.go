package serving

import (
	"container/list"
	"sync"
	"sync/atomic"
)

// minMemory leaves room for what many partitions read at once.
const minMemory = 16 << 20

// Memory bounds the batches that all partitions keep in memory. Beyond it those go first
// that were not used for the longest time: a partition's last ones, or those that it read
// again, all at once. Batches that are being written stay, and batches that a call has just
// read.
type Memory struct {
	limit int64
	used  atomic.Int64

	mu   sync.Mutex // taken before a partition's lock
	runs list.List  // of kept, those that go next first
}

// kept is a run of a partition.
type kept struct {
	p   *Partition
	run *run
}

// NewMemory makes a Memory of limit bytes, 16 MiB at least.
func NewMemory(limit int64) *Memory { return &Memory{limit: max(limit, minMemory)} }

// Used is the number of bytes that are in use.
func (m *Memory) Used() int64 { return m.used.Load() }

// Limit is the number of bytes beyond which some are freed.
func (m *Memory) Limit() int64 { return m.limit }

// count makes room for what a run got; fresh, it is not in the list yet. The caller holds
// no lock.
func (m *Memory) count(p *Partition, r *run, fresh bool) {
	if !fresh && m.used.Load() <= m.limit {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if fresh {
		m.list(p, r)
	}
	// Each is checked twice at most: the first time it may have been used.
	for n := 2 * m.runs.Len(); n > 0 && m.used.Load() > m.limit; n-- {
		m.evict(m.runs.Front())
	}
}

// list puts a run behind the others, unless its partition is closed.
func (m *Memory) list(p *Partition, r *run) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		m.runs.PushBack(kept{p, r})
	}
}

// evict takes the run that is next out of memory or, if it was used since it was checked
// last, puts it behind the others. The caller holds the lock.
func (m *Memory) evict(e *list.Element) {
	k := e.Value.(kept)
	k.p.mu.Lock()
	defer k.p.mu.Unlock()
	needed := k.run == &k.p.resident.cached && k.p.resident.readers > 0
	if len(k.run.batches) > 0 && (k.run.used || needed) {
		k.run.used = false
		m.runs.MoveToBack(e)
		return
	}
	k.p.resident.give(k.run)
	if len(k.run.batches) > 0 { // being written
		m.runs.MoveToBack(e)
		return
	}
	k.run.counted = false
	m.runs.Remove(e)
}

// forget takes a partition out that is closed.
func (m *Memory) forget(p *Partition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := m.runs.Front(); e != nil; {
		next := e.Next()
		if e.Value.(kept).p == p {
			m.runs.Remove(e)
		}
		e = next
	}
}
