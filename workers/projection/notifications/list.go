package notifications

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/projection"
)

// Limits of a query.
const (
	MaxList = 1_000
	maxRead = 5_000 // rows that a page reads to find what is asked for
)

// Errors of queries.
var (
	ErrInvalid = errors.New("notifications: invalid query")
	ErrToken   = errors.New("notifications: not a page token of this list")
)

// Filter selects notifications: those for which all holds that is set.
type Filter struct {
	ChatID, UserID string
	Group          string
	EventID        string
	Statuses       []deadletter.Status // empty: any
	After, Before  time.Time           // of the failure; zero: as long as there are any
}

// Notification is an event that a group gave up, and what became of it.
type Notification struct {
	table.Notification
	DeadLetterID string
	Status       deadletter.Status
	Handling     table.DeadLetter // the last action on it: actor, time and result
}

// List returns up to limit notifications (at most MaxList), those that failed last first.
// token is where the page before ended; next is empty after the last page. A page may have
// fewer and still have a next one: each reads a bounded number of rows.
func List(
	ctx context.Context, st store.Store, now time.Time, f Filter, limit int, token string,
) (list []Notification, next string, err error) {
	if limit < 1 || limit > MaxList || !f.After.IsZero() && !f.Before.IsZero() && !f.After.Before(f.Before) {
		return nil, "", fmt.Errorf("%w: 1 to %d, and times in their order", ErrInvalid, MaxList)
	}
	build, err := projection.Live(ctx, st, Name)
	if err != nil {
		return nil, "", err
	}
	l := &lister{store: st, now: now, filter: f, limit: limit, build: build, seen: map[string]bool{}}
	at, err := l.start(token)
	if err != nil {
		return nil, "", err
	}
	for at.aggregate != "" && l.read < maxRead && len(l.list) < limit {
		if at, err = l.page(ctx, at); err != nil {
			return nil, "", err
		}
	}
	return l.list, l.token(at), nil
}

// lister makes one page.
type lister struct {
	store  store.Store
	now    time.Time
	filter Filter
	limit  int
	build  int64
	list   []Notification
	seen   map[string]bool // ids: a dead letter that a crash has written twice is there twice
	read   int
}

// cursor is where a list continues: in an aggregate, at rows before a sort key.
type cursor struct{ aggregate, before string }

// newest is the first aggregate of a list: days come one after the other, the last first.
func (l *lister) newest() string {
	switch {
	case l.filter.ChatID != "":
		return chats + l.filter.ChatID
	case l.filter.UserID != "":
		return users + l.filter.UserID
	}
	last := l.now.Add(24 * time.Hour) // clocks of other processes may be ahead
	if b := l.filter.Before; !b.IsZero() && b.Before(last) {
		last = b
	}
	return days + last.UTC().Format(dayFormat)
}

// older is the aggregate after one, "" after the last.
func (l *lister) older(aggregate string) string {
	text, ok := strings.CutPrefix(aggregate, days)
	if !ok {
		return ""
	}
	day, err := time.Parse(dayFormat, text)
	if err != nil {
		return ""
	}
	first := l.now.Add(-keepFor)
	if l.filter.After.After(first) {
		first = l.filter.After
	}
	if day.Before(first) { // the day has begun before, and so have all older ones
		return ""
	}
	return days + day.Add(-24*time.Hour).Format(dayFormat)
}

// start reads a token.
func (l *lister) start(token string) (cursor, error) {
	if token == "" {
		return cursor{aggregate: l.newest()}, nil
	}
	parts := strings.SplitN(token, "|", 3)
	if len(parts) != 3 || parts[0] != strconv.FormatInt(l.build, 10) {
		return cursor{}, ErrToken
	}
	first := l.newest()
	byDay := strings.HasPrefix(first, days) && strings.HasPrefix(parts[1], days)
	if parts[1] != first && !byDay {
		return cursor{}, ErrToken
	}
	return cursor{parts[1], parts[2]}, nil
}

func (l *lister) token(at cursor) string {
	if at.aggregate == "" {
		return ""
	}
	return strconv.FormatInt(l.build, 10) + "|" + at.aggregate + "|" + at.before
}

// page reads some rows, and returns where the list continues.
func (l *lister) page(ctx context.Context, at cursor) (cursor, error) {
	q := store.Query{
		Table: store.Notifications, PK: table.ProjectionPartition(Name, l.build, at.aggregate), Descending: true,
		Limit: store.MaxBatchGet, To: at.before, Consistency: store.Strong,
	}
	if !l.filter.After.IsZero() {
		q.From = table.Number(l.filter.After.UnixMilli())
	}
	if at.before == "" && !l.filter.Before.IsZero() {
		q.To = table.Number(l.filter.Before.UnixMilli())
	}
	var rows []store.Row
	for more := true; more && len(rows) == 0; more = q.Cursor != "" { // expired rows can fill a page
		page, err := l.store.Query(ctx, q)
		if err != nil {
			return at, fmt.Errorf("read notifications: %w", err)
		}
		rows = slices.DeleteFunc(page.Rows, func(r store.Row) bool { return r.Key.SK == at.before })
		q.Cursor = page.Cursor
	}
	statuses, err := l.statuses(ctx, rows)
	if err != nil {
		return at, err
	}
	for i, row := range rows {
		if len(l.list) == l.limit {
			return at, nil
		}
		at.before = row.Key.SK
		l.read++
		l.add(row, statuses[i])
	}
	if q.Cursor == "" {
		return cursor{aggregate: l.older(at.aggregate)}, nil
	}
	return at, nil
}

// statuses reads what became of the dead letters of rows.
func (l *lister) statuses(ctx context.Context, rows []store.Row) ([]store.Item, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	out := make([]store.Item, len(rows))
	at := map[store.Key][]int{}
	var keys []store.Key
	for i, row := range rows {
		n := table.NotificationFrom(row.Item)
		key := table.DeadLetterKey(n.Group, n.Topic, int32(n.Partition), n.Offset)
		if len(at[key]) == 0 {
			keys = append(keys, key)
		}
		at[key] = append(at[key], i)
	}
	items, err := l.store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read what was done about dead letters: %w", err)
	}
	for k, key := range keys {
		for _, i := range at[key] {
			out[i] = items[k]
		}
	}
	return out, nil
}

// add adds a notification that is selected.
func (l *lister) add(row store.Row, handling store.Item) {
	n := Notification{Notification: table.NotificationFrom(row.Item)}
	_, n.DeadLetterID, _ = strings.Cut(row.Key.SK, "#")
	n.Status, n.Handling = deadletter.StatusOf(handling, l.now)
	f := l.filter
	if l.seen[n.DeadLetterID] || f.ChatID != "" && f.ChatID != n.ChatID || f.UserID != "" && f.UserID != n.Actor ||
		f.Group != "" && f.Group != n.Group || f.EventID != "" && f.EventID != n.EventID ||
		len(f.Statuses) > 0 && !slices.Contains(f.Statuses, n.Status) {
		return
	}
	l.seen[n.DeadLetterID] = true
	l.list = append(l.list, n)
}
