package delivery

import (
	"context"
	"slices"

	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// pageSize is the number of chats, or of changes, that one step of a catch-up reads
// at a time.
const pageSize = 100

// catchUp is what a stream does from hello until it has everything that its client
// missed:
//
//  1. read the user's rows;
//  2. subscribe the stream to every chat: from now on the hub keeps what comes, so
//     nothing that is committed after the reads that follow can be missed;
//  3. for chats that the client knows, replay the events between its version and
//     the head; for others that changed, send the head with the user's row read
//     last; each subscription is activated at the head that was read for it;
//  4. send the user's own state in the known chats where it changed, which no
//     event shows; or, where the stream lists all chats, their heads too;
//  5. reconcile with chats that the user joined meanwhile;
//  6. send the token, whose time was taken before the first read.
type catchUp struct {
	catchUpPlan
	phase  phase
	start  view.Start
	replay *frame.Replay // of the chat that was last removed from Named
}

type phase uint8

const (
	phaseRows phase = iota
	phaseNamed
	phaseUnnamed
	phaseStates
	phasePending
	phaseDone
)

// Step does the next part of the stream's catch-up: a few reads, then frames in
// the queue. It is called until done; the caller may take frames in between, and
// must, if the queue is not to overflow. After an error the stream is of no use.
func (s *Stream) Step(ctx context.Context) (done bool, err error) {
	switch s.catchUp.phase {
	case phaseRows:
		err = s.stepRows(ctx)
	case phaseNamed:
		err = s.stepNamed(ctx)
	case phaseUnnamed:
		err = s.stepUnnamed(ctx)
	case phaseStates:
		err = s.stepStates(ctx)
	case phasePending:
		err = s.stepPending(ctx)
	}
	return s.catchUp.phase == phaseDone, err
}

// stepRows reads the user's rows and subscribes the stream to the user's chats.
func (s *Stream) stepRows(ctx context.Context) (err error) {
	c, h := &s.catchUp, s.hub
	if c.start, err = h.cfg.Source.Begin(ctx); err != nil {
		return err
	}
	rows, err := h.cfg.Source.UserChats(ctx, s.owner.UserID)
	if err != nil {
		return err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return err
	}
	chats, left := c.Divide(rows)
	h.subscribeAll(s, chats)
	h.mu.Lock()
	defer h.unlock()
	for _, d := range left {
		h.sendLeft(s, d.ChatID, d.Version)
	}
	h.endOverflowed([]*Stream{s})
	c.phase = phaseNamed
	return nil
}

// stepNamed replays a part of one chat that the client named.
func (s *Stream) stepNamed(ctx context.Context) error {
	c := &s.catchUp
	if c.replay == nil {
		if len(c.Named) == 0 {
			c.phase = phaseUnnamed
			return nil
		}
		id := c.Named[0]
		c.Named = c.Named[1:]
		r, err := s.beginReplay(ctx, id, c.Known(id))
		if err != nil || r == nil {
			return err
		}
		c.replay = r
	}
	done, err := s.replayPage(ctx, c.replay)
	if done {
		c.replay = nil
	}
	return err
}

// stepUnnamed activates the next chats that the client did not name.
func (s *Stream) stepUnnamed(ctx context.Context) error {
	c := &s.catchUp
	if len(c.Unnamed) == 0 {
		c.phase = phaseStates
		return nil
	}
	n := min(pageSize, len(c.Unnamed))
	rows := c.Unnamed[:n]
	c.Unnamed = c.Unnamed[n:]
	return s.activateChats(ctx, rows, func(h *table.Head, r catchUpRow) bool {
		return c.Changed(max(h.ChangedAt, r.ChangedAt))
	})
}

// stepStates sends the user's own state in known chats where it changed, and in
// a full list the chats themselves. There are at most as many as a request may
// name.
func (s *Stream) stepStates(ctx context.Context) error {
	c := &s.catchUp
	c.phase = phasePending
	if len(c.Touched) == 0 {
		return nil
	}
	return s.sendStates(ctx, c.Touched, c.Full)
}

// stepPending reconciles the stream with chats that the user joined meanwhile, and ends
// the catch-up.
func (s *Stream) stepPending(ctx context.Context) error {
	h := s.hub
	h.mu.Lock()
	var ids []string
	for id := range s.pendingChats {
		if ids = append(ids, id); len(ids) == pageSize {
			break
		}
	}
	if len(ids) == 0 {
		defer h.unlock()
		h.endCatchUp(s)
		return nil
	}
	for _, id := range ids {
		delete(s.pendingChats, id)
	}
	h.unlock()
	slices.Sort(ids) // the same order in every run
	return s.reconcile(ctx, ids, 0)
}

// endCatchUp sends the token of a stream that has everything. Callers hold mu.
func (h *Hub) endCatchUp(s *Stream) {
	c := &s.catchUp
	s.catchingUp = false
	h.completeSync(s, c.start)
	if s.needsResync {
		h.beginResync(s, h.cfg.Clock().Add(h.spread(s)))
	}
	*c = catchUp{catchUpPlan: catchUpPlan{Full: c.Full}, phase: phaseDone} // the rest is of no use any more
}

// completeSync gives a stream the token of a synchronisation that began there and is
// complete. Callers hold mu.
func (h *Hub) completeSync(s *Stream, start view.Start) {
	s.synced = start.At
	s.token = h.cfg.Source.NewToken(s.owner.UserID, start)
	h.push(s, frame.Heartbeat(s.token))
	h.endOverflowed([]*Stream{s})
}

// beginReplay returns nil if there is nothing to replay.
func (s *Stream) beginReplay(ctx context.Context, chatID string, version int64) (*frame.Replay, error) {
	h := s.hub
	heads, err := h.cfg.Source.Heads(ctx, []string{chatID})
	if err != nil {
		return nil, err
	}
	rows, err := h.cfg.Source.UserChatsOf(ctx, s.owner.UserID, []string{chatID})
	if err != nil {
		return nil, err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.unlock()
	a := s.subscriptions.Of(chatID)
	if a == nil {
		return nil, nil // removed meanwhile, which the stream was sent
	}
	head, row := heads[0], rows[0]
	switch {
	case head == nil || row == nil || row.Left():
		left := a.removedAt
		if row != nil {
			left = row.LeftVersion
		}
		h.sendLeft(s, chatID, left)
		h.unsubscribe(a)
		return nil, nil
	case version > head.Version || head.Version-version > int64(h.cfg.MaxReplay):
		h.push(s, frame.Reset(chatID, head.Version))
		h.activate(a, head.Version, row.Floor())
		return nil, nil
	case version == head.Version:
		h.activate(a, version, row.Floor())
		return nil, nil
	}
	return &frame.Replay{ChatID: chatID, User: s.owner.UserID, From: version, After: version, To: head.Version,
		MinVisible: row.Floor()}, nil
}

// replayPage sends the next events of a replay, and activates the chat after the last.
func (s *Stream) replayPage(ctx context.Context, r *frame.Replay) (done bool, err error) {
	h := s.hub
	events, err := h.cfg.Source.Events(ctx, r.ChatID, r.From, int(min(pageSize, r.To-r.From)))
	if err != nil {
		return false, err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return false, err
	}
	h.mu.Lock()
	defer h.unlock()
	a := s.subscriptions.Of(r.ChatID)
	if a == nil {
		return true, nil
	}
	for _, e := range events {
		if f := r.Next(e); f != nil {
			h.push(s, f)
		}
	}
	if r.From < r.To && len(events) > 0 {
		h.endOverflowed([]*Stream{s})
		return false, nil
	}
	if r.After < r.To {
		// The last changes are hidden: the client learns the version by asking.
		h.push(s, frame.Head(r.ChatID, r.To, 0, nil))
	}
	h.activate(a, r.To, r.MinVisible)
	h.endOverflowed([]*Stream{s})
	return true, nil
}
