package sendqueue

import "github.com/parley-chat/parley/server/delivery/frame"

// sent is what is remembered of a frame until it is acknowledged. Its position is
// not: a ring holds the last ones, without a gap.
type sent struct {
	chat     frame.Chat
	sequence int64 // 0: not a message
	size     uint32
}

func (s sent) bytes() int { return int(s.size) }

// ring is a queue that takes as much memory as it has held at a time since it was
// last empty, and none when it is empty.
type ring struct {
	items []sent // a power of two
	first int
	count int
}

// leastRing is the size that a ring begins with.
const leastRing = 16

func (r *ring) len() int { return r.count }

func (r *ring) push(s sent) {
	if r.count == len(r.items) {
		grown := make([]sent, max(2*len(r.items), leastRing))
		n := copy(grown, r.items[r.first:])
		copy(grown[n:], r.items[:r.first])
		r.items, r.first = grown, 0
	}
	r.items[(r.first+r.count)&(len(r.items)-1)] = s
	r.count++
}

// pop removes the oldest one; there must be one.
func (r *ring) pop() sent {
	s := r.items[r.first]
	r.items[r.first] = sent{}
	r.first = (r.first + 1) & (len(r.items) - 1)
	if r.count--; r.count == 0 {
		r.items, r.first = nil, 0
	}
	return s
}
