package machine

import (
	"sort"
	"sync"

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
}

// NewBudget returns a budget. With renew, what is acknowledged, requeued or lost is
// returned to the budget.
func NewBudget(messages, bytes int64, renew bool) *Budget {
	return &Budget{messages: min(messages, MaxMessages), bytes: min(bytes, MaxBytes), renew: renew}
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
	return b.messages > 0 && (b.bytes > 0 || b.away == 0)
}

// idle reports whether any message can be taken, however large.
func (b *Budget) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.messages > 0 && (b.away == 0 || b.bytes >= largest)
}

// Take takes credits for as many of the messages of a batch from i to j as there are
// some for, and returns how many these are. A message that is larger than what is left
// goes alone. With spare as many credits are left as members have messages, for what is
// more urgent.
func (b *Budget) Take(batch *commitlog.Batch, i, j int, spare bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages, bytes := b.messages, b.bytes
	if spare && b.away > 0 {
		messages, bytes = (messages-b.away)/2, (bytes-b.size)/2
	} else if spare {
		messages, bytes = (messages+1)/2, bytes/2
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
	size := int64(batch.Size(i, i+n))
	b.messages, b.bytes = b.messages-int64(n), b.bytes-size
	b.away, b.size = b.away+int64(n), b.size+size
	return n
}

// Back says that a member does not have messages any more.
func (b *Budget) Back(messages, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away, b.size = b.away-messages, b.size-bytes
	if b.renew {
		b.messages += messages
		b.bytes += bytes
	}
}
