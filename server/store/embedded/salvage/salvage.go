// Package salvage reads a Pebble database that Pebble does not open, or in which it meets blocks that it
// cannot read.
//
// It reads each file by itself: the tables block by block, the logs chunk by chunk, the manifest up to
// its first bad record. Of each key it yields the newest entry that can be read, as Pebble would, and it
// names what cannot be read by file and range of keys. It changes nothing.
//
// It owns the form of Pebble's files, as far as a database without range keys, merges and values apart from their
// tables has it; the caller knows the meaning of keys.
//
// Memory is bounded by the logs, and by a block of each table. A call runs on one goroutine; no process
// may have the database open for writing.
package salvage

import (
	"bytes"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Loss is something that cannot be read.
type Loss struct {
	Path     string
	What     string
	From, To []byte // the keys between which it lies; nil: unknown
}

// Report is what a reading has found.
type Report struct {
	Tables, Logs int
	Keys         int64
	Lost         []Loss
}

// source yields entries in the order of compare.
type source interface{ next() *entry }

// Read yields the keys of the database in dir and their values, in the order of the keys. Neither is
// changed afterwards. The error is that of yield, of ctx, or of a directory that cannot be read.
func Read(ctx context.Context, dir string, yield func(key, value []byte) error) (r Report, err error) {
	if _, err := os.ReadDir(dir); err != nil {
		return r, err
	}
	m, path := readManifest(dir)
	tables, err := r.tables(dir, &m)
	if err != nil {
		return r, err
	}
	if !m.whole {
		if path == "" {
			path = filepath.Join(dir, "MANIFEST")
		}
		r.Lost = append(r.Lost, Loss{Path: path, What: "the list of the store's files is not whole; all files that are there were read, so rows that were deleted may have returned"})
	}
	logs := &memory{}
	paths, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return r, err
	}
	for _, p := range paths {
		if number(p) >= m.log {
			r.Logs++
			if err := logs.readLog(p); err != nil {
				return r, fmt.Errorf("%s: %w", p, err)
			}
		}
	}
	logs.sort()
	all := newMerge(logs, tables)
	err = all.run(ctx, func(e *entry) error {
		r.Keys++
		return yield(e.key, e.value)
	})
	for _, t := range tables {
		r.Lost = append(r.Lost, t.lost...)
	}
	r.Lost = append(r.Lost, logs.lost...)
	return r, err
}

// tables opens the tables of the database: those that the manifest lists. One that it does not know, and
// that is newer than all it names, is being written, and has nothing of its own; or the end of the manifest
// is gone, in which case it is needed. If the manifest is damaged, all are read that it does not say to be
// replaced.
func (r *Report) tables(dir string, m *manifest) (list []*table, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil {
		return nil, err
	}
	there := map[uint64]string{}
	for _, p := range paths {
		there[number(p)] = p
	}
	newest := m.newest()
	for n, s := range m.tables {
		if there[n] == "" {
			r.Lost = append(r.Lost, Loss{Path: filepath.Join(dir, fmt.Sprintf("%06d.sst", n)), What: "it is missing",
				From: s.from, To: s.to})
		}
	}
	if !m.whole || len(r.Lost) > 0 && slices.ContainsFunc(paths, func(p string) bool { return number(p) > newest }) {
		m.whole = false // others may have taken the place of those that are missing
		r.Lost = nil
	}
	for n, p := range there {
		s, listed := m.tables[n]
		if !listed && (m.removed[n] || m.whole && n < newest) {
			continue
		}
		t := openTable(p, s)
		if !listed && m.whole {
			t.lost = nil
		}
		r.Tables++
		list = append(list, t)
	}
	slices.SortFunc(r.Lost, func(a, b Loss) int { return strings.Compare(a.Path, b.Path) })
	return list, nil
}

// merge yields entries of all sources in order, and of each key the newest.
type merge struct {
	heads     []head
	deletions []deletion // by their beginning
	active    []deletion // that reach the key
}

// head is the next entry of a source. rank breaks the tie of entries whose sequence number is 0: tables
// that are never merged again have no others, and a newer table has a higher number.
type head struct {
	*entry
	of   source
	rank uint64
}

func newMerge(logs *memory, tables []*table) *merge {
	m := &merge{deletions: logs.deletions}
	m.add(logs, ^uint64(0))
	for _, t := range tables {
		m.deletions = append(m.deletions, t.deletions...)
		m.add(t, t.number)
	}
	slices.SortFunc(m.deletions, func(a, b deletion) int { return bytes.Compare(a.from, b.from) })
	heap.Init(m)
	return m
}

func (m *merge) add(s source, rank uint64) {
	if e := s.next(); e != nil {
		m.heads = append(m.heads, head{e, s, rank})
	}
}

// Len implements heap.Interface.
func (m *merge) Len() int { return len(m.heads) }

// Less implements heap.Interface.
func (m *merge) Less(i, j int) bool {
	a, b := m.heads[i], m.heads[j]
	if c := compare(*a.entry, *b.entry); c != 0 {
		return c < 0
	}
	return a.rank > b.rank
}

// Swap implements heap.Interface.
func (m *merge) Swap(i, j int) { m.heads[i], m.heads[j] = m.heads[j], m.heads[i] }

// Push implements heap.Interface.
func (m *merge) Push(x any) { m.heads = append(m.heads, x.(head)) }

// Pop implements heap.Interface.
func (m *merge) Pop() any {
	last := m.heads[len(m.heads)-1]
	m.heads = m.heads[:len(m.heads)-1]
	return last
}

// checkEvery is the number of entries after which a context is checked.
const checkEvery = 4096

func (m *merge) run(ctx context.Context, yield func(*entry) error) error {
	var last []byte
	for n := 0; len(m.heads) > 0; n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		h := &m.heads[0]
		e := h.entry
		if h.entry = h.of.next(); h.entry == nil {
			heap.Pop(m)
		} else {
			heap.Fix(m, 0)
		}
		if last != nil && bytes.Equal(e.key, last) {
			continue
		}
		last = e.key
		if e.remove || m.deleted(e) {
			continue
		}
		if err := yield(e); err != nil {
			return err
		}
	}
	return nil
}

// deleted reports whether a range was deleted after an entry of it was written. It is called in the
// order of the keys.
func (m *merge) deleted(e *entry) bool {
	for len(m.deletions) > 0 && bytes.Compare(m.deletions[0].from, e.key) <= 0 {
		m.active = append(m.active, m.deletions[0])
		m.deletions = m.deletions[1:]
	}
	m.active = slices.DeleteFunc(m.active, func(d deletion) bool { return bytes.Compare(d.to, e.key) <= 0 })
	return slices.ContainsFunc(m.active, func(d deletion) bool { return d.sequence > e.sequence })
}

// oneLine is the text of an error without its repetitions and line breaks.
func oneLine(err error) string {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return pe.Err.Error()
	}
	text, _, _ := strings.Cut(err.Error(), "\n")
	return text
}
