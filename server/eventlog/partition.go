package eventlog

import (
	"cmp"
	"slices"
	"sync"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka"
)

// partition is what readers see of a partition. Its lock is innermost but for that of the tail,
// behind which it is taken, too.
type partition struct {
	name kafka.Partition
	id   commitlog.Partition

	mu         sync.Mutex
	start, end int64
	chunks     []*chunk          // of the tail, by base; with holes where others are not in it
	waiting    map[*waiter]int64 // for an end greater than an offset
	lost       []span            // known not to be readable, by position
}

// waiter is a call of Wait.
type waiter struct {
	wake chan struct{} // of capacity 1
}

// chunk is consecutive records of a partition that were published together.
type chunk struct {
	of      *partition
	base    int64
	records []*kafka.Record // nil once it has left the tail
	bytes   int             // while it is in the tail; guarded by its lock
}

func (p *partition) bounds() (start, end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.start, p.end
}

// join registers a waiter, unless the awaited records are there. The end is compared under the lock
// under which grow raises it: either grow comes first, and join sees its end, or it finds the waiter.
func (p *partition) join(w *waiter, offset int64) (there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end > offset {
		return true
	}
	if old, twice := p.waiting[w]; twice {
		offset = min(old, offset)
	}
	p.waiting[w] = offset
	return false
}

func (p *partition) leave(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, w)
}

// grow takes durable records into the tail, raises the end, and wakes the goroutines that wait for
// it: the waiters of other partitions cost nothing.
//
// Of two calls of Publish, the one with the higher positions may come first. Its positions became
// durable after the lower ones, so the end may be raised beyond both: readers find the lower ones in
// the store until the other call puts its chunk in front. The end stays what it is then.
func (p *partition) grow(c *chunk) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, _ := slices.BinarySearchFunc(p.chunks, c.base, func(c *chunk, base int64) int { return cmp.Compare(c.base, base) })
	p.chunks = slices.Insert(p.chunks, at, c)
	p.end = max(p.end, c.base+int64(len(c.records)))
	for w, offset := range p.waiting {
		if p.end > offset {
			delete(p.waiting, w)
			select {
			case w.wake <- struct{}{}:
			default: // another partition has woken it
			}
		}
	}
}

// drop takes a chunk out of the tail.
func (p *partition) drop(c *chunk) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.chunks, c); i >= 0 { // most often the first one
		p.chunks = slices.Delete(p.chunks, i, i+1)
	}
	c.records = nil
}

// fromTail returns the records of the tail from an offset on, and the offset from which the store
// has to be asked if there are none; end if there are none at all.
func (p *partition) fromTail(from int64, maxBytes int) (list []*kafka.Record, next, end int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from = max(from, p.start)
	i := p.chunkAfter(from)
	next = from
	for ; i < len(p.chunks) && maxBytes > 0; i++ {
		c := p.chunks[i]
		if c.base > next || next >= p.end { // a hole, or all
			break
		}
		for _, r := range c.records[next-c.base:] {
			if maxBytes <= 0 {
				break
			}
			list = append(list, r)
			maxBytes -= sizeOf(r)
			next++
		}
	}
	return list, next, p.end
}

// chunkAfter finds the first chunk that ends behind an offset.
func (p *partition) chunkAfter(offset int64) int {
	i, _ := slices.BinarySearchFunc(p.chunks, offset, func(c *chunk, offset int64) int {
		if c.base+int64(len(c.records)) <= offset {
			return -1
		}
		return 1
	})
	return i
}

// setStart moves the start, and drops chunks before it from the tail.
func (p *partition) setStart(start int64) (dropped []*chunk) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.start = max(p.start, start)
	n := p.chunkAfter(p.start)
	dropped = slices.Clone(p.chunks[:n])
	p.chunks = slices.Delete(p.chunks, 0, n)
	return dropped
}

// tail bounds the records that are in memory. Lock order: tail.mu, then that of one partition.
type tail struct {
	limit int
	mu    sync.Mutex
	bytes int
	live  int
	order []*chunk // as they came; those without bytes have left
}

// overhead is about what a record takes beside its bytes, and a chunk.
const (
	recordOverhead = 256
	headerOverhead = 48
	chunkOverhead  = 128
)

// sizeOf is the number of bytes of a record's key, value and headers.
func sizeOf(r *kafka.Record) int {
	n := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return n
}

// add takes over a chunk that its partition has got, and removes the oldest ones, which may be the
// same, until the rest is within the limit.
func (t *tail) add(c *chunk) {
	bytes := chunkOverhead
	for _, r := range c.records {
		bytes += sizeOf(r) + recordOverhead + headerOverhead*len(r.Headers)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.order = append(t.order, c)
	c.bytes = bytes
	t.bytes += bytes
	t.live++
	for t.bytes > t.limit || t.order[0].bytes == 0 {
		t.remove(t.order[0])
		t.order[0] = nil
		if t.order = t.order[1:]; len(t.order) == 0 {
			break
		}
	}
	if len(t.order) > 2*t.live+sparse { // most of them were trimmed
		t.order = slices.DeleteFunc(t.order, func(c *chunk) bool { return c.bytes == 0 })
	}
}

// sparse is how many chunks that have left the tail may be in its order, beside as many as are in it.
const sparse = 1000

// remove drops a chunk unless it has left; mu is held.
func (t *tail) remove(c *chunk) {
	if c.bytes > 0 {
		c.of.drop(c)
		t.bytes -= c.bytes
		t.live--
		c.bytes = 0
	}
}

// trimmed moves the start of a partition and drops what is before it.
func (t *tail) trimmed(p *partition, start int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range p.setStart(start) {
		t.remove(c)
	}
}
