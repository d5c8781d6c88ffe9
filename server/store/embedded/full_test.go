package embedded

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/space"
)

// On a full disk a store is not opened, which would try for ever: it says so in one
// line, and opens with all it has when there is room again.
func TestOpenOnAFullDisk(t *testing.T) {
	mem := vfs.NewMem()
	s := open1(t, Options{Dir: "/data", FS: mem})
	if err := s.Transact(t.Context(), putRow(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 16<<20 - 1, TotalBytes: 1 << 30})
	if s, err := Open(Options{Dir: "/data", FS: mem}); err == nil ||
		!strings.Contains(err.Error(), "is full: 15 MB are free, the store needs 17 MB") ||
		strings.Contains(err.Error(), "\n") {
		t.Fatalf("%v, %v", s, err)
	}
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 512 << 20, TotalBytes: 1 << 30})
	if n := rowNumber(t, open1(t, Options{Dir: "/data", FS: mem})); n != 1 {
		t.Fatalf("the row is %d", n)
	}
}

// Of 1 TB with 45 GB free nothing is refused. With 3 GB free writes are, while the store still
// opens: what it needs to open is far less than the reserve.
func TestLargeDisk(t *testing.T) {
	const gb = 1 << 30
	mem := vfs.NewMem()
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 45 * gb, TotalBytes: 1000 * gb})
	s := open1(t, Options{Dir: "/data", FS: mem})
	if err := s.Transact(t.Context(), putRow(1)); err != nil {
		t.Fatal(err)
	}
	if got, want := s.Space(), (space.State{Free: 45 * gb, Reserve: 4 * gb}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 3 * gb, TotalBytes: 1000 * gb})
	s = open1(t, Options{Dir: "/data", FS: mem})
	if err := s.Transact(t.Context(), putRow(2)); !errors.Is(err, store.ErrFull) {
		t.Error(err)
	}
	if n := rowNumber(t, s); n != 1 {
		t.Errorf("the row is %d", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open1(t, Options{Dir: "/data", FS: mem, Reserve: 2 * gb})
	if err := s.Transact(t.Context(), putRow(2)); err != nil {
		t.Error("with a smaller reserve:", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// What must be recorded before a log can be trimmed, or an operator can delete something,
// is written on a full disk too.
func TestNotesOnAFullDisk(t *testing.T) {
	mem := vfs.NewMem()
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 30, TotalBytes: 100 << 30})
	s := open1(t, Options{Dir: "/data", FS: mem})
	if err := s.Transact(t.Context(), putRow(1)); !errors.Is(err, store.ErrFull) {
		t.Fatal(err)
	}
	topic := store.Write{Op: store.OpPut, Key: store.Key{Table: store.Topics, PK: "t", SK: "topic"}, Item: number(1)}
	if err := s.BatchWrite(t.Context(), []store.Write{topic}); !errors.Is(err, store.ErrFull) {
		t.Error(err)
	}
	topic.Frees = true
	if err := s.BatchWrite(t.Context(), []store.Write{topic}); err != nil {
		t.Error(err)
	}
	for _, key := range []store.Key{
		{Table: store.Meta, PK: "log"}, {Table: store.Subscriptions, PK: "1/0", SK: "g#1"},
	} {
		if err := s.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: key, Item: number(1)}}); err != nil {
			t.Errorf("%v: %v", key, err)
		}
	}
}

// A disk that is full makes Pebble repeat the same error thousands of times a second: the
// server's log has few lines of it, and errors of another kind still come.
func TestComplaintsAreLimited(t *testing.T) {
	var said bytes.Buffer
	s := &Store{opts: Options{Logger: telemetry.NewLogger(&said, false)}}
	for i := range 5000 {
		logger{s}.Errorf("background error: %v", i)
	}
	logger{s}.Errorf("another error: %v", "short write")
	if n := strings.Count(said.String(), "\n"); n < 2 || n > 30 {
		t.Errorf("%d lines", n)
	}
	for _, want := range []string{`"store engine: background error"`, `"store engine: another error"`, "short write"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("the log lacks %s: %.500s", want, said.String())
		}
	}
}
