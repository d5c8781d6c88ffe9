package store_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"

	"github.com/parley-chat/parley/server/store"
)

// pages answers queries and scans with prepared pages; its cursors are their numbers.
type pages struct {
	store.Store
	pages [][]string
	fail  int      // the page that cannot be read
	read  []string // cursors asked for
}

var errPage = errors.New("no page")

func (p *pages) page(cursor string) (store.Page, error) {
	p.read = append(p.read, cursor)
	n, _ := strconv.Atoi(cursor)
	if n == p.fail {
		return store.Page{}, errPage
	}
	var page store.Page
	for _, sk := range p.pages[n] {
		page.Rows = append(page.Rows, store.Row{Key: store.Key{SK: sk}})
	}
	if n+1 < len(p.pages) {
		page.Cursor = strconv.Itoa(n + 1)
	}
	return page, nil
}

func (p *pages) Query(_ context.Context, q store.Query) (store.Page, error) { return p.page(q.Cursor) }
func (p *pages) Scan(_ context.Context, s store.Scan) (store.Page, error)   { return p.page(s.Cursor) }

func TestAll(t *testing.T) {
	for _, c := range []struct {
		name       string
		pages      [][]string
		from       string
		fail, stop int
		rows, read []string
		err        error
	}{
		{name: "nothing", pages: [][]string{{}}, fail: -1, read: []string{""}},
		{name: "one page", pages: [][]string{{"a", "b"}}, fail: -1, rows: []string{"a", "b"}, read: []string{""}},
		{name: "empty pages between", pages: [][]string{{}, {"a"}, {}, {"b"}, {}}, fail: -1, rows: []string{"a", "b"},
			read: []string{"", "1", "2", "3", "4"}},
		{name: "from a cursor", pages: [][]string{{"a"}, {"b"}, {"c"}}, from: "1", fail: -1, rows: []string{"b", "c"},
			read: []string{"1", "2"}},
		{name: "an error at once", pages: [][]string{{"a"}}, fail: 0, read: []string{""}, err: errPage},
		{name: "an error later", pages: [][]string{{"a"}, {"b"}, {"c"}}, fail: 1, rows: []string{"a"},
			read: []string{"", "1"}, err: errPage},
		{name: "the caller stops", pages: [][]string{{"a"}, {"b", "c"}, {"d"}}, fail: -1, stop: 2, rows: []string{"a", "b"},
			read: []string{"", "1"}},
		{name: "the caller stops with a page's last row", pages: [][]string{{"a"}, {"b"}}, fail: -1, stop: 1,
			rows: []string{"a"}, read: []string{""}},
	} {
		for kind, all := range map[string]func(store.Store) func(func(store.Row, error) bool){
			"query": func(s store.Store) func(func(store.Row, error) bool) {
				return store.QueryAll(t.Context(), s, store.Query{Cursor: c.from})
			},
			"scan": func(s store.Store) func(func(store.Row, error) bool) {
				return store.ScanAll(t.Context(), s, store.Scan{Cursor: c.from})
			},
		} {
			s := &pages{pages: c.pages, fail: c.fail}
			sequence := all(s)
			for range 2 { // each loop begins at the beginning
				var rows []string
				var failed error
				s.read = nil
				for row, err := range sequence {
					if failed != nil {
						t.Errorf("%s, %s: a row after an error", c.name, kind)
					}
					if failed = err; err != nil {
						continue
					}
					if rows = append(rows, row.Key.SK); len(rows) == c.stop {
						break
					}
				}
				if !slices.Equal(rows, c.rows) || !slices.Equal(s.read, c.read) || !errors.Is(failed, c.err) {
					t.Errorf("%s, %s: rows %q of the pages after %q, %v; want %q of %q, %v", c.name, kind, rows, s.read, failed,
						c.rows, c.read, c.err)
				}
			}
		}
	}
}
