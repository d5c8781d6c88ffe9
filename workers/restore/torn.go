package restore

import (
	"context"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// maxNamed bounds the chats that are named.
const maxNamed = 100

// atOnce is how many heads are compared with one read: each takes four keys.
const atOnce = store.MaxBatchGet / 4

// findTorn compares the head of each chat with the newest event and message. A copy of a table is
// made by itself: a plan that was carried out just then may be in some of the copies only. It returns
// the time of the newest change.
func findTorn(ctx context.Context, cfg Config, say func(string, ...any)) (newest time.Time, err error) {
	found, chats, changed := 0, 0, int64(0)
	heads := make([]table.Head, 0, atOnce)
	compare := func() error {
		torn, err := tornOf(ctx, cfg.Store, heads)
		for _, line := range torn {
			if found++; found <= maxNamed {
				say("%s", line)
			}
		}
		chats, heads = chats+len(heads), heads[:0]
		return err
	}
	for row, err := range store.ScanAll(ctx, cfg.Store, store.Scan{Table: store.ChatCounters, Segments: 1}) {
		if err != nil {
			return newest, fmt.Errorf("heads of chats: %w", err)
		}
		head := table.HeadFrom(row.Key.PK, row.Item)
		changed = max(changed, head.ChangedAt)
		if heads = append(heads, head); len(heads) == atOnce {
			if err := compare(); err != nil {
				return newest, err
			}
		}
	}
	if err := compare(); err != nil {
		return newest, err
	}
	say("%d chats, %d of them torn", chats, found)
	if found > 0 && !cfg.AcceptTorn {
		return newest, fmt.Errorf("%w: %d; restore all tables to another second, or use --accept-torn: their newest change is incomplete",
			ErrTorn, found)
	}
	return time.UnixMilli(changed), nil
}

// tornOf says of which chats the newest event or message is missing, or newer than the head.
func tornOf(ctx context.Context, s store.Store, heads []table.Head) (lines []string, err error) {
	if len(heads) == 0 {
		return nil, nil
	}
	var keys []store.Key
	for _, h := range heads {
		keys = append(keys, table.EventKey(h.ChatID, h.Version), table.EventKey(h.ChatID, h.Version+1),
			table.MessageKey(h.ChatID, max(h.Sequence, 1)), table.MessageKey(h.ChatID, h.Sequence+1))
		if h.Sequence == 0 { // no item twice
			keys[len(keys)-1] = table.MessageKey(h.ChatID, 2)
		}
	}
	items, err := s.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return nil, fmt.Errorf("newest changes of chats: %w", err)
	}
	for i, h := range heads {
		event, later, message, next := items[4*i], items[4*i+1], items[4*i+2], items[4*i+3]
		if h.Sequence == 0 {
			message, next = store.Item{}, message
		}
		switch {
		case event == nil:
			lines = append(lines, fmt.Sprintf("%s: event %d is missing", h.ChatID, h.Version))
		case message == nil:
			lines = append(lines, fmt.Sprintf("%s: message %d is missing", h.ChatID, h.Sequence))
		case later != nil:
			lines = append(lines, fmt.Sprintf("%s: event %d is there, and the head is at %d", h.ChatID, h.Version+1, h.Version))
		case next != nil:
			lines = append(lines,
				fmt.Sprintf("%s: message %d is there, and the head is at %d", h.ChatID, h.Sequence+1, h.Sequence))
		}
	}
	return lines, nil
}
