package embedded

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/parley-chat/parley/server/store"
)

// When others have filled the disk so that tables cannot be written, although the file
// system says that there is room, writes are refused, reads continue, and with room again
// all is there.
func TestTablesWithoutRoom(t *testing.T) {
	var full atomic.Bool
	mem := vfs.NewCrashableMem()
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 30, TotalBytes: 2 << 30})
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpCreate && len(op.Path) > 4 && op.Path[len(op.Path)-4:] == ".sst" {
			return syscall.ENOSPC
		}
		return nil
	}))
	var mu sync.Mutex
	now := time.Unix(1_000, 0)
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	s := open1(t, Options{Dir: "/data", FS: fs, now: clock})
	if err := s.Transact(t.Context(), putRow(1)); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	flushed, err := s.db.AsyncFlush()
	if err != nil {
		t.Fatal(err)
	}
	acked := int64(1)
	for n := int64(2); ; n++ { // until the flush has failed
		err := s.Transact(t.Context(), putRow(n))
		if errors.Is(err, store.ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		acked = n
		time.Sleep(time.Millisecond) // the flush retries meanwhile; writes without a pause would fill the memory first
	}
	if n := rowNumber(t, s); n != acked {
		t.Errorf("the row is %d, %d was acknowledged", n, acked)
	}
	lease := store.Write{Op: store.OpPut, Key: store.Key{Table: store.Leases, PK: "slot"}, Item: number(1)}
	if err := s.BatchWrite(t.Context(), []store.Write{lease}); err != nil {
		t.Errorf("a lease: %v", err)
	}
	full.Store(false)
	<-flushed
	mu.Lock()
	now = now.Add(time.Minute)
	mu.Unlock()
	if err := s.Transact(t.Context(), putRow(acked+1)); err != nil {
		t.Fatalf("with room: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := rowNumber(t, open1(t, Options{Dir: "/data", FS: mem})); n != acked+1 {
		t.Errorf("opened again the row is %d, not %d", n, acked+1)
	}
}
