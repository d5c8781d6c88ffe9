package machine

import "sync"

// Quota bounds the messages that all members of a group have together, in all partitions. A nil Quota has
// no bound. It is safe for concurrent use.
type Quota struct {
	freed func()

	mu    sync.Mutex
	limit int64 // 0: none
	away  int64
}

// NewQuota returns a quota of a number of messages, 0 for no bound. freed is called when there is room again
// after there was none; also with the lock of the partition in which a member settled a message.
func NewQuota(limit int64, freed func()) *Quota { return &Quota{limit: limit, freed: freed} }

// Set changes the bound. If members have more, nothing is delivered until they have less.
func (q *Quota) Set(limit int64) {
	q.change(func() { q.limit = limit })
}

// change calls f, and freed if f made room where there was none. Group.wakeBlocked depends on it:
//
//  1. A partition finds no room, and stops.
//  2. A member settles a message of another partition, which makes room: freed follows.
//  3. freed wakes the partitions that stopped. One that looks for room after step 2 finds it.
func (q *Quota) change(f func()) {
	q.mu.Lock()
	full := q.roomLocked() == 0
	f()
	freed := full && q.roomLocked() > 0
	q.mu.Unlock()
	if freed {
		q.freed()
	}
}

func (q *Quota) roomLocked() int64 {
	if q.limit == 0 {
		return NoEnd
	}
	return max(0, q.limit-q.away)
}

// Full reports whether members have as many messages as they may.
func (q *Quota) Full() bool {
	if q == nil {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.roomLocked() == 0
}

// take takes room for n messages at most, and returns for how many. With spare as much room is left as
// members have messages.
func (q *Quota) take(n int64, spare bool) int64 {
	if q == nil {
		return n
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	room := q.roomLocked()
	if spare && q.limit > 0 {
		room = spareOf(room, q.away)
	}
	n = max(0, min(n, room))
	q.away += n
	return n
}

// spareOf is how much of what is left a backfill may take, if members have messages: the rest is for what
// is more urgent.
func spareOf(left, away int64) int64 {
	if away > 0 {
		return (left - away) / 2
	}
	return (left + 1) / 2
}

func (q *Quota) back(n int64) {
	if q != nil {
		q.change(func() { q.away -= n })
	}
}

// full reports whether the members have as many messages as the group's quota allows. All members share
// one.
func (g *GroupState) full() bool { return len(g.members) > 0 && g.members[0].budget.quota.Full() }
