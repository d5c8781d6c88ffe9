package delivery

import (
	"container/heap"
	"context"
	"time"

	"github.com/parley-chat/parley/server/event"
)

// Work is something that needs the store: missing events, a member list, or a
// stream's part in a chat. It is performed by Hub.Do.
type Work struct {
	kind   workKind
	chat   *chatState // workFetch
	chatID string     // workCheck, workJoin, workMark
	stream *Stream    // workJoin
	user   string     // workMark
}

type workKind uint8

const (
	workFetch workKind = iota + 1
	workCheck
	workJoin
	workMark
)

// check is a read of a member list that is wanted or under way.
type check struct {
	want int64 // membership version that the list must not be older than
}

type join struct {
	stream *Stream
	chatID string
}

// joinState lets one look at a stream's part in a chat follow another.
type joinState struct {
	running bool
	again   bool
}

type watermark struct {
	user   string
	chatID string
}

// markState is a delivered watermark that was written lately or is to be.
type markState struct {
	sequence int64
	written  int64
}

// retryAfter is the pause after a read that failed.
const retryAfter = 100 * time.Millisecond

// workQueue orders work by time, then by the order in which it was found.
type workQueue struct {
	items []item
	seq   uint64
}

type item struct {
	due  time.Time
	seq  uint64
	work Work
}

func (q *workQueue) Len() int { return len(q.items) }
func (q *workQueue) Less(i, j int) bool {
	a, b := &q.items[i], &q.items[j]
	if !a.due.Equal(b.due) {
		return a.due.Before(b.due)
	}
	return a.seq < b.seq
}
func (q *workQueue) Swap(i, j int) { q.items[i], q.items[j] = q.items[j], q.items[i] }
func (q *workQueue) Push(x any)    { q.items = append(q.items, x.(item)) }
func (q *workQueue) Pop() any {
	last := len(q.items) - 1
	x := q.items[last]
	q.items[last] = item{}
	q.items = q.items[:last]
	return x
}

// schedule queues work. Callers hold mu.
func (h *Hub) schedule(due time.Time, w Work) {
	h.queue.seq++
	heap.Push(&h.queue, item{due: due, seq: h.queue.seq, work: w})
	h.signal()
}

// requestCheck asks for the member list of a chat, not older than a membership
// version, to attach streams that should be. Callers hold mu.
func (h *Hub) requestCheck(chatID string, version int64) {
	if c := h.checks[chatID]; c != nil {
		c.want = max(c.want, version)
		return
	}
	h.checks[chatID] = &check{want: version}
	h.schedule(h.cfg.Clock(), Work{kind: workCheck, chatID: chatID})
}

// requestJoin asks for a look at a stream's part in a chat. Callers hold mu.
func (h *Hub) requestJoin(s *Stream, chatID string) {
	if s.opening {
		s.late[chatID] = true
		return
	}
	key := join{s, chatID}
	if j := h.joins[key]; j != nil {
		j.again = j.again || j.running
		return
	}
	h.joins[key] = &joinState{}
	h.schedule(h.cfg.Clock(), Work{kind: workJoin, stream: s, chatID: chatID})
}

// joinUnattached asks for a look at each of a user's streams that is not attached
// to a chat, or not yet live in it: what it is about to find out may be older than
// the change that brings us here, and end the attachment. Callers hold mu.
func (h *Hub) joinUnattached(chatID, user string) {
	for _, s := range h.users[user] {
		if a := s.attached[chatID]; a == nil || !a.live {
			h.requestJoin(s, chatID)
		}
	}
}

// delivered notes that messages reached a device of a user.
func (h *Hub) delivered(user string, sequences map[string]int64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for chatID, seq := range sequences {
		key := watermark{user, chatID}
		m := h.marks[key]
		if m == nil {
			m = &markState{}
			h.marks[key] = m
			h.schedule(now, Work{kind: workMark, user: user, chatID: chatID})
		}
		m.sequence = max(m.sequence, seq)
	}
}

// Work returns the next piece of work that is due. Without any, ok is false and
// wait says how long there will be none, unless something new comes up; zero
// means for good.
func (h *Hub) Work(now time.Time) (w Work, wait time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queue.items) == 0 {
		return Work{}, 0, false
	}
	if d := h.queue.items[0].due.Sub(now); d > 0 {
		return Work{}, d, false
	}
	return heap.Pop(&h.queue).(item).work, 0, true
}

// Do performs a piece of work: it reads, and applies what it read. What failed is
// tried again later.
func (h *Hub) Do(ctx context.Context, w Work) error {
	switch w.kind {
	case workFetch:
		return h.doFetch(ctx, w)
	case workCheck:
		return h.doCheck(ctx, w)
	case workJoin:
		return h.doJoin(ctx, w)
	case workMark:
		return h.doMark(ctx, w)
	}
	return nil
}

// doFetch reads the events that a chat misses.
func (h *Hub) doFetch(ctx context.Context, w Work) error {
	cs := w.chat
	h.mu.Lock()
	if h.chats[cs.id] != cs || cs.wanted <= cs.version { // gone, or the hole has closed
		cs.fetchDue = false
		h.mu.Unlock()
		return nil
	}
	after, wanted := cs.version, cs.wanted
	h.stats.HoleReads++
	h.mu.Unlock()

	events, err := h.cfg.Source.Events(ctx, cs.id, after, pageSize)
	if err == nil {
		err = h.cfg.Durable(ctx)
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.schedule(h.cfg.Clock().Add(retryAfter), w)
		return err
	}
	if h.chats[cs.id] != cs { // forgotten meanwhile: what was read belongs to nobody
		cs.fetchDue = false
		return nil
	}
	more := len(events) == pageSize
	if !more && cs.wanted == wanted {
		// A consistent read shows all that is committed, and nothing is delivered
		// before it is: there is no more than this and what has come by itself.
		cs.wanted = cs.version
		for v := range cs.buffer {
			cs.wanted = max(cs.wanted, v)
		}
	}
	for _, e := range events {
		cs.take(e)
	}
	cs.fetchDue = more // the next page is read at once
	h.advance(cs)
	if more {
		h.schedule(h.cfg.Clock(), w)
	}
	return nil
}

// take puts a change that was read into the buffer, whatever its bound. It counts as
// wanted: a chat with changes to walk must not be forgotten.
func (cs *chatState) take(e event.Event) {
	if v := e.GetMetadata().GetVersion(); v > cs.version && cs.buffer[v] == nil {
		if cs.buffer == nil {
			cs.buffer = map[int64]*change{}
		}
		cs.buffer[v] = newChange(e)
		cs.wanted = max(cs.wanted, v)
	}
}

// doCheck reads a member list and looks at the members' streams that are not
// attached.
func (h *Hub) doCheck(ctx context.Context, w Work) error {
	h.mu.Lock()
	c := h.checks[w.chatID]
	want := c.want
	h.stats.Checks++
	h.mu.Unlock()

	version, users, err := h.cfg.Source.MemberIDs(ctx, w.chatID)

	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil || version < want {
		h.schedule(h.cfg.Clock().Add(retryAfter), w)
		return err
	}
	for _, u := range users {
		h.joinUnattached(w.chatID, u)
	}
	h.setChecked(w.chatID, version)
	if c.want > version {
		h.schedule(h.cfg.Clock(), w)
		return nil
	}
	delete(h.checks, w.chatID)
	return nil
}

func (h *Hub) doJoin(ctx context.Context, w Work) error {
	key := join{w.stream, w.chatID}
	h.mu.Lock()
	j := h.joins[key]
	if h.streams[w.stream.id] != w.stream {
		delete(h.joins, key)
		h.mu.Unlock()
		return nil
	}
	j.running, j.again = true, false
	h.mu.Unlock()

	err := w.stream.look(ctx, []string{w.chatID})

	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil:
		// What look attached before it failed would stay silent.
		if a := w.stream.attached[w.chatID]; a != nil && !a.live {
			h.detach(a)
		}
		h.schedule(h.cfg.Clock().Add(retryAfter), w)
	case j.again:
		h.schedule(h.cfg.Clock(), w)
	default:
		delete(h.joins, key)
	}
	j.running = false
	return err
}

func (h *Hub) doMark(ctx context.Context, w Work) error {
	key := watermark{w.user, w.chatID}
	h.mu.Lock()
	m := h.marks[key]
	if m.sequence <= m.written {
		delete(h.marks, key)
		h.mu.Unlock()
		return nil
	}
	seq := m.sequence
	h.mu.Unlock()

	err := h.cfg.Delivered(ctx, w.user, w.chatID, seq)

	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		m.written = seq
	}
	h.schedule(h.cfg.Clock().Add(h.cfg.WatermarkEvery), w)
	return err
}
