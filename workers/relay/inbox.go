package relay

import (
	"sync"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
)

// inbox buffers nudges by chat until the relay publishes them. Where the events of a chat do
// not fit, the inbox keeps only the chat's id, and the relay queries the outbox for it. Only
// when there are too many chats is a nudge dropped, and then the inbox asks for a sweep.
//
// Concurrency: all methods are safe for concurrent use.
type inbox struct {
	batch    int // events that fill a transaction
	capacity int // events
	// wake has a token when there is more to do; its capacity is 1, and it is sent to under mu. A relay
	// that finds the inbox empty waits for it. A nudge that comes between finds order empty, too, because
	// the relay emptied it under mu, and leaves a token: the wait ends at once. A token of a nudge that
	// the relay has already taken costs one check of an empty inbox.
	wake chan struct{}

	mu         sync.Mutex
	chats      map[string]*nudges
	order      []string // chats, by their first nudge
	events     int      // in the inbox
	bytes      int      // of these events and their payloads
	overflowed bool     // a nudge was dropped
}

// nudges are those of a chat, or of a stream of search events.
type nudges struct {
	chatID      string
	commits     []chat.Commit // in the order of their arrival
	queryOutbox bool          // there were more: they are read from the outbox
	since       time.Time     // arrival of the first
	size        int           // bytes
}

// maxInboxBytes bounds the events in the inbox and their payloads, in bytes: few events are
// near their maximal size, but all may be.
const maxInboxBytes = 32 << 20

// sizeOf estimates the memory of a nudge: of its events, and of their stored form.
func sizeOf(c chat.Commit) (size int) {
	for _, e := range c.Events {
		size += estimateSize(e)
	}
	for _, payload := range c.Payloads {
		size += cap(payload)
	}
	return size
}

// estimateSize estimates the memory of an event. Only messages can be large; to measure
// other events would cost more than to buffer them.
func estimateSize(e event.Event) int {
	const other = 1 << 10
	if m, ok := e.(*eventv1.MessagePersisted); ok {
		return other + len(m.GetContent())
	}
	return other
}

func newInbox(room, batch int) *inbox {
	return &inbox{batch: batch, capacity: room, wake: make(chan struct{}, 1), chats: map[string]*nudges{}}
}

// add adds a nudge. It reports whether the nudge was accepted: with its events, or as the id
// of a chat to query.
func (b *inbox) add(c chat.Commit, now time.Time) bool {
	size := sizeOf(c)
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.of(c.ChatID, now)
	if w == nil {
		return false
	}
	before := b.events
	if w.queryOutbox || b.events+len(c.Events) > b.capacity || b.bytes+size > maxInboxBytes {
		b.release(w)
		w.commits, w.size, w.queryOutbox = nil, 0, true
	} else {
		c.Outbox.Item = nil // it is in the store, and size does not count it
		w.commits = append(w.commits, c)
		w.size += size
		b.events += len(c.Events)
		b.bytes += size
	}
	if before < b.batch && b.events >= b.batch {
		b.signal()
	}
	return true
}

// wakeUp adds a stream whose rows are read from the outbox. It reports whether there was room.
func (b *inbox) wakeUp(stream string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.of(stream, now)
	if w == nil {
		return false
	}
	w.queryOutbox = true
	return true
}

// of returns the nudges of a chat, nil if there is no room for it. The first chat of an empty
// inbox wakes the relay, which waits for the mutex. The mutex is held.
func (b *inbox) of(chatID string, now time.Time) *nudges {
	if w := b.chats[chatID]; w != nil {
		return w
	}
	if len(b.chats) >= maxChats {
		b.overflowed = true
		b.signal()
		return nil
	}
	if len(b.order) == 0 {
		b.signal()
	}
	w := &nudges{chatID: chatID, since: now}
	b.chats[chatID] = w
	b.order = append(b.order, chatID)
	return w
}

func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// events counts the events of a chat's nudges.
func (w *nudges) events() (n int) {
	for _, c := range w.commits {
		n += len(c.Events)
	}
	return n
}

// release frees the capacity of a chat's events.
func (b *inbox) release(w *nudges) {
	b.events -= w.events()
	b.bytes -= w.size
}

// dequeue removes and returns the chats that have waited longest: as many as have at most a
// number of events together, and at least one.
func (b *inbox) dequeue(limit int) (list []*nudges) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for len(b.order) > 0 {
		w := b.chats[b.order[0]]
		if n += w.events(); n > limit && len(list) > 0 {
			break
		}
		b.release(w)
		delete(b.chats, w.chatID)
		b.order = b.order[1:]
		list = append(list, w)
	}
	if len(b.order) == 0 {
		b.order = nil
	}
	return list
}

// contains reports whether a nudge of a chat waits.
func (b *inbox) contains(chatID string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.chats[chatID] != nil
}

// state returns how many chats wait, and whether they fill a transaction.
func (b *inbox) state() (chats int, full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.order), b.events >= b.batch || b.overflowed
}

// oldest returns the arrival of the nudge that has waited longest; zero if none waits.
func (b *inbox) oldest() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.order) == 0 {
		return time.Time{}
	}
	return b.chats[b.order[0]].since
}

// resetOverflow reports whether nudges were dropped since the last call.
func (b *inbox) resetOverflow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	lost := b.overflowed
	b.overflowed = false
	return lost
}
