package delivery

import (
	"context"
	"slices"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// pageSize is the number of chats, or of changes, that one step of an opening
// reads at a time.
const pageSize = 100

// opening is the way of a stream from hello to live:
//
//  1. read the user's rows;
//  2. attach the stream to every chat: from now on the hub notes what comes, so
//     nothing that is committed after the reads that follow can be missed;
//  3. for chats that the client knows, replay the events between its version and
//     the head; for others that changed, send the head with the user's row read
//     last; each chat goes live at the head that was read for it;
//  4. send the user's own state in the known chats where it changed, which no
//     event tells of; or, where the stream lists all chats, their heads too;
//  5. look at chats that the user joined meanwhile;
//  6. send the token, whose time was taken before the first read.
type opening struct {
	full    bool
	since   time.Time // changes before are known to the client
	known   map[string]int64
	order   []string // of known, as the client gave them
	start   view.Start
	rows    []ownRow         // chats that the client did not name, still to be done
	mine    []string         // chats that it did, still to be done
	touched []table.UserChat // those of mine that are to be shown beside their events
	phase   phase
	replay  *frame.Replay
}

// ownRow is what an opening keeps of a user's row: there may be very many.
type ownRow struct {
	chatID    string
	floor     int64
	changedAt int64
}

func ownRowOf(r *table.UserChat) ownRow {
	return ownRow{chatID: r.ChatID, floor: r.Floor(), changedAt: r.ChangedAt}
}

type phase uint8

const (
	phaseRows phase = iota
	phaseKnown
	phaseChats
	phaseStates
	phaseLate
	phaseDone
)

func newOpening(p OpenParams, tok view.Token) opening {
	o := opening{full: tok.Full, since: tok.At, known: map[string]int64{}}
	if p.Token != "" && tok.Full {
		return o // of another generation or too old: its versions say nothing
	}
	for _, k := range p.Known {
		if _, ok := o.known[k.GetChatId()]; !ok {
			o.order = append(o.order, k.GetChatId())
		}
		o.known[k.GetChatId()] = k.GetVersion()
	}
	return o
}

// Step does the next part of the stream's opening: a few reads, then frames in
// the queue. It is called until done; the caller may take frames in between, and
// must, if the queue is not to overflow. After an error the stream is of no use.
func (s *Stream) Step(ctx context.Context) (done bool, err error) {
	o := &s.plan
	switch o.phase {
	case phaseRows:
		err = s.stepRows(ctx)
	case phaseKnown:
		err = s.stepKnown(ctx)
	case phaseChats:
		err = s.stepChats(ctx)
	case phaseStates:
		err = s.stepStates(ctx)
	case phaseLate:
		err = s.stepLate(ctx)
	}
	return o.phase == phaseDone, err
}

func (s *Stream) stepRows(ctx context.Context) error {
	o, h := &s.plan, s.hub
	var err error
	if o.start, err = h.cfg.Source.Begin(ctx); err != nil {
		return err
	}
	rows, err := h.cfg.Source.UserChats(ctx, s.user)
	if err != nil {
		return err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return err
	}
	mine := make(map[string]*table.UserChat, len(o.known))
	chats := make([]string, 0, len(rows))
	for i := range rows {
		r := &rows[i]
		_, known := o.known[r.ChatID]
		if known {
			mine[r.ChatID] = r
		}
		if r.Left() {
			continue
		}
		chats = append(chats, r.ChatID)
		if !known {
			o.rows = append(o.rows, ownRowOf(r))
		}
	}
	h.attachAll(s, chats)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range rows {
		r := &rows[i]
		_, known := o.known[r.ChatID]
		if r.Left() && (known || (!o.full && r.ChangedAt >= o.since.UnixMilli())) {
			h.left(s, r.ChatID, r.LeftVersion)
		}
	}
	for _, id := range o.order {
		r, ok := mine[id]
		switch {
		case !ok: // not a chat of the user, or none at all: the same answer
			h.left(s, id, 0)
		case !r.Left():
			o.mine = append(o.mine, r.ChatID)
			if o.full || r.ChangedAt >= o.since.UnixMilli() {
				o.touched = append(o.touched, table.UserChat{UserID: s.user, ChatID: r.ChatID})
			}
		}
	}
	h.dropDead([]*Stream{s})
	o.phase = phaseKnown
	return nil
}

// stepKnown replays a part of one known chat.
func (s *Stream) stepKnown(ctx context.Context) error {
	o := &s.plan
	if o.replay == nil {
		if len(o.mine) == 0 {
			o.phase = phaseChats
			return nil
		}
		id := o.mine[0]
		o.mine = o.mine[1:]
		r, err := s.beginReplay(ctx, id, o.known[id])
		if err != nil || r == nil {
			return err
		}
		o.replay = r
	}
	done, err := s.stepReplay(ctx, o.replay)
	if done {
		o.replay = nil
	}
	return err
}

// stepChats looks at the next chats that the client did not name.
func (s *Stream) stepChats(ctx context.Context) error {
	o := &s.plan
	if len(o.rows) == 0 {
		o.phase = phaseStates
		return nil
	}
	n := min(pageSize, len(o.rows))
	rows := o.rows[:n]
	o.rows = o.rows[n:]
	return s.refresh(ctx, rows, func(h *table.Head, r ownRow) bool {
		return o.full || max(h.ChangedAt, r.changedAt) >= o.since.UnixMilli()
	})
}

// stepStates sends the user's own state in known chats where it changed, and in
// a full list the chats themselves. There are at most as many as a request may
// name.
func (s *Stream) stepStates(ctx context.Context) error {
	o := &s.plan
	o.phase = phaseLate
	if len(o.touched) == 0 {
		return nil
	}
	return s.showStates(ctx, o.touched, o.full)
}

// stepLate looks at chats that the user joined while the stream was opening, and
// ends the opening.
func (s *Stream) stepLate(ctx context.Context) error {
	h, o := s.hub, &s.plan
	h.mu.Lock()
	var ids []string
	for id := range s.late {
		if ids = append(ids, id); len(ids) == pageSize {
			break
		}
	}
	if len(ids) == 0 {
		defer h.mu.Unlock()
		s.opening, s.synced = false, o.start.At
		s.token = h.cfg.Source.NewToken(s.user, o.start)
		h.push(s, frame.Heartbeat(s.token))
		h.dropDead([]*Stream{s})
		if s.dirty {
			h.beginResync(s, h.cfg.Clock().Add(h.spread(s)))
		}
		*o = opening{full: o.full, phase: phaseDone} // the rest is of no use any more
		return nil
	}
	for _, id := range ids {
		delete(s.late, id)
	}
	h.mu.Unlock()
	slices.Sort(ids) // the same order in every run
	return s.look(ctx, ids, 0)
}

// look finds out what a stream's user has to do with chats that the stream is
// not attached to: it attaches the stream and sends the head, or says that the
// user has left. version is one that all of them had before; 0 where none is known.
func (s *Stream) look(ctx context.Context, ids []string, version int64) error {
	h := s.hub
	rows, err := h.cfg.Source.UserChatsOf(ctx, s.user, ids)
	if err != nil {
		return err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return err
	}
	var members []ownRow
	h.mu.Lock()
	for _, r := range rows {
		switch {
		case r == nil || s.attached.Of(r.ChatID) != nil:
		case r.Left():
			h.left(s, r.ChatID, r.LeftVersion)
			s.departed.Confirm(r.ChatID, version)
		case h.streams[s.id] == s:
			h.attach(s, r.ChatID)
			members = append(members, ownRowOf(r))
		}
	}
	h.dropDead([]*Stream{s})
	h.mu.Unlock()
	if len(members) == 0 {
		return nil
	}
	return s.refresh(ctx, members, func(*table.Head, ownRow) bool { return true })
}

// refresh takes chats live that the stream was attached to before: those that
// changed with a head frame, read with the user's row last, the others as they
// are.
func (s *Stream) refresh(ctx context.Context, rows []ownRow, changed func(*table.Head, ownRow) bool) error {
	h := s.hub
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = r.chatID
	}
	heads, err := h.cfg.Source.Heads(ctx, ids)
	if err != nil {
		return err
	}
	var show []table.UserChat
	for i, r := range rows {
		if heads[i] != nil && changed(heads[i], r) {
			show = append(show, table.UserChat{UserID: s.user, ChatID: r.chatID})
		}
	}
	seen := map[string]*chatv1.ChatOverview{}
	now := map[string]*table.UserChat{}
	if len(show) > 0 {
		list, err := h.cfg.Source.Overviews(ctx, s.user, show)
		if err != nil {
			return err
		}
		for _, ov := range list {
			seen[ov.GetChat().GetChatId()] = ov
		}
		// Once more for where the rows stand now: the floor of a membership that
		// began anew, and the version of one that ended.
		shown := make([]string, len(show))
		for i, r := range show {
			shown[i] = r.ChatID
		}
		last, err := h.cfg.Source.UserChatsOf(ctx, s.user, shown)
		if err != nil {
			return err
		}
		for i, r := range last {
			now[shown[i]] = r
		}
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, r := range rows {
		a := s.attached.Of(r.chatID)
		if a == nil || a.live {
			continue
		}
		ov := seen[r.chatID]
		row, read := now[r.chatID]
		switch {
		case heads[i] == nil:
			h.detach(a)
		case !read:
			h.goLive(a, heads[i].Version, r.floor)
		case row == nil || row.Left():
			version := a.gone
			if row != nil {
				version = row.LeftVersion
			}
			h.left(s, r.chatID, version)
			h.detach(a)
		case ov == nil:
			// Not a member when the overview was read, and one again since: the
			// addition will come, or has been noted; look again.
			h.detach(a)
			h.requestJoin(s, r.chatID, 0)
		default:
			head := ov.GetHead()
			if a.gone <= head.GetVersion() {
				h.push(s, frame.Head(r.chatID, head.GetVersion(), head.GetSequence(), ov))
			}
			h.goLive(a, head.GetVersion(), row.Floor())
		}
	}
	h.dropDead([]*Stream{s})
	return nil
}

// beginReplay returns nil if there is nothing to replay.
func (s *Stream) beginReplay(ctx context.Context, chatID string, version int64) (*frame.Replay, error) {
	h := s.hub
	heads, err := h.cfg.Source.Heads(ctx, []string{chatID})
	if err != nil {
		return nil, err
	}
	rows, err := h.cfg.Source.UserChatsOf(ctx, s.user, []string{chatID})
	if err != nil {
		return nil, err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	a := s.attached.Of(chatID)
	if a == nil {
		return nil, nil // removed meanwhile, and told so
	}
	head, row := heads[0], rows[0]
	switch {
	case head == nil || row == nil || row.Left():
		left := a.gone
		if row != nil {
			left = row.LeftVersion
		}
		h.left(s, chatID, left)
		h.detach(a)
		return nil, nil
	case version > head.Version || head.Version-version > int64(h.cfg.MaxReplay):
		h.push(s, frame.Reset(chatID, head.Version))
		h.goLive(a, head.Version, row.Floor())
		return nil, nil
	case version == head.Version:
		h.goLive(a, version, row.Floor())
		return nil, nil
	}
	return &frame.Replay{ChatID: chatID, User: s.user, From: version, After: version, To: head.Version, Floor: row.Floor()}, nil
}

func (s *Stream) stepReplay(ctx context.Context, r *frame.Replay) (done bool, err error) {
	h := s.hub
	events, err := h.cfg.Source.Events(ctx, r.ChatID, r.From, int(min(pageSize, r.To-r.From)))
	if err != nil {
		return false, err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return false, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	a := s.attached.Of(r.ChatID)
	if a == nil {
		return true, nil
	}
	for _, e := range events {
		if f := r.Next(e); f != nil {
			h.push(s, f)
		}
	}
	if r.From < r.To && len(events) > 0 {
		h.dropDead([]*Stream{s})
		return false, nil
	}
	if r.After < r.To {
		// The last changes are hidden: the client learns the version by asking.
		h.push(s, frame.Head(r.ChatID, r.To, 0, nil))
	}
	h.goLive(a, r.To, r.Floor)
	h.dropDead([]*Stream{s})
	return true, nil
}
