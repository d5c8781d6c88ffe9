package embedded

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/itemcodec"
)

// A plan that requires a row to be absent nearly always finds that it is: each send looks
// for its own request's row. Pebble's Get asks no filter of the lowest level, which has most
// rows, and reads a block of it for each of these lookups. An iterator asks the filter. A
// file's filter is read as a whole, so filters are only worth their room as long as they all
// stay in memory.

// filterShare is how many bytes of files a byte of the cache's blocks is enough for: a row of
// a request has 70 bytes or more of a file and 10 bits of its filter, and filters have half of
// the blocks.
const filterShare = 24

// isAbsent reports whether a condition is that there is no item.
func isAbsent(c store.Condition) bool { return len(c) == 1 && c[0].Test == store.TestAbsent }

// weigh decides whether filters are asked.
func (s *Store) weigh() {
	from, to := TableRange(store.IdempotencyKeys)
	size, err := s.db.EstimateDiskUsage(from, to)
	s.unfiltered.Store(err != nil || size > uint64(s.blocks)*filterShare)
}

// miss is load for a key that hardly ever has an item.
func (s *Store) miss(key []byte) (item store.Item, err error) {
	if s.unfiltered.Load() {
		return s.load(key)
	}
	it, err := s.db.NewIter(&pebble.IterOptions{UseL6Filters: true})
	if err != nil {
		return nil, err
	}
	if it.SeekPrefixGE(key) && bytes.Equal(it.Key(), key) {
		var v []byte
		if v, err = it.ValueAndErr(); err == nil {
			item, err = itemcodec.Decode(v)
		}
		if err != nil {
			err = fmt.Errorf("item at %x: %w", key, err)
		}
	}
	return item, errors.Join(err, it.Close()) // Close repeats an error that ended the search
}
