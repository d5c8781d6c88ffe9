package salvage

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
)

// memory has what logs have: the entries that no table has yet.
type memory struct {
	entries   []entry
	deletions []deletion
	lost      []Loss
}

// readLog adds the records of a log.
func (m *memory) readLog(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		m.lost = append(m.lost, Loss{Path: path, What: oneLine(err)})
		return nil
	}
	x, err := records(b, uint32(number(path)), m.batch)
	if x.damage > 0 {
		m.lost = append(m.lost, Loss{Path: path, What: fmt.Sprintf("writes in %d bytes of it cannot be read", x.damage)})
	}
	return err
}

// batch adds what one record wrote.
func (m *memory) batch(record []byte) error {
	h, ok := batchrepr.ReadHeader(record)
	if !ok {
		return nil
	}
	sequence, r := uint64(h.SeqNum), batchrepr.Read(record)
	for {
		kind, key, value, ok, err := r.Next()
		if !ok {
			return err
		}
		e := entry{key: bytes.Clone(key), sequence: sequence}
		switch kind {
		case pebble.InternalKeyKindLogData:
			continue // it takes no sequence number
		case pebble.InternalKeyKindSet:
			e.value = bytes.Clone(value)
			m.entries = append(m.entries, e)
		case pebble.InternalKeyKindDelete, pebble.InternalKeyKindSingleDelete, pebble.InternalKeyKindDeleteSized:
			e.remove = true
			m.entries = append(m.entries, e)
		case pebble.InternalKeyKindRangeDelete:
			m.deletions = append(m.deletions, deletion{e.key, bytes.Clone(value), sequence})
		default:
			return fmt.Errorf("a write of kind %d is unknown", kind)
		}
		sequence++
	}
}

// next returns the next entry in the order of the merge; nil at the end.
func (m *memory) next() *entry {
	if len(m.entries) == 0 {
		return nil
	}
	e := &m.entries[0]
	m.entries = m.entries[1:]
	return e
}

func (m *memory) sort() { slices.SortFunc(m.entries, compare) }

// compare orders entries by their keys, newest first.
func compare(a, b entry) int {
	if c := bytes.Compare(a.key, b.key); c != 0 {
		return c
	}
	switch {
	case a.sequence > b.sequence:
		return -1
	case a.sequence < b.sequence:
		return 1
	}
	return 0
}
