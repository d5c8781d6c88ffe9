package records_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

func open(t *testing.T, fs vfs.FS) *embedded.Store {
	t.Helper()
	s, err := embedded.Open(embedded.Options{Dir: "/data", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func commit(t *testing.T, r *records.Records, list ...store.Record) {
	t.Helper()
	wait, err := r.Commit(t.Context(), list)
	if err == nil {
		err = wait()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func put(key string) store.Record {
	return store.Record{Key: []byte(key), Value: []byte("value of " + key)}
}

func seek(t *testing.T, r *records.Records, from, until string, descending bool, limit int) (keys []string) {
	t.Helper()
	var end []byte
	if until != "" {
		end = []byte(until)
	}
	err := r.Seek(t.Context(), []byte(from), end, descending, func(key []byte, value func() ([]byte, error)) bool {
		if v, err := value(); err != nil || string(v) != "value of "+string(key) {
			t.Errorf("%s has %q, %v", key, v, err)
		}
		keys = append(keys, string(key))
		return len(keys) < limit
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// Records are in order, read in both directions, removed in ranges, and there after the
// store was closed; rows of tables are not among them.
func TestRecords(t *testing.T) {
	mem := vfs.NewMem()
	for round := range 2 {
		s := open(t, mem)
		r := records.Of(s)
		if round == 0 {
			row := store.Write{Op: store.OpPut, Key: store.Key{Table: store.Audit, PK: "z", SK: "z"}, Item: store.NewItem()}
			if err := s.BatchWrite(t.Context(), []store.Write{row}); err != nil {
				t.Fatal(err)
			}
			commit(t, r, put("c"), put("a"), put(""), put("\xff\xff"), put("b"), put("d"))
			commit(t, r, store.Record{Key: []byte("b"), Until: []byte("d")}, put("e"))
		}
		for _, c := range []struct {
			from, until string
			descending  bool
			limit       int
			want        []string
		}{
			{"", "", false, 99, []string{"", "a", "d", "e", "\xff\xff"}},
			{"", "", true, 99, []string{"\xff\xff", "e", "d", "a", ""}},
			{"b", "", false, 1, []string{"d"}},
			{"a", "e", true, 2, []string{"d", "a"}},
			{"b", "d", false, 99, nil},
			{"d", "a", false, 99, nil},
		} {
			if got := seek(t, r, c.from, c.until, c.descending, c.limit); !slices.Equal(got, c.want) {
				t.Errorf("from %q until %q: %q, want %q", c.from, c.until, got, c.want)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Commit(t.Context(), []store.Record{put("x")}); !errors.Is(err, store.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
		if err := r.Seek(t.Context(), nil, nil, false, nil); !errors.Is(err, store.ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	}
}

// A commit that is still waited for does not keep the store from closing, which makes it
// durable.
func TestCloseUnderACommit(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := open(t, mem)
	var waits []func() error
	for n := range 10 {
		wait, err := records.Of(s).Commit(t.Context(), []store.Record{put(fmt.Sprint(n))})
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, wait)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, wait := range waits {
		if err := wait(); err != nil {
			t.Error(err)
		}
	}
	s = open(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	defer s.Close()
	if got := seek(t, records.Of(s), "", "", false, 99); len(got) != 10 {
		t.Errorf("%q are left", got)
	}
}

// On a full disk records are refused, removals and what they depend on are not.
func TestFullDisk(t *testing.T) {
	mem := vfs.NewMem()
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 30, TotalBytes: 100 << 30})
	s := open(t, mem)
	defer s.Close()
	r := records.Of(s)
	if _, err := r.Commit(t.Context(), []store.Record{put("a")}); !errors.Is(err, store.ErrFull) {
		t.Errorf("a record: %v", err)
	}
	note := put("b")
	note.Frees = true
	commit(t, r, store.Record{Key: []byte("a"), Until: []byte("b")}, note)
	if _, err := r.Commit(t.Context(), []store.Record{put("a"), note}); !errors.Is(err, store.ErrFull) {
		t.Errorf("a record beside what frees: %v", err)
	}
}

// What was removed leaves the files and the engine's log when its space is asked for, and what is
// around it stays. A store that is closed does not wait.
func TestReclaim(t *testing.T) {
	mem := vfs.NewMem()
	s := open(t, mem)
	r := records.Of(s)
	size := func() (n int64) {
		names, err := mem.List("/data/store")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			info, err := mem.Stat("/data/store/" + name)
			if err == nil && strings.HasSuffix(name, ".sst") {
				n += info.Size()
			}
		}
		return n
	}
	value := make([]byte, 1<<20)
	rng := rand.NewChaCha8([32]byte{})
	for n := range 10 {
		_, _ = rng.Read(value)
		commit(t, r, store.Record{Key: fmt.Appendf(nil, "k%d", n), Value: value})
	}
	commit(t, r, put("a"), put("z"))
	if err := r.Reclaim(t.Context(), []byte("a"), []byte("z")); err != nil || size() < 10<<20 {
		t.Fatalf("%d bytes in files, %v", size(), err)
	}
	commit(t, r, store.Record{Key: []byte("k"), Until: []byte("k9")})
	if err := r.Reclaim(t.Context(), []byte("k"), []byte("k9")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the files go", func() bool { return size() < 2<<20 }) // in the background
	if got := seek(t, r, "a", "b", false, 99); len(got) != 1 {
		t.Errorf("%q are left", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Reclaim(t.Context(), nil, []byte("z")); !errors.Is(err, store.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
