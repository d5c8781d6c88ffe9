package embedded

import (
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// How much of a log of Pebble is allocated at a time, in bytes: as much again as is allocated,
// within these. Pebble asks for 110 % of the largest memtable, 70 MB, although its first memtables
// have 256 KB, and keeps up to four logs: a new store took 282 MB for its first 5 MB. Each step
// makes the next sync longer, so a log that is filled needs few.
const (
	walStep    = 2 << 20
	maxWALStep = 16 << 20
)

// walFS is a file system on which Pebble's logs are allocated in steps, as they are written.
type walFS struct{ vfs.FS }

// Unwrap implements vfs.FS.
func (f walFS) Unwrap() vfs.FS { return f.FS }

func (f walFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	created, err := f.FS.Create(name, category)
	return wal(name, created, err)
}

func (f walFS) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	reused, err := f.FS.ReuseForWrite(from, to, category)
	return wal(to, reused, err)
}

func wal(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return &walFile{File: f}, nil
}

// walFile is a log. Pebble writes it from one goroutine, from the beginning to the end.
type walFile struct {
	vfs.File
	at              int64 // bytes written
	allocated, most int64 // from the beginning; what Pebble has asked for
}

// Preallocate implements vfs.File. It allocates what the next write needs.
func (f *walFile) Preallocate(offset, length int64) error {
	f.most = max(f.most, offset+length)
	f.allocated = max(f.allocated, offset)
	return f.allocate(f.at + 1)
}

// allocate allocates further steps until so many bytes are allocated, or all that was asked for.
func (f *walFile) allocate(bytes int64) error {
	for f.allocated < min(bytes, f.most) {
		n := min(max(walStep, f.allocated), maxWALStep, f.most-f.allocated)
		if err := f.File.Preallocate(f.allocated, n); err != nil {
			return err
		}
		f.allocated += n
	}
	return nil
}

// Write implements vfs.File.
func (f *walFile) Write(p []byte) (int, error) {
	if err := f.allocate(f.at + int64(len(p))); err != nil {
		return 0, err
	}
	n, err := f.File.Write(p)
	f.at += int64(n)
	return n, err
}
