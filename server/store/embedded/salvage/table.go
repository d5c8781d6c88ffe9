package salvage

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// entry is what one write has left of a key.
type entry struct {
	key, value []byte
	sequence   uint64
	remove     bool
}

// deletion removes a range of keys that were written before it.
type deletion struct {
	from, to []byte // the second excluded
	sequence uint64
}

// blockAt is where a block of a table is.
type blockAt struct{ offset, length int64 }

// table reads the entries of a table file, block by block, and skips blocks that cannot be read. It
// opens the file for each block: there may be more tables than a process may have files open.
type table struct {
	number    uint64
	path      string
	blocks    []blockAt
	deletions []deletion
	lost      []Loss

	pending []entry
	last    []byte // key of the last entry that was read
	bad     int    // blocks since then that could not be read
}

// openTable finds the blocks of a table. If the index cannot be read, it finds those at the beginning
// of the file, up to the first that cannot be read.
func openTable(path string, s span) *table {
	t := &table{number: number(path), path: path}
	if err := t.index(); err != nil {
		t.blocks, t.deletions = nil, nil
		end, size, carving := t.carve()
		what := fmt.Sprintf("its index cannot be read (%s); %d blocks in the first %d of %d bytes can", oneLine(err),
			len(t.blocks), end, size)
		if carving != nil {
			what = oneLine(carving)
		}
		t.lost = append(t.lost, Loss{Path: path, What: what, To: s.to})
	}
	return t
}

// index finds the blocks by the table's index.
func (t *table) index() (err error) {
	defer recovered(&err)
	f, err := vfs.Default.Open(t.path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{})
	if err != nil {
		return err // it has closed the file
	}
	defer r.Close()
	layout, err := r.Layout()
	if err != nil {
		return err
	}
	for _, h := range layout.Data {
		t.blocks = append(t.blocks, blockAt{int64(h.Offset), int64(h.Length)})
	}
	return t.ranges(r)
}

// ranges reads the deletions of ranges.
func (t *table) ranges(r *sstable.Reader) error {
	it, err := r.NewRawRangeDelIter(context.Background(), sstable.NoFragmentTransforms, sstable.NoReadEnv)
	if err != nil || it == nil {
		return err
	}
	defer it.Close()
	s, err := it.First()
	for ; s != nil && err == nil; s, err = it.Next() {
		for _, k := range s.Keys {
			t.deletions = append(t.deletions, deletion{bytes.Clone(s.Start), bytes.Clone(s.End), uint64(k.SeqNum())})
		}
	}
	return err
}

// Verify reads a table file and compares all checksums. The error says what is wrong with the file.
func Verify(path string) error {
	f, err := vfs.Default.Open(path)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		_ = f.Close()
		return err
	}
	r, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{})
	if err != nil {
		return err // it has closed the file
	}
	err = r.ValidateBlockChecksums()
	if closing := r.Close(); err == nil {
		err = closing
	}
	return err
}

// maxBlock is how long a block is at the most, in bytes: a row and its key.
const maxBlock = 8 << 20

// carve finds blocks from the beginning of the file on without an index. A block is followed by a byte
// for its compression and a checksum, so its length is where the checksum fits.
func (t *table) carve() (end, size int64, err error) {
	b, err := os.ReadFile(t.path)
	if err != nil {
		return 0, 0, err
	}
	for {
		n := blockLength(b[end:])
		if n < 0 {
			return end, int64(len(b)), nil
		}
		if _, err := decodeBlock(b[end : end+n+block.TrailerLen]); err != nil {
			return end, int64(len(b)), nil //nolint:nilerr // the blocks of data come first: this is another
		}
		t.blocks = append(t.blocks, blockAt{end, n})
		end += n + block.TrailerLen
	}
}

// blockLength is the length of the block at the beginning of b, without what follows it; -1 if there is
// none.
func blockLength(b []byte) int64 {
	crc := ^uint32(0)
	for n := range min(maxBlock, len(b)-block.TrailerLen+1) {
		crc = castagnoli[byte(crc)^b[n]] ^ crc>>8 // with the byte that would be the compression's
		if b[n] <= byte(block.MinLZCompressionIndicator) && cook(^crc) == binary.LittleEndian.Uint32(b[n+1:]) {
			return int64(n)
		}
	}
	return -1
}

// next returns the next entry that can be read; nil at the end.
func (t *table) next() *entry {
	for len(t.pending) == 0 {
		if len(t.blocks) == 0 {
			t.lose(nil)
			return nil
		}
		at := t.blocks[0]
		t.blocks = t.blocks[1:]
		entries, err := t.read(at)
		if err != nil {
			t.bad++
			continue
		}
		if t.pending = entries; len(entries) > 0 {
			t.lose(entries[0].key)
		}
	}
	e := &t.pending[0]
	t.pending, t.last = t.pending[1:], e.key
	return e
}

// lose records the blocks before a key that could not be read.
func (t *table) lose(next []byte) {
	if t.bad > 0 {
		t.lost = append(t.lost, Loss{Path: t.path, What: fmt.Sprintf("%d of its blocks cannot be read", t.bad), From: t.last,
			To: next})
	}
	t.bad = 0
}

func (t *table) read(at blockAt) ([]entry, error) {
	f, err := os.Open(t.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if at.length < 0 || at.length > maxBlock {
		return nil, errBlock
	}
	b := make([]byte, at.length+block.TrailerLen)
	if _, err := f.ReadAt(b, at.offset); err != nil {
		return nil, err
	}
	return decodeBlock(b)
}

var errBlock = errors.New("not a block of data")

var keySchema = colblk.DefaultKeySchema(pebble.DefaultComparer, 16)

// Columns of a block of data: those of its keys, then trailers, changes of the prefix, values, and two
// flags.
var columns = append(append([]colblk.DataType{}, keySchema.ColumnTypes...), colblk.DataTypeUint, colblk.DataTypeBool,
	colblk.DataTypeBytes, colblk.DataTypeBool, colblk.DataTypeBool)

// decodeBlock reads a block of data with what follows it.
func decodeBlock(b []byte) (entries []entry, err error) {
	defer recovered(&err)
	n := len(b) - block.TrailerLen
	if checksum(b[:n+1]) != binary.LittleEndian.Uint32(b[n+1:]) {
		return nil, errBlock
	}
	compression := block.CompressionIndicator(b[n])
	size, err := block.DecompressedLen(compression, b[:n])
	if err != nil || size > maxBlock {
		return nil, errors.Join(errBlock, err)
	}
	data := make([]byte, size)
	if err := block.DecompressInto(compression, b[:n], data); err != nil {
		return nil, err
	}
	if !isData(data) {
		return nil, errBlock
	}
	schema := keySchema
	var d colblk.DataBlockDecoder
	d.Init(&schema, data)
	var it colblk.DataBlockIter
	it.InitOnce(&schema, pebble.DefaultComparer, nil)
	if err := it.Init(&d, sstable.NoTransforms); err != nil {
		return nil, err
	}
	for kv := it.First(); kv != nil; kv = it.Next() {
		e := entry{key: bytes.Clone(kv.K.UserKey), sequence: uint64(kv.SeqNum())}
		switch kv.Kind() {
		case pebble.InternalKeyKindSet, pebble.InternalKeyKindSetWithDelete:
			e.value = bytes.Clone(kv.InPlaceValue())
		case pebble.InternalKeyKindDelete, pebble.InternalKeyKindSingleDelete, pebble.InternalKeyKindDeleteSized:
			e.remove = true
		default:
			return nil, errBlock
		}
		entries = append(entries, e)
	}
	return entries, errors.Join(it.Error(), it.Close())
}

// isData reports whether a block has the columns of data: the decoder trusts what it is given.
func isData(b []byte) bool {
	const custom, fixed, each = 4, 7, 5 // bytes of the header: before it, of it, and for each column
	if len(b) < custom+fixed+each*len(columns) {
		return false
	}
	h := colblk.DecodeHeader(b[custom:])
	if h.Version != colblk.Version1 || int(h.Columns) != len(columns) {
		return false
	}
	last := uint32(custom + fixed + each*len(columns))
	for i, want := range columns {
		c := b[custom+fixed+each*i:]
		at := binary.LittleEndian.Uint32(c[1:])
		if colblk.DataType(c[0]) != want || at < last || at > uint32(len(b)) {
			return false
		}
		last = at
	}
	return true
}

// recovered turns a panic of a decoder into an error.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: %v", errBlock, p)
	}
}
