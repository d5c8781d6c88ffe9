package embedded

import (
	"encoding/binary"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/space"
)

// What was read of the files stays in memory, also when the memtables have grown to their
// full size, which Pebble takes out of its cache.
func TestBlocksStayInMemory(t *testing.T) {
	s := open1(t, Options{Dir: t.TempDir()})
	key := store.Key{Table: store.Users, PK: "ann"}
	w := store.Write{Op: store.OpPut, Key: key, Item: store.NewItem()}
	testkit.Must(t, s.Transact(t.Context(), store.Plan{Writes: []store.Write{w}}))
	_, disk := space.Usage(s.opts.FS, s.opts.Dir)
	memtable := space.Memtable(disk)
	value := make([]byte, 64<<10)
	for range 4 { // a memtable grows to what has to fit into it, and the next one to twice that
		b := s.db.NewBatch()
		for i := range memtable * 2 / 5 / uint64(len(value)) {
			testkit.Must(t, b.Set(binary.BigEndian.AppendUint64([]byte{0x7f}, i), value, nil))
		}
		testkit.Must(t, b.Commit(pebble.NoSync))
	}
	testkit.Must(t, s.db.Flush())
	m := s.db.Metrics()
	if got := m.MemTable.Size + m.MemTable.ZombieSize; got < 2*memtable {
		t.Fatalf("memtables have %d bytes, want two of %d", got, memtable)
	}
	for range 100 { // Pebble reads beside it, after a flush
		before := s.db.Metrics().BlockCache
		_, err := s.Get(t.Context(), key, store.Strong)
		testkit.Must(t, err)
		if c := s.db.Metrics().BlockCache; c.Misses == before.Misses && c.Hits > before.Hits {
			return
		}
	}
	t.Error("each time the row is read from the disk")
}

// Blocks have their part of the cache beside two memtables, and a small one in a small memory.
func TestCacheSize(t *testing.T) {
	const mb = 1 << 20
	for what, c := range map[string]struct {
		memory         int64
		memtable, want int64 // beside the memtables
	}{
		"not known": {0, 64, 128},
		"23 GB":     {23 << 10, 64, 128},
		"2 GB":      {2 << 10, 64, 128},
		"512 MB":    {512, 64, 32},
		"disk of 1": {23 << 10, 16, 128},
	} {
		size, blocks := cacheSize(c.memory*mb, uint64(c.memtable)*mb)
		testkit.Equal(t, what, []int64{size, blocks}, []int64{(c.want + 2*c.memtable) * mb, c.want * mb})
	}
}

// A process with little memory has small memtables, and one with enough those of its disk.
func TestMemtableOfASmallMemory(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		disk uint64
		mem  int64
		want uint64
	}{
		{64 * mb, 0, 64 * mb}, {64 * mb, 4096 * mb, 64 * mb}, {64 * mb, 1024 * mb, 64 * mb}, {64 * mb, 256 * mb, 16 * mb},
		{64 * mb, 32 * mb, 4 * mb}, {4 * mb, 256 * mb, 4 * mb},
	} {
		if got := memtableSize(c.disk, c.mem); got != c.want {
			t.Errorf("%d MB of disk, %d MB of memory: %d", c.disk/mb, c.mem/mb, got)
		}
	}
}
