package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open1(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Engine {
		clock := storetest.NewClock()
		o := Options{Dir: t.TempDir(), Clock: clock.Now}
		s := open1(t, o)
		return storetest.Engine{Store: s, Clock: clock, Reopen: func() store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return open1(t, o)
		}}
	})
}

func TestGenerationStays(t *testing.T) {
	dir := t.TempDir()
	s := open1(t, Options{Dir: dir})
	first := s.Generation()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if again := open1(t, Options{Dir: dir}).Generation(); again != first || first == "" {
		t.Fatalf("generation %q became %q", first, again)
	}
	if other := open1(t, Options{Dir: t.TempDir()}).Generation(); other == first {
		t.Fatal("two stores have one generation")
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir()
	open1(t, Options{Dir: dir})
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Fatalf("got %v", err)
	}
}

func TestFormats(t *testing.T) {
	for text, want := range map[string]error{
		"parley 1 1\n": nil, "parley 7 1\n": nil, "parley 7 7\n": ErrFormat, "": ErrFormat, "something else": ErrFormat, "parley x y": ErrFormat,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "FORMAT"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Options{Dir: dir})
		if !errors.Is(err, want) || (want == nil && err != nil) {
			t.Errorf("FORMAT %q: %v", text, err)
		}
		if s != nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestUnwritableDirectory(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no unwritable directory here")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: filepath.Join(file, "sub")}); err == nil {
		t.Fatal("opened a directory below a file")
	}
}

func TestSweepRemovesTheExpired(t *testing.T) {
	clock := storetest.NewClock()
	s := open1(t, Options{Dir: t.TempDir(), Clock: clock.Now})
	key := func(id string) store.Key { return store.Key{Table: store.IdempotencyKeys, PK: id} }
	put := func(id string, in time.Duration) {
		t.Helper()
		at := clock.Now().Add(in).Unix()
		it := store.NewItem(store.Attr{Name: store.ExpiresAtField, Value: store.Int(at)})
		if err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: key(id), Item: it}}}); err != nil {
			t.Fatal(err)
		}
	}
	put("soon", time.Minute)
	put("later", time.Hour)
	put("again", time.Minute)
	put("again", time.Hour)
	clock.Add(2 * time.Minute)
	if n, err := s.sweep(100); n != 1 || err != nil {
		t.Fatalf("swept %d, %v", n, err)
	}
	for id, want := range map[string]bool{"soon": false, "later": true, "again": true} {
		raw, err := s.load(appendKey(nil, key(id)))
		if err != nil || (raw != nil) != want {
			t.Fatalf("%s: %v, %v", id, raw, err)
		}
	}
	clock.Add(2 * time.Hour)
	if n, err := s.sweep(1); n != 1 || err != nil {
		t.Fatalf("swept %d, %v", n, err)
	}
	if n, err := s.sweep(100); n != 1 || err != nil {
		t.Fatalf("swept %d, %v", n, err)
	}
}

func TestOutboxIsCompacted(t *testing.T) {
	s := open1(t, Options{Dir: t.TempDir()})
	s.outboxDeletes.Store(compactAfter - 1)
	k := store.Key{Table: store.Outbox, PK: "00", SK: "chat#1"}
	if err := s.BatchWrite(t.Context(), []store.Write{{Op: store.OpDelete, Key: k}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil { // waits for what runs in the background
		t.Fatal(err)
	}
	if s.outboxDeletes.Load() != 0 {
		t.Fatal("no compaction was started")
	}
}

func TestFullDiskRefusesWritesOnly(t *testing.T) {
	s := open1(t, Options{Dir: t.TempDir()})
	k := store.Key{Table: store.Users, PK: "a"}
	put := store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: k, Item: store.NewItem()}}}
	if err := s.Transact(t.Context(), put); err != nil {
		t.Fatal(err)
	}
	s.disk.next.Store(time.Now().Add(time.Hour).UnixMilli())
	s.disk.full.Store(true)
	if err := s.Transact(t.Context(), put); !errors.Is(err, store.ErrFull) {
		t.Fatalf("write on a full disk: %v", err)
	}
	if it, err := s.Get(t.Context(), k, store.Strong); err != nil || it == nil {
		t.Fatalf("read on a full disk: %v, %v", it, err)
	}
	if err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpDelete, Key: k}}}); err != nil {
		t.Fatalf("delete on a full disk: %v", err)
	}
}
