package delivery

import (
	"context"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/store/table"
)

// present is what reads found of some chats, by chat id.
type present struct {
	overviews map[string]*chatv1.ChatOverview
	rows      map[string]*table.UserChat // read after the overviews; nil: no row
}

// activateChats activates a stream's subscriptions: of chats that changed with a head
// frame, read with the user's row last, of the others as they are. changed is nil if
// all did.
func (s *Stream) activateChats(
	ctx context.Context, rows []catchUpRow, changed func(*table.Head, catchUpRow) bool,
) error {
	h := s.hub
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = r.ChatID
	}
	heads, err := h.cfg.Source.Heads(ctx, ids)
	if err != nil {
		return err
	}
	var show []string
	for i, r := range rows {
		if heads[i] != nil && (changed == nil || changed(heads[i], r)) {
			show = append(show, r.ChatID)
		}
	}
	found, err := s.readPresent(ctx, show)
	if err != nil {
		return err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.unlock()
	for i, r := range rows {
		if a := s.subscriptions.Of(r.ChatID); a != nil && !a.active {
			h.activateFound(a, r, heads[i], found)
		}
	}
	h.endOverflowed([]*Stream{s})
	return nil
}

// readPresent reads what the user may see of chats, and then the user's rows once more:
// they have the first visible version of a membership that began again, and the version
// of one that ended.
func (s *Stream) readPresent(ctx context.Context, ids []string) (found present, err error) {
	if len(ids) == 0 {
		return found, nil
	}
	list, err := s.hub.cfg.Source.Overviews(ctx, s.owner.UserID, ids)
	if err != nil {
		return found, err
	}
	found = present{overviews: map[string]*chatv1.ChatOverview{}, rows: map[string]*table.UserChat{}}
	for _, ov := range list {
		found.overviews[ov.GetChat().GetChatId()] = ov
	}
	last, err := s.hub.cfg.Source.UserChatsOf(ctx, s.owner.UserID, ids)
	if err != nil {
		return found, err
	}
	for i, r := range last {
		found.rows[ids[i]] = r
	}
	return found, nil
}

// activateFound activates a subscription by what was read of its chat, or ends it.
// Callers hold mu.
func (h *Hub) activateFound(a *subscription, r catchUpRow, head *table.Head, found present) {
	s := a.stream
	ov := found.overviews[r.ChatID]
	row, read := found.rows[r.ChatID]
	switch {
	case head == nil:
		h.unsubscribe(a)
	case !read:
		h.activate(a, head.Version, r.MinVisible)
	case row == nil || row.Left():
		version := a.removedAt
		if row != nil {
			version = row.LeftVersion
		}
		h.sendLeft(s, r.ChatID, version)
		h.unsubscribe(a)
	case ov == nil:
		// Not a member when the overview was read, and one again since: the addition
		// will come, or has come; read again.
		h.unsubscribe(a)
		h.requestReconcile(s, r.ChatID, 0)
	default:
		shown := ov.GetHead()
		if a.removedAt <= shown.GetVersion() {
			h.push(s, frame.Head(r.ChatID, shown.GetVersion(), shown.GetSequence(), ov))
		}
		h.activate(a, shown.GetVersion(), row.Floor())
	}
}

// sendStates sends the user's own state in chats, or the whole overviews, read with the
// user's rows last.
func (s *Stream) sendStates(ctx context.Context, ids []string, whole bool) error {
	h := s.hub
	list, err := h.cfg.Source.Overviews(ctx, s.owner.UserID, ids)
	if err != nil {
		return err
	}
	if err := h.cfg.Durable(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.unlock()
	for _, ov := range list {
		id, head := ov.GetChat().GetChatId(), ov.GetHead()
		switch {
		case s.subscriptions.Of(id) == nil:
		case whole:
			h.push(s, frame.Head(id, head.GetVersion(), head.GetSequence(), ov))
		default:
			h.push(s, frame.Receipt(id, ov.GetState()))
		}
	}
	h.endOverflowed([]*Stream{s})
	return nil
}
