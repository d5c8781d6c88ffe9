package store

import "time"

// Pager fills a page of a query or scan up to its limits. Engines share it, so
// that pages end at the same row on each.
type Pager struct {
	Page   Page
	limit  int
	now    int64
	bytes  int
	rows   int
	last   string // cursor of the last row evaluated
	onPage string // cursor of the last row on the page
}

// NewPager makes a pager; limit <= 0 means as many rows as a page holds.
func NewPager(limit int, now time.Time) *Pager { return &Pager{limit: limit, now: now.Unix()} }

// Add adds the next row and returns true, or ends the page before it and returns false.
// Expired rows count as evaluated, but are not on the page and do not count for the limit,
// so that it makes no difference when an engine removes them. cursor is the row's position
// in the order: its sort key in a query, its [ScanCursor] in a scan.
func (p *Pager) Add(r Row, cursor string) bool {
	expired := Expired(r.Item, p.now)
	if p.limit > 0 && len(p.Page.Rows) >= p.limit && !expired {
		p.Page.Cursor = p.onPage
		return false
	}
	if p.bytes >= MaxPageBytes {
		p.Page.Cursor = p.last
		return false
	}
	p.rows++
	p.bytes += len(r.Key.PK) + len(r.Key.SK) + r.Item.Size()
	p.last = cursor
	if !expired {
		p.Page.Rows = append(p.Page.Rows, r)
		p.onPage = cursor
	}
	return true
}

// Evaluated is the number of rows that Add accepted, on the page or not.
func (p *Pager) Evaluated() int { return p.rows }
