package audit

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// maxPage is the number of records that List returns at most.
const maxPage = 1000

// List returns up to limit records, newest first, and the token of the next page: empty
// after the last. The token belongs to this filter. One List reads at most maxRead rows, so
// that the page of a filter that rarely matches may be short, or empty, and have a next one.
func (l *Log) List(ctx context.Context, f Filter, limit int, token string) (calls []Call, next string, err error) {
	if limit < 1 || limit > maxPage {
		return nil, "", fmt.Errorf("%w: 1 to %d calls", ErrInvalid, maxPage)
	}
	if err := f.check(); err != nil {
		return nil, "", err
	}
	now := l.clock()
	oldest := now.Add(-retention)
	if f.After.After(oldest) {
		oldest = f.After
	}
	newest := now.Add(time.Hour) // of a process whose clock is ahead
	if !f.Before.IsZero() && f.Before.Before(newest) {
		newest = f.Before
	}
	month, before, err := position(token, newest)
	if err != nil {
		return nil, "", err
	}
	p := page{filter: f, limit: limit}
	for from := table.Number(max(oldest.UnixMilli(), 0)); month >= table.AuditMonth(oldest); month,
		before = previousMonth(month), "~" {
		for row, err := range l.month(ctx, f.partitions(), month, from, before) {
			if err != nil {
				return nil, "", err
			}
			if p.add(row) {
				return p.calls, month + "/" + p.last, nil
			}
		}
	}
	return p.calls, "", nil
}

// month yields the rows of a month between two keys, newest first, those of all partitions
// in one order and none twice.
func (l *Log) month(ctx context.Context, partitions []string, month, from, before string) iter.Seq2[store.Row, error] {
	query := func(prefix string) iter.Seq2[store.Row, error] {
		return store.QueryAll(ctx, l.store, store.Query{Table: store.Audit, PK: prefix + month, From: from, To: before,
			Descending: true, Limit: pageRows, Consistency: store.Strong})
	}
	if len(partitions) == 1 {
		return query(partitions[0])
	}
	return merge(query(partitions[0]), query(partitions[1]))
}

// merge yields the rows of two sequences that descend.
func merge(a, b iter.Seq2[store.Row, error]) iter.Seq2[store.Row, error] {
	return func(yield func(store.Row, error) bool) {
		nextA, stopA := iter.Pull2(a)
		defer stopA()
		nextB, stopB := iter.Pull2(b)
		defer stopB()
		rowA, errA, hasA := nextA()
		rowB, errB, hasB := nextB()
		for hasA || hasB {
			both := hasA && hasB
			switch {
			case hasA && errA != nil || hasB && errB != nil:
				err := errA
				if err == nil {
					err = errB
				}
				yield(store.Row{}, err)
				return
			case both && rowA.Key.SK == rowB.Key.SK: // the same row
				rowB, errB, hasB = nextB()
			case !hasB || both && rowA.Key.SK > rowB.Key.SK:
				if !yield(rowA, nil) {
					return
				}
				rowA, errA, hasA = nextA()
			default:
				if !yield(rowB, nil) {
					return
				}
				rowB, errB, hasB = nextB()
			}
		}
	}
}

const (
	pageRows = 500
	maxRead  = 20_000
)

// page joins the rows of calls as they come: the end of a call before its start.
type page struct {
	filter Filter
	limit  int
	calls  []Call
	read   int
	last   string // key of the last call that was read, without its half
	ended  table.Audit
	of     string // key of the call that ended belongs to
}

// add takes a row, and reports whether the page is full.
func (p *page) add(r store.Row) bool {
	key, half := r.Key.SK[:len(r.Key.SK)-2], r.Key.SK[len(r.Key.SK)-1:]
	row := table.AuditFrom(r.Item)
	p.read++
	if half == table.AuditEnded {
		p.ended, p.of = row, key
		return false
	}
	if p.of != key {
		p.ended = table.Audit{}
	}
	p.last = key
	_, id, _ := strings.Cut(key, "#")
	c := Call{ID: id, Began: time.UnixMilli(row.At), Actor: row.By, Name: row.Call, Target: row.Target,
		Request: row.Request}
	switch {
	case half == table.AuditEvent:
		c.Event, c.Ended, c.Code, c.Result = true, c.Began, row.Code, row.Result
	case p.ended.At != 0:
		c.Ended, c.Code, c.Result = time.UnixMilli(p.ended.At), p.ended.Code, p.ended.Result
	}
	if p.filter.matches(c) {
		p.calls = append(p.calls, c)
	}
	return len(p.calls) == p.limit || p.read >= maxRead
}

// position is where a page starts, as its token says: in a month, before a key.
func position(token string, newest time.Time) (month, before string, err error) {
	if token == "" {
		return table.AuditMonth(newest), table.Number(max(newest.UnixMilli(), 0)), nil
	}
	month, before, ok := strings.Cut(token, "/")
	if _, err := time.Parse("2006-01", month); !ok || err != nil || before == "" {
		return "", "", fmt.Errorf("%w: not a page token of this list", ErrInvalid)
	}
	return month, before, nil
}

func previousMonth(month string) string {
	t, err := time.Parse("2006-01", month)
	if err != nil {
		return ""
	}
	return t.AddDate(0, -1, 0).Format("2006-01")
}
