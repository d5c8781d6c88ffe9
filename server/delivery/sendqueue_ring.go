package delivery

// ring is a queue without an end: an entry that is taken from its front makes room at its
// back. It remembers its size while things pass through it, so that a stream at work takes
// no memory for a frame, and returns it in the end.
type ring[T any] struct {
	items []T // a power of two
	first int
	count int
}

const (
	leastRing = 16 // the size that a ring begins with
	keptRing  = 64 // the largest that an empty one keeps
)

func (r *ring[T]) len() int { return r.count }

// at is the i-th item, the oldest first.
func (r *ring[T]) at(i int) T { return r.items[(r.first+i)&(len(r.items)-1)] }

func (r *ring[T]) push(v T) {
	if r.count == len(r.items) {
		grown := make([]T, max(2*len(r.items), leastRing))
		n := copy(grown, r.items[r.first:])
		copy(grown[n:], r.items[:r.first])
		r.items, r.first = grown, 0
	}
	r.items[(r.first+r.count)&(len(r.items)-1)] = v
	r.count++
}

// pop removes the oldest one; there must be one.
func (r *ring[T]) pop() T {
	var none T
	v := r.items[r.first]
	r.items[r.first] = none
	r.first = (r.first + 1) & (len(r.items) - 1)
	if r.count--; r.count == 0 && len(r.items) > keptRing {
		r.release()
	}
	return v
}

// release gives the memory of an empty ring back.
func (r *ring[T]) release() {
	if r.count == 0 {
		r.items, r.first = nil, 0
	}
}
