package relay

import (
	"sync"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
)

// inbox keeps what nudges tell until the relay gets to it, chat by chat. Nudges of one
// chat add up; where their events find no room, the chat is marked, and the relay asks
// the outbox for it instead. Only when there is no room for marks either does a nudge
// get lost, and then the inbox asks for a sweep.
//
// Concurrency: all methods may be called by anybody.
type inbox struct {
	batch int           // events that are worth a transaction at once
	room  int           // events
	wake  chan struct{} // has something when there is more to do than before

	mu     sync.Mutex
	chats  map[string]*waiting
	order  []string // of chats, by their first nudge
	events int      // kept
	bytes  int      // of these events
	lost   bool     // a nudge found no room
}

// waiting is what nudges told of a chat.
type waiting struct {
	chatID  string
	commits []chat.Commit // in the order in which they came
	ask     bool          // there were more: the outbox has them
	since   time.Time     // when the first came
	size    int           // bytes
}

// maxInboxBytes bounds the events that are kept, in bytes: few are near the limit of an
// event, but all may be.
const maxInboxBytes = 32 << 20

// roughSize is about what an event takes. Only messages can be large; to measure others
// would cost more than to keep them.
func roughSize(e event.Event) int {
	const other = 1 << 10
	if m, ok := e.(*eventv1.MessagePersisted); ok {
		return other + len(m.GetContent())
	}
	return other
}

func newInbox(room, batch int) *inbox {
	return &inbox{batch: batch, room: room, wake: make(chan struct{}, 1), chats: map[string]*waiting{}}
}

// put adds a nudge. It reports whether something of it is kept: its events, or a mark.
func (b *inbox) put(c chat.Commit, now time.Time) bool {
	size := 0
	for _, e := range c.Events {
		size += roughSize(e)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.chats[c.ChatID]
	if w == nil {
		if len(b.chats) >= maxChats {
			b.lost = true
			b.signal()
			return false
		}
		w = &waiting{chatID: c.ChatID, since: now}
		b.chats[c.ChatID] = w
		b.order = append(b.order, c.ChatID)
	}
	before := b.events
	if w.ask || b.events+len(c.Events) > b.room || b.bytes+size > maxInboxBytes {
		b.release(w)
		w.commits, w.size, w.ask = nil, 0, true
	} else {
		w.commits = append(w.commits, c)
		w.size += size
		b.events += len(c.Events)
		b.bytes += size
	}
	if len(b.order) == 1 || before < b.batch && b.events >= b.batch {
		b.signal()
	}
	return true
}

func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// release gives the room of a chat's events back.
func (b *inbox) release(w *waiting) {
	for _, c := range w.commits {
		b.events -= len(c.Events)
	}
	b.bytes -= w.size
}

// take takes chats out, those that have waited longest first: as many as have at most
// some number of events together, and one at least.
func (b *inbox) take(most int) (list []*waiting) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for len(b.order) > 0 {
		w := b.chats[b.order[0]]
		for _, c := range w.commits {
			n += len(c.Events)
		}
		if n > most && len(list) > 0 {
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

// has reports whether a nudge of a chat waits.
func (b *inbox) has(chatID string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.chats[chatID] != nil
}

// state says how many chats wait, and whether there is enough for a transaction.
func (b *inbox) state() (chats int, full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.order), b.events >= b.batch || b.lost
}

// oldest is when the nudge came that has waited longest; zero if none waits.
func (b *inbox) oldest() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.order) == 0 {
		return time.Time{}
	}
	return b.chats[b.order[0]].since
}

// takeLost reports whether nudges found no room since the last time.
func (b *inbox) takeLost() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	lost := b.lost
	b.lost = false
	return lost
}
