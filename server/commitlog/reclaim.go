package commitlog

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/parley-chat/parley/server/store"
)

const (
	// reclaimParts is the part of what is worth a reclaim that is worth a merge of its own. The engine
	// merges what is smaller by itself, when there is more of it.
	reclaimParts = 64
	// reclaimShort is how many bytes are worth a reclaim on a disk that is short.
	reclaimShort = 1 << 20
	// reclaimRanges bounds the ranges in memory. Ranges beyond that are left to the engine, too.
	reclaimRanges = 1 << 16
)

// removed are the records that were removed and whose space the engine has not been asked for.
//
// An engine that removes a range notes that, and frees the space when it merges the files of the
// range: on its own only when enough was written, which on a full disk is never. To merge at each
// removal would cost more for much than for a little.
type removed struct {
	running sync.Mutex // held by the one call of Reclaim that runs

	mu     sync.Mutex
	ranges []removal
	bytes  int64 // of all ranges, as they were when they were removed
}

type removal struct {
	from, until []byte
	bytes       int64
}

// add notes that a range was removed, of so many bytes. Without them, 0, the engine's estimate counts: it
// is too much for a small part of a file, and knows nothing of what is in the engine's own log only.
func (r *removed) add(records store.Records, from, until []byte, known int64) {
	of, ok := records.(store.Reclaimer)
	if !ok {
		return
	}
	n := known
	if n <= 0 {
		n, _ = of.Size(from, until)
	}
	if n <= 0 { // nothing, or a store that closes
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ranges) < reclaimRanges {
		r.ranges = append(r.ranges, removal{from, until, n})
		r.bytes += n
	}
}

// take takes the ranges if they have at least so many bytes.
func (r *removed) take(least int64) []removal {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bytes < least || r.bytes == 0 {
		return nil
	}
	list := r.ranges
	r.ranges, r.bytes = nil, 0
	return list
}

// join joins ranges that follow each other.
func join(list []removal) []removal {
	slices.SortFunc(list, func(a, b removal) int { return bytes.Compare(a.from, b.from) })
	joined := list[:0]
	for _, x := range list {
		if n := len(joined) - 1; n >= 0 && bytes.Compare(x.from, joined[n].until) <= 0 {
			joined[n].bytes += x.bytes
			if bytes.Compare(x.until, joined[n].until) > 0 {
				joined[n].until = x.until
			}
			continue
		}
		joined = append(joined, x)
	}
	return joined
}

// Reclaim implements Reclaimer.
func (l *Local) Reclaim(ctx context.Context, least int64) error {
	of, ok := l.records.(store.Reclaimer)
	if !ok {
		return nil
	}
	l.removed.running.Lock()
	defer l.removed.running.Unlock()
	if of.Short() {
		least = min(least, reclaimShort)
	}
	list := join(l.removed.take(least))
	for i, x := range list {
		if x.bytes < least/reclaimParts {
			continue
		}
		if err := of.Reclaim(ctx, x.from, x.until); err != nil {
			l.removed.putBack(list[i:])
			return err
		}
	}
	return nil
}

func (r *removed) putBack(list []removal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ranges = append(r.ranges, list...)
	for _, x := range list {
		r.bytes += x.bytes
	}
}

// noteRemoval notes that a topic was removed, once that is durable.
func (l *Local) noteRemoval(topic uint64, wait func() error) error {
	if err := wait(); err != nil {
		return err
	}
	all := allOf(topic)
	l.removed.add(l.records, all.Key, all.Until, 0)
	return nil
}

// Short implements Reclaimer.
func (l *Local) Short() bool {
	of, ok := l.records.(store.Reclaimer)
	return ok && of.Short()
}
