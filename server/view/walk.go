package view

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/parley-chat/parley/server/store/table"
)

// A walk goes through a user's chats in pages, the last changed first, while the
// chats go on changing. A chat that changes moves to the front, so a chat not yet
// shown can move past the pages that were given out already. Such a chat has a
// stamp not older than the walk's start less Overlap. The walk therefore has a
// second part: if the set of these recent chats is not the one that was shown,
// all of them follow, in order of their ids, which do not move. So no chat is
// lost, and a chat is repeated only if it is recent and any recent chat moved.
type walk struct {
	start  int64 // unix ms, taken before the first read of the first page
	full   bool  // all chats; else those that changed since the caller's token
	first  bool  // no page was given out yet
	second bool  // in the second part
	stamp  int64 // position: of the last entry given out
	chatID string
	shown  digest // of the recent entries given out
}

// entry is one chat of a walk.
type entry struct {
	stamp int64 // unix ms: when the chat or the user's row changed last
	row   *table.UserChat
	head  *table.Head // nil for a chat that was left
}

// compareRecent orders entries: the last changed first, then by chat id.
func compareRecent(a, b entry) int {
	if c := cmp.Compare(b.stamp, a.stamp); c != 0 {
		return c
	}
	return strings.Compare(a.row.ChatID, b.row.ChatID)
}

func compareID(a, b entry) int { return strings.Compare(a.row.ChatID, b.row.ChatID) }

// digest stands for a set of entries.
type digest struct {
	count uint32
	sum   uint64
}

func (d *digest) add(e entry) {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(e.row.ChatID) {
		h = (h ^ uint64(e.row.ChatID[i])) * 1099511628211
	}
	for shift := 0; shift < 64; shift += 8 {
		h = (h ^ uint64(e.stamp)>>shift&0xff) * 1099511628211
	}
	d.count++
	d.sum += h
}

// entries reads the user's chats as they are now. Left chats have no head: their
// heads are not read.
func (r *Reader) entries(ctx context.Context, user string) ([]entry, error) {
	rows, err := r.UserChats(ctx, user)
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(rows))
	for i := range rows {
		if !rows[i].Left() {
			ids = append(ids, rows[i].ChatID)
		}
	}
	heads, err := r.Heads(ctx, ids)
	if err != nil {
		return nil, err
	}
	entries := make([]entry, 0, len(rows))
	for i := range rows {
		e := entry{stamp: rows[i].ChangedAt, row: &rows[i]}
		if !rows[i].Left() {
			if e.head, heads = heads[0], heads[1:]; e.head == nil {
				continue // its first plan is not visible as a whole yet
			}
			e.stamp = max(e.stamp, e.head.ChangedAt)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// page returns the next entries of a walk, at most size, and the walk after
// them, nil at its end. since is the time of the caller's token, unix ms.
func (r *Reader) page(ctx context.Context, user string, w walk, since int64, size int) ([]entry, *walk, error) {
	all, err := r.entries(ctx, user)
	if err != nil {
		return nil, nil, err
	}
	recent := w.start - Overlap.Milliseconds()
	if !w.full {
		all = slices.DeleteFunc(all, func(e entry) bool { return e.stamp < since })
	}
	if w.second {
		all = slices.DeleteFunc(all, func(e entry) bool { return e.stamp < recent || e.row.ChatID <= w.chatID })
		slices.SortFunc(all, compareID)
		if len(all) <= size {
			return all, nil, nil
		}
		all = all[:size]
		w.chatID = all[size-1].row.ChatID
		return all, &w, nil
	}
	var now digest
	var rest []entry
	for _, e := range all {
		if e.stamp >= recent {
			now.add(e)
		}
		switch {
		case w.full && e.head == nil:
			// A list of all chats leaves out those left before it began.
			if w.first && e.stamp >= recent {
				w.shown.add(e)
			}
		case w.first || compareRecent(e, entry{stamp: w.stamp, row: &table.UserChat{ChatID: w.chatID}}) > 0:
			rest = append(rest, e)
		}
	}
	slices.SortFunc(rest, compareRecent)
	more := len(rest) > size
	if more {
		rest = rest[:size]
	}
	for _, e := range rest {
		if e.stamp >= recent {
			w.shown.add(e)
		}
	}
	switch {
	case more:
		w.first, w.stamp, w.chatID = false, rest[size-1].stamp, rest[size-1].row.ChatID
		return rest, &w, nil
	case w.first || now == w.shown: // one page holds all, or nothing moved
		return rest, nil, nil
	}
	w.second, w.chatID = true, ""
	return rest, &w, nil
}

// Flags of an encoded walk.
const (
	flagFull   = 1
	flagSecond = 2
)

func (w walk) encode() []byte {
	var flags byte
	if w.full {
		flags |= flagFull
	}
	if w.second {
		flags |= flagSecond
	}
	b := make([]byte, 0, 29+len(w.chatID))
	b = append(b, flags)
	b = binary.BigEndian.AppendUint64(b, uint64(w.start))
	b = binary.BigEndian.AppendUint64(b, uint64(w.stamp))
	b = binary.BigEndian.AppendUint32(b, w.shown.count)
	b = binary.BigEndian.AppendUint64(b, w.shown.sum)
	return append(b, w.chatID...)
}

func decodeWalk(b []byte) (walk, error) {
	if len(b) < 29 {
		return walk{}, ErrInvalidPageToken
	}
	return walk{
		full:   b[0]&flagFull != 0,
		second: b[0]&flagSecond != 0,
		start:  int64(binary.BigEndian.Uint64(b[1:])),
		stamp:  int64(binary.BigEndian.Uint64(b[9:])),
		shown:  digest{count: binary.BigEndian.Uint32(b[17:]), sum: binary.BigEndian.Uint64(b[21:])},
		chatID: string(b[29:]),
	}, nil
}

// pageSize is the size that a request asks for: 0 means the default.
func pageSize(wanted, fallback, most int) int {
	if wanted <= 0 {
		return fallback
	}
	return min(wanted, most)
}
