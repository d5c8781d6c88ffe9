package embedded

import (
	"crypto/rand"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
)

// allocated is what the files of a directory take on the disk, in bytes.
func allocated(t *testing.T, dir string) (bytes int64) {
	t.Helper()
	testkit.Must(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			bytes += s.Blocks * 512
		}
		return nil
	}))
	return bytes
}

// A new store with its first 5 MB takes at most 40 MB of a large disk.
func TestFirstMessagesTakeLittleSpace(t *testing.T) {
	dir := t.TempDir()
	s := open1(t, Options{Dir: dir})
	text := make([]byte, 10_000)
	for i := range 500 {
		_, _ = rand.Read(text)
		it := store.NewItem(store.Attr{Name: "v", Value: store.Bytes(slices.Clone(text))})
		testkit.Must(t, s.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpPut,
			Key: store.Key{Table: store.Messages, PK: "chat", SK: fmt.Sprintf("%08d", i)}, Item: it}}}))
	}
	if got := allocated(t, dir); got < 5_000_000 || got > 40<<20 {
		t.Errorf("%d MB are allocated", got>>20)
	}
	testkit.Must(t, s.Close())
}

// steps is a file that records what is allocated.
type steps struct {
	vfs.File
	list [][2]int64
}

func (s *steps) Preallocate(offset, length int64) error {
	s.list = append(s.list, [2]int64{offset, length})
	return nil
}

func (s *steps) Write(p []byte) (int, error) { return len(p), nil }

// Space is allocated before it is written, in steps, without holes, and not beyond what was
// asked for.
func TestWALIsAllocatedInSteps(t *testing.T) {
	const mb = 1 << 20
	inner := &steps{}
	f := &walFile{File: inner}
	write := func(n int, want ...[2]int64) {
		t.Helper()
		inner.list = nil
		_, err := f.Write(make([]byte, n))
		if testkit.Must(t, err); !slices.Equal(inner.list, want) {
			t.Errorf("%d bytes at %d: %d", n, f.at, inner.list)
		}
	}
	write(1 * mb)
	testkit.Must(t, f.Preallocate(0, 70*mb))
	if !slices.Equal(inner.list, [][2]int64{{0, 2 * mb}}) {
		t.Errorf("at first: %d", inner.list)
	}
	write(1 * mb)
	write(1, [2]int64{2 * mb, 2 * mb})
	write(8*mb, [2]int64{4 * mb, 4 * mb}, [2]int64{8 * mb, 8 * mb})
	write(60*mb, [2]int64{16 * mb, 16 * mb}, [2]int64{32 * mb, 16 * mb}, [2]int64{48 * mb, 16 * mb},
		[2]int64{64 * mb, 6 * mb})
	inner.list = nil
	testkit.Must(t, f.Preallocate(70*mb, 70*mb))
	if len(inner.list) != 1 || inner.list[0] != [2]int64{70 * mb, 16 * mb} || f.allocated < f.at {
		t.Errorf("the second part: %d", inner.list)
	}
}
