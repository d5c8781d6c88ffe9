package raw

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
)

// Put writes rows, with their entries of the index of expiries, into a store that had no rows with their keys, or
// the same ones. It does not wait for the disk: a later write by the contract does, also for these.
func (s *Store) Put(rows []store.Row) error {
	b := s.of.DB().NewBatch()
	fail := func(err error) error { return errors.Join(err, b.Close()) }
	var key, value []byte
	for _, r := range rows {
		if err := r.Key.Validate(); err != nil {
			return fail(fmt.Errorf("%s: %w", r.Key, err))
		}
		key, value = embedded.ItemKey(key[:0], r.Key), embedded.EncodeItem(value[:0], r.Item)
		if err := b.Set(key, value, nil); err != nil {
			return fail(err)
		}
		at := r.Item.Get(store.ExpiresAtField)
		if def, _ := store.Lookup(r.Key.Table); !def.TTL || at.Kind() != store.KindInt {
			continue
		}
		if err := b.Set(embedded.ExpiryKey(nil, at.Int64(), key), nil, nil); err != nil {
			return fail(err)
		}
	}
	if err := s.of.DB().Apply(b, pebble.NoSync); err != nil {
		return fail(err)
	}
	return b.Close()
}
