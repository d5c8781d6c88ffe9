package delivery

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/delivery/watermark"
)

// Work is something that needs the store: missing events, a member list, or a
// stream's part in a chat. It is performed by Hub.Do.
type Work struct {
	kind   workKind
	chat   *chatState // workFetch
	chatID string     // workCheck, workJoin, workMark
	stream *Stream    // workJoin, workResync
	user   string     // workMark
}

type workKind uint8

const (
	workFetch workKind = iota + 1
	workCheck
	workJoin
	workMark
	workResync
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
	version int64 // that made it necessary
}

// retryAfter is the pause after a read that failed.
const retryAfter = 100 * time.Millisecond

// schedule queues work. Callers hold mu.
func (h *Hub) schedule(at time.Time, w Work) {
	h.queue.Push(at, w)
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

// requestJoin asks for a look at a stream's part in a chat, because of a version of
// it; 0 where none is known. Callers hold mu.
func (h *Hub) requestJoin(s *Stream, chatID string, version int64) {
	if s.opening {
		s.late[chatID] = true
		return
	}
	key := join{s, chatID}
	if j := h.joins[key]; j != nil {
		j.again = j.again || j.running
		j.version = max(j.version, version)
		return
	}
	h.joins[key] = &joinState{version: version}
	h.schedule(h.cfg.Clock(), Work{kind: workJoin, stream: s, chatID: chatID})
}

// joinUnattached asks for a look at each of a user's streams that is not attached
// to a chat, or not yet live in it: what it is about to find out may be older than
// the change that brings us here, and end the attachment. version is that of the
// change, or of one after it; 0 has every such stream looked at, else those that
// know already what it has done are left alone. Callers hold mu.
func (h *Hub) joinUnattached(chatID, user string, version int64) {
	for _, s := range h.users[user] {
		a := s.attached.Of(chatID)
		if (a == nil && (version == 0 || !h.knowsLeft(s, chatID, version))) || (a != nil && !a.live) {
			h.requestJoin(s, chatID, version)
		}
	}
}

// delivered notes that messages reached a device of a user.
func (h *Hub) delivered(user string, sequences map[string]int64, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for chatID, seq := range sequences {
		if h.marks.Raise(watermark.Key{User: user, Chat: chatID}, seq) {
			h.schedule(now, Work{kind: workMark, user: user, chatID: chatID})
		}
	}
}

// Work returns the next piece of work that is due. Without any, ok is false and
// wait says how long there will be none, unless something new comes up; zero
// means for good.
func (h *Hub) Work(now time.Time) (w Work, wait time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.queue.Pop(now)
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
	case workResync:
		return h.doResync(ctx, w)
	}
	return nil
}

// doFetch reads the events that a chat misses.
func (h *Hub) doFetch(ctx context.Context, w Work) error {
	cs := w.chat
	h.mu.Lock()
	if h.chats[cs.id] != cs || cs.Wanted <= cs.Version { // gone, or the hole has closed
		cs.fetchDue = false
		h.mu.Unlock()
		return nil
	}
	after, wanted := cs.Version, cs.Wanted
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
	if !more && cs.Wanted == wanted {
		// A consistent read shows all that is committed, and nothing is delivered
		// before it is: there is no more than this and what has come by itself.
		cs.Complete()
	}
	for _, e := range events {
		cs.Take(e)
	}
	cs.fetchDue = more // the next page is read at once
	h.advance(cs)
	if more {
		h.schedule(h.cfg.Clock(), w)
	}
	return nil
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
		h.joinUnattached(w.chatID, u, 0)
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
	version := j.version
	h.mu.Unlock()

	err := w.stream.look(ctx, []string{w.chatID}, version)

	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil:
		// What look attached before it failed would stay silent.
		if a := w.stream.attached.Of(w.chatID); a != nil && !a.live {
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
	key := watermark.Key{User: w.user, Chat: w.chatID}
	h.mu.Lock()
	seq, ok := h.marks.Next(key)
	h.mu.Unlock()
	if !ok {
		return nil
	}
	err := h.cfg.Delivered(ctx, w.user, w.chatID, seq)

	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.marks.Written(key, seq)
	}
	h.schedule(h.cfg.Clock().Add(h.cfg.WatermarkEvery), w)
	return err
}
