package salvage

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// manifest is which files a database consists of.
type manifest struct {
	tables  map[uint64]span // in use, by number
	removed map[uint64]bool // were replaced by others; the files may be there still
	log     uint64          // the first log whose records are not in tables
	whole   bool            // false: the records after a damaged one are unknown
}

// span is the range of a table's keys, both included.
type span struct{ from, to []byte }

// Tags of a record of the manifest.
const (
	tagComparer       = 1
	tagLog            = 2
	tagNextFile       = 3
	tagLastSequence   = 4
	tagCompact        = 5
	tagDeleted        = 6
	tagNewTable       = 103
	tagNewTableRanges = 104
	tagPrevLog        = 9
	tagCreatedBacking = 105
	tagRemovedBacking = 106

	fieldEnd    = 1
	fieldUnsafe = 64 // this and higher ones are not a string that may be skipped
)

var errManifest = errors.New("a record of it has an unknown form")

// readManifest reads the manifest that is in use, as far as it can be read.
func readManifest(dir string) (m manifest, path string) {
	m = manifest{tables: map[uint64]span{}, removed: map[uint64]bool{}}
	path, known := manifestPath(dir)
	b, err := os.ReadFile(path)
	if path == "" || err != nil {
		return m, path
	}
	x, err := records(b, 0, m.apply)
	m.whole = known && x.damage == 0 && x.end > 0 && zero(b[x.end:]) && err == nil
	return m, path
}

// newest is the highest number of a table that it names.
func (m *manifest) newest() (n uint64) {
	for t := range m.tables {
		n = max(n, t)
	}
	for t := range m.removed {
		n = max(n, t)
	}
	return n
}

// manifestPath is the manifest that the marker names. If that is not there, known is false, and it is
// the newest.
func manifestPath(dir string) (path string, known bool) {
	names, err := filepath.Glob(filepath.Join(dir, "MANIFEST-*"))
	if err != nil || len(names) == 0 {
		return "", false
	}
	if marks, err := filepath.Glob(filepath.Join(dir, "marker.manifest.*")); err == nil && len(marks) > 0 {
		slices.Sort(marks)
		parts := strings.SplitN(filepath.Base(marks[len(marks)-1]), ".", 4)
		path = filepath.Join(dir, parts[len(parts)-1])
		if slices.Contains(names, path) {
			return path, true
		}
	}
	return slices.MaxFunc(names, func(a, b string) int { return cmp.Compare(number(a), number(b)) }), false
}

// number is that of a file, 0 if it has none.
func number(path string) uint64 {
	name := strings.TrimPrefix(filepath.Base(path), "MANIFEST-")
	name, _, _ = strings.Cut(name, ".")
	n, err := strconv.ParseUint(name, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// apply adds a record.
func (m *manifest) apply(record []byte) error {
	d := decoder{b: record}
	added := map[uint64]span{}
	for len(d.b) > 0 && d.err == nil {
		switch tag := d.number(); tag {
		case tagComparer:
			d.bytes()
		case tagLog:
			m.log = max(m.log, d.number())
		case tagNextFile, tagLastSequence, tagPrevLog, tagRemovedBacking:
			d.number()
		case tagCreatedBacking:
			d.number()
			d.number()
		case tagCompact:
			d.number()
			d.bytes()
		case tagDeleted:
			d.number()
			n := d.number()
			delete(m.tables, n)
			m.removed[n] = true
		case tagNewTable, tagNewTableRanges:
			n, s := d.table(tag == tagNewTableRanges)
			added[n] = s
		default:
			return fmt.Errorf("%w: tag %d", errManifest, tag)
		}
	}
	if d.err == nil {
		for n, s := range added { // after the deletions: a table that moves is in both
			m.tables[n] = s
			delete(m.removed, n)
		}
	}
	return d.err
}

// decoder reads the fields of a record. After an error it reads nothing more.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.b)
	if size <= 0 {
		d.b, d.err = nil, errManifest
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *decoder) bytes() []byte {
	n := d.number()
	if n > uint64(len(d.b)) {
		d.b, d.err = nil, errManifest
		return nil
	}
	s := d.b[:n:n]
	d.b = d.b[n:]
	return s
}

// userKey is an internal key without its trailer.
func (d *decoder) userKey() []byte {
	b := d.bytes()
	if len(b) < trailer {
		return nil
	}
	return slices.Clone(b[:len(b)-trailer])
}

const trailer = 8

// table reads what a record has of a new table.
func (d *decoder) table(ranges bool) (n uint64, s span) {
	d.number() // level
	n = d.number()
	d.number() // size
	if !ranges {
		s = span{d.userKey(), d.userKey()}
	} else {
		// The package's user has no range keys.
		d.err = errManifest
	}
	d.number() // sequence numbers
	d.number()
	for d.err == nil {
		field := d.number()
		if field == fieldEnd {
			break
		}
		if field&fieldUnsafe != 0 {
			d.err = fmt.Errorf("%w: field %d", errManifest, field)
		}
		d.bytes()
	}
	return n, s
}
