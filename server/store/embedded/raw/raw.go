// Package raw reads the embedded engine below its contract: the checksums of its
// files, rows in the order of their keys with those that cannot be read, and the index
// of expiries.
//
// It owns the parts that only this engine has and that callers of the contract do not see.
// The caller owns the meaning of the rows. Only three functions change anything:
// [Store.Discard] and [Store.Reindex] repair, [Store.Put] fills a store.
//
// Concurrency: a Store is safe for concurrent use; no other process may have the data
// directory open.
package raw

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/salvage"
)

// ErrKey says that a key is none of its table's.
var ErrKey = errors.New("not a key of the table")

// Store is an engine seen from below.
type Store struct {
	of  *embedded.Store
	dir string // of the database
}

// New opens the files of an open engine; dir is its data directory, on the disk.
func New(of *embedded.Store, dir string) *Store {
	return &Store{of: of, dir: vfs.Default.PathJoin(dir, "store")}
}

// File is a table file of the engine.
type File struct {
	Path  string
	Bytes int64
}

// Files lists the table files.
func (s *Store) Files() ([]File, error) {
	levels, err := s.of.DB().SSTables()
	if err != nil {
		return nil, fmt.Errorf("list table files: %w", err)
	}
	var list []File
	for _, level := range levels {
		for _, t := range level {
			path := vfs.Default.PathJoin(s.dir, fmt.Sprintf("%06d.sst", uint64(t.BackingSSTNum)))
			if f := (File{path, int64(t.Size)}); !slices.Contains(list, f) { // two may share a file
				list = append(list, f)
			}
		}
	}
	return list, nil
}

// Estimate is about how many rows and entries of indexes there are.
func (s *Store) Estimate() (n int64) {
	levels, err := s.of.DB().SSTables(pebble.WithProperties())
	if err != nil {
		return 0
	}
	for _, level := range levels {
		for _, t := range level {
			n += int64(t.Properties.NumEntries) - 2*int64(t.Properties.NumDeletions)
		}
	}
	return max(n, 0)
}

// Verify reads a table file and compares all checksums. The error says what is wrong
// with the file.
func Verify(path string) error { return salvage.Verify(path) }

// Rows yields the rows of a table in the order of their keys, expired ones too. A row that
// cannot be read comes with an error and, as far as it can be read, its key; a row with an
// error and without a key is the end: the following rows cannot be read.
func (s *Store) Rows(t store.Table) iter.Seq2[store.Row, error] {
	return func(yield func(store.Row, error) bool) {
		from, to := embedded.TableRange(t)
		it, err := s.of.DB().NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
		if err != nil {
			yield(store.Row{}, err)
			return
		}
		defer func() { _ = it.Close() }() // its message was reported already
		for ok := it.First(); ok; ok = it.Next() {
			key, err := embedded.ParseKey(t, it.Key())
			if err == nil {
				err = key.Validate()
			}
			if err != nil {
				key = store.Key{Table: t, PK: fmt.Sprintf("%x", it.Key())}
				if !yield(store.Row{Key: key}, fmt.Errorf("%w: %w", ErrKey, err)) {
					return
				}
				continue
			}
			v, err := it.ValueAndErr()
			if err != nil {
				yield(store.Row{}, err)
				return
			}
			item, err := embedded.DecodeItem(v)
			if !yield(store.Row{Key: key, Item: item}, err) {
				return
			}
		}
		if err := it.Error(); err != nil {
			yield(store.Row{}, err)
		}
	}
}

// Strays counts keys that belong to no table and to nothing that the engine keeps.
func (s *Store) Strays() (n int, err error) {
	tables := store.Tables()
	_, items := embedded.TableRange(tables[len(tables)-1].Name)
	first, _ := embedded.TableRange(tables[0].Name)
	expiry, _ := embedded.ExpiryRange()
	_, seal := embedded.SealRange()
	records, last := embedded.RecordRange()
	for _, gap := range [][2][]byte{{nil, first}, {items, expiry}, {seal, records}, {last, nil}} {
		it, err := s.of.DB().NewIter(&pebble.IterOptions{LowerBound: gap[0], UpperBound: gap[1]})
		if err != nil {
			return n, err
		}
		for ok := it.First(); ok; ok = it.Next() {
			n++
		}
		if err := it.Close(); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Discard removes a row whose item cannot be read, so that it can be written again. A
// row that can be read stays.
func (s *Store) Discard(k store.Key) error {
	key := embedded.ItemKey(nil, k)
	v, closer, err := s.of.DB().Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = embedded.DecodeItem(v)
	if closing := closer.Close(); err == nil || closing != nil {
		return closing
	}
	return s.of.DB().Delete(key, pebble.Sync)
}

// Index is what the index of expiries looks like.
type Index struct {
	Entries int64
	Stale   int64 // entries without an item that expires then
}

// CheckIndex goes through the index of expiries.
func (s *Store) CheckIndex(ctx context.Context) (Index, error) {
	var x Index
	err := s.entries(ctx, func(entry []byte) error {
		x.Entries++
		good, err := s.indexes(entry)
		if !good {
			x.Stale++
		}
		return err
	})
	return x, err
}

func (s *Store) entries(ctx context.Context, each func(entry []byte) error) error {
	from, to := embedded.ExpiryRange()
	it, err := s.of.DB().NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	n := 0
	for ok := it.First(); ok && err == nil; ok = it.Next() {
		if n++; n%1024 == 0 && ctx.Err() != nil {
			err = ctx.Err()
			break
		}
		err = each(it.Key())
	}
	if closing := it.Close(); err == nil {
		err = closing
	}
	return err
}

// indexes reports whether an entry stands for an item.
func (s *Store) indexes(entry []byte) (bool, error) {
	if len(entry) <= embedded.ExpiryPrefix {
		return false, nil
	}
	v, closer, err := s.of.DB().Get(entry[embedded.ExpiryPrefix:])
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	item, bad := embedded.DecodeItem(v)
	at := item.Get(store.ExpiresAtField)
	good := bad == nil && at.Kind() == store.KindInt && at.Int64() == embedded.ExpiryTime(entry)
	return good, closer.Close()
}

// Expiring counts the rows that expire.
func (s *Store) Expiring() (n int64, err error) {
	for _, d := range store.Tables() {
		if !d.TTL {
			continue
		}
		for row, bad := range s.Rows(d.Name) {
			if bad != nil && row.Key.PK == "" {
				return n, bad
			}
			if bad == nil && row.Item.Get(store.ExpiresAtField).Kind() == store.KindInt {
				n++
			}
		}
	}
	return n, nil
}

// reindexBatch is how many changes of the index are written at once.
const reindexBatch = 1000

// Reindex makes the index of expiries from the items: entries of none go, those that
// are missing come. It may be called again after it was cut off.
func (s *Store) Reindex(ctx context.Context) (changed int64, err error) {
	b, pending := s.of.DB().NewBatch(), 0
	flush := func() error {
		defer func() { b, pending = s.of.DB().NewBatch(), 0 }()
		if pending == 0 {
			return b.Close()
		}
		changed += int64(pending)
		if err := s.of.DB().Apply(b, pebble.Sync); err != nil {
			return err
		}
		return b.Close()
	}
	note := func(err error) error {
		if pending++; err == nil && pending >= reindexBatch {
			err = flush()
		}
		return err
	}
	err = s.entries(ctx, func(entry []byte) error {
		good, err := s.indexes(entry)
		if err != nil || good {
			return err
		}
		return note(b.Delete(bytes.Clone(entry), nil))
	})
	for _, d := range store.Tables() {
		if !d.TTL || err != nil {
			continue
		}
		for row, bad := range s.Rows(d.Name) {
			at := row.Item.Get(store.ExpiresAtField)
			if bad != nil || at.Kind() != store.KindInt {
				continue
			}
			entry := embedded.ExpiryKey(nil, at.Int64(), embedded.ItemKey(nil, row.Key))
			_, closer, missing := s.of.DB().Get(entry)
			if missing == nil {
				err = closer.Close()
			} else if errors.Is(missing, pebble.ErrNotFound) {
				err = note(b.Set(entry, nil, nil))
			} else {
				err = missing
			}
			if err != nil {
				break
			}
		}
	}
	if err != nil {
		_ = b.Close()
		return changed, err
	}
	return changed, flush()
}
