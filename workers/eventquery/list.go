package eventquery

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
)

// pageRows bounds a page of the store, and the events that are judged at a time.
const pageRows = 500

// Options of a list.
type Options struct {
	Limit    int    // events wanted, at least 1
	MaxRead  int    // events read, matching or not, at least 1
	MaxBytes int    // sizes of the events; the event that exceeds it is the last
	After    string // Page.Next of a list with the same filter; empty: the beginning
	// Standing asks for the status of each event, also without a filter of statuses.
	Standing bool
}

// Found is an event of a list.
type Found struct {
	Event
	Standing outbox.Standing // zero unless it was asked for
}

// Page is a part of a list.
type Page struct {
	Events []Found
	Read   int    // events read
	Next   string // where the next page begins; empty: all was read
}

// List returns events that a filter selects, of a chat in order. A page may be short, or
// empty, and not be the last.
func List(ctx context.Context, st store.Store, f Filter, o Options) (Page, error) {
	if err := f.Validate(); err != nil {
		return Page{}, err
	}
	if o.Limit < 1 || o.MaxRead < 1 || o.MaxBytes < 1 {
		return Page{}, fmt.Errorf("%w: a list needs bounds", ErrInvalid)
	}
	l := &lister{store: st, filter: f, options: o}
	from, err := l.source(ctx)
	if err != nil {
		return Page{}, err
	}
	var batch []candidate
	atOnce := min(pageRows, 50+2*o.Limit) // little more than what is wanted is read in vain
	for c, err := range from {
		if err != nil {
			return Page{}, fmt.Errorf("read events: %w", err)
		}
		batch = append(batch, c)
		l.page.Read++
		if len(batch) < atOnce && l.page.Read < o.MaxRead {
			continue
		}
		if full, err := l.take(ctx, batch); full || err != nil {
			return l.page, err
		}
		if l.page.Read >= o.MaxRead {
			l.page.Next = c.at
			return l.page, nil
		}
		batch = batch[:0]
	}
	_, err = l.take(ctx, batch)
	return l.page, err
}

// Get returns an event of a chat with its status. The error is ErrNotFound if there is none.
func Get(ctx context.Context, st store.Store, chatID string, version int64) (Found, error) {
	key := table.EventKey(chatID, version)
	it, err := st.Get(ctx, key, store.Strong)
	switch {
	case err != nil:
		return Found{}, fmt.Errorf("read event: %w", err)
	case it == nil:
		return Found{}, fmt.Errorf("%w: %.80s has no version %d", ErrNotFound, chatID, version)
	}
	s, err := outbox.Standings(ctx, st, chatID, []int64{version})
	if err != nil {
		return Found{}, err
	}
	return Found{Read(store.Row{Key: key, Item: it}), s[0]}, nil
}

// candidate is an event that was read and may be selected.
type candidate struct {
	row store.Row
	at  string // the position behind it
	// announcer is the row of the outbox by which it was found; it may be found by several,
	// and counts once.
	announcer store.Key
}

type lister struct {
	store   store.Store
	filter  Filter
	options Options
	page    Page
	bytes   int
}

// take adds the selected events of a batch to the page, and reports whether it is full. The
// outbox is read here, after the events.
func (l *lister) take(ctx context.Context, batch []candidate) (full bool, err error) {
	events := make([]*Event, len(batch)) // nil: not selected
	selected := map[string][]int64{}     // versions by chat
	for i, c := range batch {
		if !l.filter.hasType(table.EventType(c.row)) { // most rows of a scan, which need not be read
			continue
		}
		if e := Read(c.row); l.filter.Matches(&e) {
			events[i] = &e
			selected[e.ChatID] = append(selected[e.ChatID], e.Version)
		}
	}
	standings, err := l.standings(ctx, selected)
	if err != nil {
		return false, err
	}
	for i, e := range events {
		if e == nil {
			continue
		}
		var s outbox.Standing
		if standings != nil {
			at, _ := slices.BinarySearch(selected[e.ChatID], e.Version)
			s = standings[e.ChatID][at]
			if !l.wants(s, batch[i].announcer) {
				continue
			}
		}
		l.page.Events = append(l.page.Events, Found{*e, s})
		l.bytes += e.Size
		if len(l.page.Events) >= l.options.Limit || l.bytes >= l.options.MaxBytes {
			l.page.Next = batch[i].at
			l.page.Read -= len(batch) - 1 - i
			return true, nil
		}
	}
	return false, nil
}

// standings reads the status of events, if they are wanted; it brings the versions of each
// chat in order.
func (l *lister) standings(ctx context.Context, versions map[string][]int64) (map[string][]outbox.Standing, error) {
	if len(l.filter.Statuses) == 0 && !l.options.Standing {
		return nil, nil
	}
	out := make(map[string][]outbox.Standing, len(versions))
	for id, list := range versions {
		slices.Sort(list)
		list = slices.Compact(list)
		versions[id] = list
		s, err := outbox.Standings(ctx, l.store, id, list)
		if err != nil {
			return nil, err
		}
		out[id] = s
	}
	return out, nil
}

// wants reports whether an event with a status is selected, when it was found by a row of
// the outbox or, if that is empty, in the event store.
func (l *lister) wants(s outbox.Standing, announcer store.Key) bool {
	if announcer.SK != "" && announcer != s.Row {
		return false
	}
	return len(l.filter.Statuses) == 0 || slices.Contains(l.filter.Statuses, s.Status)
}

// source chooses from where events are read.
func (l *lister) source(ctx context.Context) (iter.Seq2[candidate, error], error) {
	f, after := &l.filter, l.options.After
	switch {
	case len(f.Statuses) > 0 && !slices.Contains(f.Statuses, outbox.Published):
		return l.announced(ctx, after)
	case f.ChatID != "":
		return l.ofChat(ctx, after)
	}
	s := store.Scan{Table: store.Events, Segments: 1, Limit: pageRows, Cursor: after}
	if after != "" {
		if _, err := s.After(); err != nil {
			return nil, errPosition
		}
	}
	return func(yield func(candidate, error) bool) {
		for row, err := range store.ScanAll(ctx, l.store, s) {
			if !yield(candidate{row: row, at: store.ScanCursor(row.Key)}, err) {
				return
			}
		}
	}, nil
}

var errPosition = fmt.Errorf("%w: no page of this list begins there", ErrInvalid)

// ofChat reads the events of the chat; a position is a version.
func (l *lister) ofChat(ctx context.Context, after string) (iter.Seq2[candidate, error], error) {
	from := max(l.filter.From, 1)
	if after != "" {
		v, err := strconv.ParseInt(after, 10, 63)
		if err != nil || v < 0 {
			return nil, errPosition
		}
		from = max(from, v+1)
	}
	return func(yield func(candidate, error) bool) {
		for row, err := range eventsOf(ctx, l.store, l.filter.ChatID, from, l.filter.To) {
			if !yield(candidate{row: row, at: strings.TrimLeft(row.Key.SK, "0")}, err) {
				return
			}
		}
	}, nil
}

// eventsOf reads the events of a chat; to is 0 for no end.
func eventsOf(ctx context.Context, st store.Store, chatID string, from, to int64) iter.Seq2[store.Row, error] {
	q := store.Query{Table: store.Events, PK: chatID, From: table.Number(from), Consistency: store.Strong, Limit: pageRows}
	if to > 0 {
		q.To = table.Number(to)
	}
	return store.QueryAll(ctx, st, q)
}

// cursor is a position among what the outbox announces: behind a version of what a row
// does. Its text is the shard, the version and the row's sort key.
type cursor struct {
	shard   int
	version int64
	sk      string
}

func parseCursor(s string) (p cursor, err error) {
	if s == "" {
		return p, nil
	}
	shard, rest, _ := strings.Cut(s, "/")
	version, sk, ok := strings.Cut(rest, "/")
	n, shardErr := strconv.Atoi(shard)
	v, versionErr := strconv.ParseInt(version, 10, 63)
	key := store.Key{Table: store.Outbox, PK: shard, SK: sk}
	if !ok || shardErr != nil || versionErr != nil || n < 0 || n >= event.Shards || v < 0 || key.Validate() != nil {
		return p, errPosition
	}
	return cursor{n, v, sk}, nil
}

func (p cursor) String() string { return fmt.Sprintf("%d/%d/%s", p.shard, p.version, p.sk) }

// announced reads the events that rows of the outbox announce. A row that cannot be read
// may announce every event of its chat.
func (l *lister) announced(ctx context.Context, after string) (iter.Seq2[candidate, error], error) {
	from, err := parseCursor(after)
	if err != nil {
		return nil, err
	}
	return func(yield func(candidate, error) bool) {
		for shard := from.shard; shard < event.Shards; shard++ {
			q := store.Query{Table: store.Outbox, PK: table.ShardKey(shard), Consistency: store.Strong, Limit: pageRows}
			if l.filter.ChatID != "" {
				if shard != event.Shard(l.filter.ChatID) {
					continue
				}
				q.From, q.To = l.filter.ChatID+"#", l.filter.ChatID+"#~"
			}
			if shard == from.shard {
				q.From = max(q.From, from.sk)
			}
			for row, err := range store.QueryAll(ctx, l.store, q) {
				if err != nil {
					yield(candidate{}, err)
					return
				}
				if !l.eventsOfRow(ctx, cursor{shard: shard, sk: row.Key.SK}, row, from, yield) {
					return
				}
			}
		}
	}, nil
}

// eventsOfRow yields the events of one row of the outbox, and reports whether to continue.
func (l *lister) eventsOfRow(
	ctx context.Context, at cursor, row store.Row, after cursor, yield func(candidate, error) bool,
) bool {
	chatID, _, _ := strings.Cut(row.Key.SK, "#")
	from, to, ok := outbox.Announced(row)
	if !ok {
		from, to = 1, 0
	}
	from = max(from, l.filter.From)
	if at.shard == after.shard && at.sk == after.sk {
		from = max(from, after.version+1)
	}
	if l.filter.To > 0 && (to == 0 || l.filter.To < to) {
		to = l.filter.To
	}
	if chatID == "" || from < 1 || to > 0 && to < from {
		return true
	}
	for er, err := range eventsOf(ctx, l.store, chatID, from, to) {
		c := candidate{row: er, announcer: row.Key}
		if err == nil {
			at.version = Read(er).Version
			c.at = at.String()
		}
		if !yield(c, err) {
			return false
		}
	}
	return true
}
