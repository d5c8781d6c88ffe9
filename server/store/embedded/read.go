package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/itemcodec"
)

// load reads an item by its encoded key, expired or not.
func (s *Store) load(key []byte) (store.Item, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	it, err := itemcodec.Decode(v)
	if err != nil {
		err = fmt.Errorf("item at %x: %w", key, err)
	}
	return it, errors.Join(err, closer.Close())
}

func (s *Store) live(key []byte, now int64) (it store.Item, err error) {
	it, ok := s.cached(key)
	if !ok {
		it, err = s.load(key)
	}
	if err != nil || store.Expired(it, now) {
		return nil, translate(err)
	}
	return it, nil
}

// Get implements store.Store; both consistencies are the same here.
func (s *Store) Get(ctx context.Context, key store.Key, _ store.Consistency) (store.Item, error) {
	if err := key.Validate(); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	return s.live(appendKey(make([]byte, 0, 96), key), s.opts.Clock().Unix())
}

// BatchGet implements store.Store.
func (s *Store) BatchGet(ctx context.Context, keys []store.Key, _ store.Consistency) ([]store.Item, error) {
	if err := store.ValidateKeys(keys); err != nil {
		return nil, err
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.life.RUnlock()
	now := s.opts.Clock().Unix()
	items := make([]store.Item, len(keys))
	var missing []batchKey
	buf := make([]byte, 0, 96*len(keys))
	for i, k := range keys {
		begin := len(buf)
		buf = append(appendKey(buf, k), 0)
		key := buf[begin:len(buf):len(buf)]
		it, ok := s.cached(key[:len(key)-1])
		switch {
		case !ok:
			if missing == nil {
				missing = make([]batchKey, 0, len(keys)-i)
			}
			missing = append(missing, batchKey{key, i})
		case !store.Expired(it, now):
			items[i] = it
		}
	}
	if len(missing) >= manyKeys {
		return items, s.seek(ctx, missing, items, now)
	}
	for _, p := range missing {
		it, err := s.load(p.key[:len(p.key)-1])
		if err != nil {
			return nil, translate(err)
		}
		if !store.Expired(it, now) {
			items[p.at] = it
		}
	}
	return items, nil
}

// batchKey is where an item of a batch goes.
type batchKey struct {
	key []byte // encoded, with a zero byte behind it: nothing lies between the key and that
	at  int
}

// manyKeys is the number of keys from which on one iterator is cheaper than as many
// single reads.
const manyKeys = 8

// seek reads keys in their order with one iterator, which goes from each to the next.
func (s *Store) seek(ctx context.Context, batchKeys []batchKey, items []store.Item, now int64) error {
	slices.SortFunc(batchKeys, func(a, b batchKey) int { return bytes.Compare(a.key, b.key) })
	return s.iterate(ctx, batchKeys[0].key[:len(batchKeys[0].key)-1], batchKeys[len(batchKeys)-1].key,
		func(it *pebble.Iterator) error {
			var d itemcodec.Decoder
			for _, p := range batchKeys {
				key := p.key[:len(p.key)-1]
				if it.SeekGEWithLimit(key, p.key) != pebble.IterValid || !bytes.Equal(it.Key(), key) {
					continue
				}
				v, err := it.ValueAndErr()
				if err != nil {
					return err
				}
				item, err := d.Item(v)
				if err != nil {
					return fmt.Errorf("item at %x: %w", key, err)
				}
				if !store.Expired(item, now) {
					items[p.at] = item
				}
			}
			return it.Error()
		})
}

// Query implements store.Store.
func (s *Store) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if err := q.Validate(); err != nil {
		return store.Page{}, err
	}
	if err := s.begin(ctx); err != nil {
		return store.Page{}, err
	}
	defer s.life.RUnlock()
	prefix := appendPartition(make([]byte, 0, 96), q.Table, q.PK)
	at := func(sk string) []byte { return append(slices.Clip(prefix), sk...) }
	// The bytes after a key's: nothing lies between the key and it.
	after := func(sk string) []byte { return append(at(sk), 0) }
	lower, upper := at(q.From), endOf(prefix)
	if q.To != "" {
		upper = after(q.To)
	}
	if q.Cursor != "" && q.Descending {
		if c := at(q.Cursor); string(c) < string(upper) {
			upper = c
		}
	} else if q.Cursor != "" {
		if c := after(q.Cursor); string(c) > string(lower) {
			lower = c
		}
	}
	if string(lower) >= string(upper) {
		return store.Page{}, nil
	}
	pager := page{Pager: store.NewPager(q.Limit, s.opts.Clock())}
	err := s.iterate(ctx, lower, upper, func(it *pebble.Iterator) error {
		first, next := it.First, it.Next
		if q.Descending {
			first, next = it.Last, it.Prev
		}
		for ok := first(); ok; ok = next() {
			k := store.Key{Table: q.Table, PK: q.PK, SK: string(it.Key()[len(prefix):])}
			if more, err := pager.add(ctx, it, k, k.SK); !more {
				return err
			}
		}
		return nil
	})
	return pager.Page, err
}

// Scan implements store.Store.
func (s *Store) Scan(ctx context.Context, q store.Scan) (store.Page, error) {
	if err := q.Validate(); err != nil {
		return store.Page{}, err
	}
	if err := s.begin(ctx); err != nil {
		return store.Page{}, err
	}
	defer s.life.RUnlock()
	lower, upper := []byte{spaceItems, tableNumbers[q.Table]}, []byte{spaceItems, tableNumbers[q.Table] + 1}
	if q.Cursor != "" {
		after, err := q.After()
		if err != nil {
			return store.Page{}, err
		}
		lower = append(appendKey(nil, after), 0)
	}
	pager := page{Pager: store.NewPager(q.Limit, s.opts.Clock())}
	err := s.iterate(ctx, lower, upper, func(it *pebble.Iterator) error {
		for ok := it.First(); ok; {
			k, err := parseKey(q.Table, it.Key())
			if err != nil {
				return err
			}
			if store.Segment(k.PK, q.Segments) != q.Segment {
				if err := ctx.Err(); err != nil {
					return err
				}
				ok = it.SeekGE(endOf(appendPartition(nil, k.Table, k.PK)))
				continue
			}
			if more, err := pager.add(ctx, it, k, store.ScanCursor(k)); !more {
				return err
			}
			ok = it.Next()
		}
		return nil
	})
	return pager.Page, err
}

// iterate calls f with an iterator over [lower, upper).
func (s *Store) iterate(ctx context.Context, lower, upper []byte, f func(*pebble.Iterator) error) error {
	it, err := s.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return translate(err)
	}
	err = f(it)
	return translate(errors.Join(err, it.Close())) // Close repeats an error that ended the iteration
}

// checkEvery is the number of rows after which a long page checks its context.
const checkEvery = 1024

// page is a page in the making.
type page struct {
	*store.Pager
	decoder itemcodec.Decoder
}

// add puts the iterator's row on the page and reports whether there may be more.
func (p *page) add(ctx context.Context, it *pebble.Iterator, k store.Key, cursor string) (bool, error) {
	if p.Evaluated()%checkEvery == checkEvery-1 && ctx.Err() != nil {
		return false, ctx.Err()
	}
	v, err := it.ValueAndErr()
	if err != nil {
		return false, err
	}
	item, err := p.decoder.Item(v)
	if err != nil {
		return false, fmt.Errorf("item at %x: %w", it.Key(), err)
	}
	return p.Add(store.Row{Key: k, Item: item}, cursor), nil
}
