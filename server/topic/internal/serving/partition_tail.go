package serving

import (
	"sort"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// Bytes of batches that a partition keeps in memory.
const (
	tailBytes  = 4 << 20 // of what was published last
	cacheBytes = 4 << 20 // of what was read again
	fetchBytes = 1 << 20 // of a read
)

// resident has the batches of a partition that are in memory: those published last, and
// those that a group read again.
type resident struct {
	end     int64 // what lies before it is durable
	tail    run   // up to the end, and what is being written
	cached  run
	readers int // calls that wait for what they read of the log
	// Positions that do not exist, in order, of those that were read last.
	voids []span
}

// span is the positions [from,to).
type span struct{ from, to int64 }

// run is batches by position.
type run struct {
	batches []*commitlog.Batch
	bytes   int
	memory  *Memory
	used    bool // since Memory looked last
	counted bool // Memory has it in its list
}

const (
	batchBytes   = 128 // of a batch beside its messages
	messageBytes = 4   // of a message beside itself
)

// size is how much memory a batch takes.
func size(b *commitlog.Batch) int { return b.Size(0, b.Count()) + batchBytes + b.Count()*messageBytes }

// find returns the index of the first batch that ends behind a position.
func (r *run) find(position int64) int {
	if n := len(r.batches); n > 0 && r.batches[n-1].Base <= position { // mostly it is the last
		if r.batches[n-1].End() > position {
			return n - 1
		}
		return n
	}
	return sort.Search(len(r.batches), func(i int) bool { return r.batches[i].End() > position })
}

func (r *run) insert(b *commitlog.Batch) {
	i := r.find(b.Base)
	if i < len(r.batches) && r.batches[i].Base == b.Base {
		return
	}
	r.batches = append(r.batches, nil)
	copy(r.batches[i+1:], r.batches[i:])
	r.batches[i] = b
	r.grow(size(b))
}

// touch says that the run got batches, and reports whether Memory is to list it. At the
// list's end it need not count as used besides.
func (r *run) touch() (fresh bool) {
	r.used, fresh, r.counted = r.counted, !r.counted, true
	return fresh
}

func (r *run) grow(n int) {
	r.bytes += n
	r.memory.used.Add(int64(n))
}

// drop removes the first n batches.
func (r *run) drop(n int) {
	for i, b := range r.batches[:n] {
		r.grow(-size(b))
		r.batches[i] = nil
	}
	if r.batches = r.batches[n:]; len(r.batches) == 0 {
		r.batches = nil
	}
}

// At implements machine.Source.
func (r *resident) At(position int64) (*commitlog.Batch, machine.Residence) {
	if position >= r.end {
		return nil, machine.Beyond
	}
	if position = r.existing(position); position >= r.end {
		return &commitlog.Batch{Base: r.end}, machine.Resident // earlier positions do not exist
	}
	for _, x := range [...]*run{&r.tail, &r.cached} {
		if i := x.find(position); i < len(x.batches) && x.batches[i].Base-x.batches[i].Gap <= position {
			x.used = true
			return x.batches[i], machine.Resident
		}
	}
	return nil, machine.Missing
}

// existing is a position or, if that does not exist, the next one that does.
func (r *resident) existing(position int64) int64 {
	i := sort.Search(len(r.voids), func(i int) bool { return r.voids[i].to > position })
	if i < len(r.voids) && r.voids[i].from <= position {
		return r.voids[i].to
	}
	return position
}

// begun adds a batch that is being written. Others before it may still come.
func (r *resident) begun(b *commitlog.Batch) {
	r.tail.insert(b)
	n := 0
	for bytes := r.tail.bytes; bytes > tailBytes && n < len(r.tail.batches)-1 && r.tail.batches[n].End() <= r.end; n++ {
		bytes -= size(r.tail.batches[n])
	}
	r.tail.drop(n)
}

// fetched adds what was read from a position on, in place of the rest if that is too much.
// If nothing was, nothing exists from there to the end, as it was before.
func (r *resident) fetched(position, end int64, batches []*commitlog.Batch) {
	bytes := 0
	r.voids = r.voids[:0]
	for _, b := range batches {
		bytes += size(b)
		if b.Base > position {
			r.voids = append(r.voids, span{position, b.Base})
		}
		position = b.End()
	}
	if len(batches) == 0 && position < end {
		r.voids = append(r.voids, span{position, end})
	}
	if r.cached.bytes+bytes > cacheBytes {
		r.cached.drop(len(r.cached.batches))
	}
	for _, b := range batches {
		r.cached.insert(b)
	}
}

// trimmed removes what lies before a position.
func (r *resident) trimmed(start int64) {
	for _, x := range [...]*run{&r.tail, &r.cached} {
		x.drop(sort.Search(len(x.batches), func(i int) bool { return x.batches[i].End() > start }))
	}
}

// idle frees the memory that was not used since the last call.
func (r *resident) idle() {
	for _, x := range [...]*run{&r.tail, &r.cached} {
		if !x.used {
			r.give(x)
		}
		x.used = false
	}
}

// give frees a run's memory, but for what is being written.
func (r *resident) give(x *run) {
	n := len(x.batches)
	if x == &r.tail {
		for n > 0 && x.batches[n-1].End() > r.end {
			n--
		}
	}
	x.drop(n)
}
