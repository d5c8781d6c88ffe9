package view

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"sort"
	"strings"
	"sync/atomic"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// A cursor is the position of an iteration over a user's chats in pages, the latest
// first, while the chats keep changing. Usually all pages come from the list that the
// first one loaded: then nothing moves, and the next Sync, whose token's time is before
// that load, sends what changes meanwhile.
//
// A page that does not find that list, or is requested from another process, loads
// another and continues from the position in its token. There a chat that changed has
// moved to the front, past the pages that were sent already. Such a chat has a stamp
// not older than the start of the iteration less Overlap. The iteration then has a
// second pass: if the set of these recent chats is not the one that was sent, all of
// them follow, in order of their ids, which do not move. So no chat is lost, and a chat
// is repeated only if it is recent and any recent chat moved.
type cursor struct {
	start int64 // unix ms, taken before the first read of the first page
	// setbacks is how often stamps had gone back then, or when start was lowered.
	setbacks int64
	full     bool   // all chats; else those that changed since the caller's token
	first    bool   // no page was sent yet
	second   bool   // in the second pass
	moved    bool   // pages came from more than one list
	list     uint64 // that the last page came from
	stamp    int64  // position: of the last entry sent
	chatID   string
	sent     digest // of the recent entries sent
}

// newCursor begins an iteration over all chats.
func newCursor(start Start) cursor {
	return cursor{start: start.At.UnixMilli(), setbacks: start.Setbacks, full: true, first: true}
}

// entry is one chat of an iteration.
type entry struct {
	stamp  int64 // unix ms: what the iteration is ordered by
	chatID string
	chat   *listed         // nil for a chat that was left
	left   *table.UserChat // nil for the others
}

// compareRecent orders entries: the latest first, then by chat id, downwards.
func compareRecent(a, b entry) int {
	if c := cmp.Compare(b.stamp, a.stamp); c != 0 {
		return c
	}
	return strings.Compare(b.chatID, a.chatID)
}

func compareID(a, b entry) int { return strings.Compare(a.chatID, b.chatID) }

// digest stands for a set of entries.
type digest struct {
	count uint32
	sum   uint64
}

func (d *digest) add(e entry) {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(e.chatID) {
		h = (h ^ uint64(e.chatID[i])) * 1099511628211
	}
	for shift := 0; shift < 64; shift += 8 {
		h = (h ^ uint64(e.stamp)>>shift&0xff) * 1099511628211
	}
	d.count++
	d.sum += h
}

// sorting is what an iteration is ordered by.
type sorting int

const (
	byChange  sorting = iota // of the chat or the user's row
	byMessage                // the last one
)

func (s sorting) stamp(c *listed) int64 {
	if s == byMessage {
		return c.head.LastMoved()
	}
	return max(c.changedAt, c.head.ChangedAt)
}

// order is the chats of a list, sorted when first asked for; twice, if two ask at
// once.
type order struct{ sorted atomic.Pointer[[]sortKey] }

type sortKey struct {
	stamp int64
	chat  int32 // index
}

func (l *list) order(s sorting) []sortKey {
	if sorted := l.sorted[s].sorted.Load(); sorted != nil {
		return *sorted
	}
	sorted := make([]sortKey, len(l.chats))
	for i := range l.chats {
		sorted[i] = sortKey{stamp: s.stamp(&l.chats[i]), chat: int32(i)}
	}
	slices.SortFunc(sorted, func(a, b sortKey) int { // the chats are in order of their ids
		if c := cmp.Compare(b.stamp, a.stamp); c != 0 {
			return c
		}
		return cmp.Compare(b.chat, a.chat)
	})
	l.sorted[s].sorted.Store(&sorted)
	return sorted
}

// pager is how one request continues an iteration.
type pager struct {
	cursor
	user     string
	sort     sorting
	since    int64              // unix ms; of an iteration that is not full
	filter   func(*listed) bool // which chats are requested; nil: all
	withLeft bool               // chats that were left are listed, too
	size     int                // entries of a page
	from     *list              // what this page is made of
}

func (p *pager) entry(l *list, i int32) entry {
	c := &l.chats[i]
	return entry{stamp: p.sort.stamp(c), chatID: c.head.ChatID, chat: c}
}

func (p *pager) matches(e entry) bool { return e.chat == nil || p.filter == nil || p.filter(e.chat) }

// behind reports whether an entry comes after the position.
func (p *pager) behind(e entry) bool {
	return p.first || compareRecent(e, entry{stamp: p.stamp, chatID: p.chatID}) > 0
}

// recent is the stamp from which on a chat may have moved since the iteration began.
func (p *pager) recent() int64 { return p.start - Overlap.Milliseconds() }

// page returns the next entries, and whether there are more.
func (r *Reader) page(ctx context.Context, p *pager) ([]entry, bool, error) {
	if p.from = r.cachedList(p.user, p.list); p.from == nil {
		var err error
		if p.from, err = r.list(ctx, p.user); err != nil {
			return nil, false, err
		}
		p.moved, p.list = !p.first, p.from.id
	}
	if p.second {
		return r.secondPass(ctx, p)
	}
	rest := p.chats()
	if p.withLeft {
		left, err := r.leftOf(ctx, p)
		if err != nil {
			return nil, false, err
		}
		if len(left) > 0 {
			rest = append(rest, left...)
			slices.SortFunc(rest, compareRecent)
		}
	}
	more := len(rest) > p.size
	if more {
		rest = rest[:p.size]
	}
	for _, e := range rest {
		if e.stamp >= p.recent() {
			p.sent.add(e)
		}
	}
	if more {
		p.first, p.stamp, p.chatID = false, rest[p.size-1].stamp, rest[p.size-1].chatID
		return rest, true, nil
	}
	if p.first || !p.moved { // one list holds all: nothing moved
		return rest, false, nil
	}
	now, err := r.recentEntries(ctx, p)
	if err != nil {
		return nil, false, err
	}
	var sum digest
	for _, e := range now {
		sum.add(e)
	}
	p.second, p.chatID = sum != p.sent, ""
	return rest, p.second, nil
}

// secondPass returns a page of the recent chats.
func (r *Reader) secondPass(ctx context.Context, p *pager) ([]entry, bool, error) {
	all, err := r.recentEntries(ctx, p)
	if err != nil {
		return nil, false, err
	}
	all = slices.DeleteFunc(all, func(e entry) bool { return e.chatID <= p.chatID })
	slices.SortFunc(all, compareID)
	if len(all) <= p.size {
		return all, false, nil
	}
	all = all[:p.size]
	p.chatID = all[p.size-1].chatID
	return all, true, nil
}

// chats returns the chats after the position, in order, one more than a page holds
// if there are so many.
func (p *pager) chats() []entry {
	l := p.from
	var out []entry
	if !p.full && l.sorted[p.sort].sorted.Load() == nil {
		// Usually few have changed: sorting them is cheaper than sorting all.
		for i := range l.chats {
			if e := p.entry(l, int32(i)); e.stamp >= p.since && p.matches(e) && p.behind(e) {
				if out = append(out, e); len(out) > p.size {
					break
				}
			}
		}
		if len(out) <= p.size {
			slices.SortFunc(out, compareRecent)
			return out
		}
		out = out[:0]
	}
	sorted := l.order(p.sort)
	at := sort.Search(len(sorted), func(i int) bool { return p.behind(p.entry(l, sorted[i].chat)) })
	for _, pl := range sorted[at:] {
		if !p.full && pl.stamp < p.since {
			break
		}
		e := p.entry(l, pl.chat)
		if !p.matches(e) {
			continue
		}
		if out = append(out, e); len(out) > p.size {
			break
		}
	}
	return out
}

// leftOf returns the chats after the position that were left, at least one more than
// a page holds if there are so many. An iteration over all chats leaves out those that
// were left before it began.
func (r *Reader) leftOf(ctx context.Context, p *pager) ([]entry, error) {
	if p.full {
		if !p.first {
			return nil, nil
		}
		before, err := r.leftSince(ctx, p, p.recent(), store.Query{})
		for _, e := range before {
			p.sent.add(e)
		}
		return nil, err
	}
	q := store.Query{Limit: p.size + 1}
	if !p.first {
		q.To = table.LeftLogKey(p.user, p.stamp, p.chatID).SK
	}
	out, err := r.leftSince(ctx, p, p.since, q)
	return slices.DeleteFunc(out, func(e entry) bool { return !p.behind(e) }), err
}

// recentEntries returns all entries that may have moved since the iteration began.
func (r *Reader) recentEntries(ctx context.Context, p *pager) ([]entry, error) {
	l, since := p.from, p.recent()
	if !p.full {
		since = max(since, p.since)
	}
	var out []entry
	for i := range l.chats {
		if e := p.entry(l, int32(i)); e.stamp >= since && p.matches(e) {
			out = append(out, e)
		}
	}
	if !p.withLeft {
		return out, nil
	}
	left, err := r.leftSince(ctx, p, since, store.Query{})
	return append(out, left...), err
}

// leftSince returns chats that were left at a time or later and not joined again, the
// last left first. The query may have an upper bound, and a limit of the chats that
// are returned, which one or more may exceed.
func (r *Reader) leftSince(ctx context.Context, p *pager, since int64, q store.Query) ([]entry, error) {
	q.Table, q.PK, q.From, q.Descending = store.DeliveryState, table.LeftPartition(p.user), table.LeftLogBound(since), true
	if q.To == "" {
		q.To = table.FirstLeft
	}
	limit := q.Limit
	q.Limit = 0
	var out []entry
	add := func(row table.UserChat) {
		if c := p.from.find(row.ChatID); c == nil || c.joinedVersion < row.LeftVersion {
			out = append(out, entry{stamp: row.ChangedAt, chatID: row.ChatID, left: &row})
		}
	}
	err := r.query(ctx, q, func(row store.Row) error {
		add(table.LeftLogFrom(p.user, row))
		if limit > 0 && len(out) > limit {
			return errStop
		}
		return nil
	})
	for _, row := range p.from.left {
		if row.ChangedAt >= since {
			add(row)
		}
	}
	return out, err
}

// Flags of an encoded cursor.
const (
	flagFull   = 1
	flagSecond = 2
	flagMoved  = 4
)

const cursorBytes = 1 + 8 + 4 + 8 + 8 + 4 + 8

func (w cursor) encode() []byte {
	var flags byte
	for flag, on := range map[byte]bool{flagFull: w.full, flagSecond: w.second, flagMoved: w.moved} {
		if on {
			flags |= flag
		}
	}
	b := make([]byte, 0, cursorBytes+len(w.chatID))
	b = append(b, flags)
	b = binary.BigEndian.AppendUint64(b, uint64(w.start))
	b = binary.BigEndian.AppendUint32(b, uint32(w.setbacks))
	b = binary.BigEndian.AppendUint64(b, w.list)
	b = binary.BigEndian.AppendUint64(b, uint64(w.stamp))
	b = binary.BigEndian.AppendUint32(b, w.sent.count)
	b = binary.BigEndian.AppendUint64(b, w.sent.sum)
	return append(b, w.chatID...)
}

func decodeCursor(b []byte) (cursor, error) {
	if len(b) < cursorBytes {
		return cursor{}, ErrInvalidPageToken
	}
	return cursor{
		full:     b[0]&flagFull != 0,
		second:   b[0]&flagSecond != 0,
		moved:    b[0]&flagMoved != 0,
		start:    int64(binary.BigEndian.Uint64(b[1:])),
		setbacks: int64(binary.BigEndian.Uint32(b[9:])),
		list:     binary.BigEndian.Uint64(b[13:]),
		stamp:    int64(binary.BigEndian.Uint64(b[21:])),
		sent:     digest{count: binary.BigEndian.Uint32(b[29:]), sum: binary.BigEndian.Uint64(b[33:])},
		chatID:   string(b[cursorBytes:]),
	}, nil
}

// pageSize is the size that a request asks for: 0 means the default.
func pageSize(wanted, fallback, limit int) int {
	if wanted <= 0 {
		return fallback
	}
	return min(wanted, limit)
}
