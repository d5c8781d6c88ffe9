package store

import (
	"context"
	"iter"
)

// QueryAll yields the rows of a query, from its cursor to the end of its range. See
// [ScanAll] for pages and errors.
func QueryAll(ctx context.Context, s Store, q Query) iter.Seq2[Row, error] {
	return rows(q.Cursor, func(cursor string) (Page, error) {
		q.Cursor = cursor
		return s.Query(ctx, q)
	})
}

// ScanAll yields the rows of a scan, from its cursor to the end of its segment, in the
// order of [Store.Scan].
//
// It reads a page when the rows before it are used up, so a caller that breaks out of the
// loop reads no further page. Limit bounds a page, not the number of rows. A page that
// cannot be read yields its error once, with a zero Row, and ends the sequence; the rows
// before it have been yielded. The pages are not a snapshot: writes in between may show.
func ScanAll(ctx context.Context, s Store, scan Scan) iter.Seq2[Row, error] {
	return rows(scan.Cursor, func(cursor string) (Page, error) {
		scan.Cursor = cursor
		return s.Scan(ctx, scan)
	})
}

// rows yields the rows of pages; read reads the page after a cursor.
func rows(cursor string, read func(cursor string) (Page, error)) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		for next, more := cursor, true; more; more = next != "" {
			page, err := read(next)
			if err != nil {
				yield(Row{}, err)
				return
			}
			for _, r := range page.Rows {
				if !yield(r, nil) {
					return
				}
			}
			next = page.Cursor
		}
	}
}
