package topic

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

var start = time.Unix(1_900_000_000, 0)

// deliver makes a delivery of messages with keys, from a position on.
func deliver(base int64, keys ...string) *topicv1.Delivery {
	d := &topicv1.Delivery{Base: base}
	for _, k := range keys {
		d.Messages = append(d.Messages, &Message{Key: k})
	}
	return d
}

// What was handled is not handled again because its acknowledgement was lost; it is once the
// subscription was moved back, also if a handler still has it.
func TestMovedSubscription(t *testing.T) {
	t.Parallel()
	b := newInbox()
	b.add(deliver(0, "a", "b", "b"))
	first := b.next(1)
	b.finish(first[0], nil, start)
	b.release(first)
	second := b.next(1)
	expect(t, "b", second, 1)
	b.disown(start.Add(time.Minute))
	b.add(deliver(0, "a", "b", "b"))
	expect(t, "the one that waited", b.next(10))
	expect(t, "acknowledged once more", b.take(), 0)
	b.disown(start.Add(time.Minute))
	moved := deliver(0, "a", "b", "b")
	moved.Moves = 1
	b.add(moved)
	again := b.next(1)
	expect(t, "handled again", again, 0)
	expect(t, "b is under way", b.next(10))
	b.finish(second[0], nil, start)
	b.release(second)
	expect(t, "and once more", b.next(10), 1, 2)
	expect(t, "nothing is acknowledged for what was handled before", b.take())
	b.finish(again[0], nil, start)
	expect(t, "this is", b.take(), 0)
}

func positionsOf(items []*item) (list []int64) {
	for _, it := range items {
		list = append(list, it.position)
	}
	return list
}

func expect(t *testing.T, what string, items []*item, want ...int64) {
	t.Helper()
	if got := positionsOf(items); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// Messages of a key wait for the one before; others do not.
func TestOrderOfKeys(t *testing.T) {
	t.Parallel()
	b := newInbox()
	b.add(deliver(0, "a", "a", "b", "", "a", ""))
	first, second, third, fourth := b.next(1), b.next(1), b.next(1), b.next(1)
	expect(t, "a", first, 0)
	expect(t, "b", second, 2)
	expect(t, "no key", third, 3)
	expect(t, "no key", fourth, 5)
	expect(t, "everything else waits", b.next(1))
	b.finish(second[0], nil, start)
	b.release(second)
	expect(t, "b has no more", b.next(1))
	b.finish(first[0], nil, start)
	b.release(first)
	expect(t, "the next of a", b.next(10), 1, 4)
}

// Handled one by one, messages are handled in the order in which they came, whatever their
// keys.
func TestOldestFirst(t *testing.T) {
	t.Parallel()
	b := newInbox()
	b.add(deliver(0, "a", "", "a", "b", "a", "b", ""))
	for want := range int64(7) {
		one := b.next(1)
		expect(t, "the oldest", one, want)
		b.finish(one[0], nil, start)
		b.release(one)
	}
}

// A batch has messages of many keys, those of one in order, and nobody else has its keys.
func TestBatchesKeepOrder(t *testing.T) {
	t.Parallel()
	b := newInbox()
	b.add(deliver(0, "a", "b", "a", "c"))
	one := b.next(3)
	expect(t, "three", one, 0, 2, 1)
	expect(t, "c", b.next(3), 3)
	b.add(deliver(4, "a"))
	expect(t, "a is busy", b.next(3))
	for _, it := range one {
		b.finish(it, nil, start)
	}
	b.release(one)
	expect(t, "a proceeds", b.next(3), 4)
}

func TestSettling(t *testing.T) {
	t.Parallel()
	b := newInbox()
	b.add(&topicv1.Delivery{Base: 10, Messages: []*Message{{}, {}, {}}, Offsets: []uint32{0, 5, 9},
		Attempts: []uint32{1, 2, 3}})
	batch := b.next(3)
	expect(t, "offsets", batch, 10, 15, 19)
	testkit.Equal(t, "attempt", batch[2].attempt, 3)
	failed := &failure{reason: "no"}
	for i, f := range []*failure{nil, failed, nil} {
		b.finish(batch[i], f, start)
	}
	b.release(batch)
	if !b.idle() || b.isSettled() {
		t.Error("nothing to handle and three to settle")
	}
	taken := b.take()
	expect(t, "taken", taken, 10, 15, 19)
	expect(t, "taken twice", b.take())
	out := outgoings(taken)
	testkit.Equal(t, "requests", len(out), 2)
	testkit.Equal(t, "acknowledged", len(out[0].items), 2)
	testkit.Equal(t, "returned", out[1].nack.GetReason(), "no")
	b.confirm(taken)
	if !b.isSettled() || b.holds() {
		t.Error("something is left")
	}
}

// What comes again while it is here is not handled again: neither while its handler runs,
// nor when its acknowledgement was lost, but not for ever.
func TestComesAgain(t *testing.T) {
	t.Parallel()
	b := newInbox()
	b.add(deliver(0, "a", "b", "c", "d", "e"))
	running, handled, failing, old := b.next(1), b.next(1), b.next(1), b.next(1)
	b.finish(handled[0], nil, start)
	b.finish(failing[0], &failure{}, start)
	expect(t, "on their way", b.take(), 1, 2)
	b.finish(old[0], nil, start)
	for _, batch := range [][]*item{handled, failing, old} {
		b.release(batch)
	}
	b.disown(start.Add(time.Minute))
	expect(t, "of the session before", b.take())
	b.add(deliver(0, "a", "b", "c", "", "e"))
	expect(t, "handled before", b.take(), 1, 3)
	expect(t, "what waited, and what failed", b.next(9), 4, 2)
	b.finish(running[0], nil, start)
	b.release(running)
	expect(t, "the handler's result counts", b.take(), 0)

	b = newInbox()
	b.add(deliver(0, ""))
	it := b.next(1)
	b.finish(it[0], nil, start)
	b.release(it)
	b.disown(start.Add(time.Minute))
	b.expire(start.Add(time.Minute))
	b.add(deliver(0, ""))
	expect(t, "too late to be remembered", b.next(1), 0)
}

// A message that comes again before the server knows that it was handled is acknowledged
// once more: the first acknowledgement may have come too late.
func TestAcknowledgedOnceMore(t *testing.T) {
	t.Parallel()
	b := newInbox()
	b.add(deliver(0, ""))
	it := b.next(1)
	b.finish(it[0], nil, start)
	b.release(it)
	first := b.take()
	b.add(deliver(0, ""))
	second := b.take()
	expect(t, "again", second, 0)
	b.confirm(first)
	if b.isSettled() {
		t.Error("the second is on its way")
	}
	b.confirm(second)
	if b.holds() {
		t.Error("something is left")
	}
}

// A lost lease ends the handler and whatever is planned with the message.
func TestLeaseIsLost(t *testing.T) {
	t.Parallel()
	b := newInbox()
	b.add(deliver(0, "a", "a", "b"))
	running, handled := b.next(1), b.next(1)
	b.finish(handled[0], nil, start)
	b.release(handled)
	var cause error
	running[0].cancel = func(err error) { cause = err }
	for i := range int64(4) {
		b.lose(messagePosition{0, i}, ErrLeaseLost)
	}
	if !errors.Is(cause, ErrLeaseLost) {
		t.Error("the handler still runs:", cause)
	}
	expect(t, "acknowledgements", b.take())
	b.finish(running[0], nil, start)
	b.release(running)
	expect(t, "of the message that was lost", b.take())
	expect(t, "of its key", b.next(1))
	if b.holds() || !b.idle() || len(b.lanes) > 0 {
		t.Error("something is left")
	}
}

// Random deliveries, handlers, losses and sessions: messages of a key are handled in the
// order in which they came, one at a time; what a session delivers last is settled in it or
// still here; nothing is settled that was not handled; and nothing is left in the end.
func TestInboxModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 2))
		b, now := newInbox(), start
		var handlers [][]*item
		var sent [][]*item
		busy := map[string]bool{}
		delivered := map[int64]bool{} // by this session and not settled since
		handledOK := map[int64]bool{}
		next := int64(0)
		key := func(p int64) string { return []string{"", "a", "b", "c"}[p%4] }
		finish := func(i int) {
			batch := handlers[i]
			handlers = append(handlers[:i:i], handlers[i+1:]...)
			for _, it := range batch {
				var f *failure
				if random.IntN(4) == 0 {
					f = &failure{}
				} else {
					handledOK[it.position] = true
				}
				b.finish(it, f, now)
				delete(busy, it.message.GetKey())
			}
			b.release(batch)
		}
		call := func() bool {
			batch := b.next(1 + random.IntN(3))
			last := map[string]int64{}
			for _, it := range batch {
				k := it.message.GetKey()
				if k == "" {
					continue
				}
				if p, ok := last[k]; busy[k] || ok && p > it.position {
					t.Fatalf("seed %d: %q: position %d while another is handled, or after %d", seed, k, it.position, p)
				}
				last[k] = it.position
			}
			for k := range last {
				busy[k] = true
			}
			if len(batch) > 0 {
				handlers = append(handlers, batch)
			}
			return len(batch) > 0
		}
		take := func() {
			items := b.take()
			for _, it := range items {
				if it.failure == nil && !handledOK[it.position] {
					t.Fatalf("seed %d: %d is acknowledged and was not handled", seed, it.position)
				}
				delete(delivered, it.position)
			}
			sent = append(sent, items)
		}
		for range 300 {
			now = now.Add(time.Second)
			switch random.IntN(8) {
			case 0, 1:
				n := 1 + random.IntN(4)
				d := &topicv1.Delivery{Base: next}
				for range n {
					d.Messages = append(d.Messages, &Message{Key: key(next)})
					delivered[next] = true
					next++
				}
				b.add(d)
			case 2, 3:
				call()
			case 4:
				if len(handlers) > 0 {
					finish(random.IntN(len(handlers)))
				}
			case 5:
				take()
			case 6:
				if len(sent) > 0 {
					b.confirm(sent[0])
					sent = sent[1:]
				}
			case 7:
				if random.IntN(4) > 0 {
					continue
				}
				b.disown(now.Add(time.Minute))
				clear(delivered)
				sent = nil
				for p := max(0, next-5); p < next; p++ { // all of it comes again
					b.add(deliver(p, key(p)))
					delivered[p] = true
				}
			}
		}
		for len(handlers) > 0 || call() {
			finish(0)
		}
		take()
		if len(delivered) > 0 {
			t.Fatalf("seed %d: %v came and nothing became of them", seed, delivered)
		}
		for _, items := range sent {
			b.confirm(items)
		}
		b.expire(now.Add(time.Hour))
		if b.holds() || !b.idle() || len(b.lanes) > 0 || !b.isSettled() {
			t.Fatalf("seed %d: %d items, %d lanes are left", seed, len(b.items), len(b.lanes))
		}
	}
}
