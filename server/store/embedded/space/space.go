// Package space watches the disk of a store, so that writes are refused while there is
// still room for what the store must do with those it took: write them out as tables,
// merge these, delete, and open again.
//
// It owns how much is kept free. It does not own the file system, or what is refused.
//
// Concurrency: a Watch is safe for concurrent use.
package space

import (
	"sync/atomic"
	"time"
)

// Every is the time between two questions to the file system.
const Every = 2 * time.Second

// Shares of a disk.
const (
	percent      = 5        // of it stay free, at least
	mostPercent  = 4 << 30  // but no more bytes than these: a share of a large disk is more than the store ever needs
	tables       = 3        // and that many memtables: one is filled, one written, one merged
	merging      = 64 << 20 // and this, for merges and the event log
	quarter      = 4        // but not more than one of this many parts
	memtableOf   = 64       // a memtable takes one of this many parts
	maxMemtable  = 64 << 20
	minMemtable  = 4 << 20
	minQuestion  = 1 << 20 // bytes written between two questions, at least
	questionOf   = 16      // parts of the reserve
	afterFailure = 10 * time.Second
)

// Memtable is the size of a memtable on a disk of a size; 0 is an unknown one.
func Memtable(total uint64) uint64 {
	if total == 0 {
		return maxMemtable
	}
	return max(minMemtable, min(maxMemtable, total/memtableOf))
}

// Reserve is what must be free on a disk of a size, in bytes: the configured number, 0 for 5 %
// of the disk or 4 GiB, whichever is less. It is never less than what the store needs.
func Reserve(total, asked uint64) uint64 {
	if total == 0 { // unknown: writes are not refused for it
		return 0
	}
	needed := min(ownUse(total), total/quarter)
	if asked == 0 {
		asked = min(total/100*percent, mostPercent)
	}
	return max(asked, needed)
}

// ownUse is what the store takes and frees by itself on a disk of a size, in bytes.
func ownUse(total uint64) uint64 { return tables*Memtable(total) + merging }

// Watch asks a file system now and then how much is free: after some time, and after
// some writing. Calls that write ask it, and a loop, since others fill the disk as well.
type Watch struct {
	// Usage asks the file system, in bytes; total 0 is unknown, and counts as free.
	Usage func() (free, total uint64)
	// Asked is the reserve that an operator has set, in bytes; 0 for the default.
	Asked uint64
	// Changed is called when writes are refused, and when they are not any more.
	Changed func(State)

	next    atomic.Int64 // unix ms of the next question
	wrote   atomic.Int64 // bytes since the last one
	step    atomic.Int64 // bytes until the next one; 0 before the first
	failed  atomic.Int64 // unix ms until which it counts as full
	full    atomic.Bool
	crowded atomic.Bool
	free    atomic.Uint64 // when last asked
	total   atomic.Uint64
	reserve atomic.Uint64
	growth  growth
}

// State is how full a disk is.
type State struct {
	Full    bool   // writes are refused
	Free    uint64 // bytes
	Reserve uint64 // bytes that must be free for writes
	Fills   bool   // at a rate that was measured
	// Left is the time until writes are refused if the disk continues to fill; only if Fills.
	Left time.Duration
}

// State returns what the file system said when Full last asked it. It does not ask by itself:
// a file system that hangs must not stop what reports it.
func (w *Watch) State(now time.Time) State {
	s := State{Full: w.full.Load(), Free: w.free.Load(), Reserve: w.reserve.Load()}
	if !s.Full {
		s.Left, s.Fills = w.growth.left(now, s.Free, s.Free-min(s.Free, s.Reserve), ownUse(w.total.Load()))
	}
	return s
}

// Wrote counts bytes that were written.
func (w *Watch) Wrote(n int) { w.wrote.Add(int64(n)) }

// Failed records that a write found no room. The disk counts as full for a while after
// that, regardless of the free space that the file system reports.
func (w *Watch) Failed(now time.Time) {
	w.failed.Store(now.Add(afterFailure).UnixMilli())
	w.next.Store(0)
}

// Full reports whether writes must be refused.
func (w *Watch) Full(now time.Time) bool {
	ms, next := now.UnixMilli(), w.next.Load()
	if step := w.step.Load(); within(ms, next, Every) && (step == 0 || w.wrote.Load() < step) {
		return w.full.Load()
	}
	if !w.next.CompareAndSwap(next, ms+Every.Milliseconds()) {
		return w.full.Load() // another one asks
	}
	w.wrote.Store(0)
	free, total := w.Usage()
	reserve := Reserve(total, w.Asked)
	w.free.Store(free)
	w.total.Store(total)
	w.reserve.Store(reserve)
	if total > 0 {
		w.growth.add(now, free)
	}
	w.step.Store(int64(max(minQuestion, reserve/questionOf)))
	w.crowded.Store(free < reserve/2)
	full := free < reserve || within(ms, w.failed.Load(), afterFailure)
	if full != w.full.Swap(full) {
		w.Changed(State{Full: full, Free: free, Reserve: reserve})
	}
	return full
}

// within reports whether a time is before another one, but not by more than it can be: a
// clock that was set back makes it so.
func within(ms, until int64, limit time.Duration) bool {
	return ms < until && until-ms <= limit.Milliseconds()
}

// Refusing reports whether writes were refused when last asked.
func (w *Watch) Refusing() bool { return w.full.Load() }

// Short reports whether less than twice the reserve was free when last asked, or writes were refused.
func (w *Watch) Short() bool { return w.full.Load() || w.free.Load() < 2*w.reserve.Load() }

// Crowded reports whether half of the reserve is used: writes that can wait must wait.
func (w *Watch) Crowded(now time.Time) bool {
	w.Full(now)
	return w.crowded.Load()
}
