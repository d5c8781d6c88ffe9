package machine

import (
	"sort"
	"sync"
	"sync/atomic"

	"github.com/parley-chat/parley/server/commitlog"
)

// Limits of what a session may be sent.
const (
	MaxMessages = 65_536
	MaxBytes    = 64 << 20
	largest     = 2 << 20 // more than a message with its headers
)

// Budget is what a session may be sent; the members of a session in all partitions
// share one.
type Budget struct {
	mu       sync.Mutex
	messages int64
	bytes    int64 // below 0 after a message that was larger than what there was
	away     int64 // messages that members have
	size     int64 // bytes of these
	renew    bool
	closed   bool
	alone    bool         // a member has a suspect, and all others nothing
	drained  int          // for how many groups of partitions the session is to have nothing
	guessed  int64        // a guess covers the messages taken up to here, see Blame
	order    atomic.Int64 // how often messages were taken
	quota    *Quota       // of the group; nil: none. Its lock is taken while this one is held
}

// NewBudget returns a budget. With renew, what is acknowledged, requeued or lost is
// returned to the budget.
func NewBudget(messages, bytes int64, renew bool) *Budget {
	return &Budget{messages: min(messages, MaxMessages), bytes: min(bytes, MaxBytes), renew: renew}
}

// Within makes the budget share a quota with those of the group's other sessions, and returns it. It
// comes before anything is taken.
func (b *Budget) Within(q *Quota) *Budget {
	b.quota = q
	return b
}

// Add adds credits, up to MaxMessages and MaxBytes with what members have, and
// returns what there is.
func (b *Budget) Add(messages, bytes int64) (int64, int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages = max(b.messages, min(b.messages+messages, MaxMessages-b.away))
	b.bytes = max(b.bytes, min(b.bytes+bytes, MaxBytes-b.size))
	return b.messages, b.bytes
}

// Set sets the credits, for a session that is polled.
func (b *Budget) Set(messages, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages = max(0, min(messages, MaxMessages-b.away))
	b.bytes = max(0, min(bytes, MaxBytes-b.size))
}

// Left returns what there is.
func (b *Budget) Left() (messages, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.messages, b.bytes
}

// Has reports whether some message can be taken.
func (b *Budget) Has() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.shut() && b.messages > 0 && (b.bytes > 0 || b.away == 0) && !b.quota.Full()
}

// idle reports whether any message can be taken, however large.
func (b *Budget) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.shut() && b.messages > 0 && (b.away == 0 || b.bytes >= largest) && !b.quota.Full()
}

// Take takes credits for as many of the messages of a batch from i to j as there are
// some for, and returns how many these are. A message that is larger than what is left
// goes alone. With spare as many credits are left as members have messages, for what is
// more urgent.
func (b *Budget) Take(batch *commitlog.Batch, i, j int, spare bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shut() {
		return 0
	}
	messages, bytes := b.messages, b.bytes
	if spare {
		messages, bytes = spareOf(messages, b.away), (bytes-b.size)/2 // b.size is 0 if b.away is
	}
	n := int(min(int64(j-i), messages))
	if n <= 0 {
		return 0
	}
	if int64(batch.Size(i, i+n)) > bytes {
		n = sort.Search(n, func(k int) bool { return int64(batch.Size(i, i+k+1)) > bytes })
	}
	if n == 0 {
		if b.away > 0 {
			return 0
		}
		n = 1
	}
	if n = int(b.quota.take(int64(n), spare)); n > 0 {
		b.take(int64(n), int64(batch.Size(i, i+n)))
	}
	return n
}

// takeOne is Take of message i alone, and reports whether there were credits.
func (b *Budget) takeOne(batch *commitlog.Batch, i int) bool { return b.Take(batch, i, i+1, false) > 0 }

// take takes credits for messages for which the quota has been taken.
func (b *Budget) take(n, size int64) {
	b.messages, b.bytes = b.messages-n, b.bytes-size
	b.away, b.size = b.away+n, b.size+size
	b.order.Add(1)
}

// shut reports whether nothing can be taken but, by TakeAlone, a suspect.
func (b *Budget) shut() bool { return b.alone || b.drained > 0 || b.closed }

// Free reports whether a suspect can be taken.
func (b *Budget) Free() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.messages > 0 && b.away == 0 && !b.closed && !b.quota.Full()
}

// TakeAlone takes credits for message i of a batch, a suspect, if Free. Nothing else is taken until it
// is back. It reports whether the quota had room.
func (b *Budget) TakeAlone(batch *commitlog.Batch, i int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.quota.take(1, false) == 0 {
		return false
	}
	b.take(1, int64(batch.Size(i, i+1)))
	b.alone = true
	return true
}

// Drain says that one group of a partition more, or less, wants the session to have nothing.
func (b *Budget) Drain(groups int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drained += groups
}

// Close makes the budget empty for good. Messages that were taken already are delivered as
// usual.
func (b *Budget) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}

// Awaits reports whether the session has credits, which it may not use now.
func (b *Budget) Awaits() bool {
	messages, _ := b.Left()
	return messages > 0
}

// Load returns how many messages the session has.
func (b *Budget) Load() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.away
}

// Order returns a number for what was taken last, higher than all before.
func (b *Budget) Order() int64 { return b.order.Load() }

// Blame says that messages end abnormally, the first of which was taken with an order. It reports
// whether that one is charged, and whether that is certain, because the session had no other message. A
// guess is made once for all that was taken before, in all partitions. So the last message that a
// session loses, after the others, is not taken for one that it had alone.
func (b *Budget) Blame(order int64) (charged, certain bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	charged = order > b.guessed
	b.guessed = b.order.Load()
	return charged, charged && b.away == 1
}

// Back says that a member does not have messages any more.
func (b *Budget) Back(messages, bytes int64) {
	b.back(messages, bytes)
	b.quota.back(messages) // it may call back, which asks for budgets
}

func (b *Budget) back(messages, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away, b.size = b.away-messages, b.size-bytes
	b.alone = b.alone && b.away > 0
	if b.renew {
		b.messages += messages
		b.bytes += bytes
	}
}
