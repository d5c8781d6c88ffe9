// Package audit keeps what operators did: one row when a call starts, durable before the
// call acts, and another when it has ended. Rows are never changed and expire after
// 396 days.
//
// It owns how the rows are written, paged and joined. It does not own which calls have
// rows, nor what a request contains; package ops does.
//
// Concurrency: a Log may be used by many goroutines and processes.
package audit

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// retention is how long a row is kept: a year and a month.
const retention = 396 * 24 * time.Hour

// maxText is the size of a request or result, in bytes. Longer ones are truncated.
const maxText = 4096

// maxPage is the number of calls that List returns at most.
const maxPage = 1000

// ErrInvalid says what is wrong with a call of this package.
var ErrInvalid = errors.New("audit: invalid request")

// Log writes and reads rows.
type Log struct {
	store store.Store
	clock func() time.Time
}

// New makes a Log.
func New(s store.Store, clock func() time.Time) *Log { return &Log{s, clock} }

// Entry is a call that has started.
type Entry struct {
	log   *Log
	start time.Time
	id    string
	row   table.Audit
}

// Begin writes the start of a call. Once it has returned without an error, the row survives
// a crash. Errors are those of the store: a call that cannot be recorded must not act.
func (l *Log) Begin(ctx context.Context, actor, call, request string) (*Entry, error) {
	now := l.clock()
	e := &Entry{log: l, start: now, id: rand.Text(), row: table.Audit{By: actor, Call: call}}
	row := e.row
	row.Request = truncate(request)
	if err := e.put(ctx, table.AuditBegun, row); err != nil {
		return nil, err
	}
	return e, l.store.Durable(ctx)
}

// End writes how the call ended.
func (e *Entry) End(ctx context.Context, code, result string) error {
	row := e.row
	row.Code, row.Result = code, truncate(result)
	return e.put(ctx, table.AuditEnded, row)
}

func (e *Entry) put(ctx context.Context, half string, row table.Audit) error {
	now := e.log.clock()
	row.At, row.ExpiresAt = now.UnixMilli(), now.Add(retention).Unix()
	err := e.log.store.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpPut, Key: table.AuditKey(e.start, e.id, half), Item: row.Item(), Cond: store.Absent(), Name: "audit",
	}}})
	var written *store.ConditionError
	if errors.As(err, &written) {
		return nil // an earlier attempt wrote the row and lost its answer: the id is unique
	}
	return err
}

// truncate shortens a text to maxText bytes.
func truncate(s string) string {
	const ellipsis = "…"
	if len(s) <= maxText {
		return strings.ToValidUTF8(s, "?")
	}
	return strings.ToValidUTF8(s[:maxText-len(ellipsis)], "") + ellipsis
}

// Call is a recorded call.
type Call struct {
	ID           string
	Began        time.Time
	Actor, Name  string
	Request      string
	Ended        time.Time // zero: it runs, or its process ended first
	Code, Result string
}

// Filter selects calls; an empty field selects all.
type Filter struct {
	After, Before time.Time // After is part of the span, Before is not
	Actor, Name   string
}

// List returns up to limit calls, newest first, and the token of the next page: empty after
// the last. The token belongs to this filter. One List reads at most maxRead rows, so that
// the page of a filter that rarely matches may be short, or empty, and have a next one.
func (l *Log) List(ctx context.Context, f Filter, limit int, token string) (calls []Call, next string, err error) {
	if limit < 1 || limit > maxPage {
		return nil, "", fmt.Errorf("%w: 1 to %d calls", ErrInvalid, maxPage)
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
	for from := table.Number(max(oldest.UnixMilli(), 0)); month >= table.AuditMonth(oldest); month, before = previousMonth(month), "~" {
		q := store.Query{Table: store.Audit, PK: month, From: from, To: before, Descending: true, Limit: pageRows, Consistency: store.Strong}
		for row, err := range store.QueryAll(ctx, l.store, q) {
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
	if row.By == cmp.Or(p.filter.Actor, row.By) && row.Call == cmp.Or(p.filter.Name, row.Call) {
		_, id, _ := strings.Cut(key, "#")
		c := Call{ID: id, Began: time.UnixMilli(row.At), Actor: row.By, Name: row.Call, Request: row.Request}
		if p.ended.At != 0 {
			c.Ended, c.Code, c.Result = time.UnixMilli(p.ended.At), p.ended.Code, p.ended.Result
		}
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
