package embedded

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/itemcodec"
)

// Access for the packages below this one to a store's files and keys.

// openReadOnly completes the opening of a read-only store.
func (s *Store) openReadOnly(dir string, opts *pebble.Options) error {
	opts.ReadOnly, opts.ErrorIfNotExists = true, true
	_, err := s.checkSeal(dir, opts.Clone())
	if err != nil && !errors.Is(err, ErrLost) {
		return err
	}
	s.lacks = err
	opts.FS = withoutOptions{opts.FS}
	if s.db, err = pebble.Open(dir, opts); err != nil {
		return damaged(dir, err)
	}
	return nil
}

// Lacks is ErrLost with what is missing from a store that was opened read-only.
func (s *Store) Lacks() error { return s.lacks }

// DB is the database itself. It is closed with the store. From now on the store caches no
// items, because they may change without it.
func (s *Store) DB() *pebble.DB {
	s.uncached.Store(true)
	return s.db
}

// Keys of the engine, and items.
var (
	ItemKey    = appendKey        // of an item, appended to a slice
	ParseKey   = parseKey         // of an item of a table
	DecodeItem = itemcodec.Decode // what an item's key holds
	EncodeItem = itemcodec.Append // the same, appended to a slice
	ExpiryKey  = appendExpiry     // of an entry of the index of expiries
	ExpiryTime = expiryTime       // of such an entry, unix s
)

// TableRange is where a table's keys lie, the second excluded.
func TableRange(t store.Table) (from, to []byte) {
	n := tableNumbers[t]
	return []byte{spaceItems, n}, []byte{spaceItems, n + 1}
}

// ExpiryRange is where the index of expiries lies.
func ExpiryRange() (from, to []byte) { return []byte{spaceExpiry}, []byte{spaceExpiry + 1} }

// SealRange is where the probes of the seal lie.
func SealRange() (from, to []byte) { return []byte{spaceProbe}, []byte{spaceProbe + 1} }

// ExpiryPrefix is the number of bytes before the item's key in an entry of the index.
const ExpiryPrefix = expiryPrefix

// RecordRange is where the records beside the tables lie.
func RecordRange() (from, to []byte) { return []byte{spaceRecords}, []byte{spaceRecords + 1} }
