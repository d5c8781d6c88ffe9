package limit

import (
	"cmp"
	"sync"
	"time"
)

const (
	shards      = 32
	defaultKeys = 1 << 18
)

// bucketKey is a key of a rule.
type bucketKey struct {
	rule uint8
	key  string
}

// bucket is the state of a key. One that is full and owes nothing is as good as none.
type bucket struct {
	full int64 // when it is full again
	owed int   // cost that the shared bucket does not know of yet; below 0: that it has too much
	over int64 // when it has too much no longer, because it is full again
}

// local is the buckets of a process. Times are nanoseconds since its start, by the monotonic
// clock where there is one.
type local struct {
	start  time.Time
	most   int // keys of open rules in a shard, and of closed ones
	shards [shards]shard
}

// shard has the buckets of open rules and of closed ones apart, so that many keys of the
// former, which is what strangers have, never take the room of the latter.
type shard struct {
	mu           sync.Mutex
	open, closed map[bucketKey]bucket
}

func (s *shard) of(r rule) map[bucketKey]bucket {
	if r.Closed {
		return s.closed
	}
	return s.open
}

func (l *local) init(start time.Time, keys int) {
	l.start, l.most = start, max(1, cmp.Or(keys, defaultKeys)/shards/2)
	for i := range l.shards {
		l.shards[i].open, l.shards[i].closed = map[bucketKey]bucket{}, map[bucketKey]bucket{}
	}
}

// time is never 0 and never before: 0 stands for no time.
func (l *local) time(now time.Time) int64 { return int64(now.Sub(l.start)) + 1 }

func (l *local) shard(k bucketKey) *shard {
	h := (uint32(2166136261) ^ uint32(k.rule)) * 16777619 // FNV-1a
	for i := range len(k.key) {
		h = (h ^ uint32(k.key[i])) * 16777619
	}
	return &l.shards[h%shards]
}

// since is what has become of a bucket at a time.
func (b bucket) since(now int64, r rule) bucket {
	if b.owed < 0 && b.over <= now {
		b.owed = 0
	}
	if b.full-now > 2*int64(r.bucket.Window) { // the clock was set back
		b.full = now + int64(r.bucket.Window)
	}
	b.full = max(b.full, now)
	return b
}

// take charges a cost if there is room for it. Where there is a shared bucket, ask says that it
// is to be asked, because this process would be too far ahead; until then it is owed nothing.
func (l *local) take(k bucketKey, r rule, now int64, cost int, shared bool) (d Decision, ask bool) {
	s := l.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	buckets := s.of(r)
	b, known := buckets[k]
	b = b.since(now, r)
	if !known && cost > 0 && len(buckets) >= l.most && !room(buckets, now, r.Closed) {
		return Decision{RetryAfter: sharedPause}, false
	}
	charged := b.full + int64(cost)*int64(r.bucket.Interval)
	if charged-now > int64(r.bucket.Window) {
		if known {
			buckets[k] = b
		}
		return decide(r, time.Duration(b.full-now), cost, false), false
	}
	if ask = shared && b.owed+cost > r.slack; shared && !ask {
		b.owed += cost
	}
	if cost > 0 {
		b.full = charged
		buckets[k] = b
	}
	return decide(r, time.Duration(charged-now), cost, true), ask
}

// sample is how many keys are checked where there is no room for another one.
const sample = 32

// room makes room for a key, and reports whether there is some. It checks a few keys, in no
// order, and forgets those whose buckets are full; if none is, a key of an open rule whose
// bucket is full soonest, which loses least. A key that is not counted is nothing that a closed
// rule may allow.
func room(buckets map[bucketKey]bucket, now int64, closed bool) bool {
	checked, found := 0, false
	var least bucketKey
	for k, b := range buckets {
		if b.full <= now {
			delete(buckets, k)
			found = true
		} else if checked == 0 || b.full < buckets[least].full {
			least = k
		}
		if checked++; checked == sample {
			break
		}
	}
	if found || closed {
		return found
	}
	delete(buckets, least)
	return true
}

// peek returns in what time a bucket is full again, and what it owes.
func (l *local) peek(k bucketKey, r rule, now int64) (full time.Duration, owed int) {
	s := l.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.of(r)[k].since(now, r)
	return time.Duration(b.full - now), b.owed
}

// change changes the bucket of a key that is known.
func (l *local) change(k bucketKey, r rule, f func(b *bucket)) {
	s := l.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, ok := s.of(r)[k]; ok {
		f(&b)
		s.of(r)[k] = b
	}
}

// settle returns what a key owes the shared bucket, which is then to be paid.
func (l *local) settle(k bucketKey, r rule) (owed int) {
	l.change(k, r, func(b *bucket) { owed, b.owed = b.owed, 0 })
	return owed
}

// owe adds what could not be paid, up to a bucket full.
func (l *local) owe(k bucketKey, r rule, owed int) {
	l.change(k, r, func(b *bucket) { b.owed = min(b.owed+owed, r.Burst) })
}

// giveBack takes back a cost, of which the shared bucket is to learn of so much.
func (l *local) giveBack(k bucketKey, r rule, cost, owed int) {
	l.change(k, r, func(b *bucket) {
		if owed > 0 {
			b.over = max(b.over, b.full)
		}
		b.full -= int64(cost) * int64(r.bucket.Interval)
		b.owed -= owed
	})
}

// raise makes a bucket known to be full no sooner than the shared one.
func (l *local) raise(k bucketKey, r rule, full int64) {
	l.change(k, r, func(b *bucket) { b.full = max(b.full, full) })
}
