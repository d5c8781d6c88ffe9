package topic

import (
	"container/heap"
	"context"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// state is how far a message has come in the consumer.
type state int

const (
	waiting state = iota
	running
	handled // or failed, if it has a failure
	dropped // not the consumer's any more
)

// messagePosition is where a message stands.
type messagePosition struct {
	partition int32
	position  int64
}

// item is a message that the consumer has.
type item struct {
	messagePosition
	message *Message
	attempt int32
	moves   int64 // of the subscription, when it came
	lane    *lane
	state   state
	failure *failure
	// owned: the session that there is now has its lease. A message without the lease is
	// remembered until forget, in case that it comes again.
	owned  bool
	forget time.Time
	cancel context.CancelCauseFunc // of a handler that runs
	open   int                     // how often it is to be settled, or is on its way
	number int64                   // counts what came
	sent   bool                    // what became of it was sent, in a session that may have ended
}

// failure is why a message is returned.
type failure struct {
	reason string
	delay  *time.Duration // nil: as the subscription says
}

// lane has the messages of one key that wait, in order; a message without a key has one of
// its own.
type lane struct {
	key   string
	items []*item
	busy  bool // a handler has one of them
}

// lanes are a heap: the one whose first message came first is the first.
type lanes []*lane

func (h lanes) Len() int           { return len(h) }
func (h lanes) Less(i, j int) bool { return h[i].items[0].number < h[j].items[0].number }
func (h lanes) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *lanes) Push(x any) {
	if l, ok := x.(*lane); ok {
		*h = append(*h, l)
	}
}

// Pop implements heap.Interface.
func (h *lanes) Pop() any {
	last := len(*h) - 1
	l := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return l
}

// inbox holds what was delivered and is not settled. It decides what is handled next, and
// what is acknowledged. It does no I/O and is guarded by its owner.
type inbox struct {
	items   map[messagePosition]*item
	lanes   map[string]*lane // of keys that have messages here
	ready   lanes            // whose first message may be handled now
	came    int64
	running int
	settled []*item // to be acknowledged or returned
}

func newInbox() *inbox { return &inbox{items: map[messagePosition]*item{}, lanes: map[string]*lane{}} }

// add takes a delivery.
func (b *inbox) add(d *topicv1.Delivery) {
	for i, m := range d.GetMessages() {
		at := messagePosition{d.GetPartition(), d.GetBase() + int64(i)}
		if o := d.GetOffsets(); i < len(o) {
			at.position = d.GetBase() + int64(o[i])
		}
		attempt := int32(1)
		if a := d.GetAttempts(); i < len(a) {
			attempt = int32(a[i])
		}
		it := b.items[at]
		switch {
		case it == nil || it.failure != nil:
		case it.moves == d.GetMoves():
			b.again(it, attempt)
			continue
		default: // the subscription was moved: the caller that moved it wants it handled again
			it.owned = false
		}
		b.enqueue(&item{messagePosition: at, message: m, attempt: attempt, moves: d.GetMoves(), owned: true})
	}
}

// again takes a message that is here already: its handler still runs, or its acknowledgement
// was lost.
func (b *inbox) again(it *item, attempt int32) {
	it.owned, it.attempt = true, attempt
	if it.state == handled {
		b.settle(it)
	}
}

func (b *inbox) settle(it *item) {
	it.open++
	b.settled = append(b.settled, it)
}

func (b *inbox) enqueue(it *item) {
	b.items[it.messagePosition] = it
	b.came++
	it.number = b.came
	key := it.message.GetKey()
	l, isNew := b.lanes[key], false
	if key == "" || l == nil {
		l, isNew = &lane{key: key}, true
		if key != "" {
			b.lanes[key] = l
		}
	}
	it.lane = l
	l.items = append(l.items, it)
	if isNew {
		heap.Push(&b.ready, l)
	}
}

// next takes up to n messages for a handler, those of one key in order; none if nothing may
// be handled now.
func (b *inbox) next(n int) (batch []*item) {
	for len(b.ready) > 0 && len(batch) < n {
		l, _ := heap.Pop(&b.ready).(*lane)
		for len(l.items) > 0 && len(batch) < n {
			it := l.items[0]
			l.items = l.items[1:]
			if it.state == waiting {
				it.state, l.busy = running, true
				batch = append(batch, it)
			}
		}
		if !l.busy {
			delete(b.lanes, l.key)
		}
	}
	b.running += len(batch)
	return batch
}

// finish takes what became of a message that next returned; nil: it was handled. Once all
// of a batch are finished, release has to be called with it.
func (b *inbox) finish(it *item, f *failure, now time.Time) {
	b.running--
	it.cancel = nil
	it.state, it.failure = handled, f
	switch {
	case it.owned:
		b.settle(it)
	case f != nil || !now.Before(it.forget):
		b.remove(it)
	}
}

// release lets the keys of a batch proceed.
func (b *inbox) release(batch []*item) {
	for _, it := range batch {
		l := it.lane
		if !l.busy {
			continue
		}
		if l.busy = false; len(l.items) > 0 {
			heap.Push(&b.ready, l)
		} else {
			delete(b.lanes, l.key)
		}
	}
}

// disown takes that the session has ended: waiting messages will come again, here or
// elsewhere. Messages that run or were handled are remembered until forget.
func (b *inbox) disown(forget time.Time) {
	for _, it := range b.items {
		if it.open = 0; it.owned {
			it.owned, it.forget = false, forget
		}
		if it.state == waiting || it.failure != nil {
			b.remove(it)
		}
	}
	b.settled = nil
}

// lose records that the lease of a message has ended: another member may have it.
func (b *inbox) lose(at messagePosition, cause error) {
	it := b.items[at]
	if it == nil {
		return
	}
	it.owned, it.forget = false, time.Time{}
	if it.cancel != nil {
		it.cancel(cause)
	}
	if it.state != running {
		b.remove(it)
	}
}

// expire forgets what has not come again in time.
func (b *inbox) expire(now time.Time) {
	for _, it := range b.items {
		if it.state == handled && !it.owned && !now.Before(it.forget) {
			b.remove(it)
		}
	}
}

func (b *inbox) remove(it *item) {
	if b.items[it.messagePosition] == it {
		delete(b.items, it.messagePosition)
	}
	if it.state != running {
		it.state = dropped
	}
}

// take returns what is to be settled. Items stay until they are confirmed as often as they
// were taken: a message that comes again before the server knows that it was handled is
// acknowledged once more.
func (b *inbox) take() (list []*item) {
	for _, it := range b.settled {
		if it.owned && it.state == handled {
			it.sent = true
			list = append(list, it)
		}
	}
	b.settled = nil
	return list
}

// confirm takes that the server knows what became of items.
func (b *inbox) confirm(items []*item) {
	for _, it := range items {
		if it.open--; it.open <= 0 && it.owned {
			b.remove(it)
		}
	}
}

// any reports whether something is true of an item.
func (b *inbox) any(is func(*item) bool) bool {
	for _, it := range b.items {
		if is(it) {
			return true
		}
	}
	return false
}

// isSettled reports whether the server knows what became of everything that was handled.
func (b *inbox) isSettled() bool { return !b.any(func(it *item) bool { return it.open > 0 }) }

// idle reports whether handlers have nothing to do.
func (b *inbox) idle() bool { return b.running == 0 && len(b.ready) == 0 }

// owns reports whether the session that there is now has the lease of something.
func (b *inbox) owns() bool { return b.any(func(it *item) bool { return it.owned }) }

// untouched reports whether nothing here was given to a handler.
func (b *inbox) untouched() bool { return !b.any(func(it *item) bool { return it.state != waiting }) }

// holds reports whether there is something whose lease must not end.
func (b *inbox) holds() bool { return len(b.items) > 0 }
