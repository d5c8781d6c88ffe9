package commitlog_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/store"
)

// damageLargest overwrites some bytes in the middle of the largest table file.
func damageLargest(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "store", "*.sst"))
	if err != nil {
		t.Fatal(err)
	}
	var largest string
	var size int64
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > size {
			largest, size = f, info.Size()
		}
	}
	f, err := os.OpenFile(largest, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damaged"), size/2); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// A damaged part of a file, in which not even the batches' places can be read, is one error
// that says where to continue; all before and behind it is read.
func TestDamagedFile(t *testing.T) {
	racetest.SkipSerial(t)
	dir := t.TempDir()
	const count = 3000
	tick := time.Now()
	clock := func() time.Time { tick = tick.Add(time.Millisecond); return tick }
	log, s := openDir(t, dir, clock)
	list := someMessages(count)
	for n, m := range list {
		m.Key = fmt.Sprint(n)
	}
	for n := 0; n < count; n += 10 {
		many := make([]commitlog.Append, 10)
		for i := range many {
			many[i] = commitlog.Append{Partition: home, Messages: list[n+i : n+i+1]}
		}
		if _, err := log.Append(t.Context(), many); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // opened again, the log file becomes a table
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		_, s = openDir(t, dir, time.Now)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	damageLargest(t, dir)
	log, s = openDir(t, dir, time.Now)
	defer s.Close()
	read, damaged := 0, 0
	var batches []*commitlog.Batch // that can be read
	for next := int64(0); next < count; {
		some, err := log.Read(t.Context(), home, next, 10_000)
		var bad *commitlog.CorruptError
		if errors.As(err, &bad) {
			t.Log(err)
			if damaged++; damaged > 1 || bad.From != next || bad.To <= next || !errors.Is(err, store.ErrCorrupt) ||
				strings.Contains(err.Error(), "\n") {
				t.Fatalf("from %d on: damage of %d to %d", next, bad.From, bad.To)
			}
			if lost := bad.To - bad.From; lost > 500 { // a block of the file has 100 to 200
				t.Errorf("%d positions cannot be read", lost)
			}
			next = bad.To
			continue
		}
		if err != nil || len(some) == 0 {
			t.Fatalf("%d batches from %d on, %v", len(some), next, err)
		}
		batches = append(batches, some...)
		for _, b := range some {
			if b.Base != next || b.Key(0) != fmt.Sprint(next) {
				t.Fatalf("position %d has key %q, position %d is expected", b.Base, b.Key(0), next)
			}
			read++
			next = b.End()
		}
	}
	for i, b := range batches {
		if i%600 != 0 { // each search meets what is damaged, and Pebble then looks for a bit that may have flipped
			continue
		}
		before := int64(0)
		for k := i; k >= 0; k-- {
			if batches[k].Time < b.Time {
				before = batches[k].End()
				break
			}
		}
		if at, err := log.PositionAt(t.Context(), home, time.UnixMilli(b.Time)); err != nil || at < before || at > b.Base {
			t.Fatalf("position %d, %v, not %d to %d", at, err, before, b.Base)
		}
	}
	if damaged != 1 || read < count-500 {
		t.Errorf("%d messages are read, %d damages found", read, damaged)
	}
	mustAppend(t, log, home, list[0])
}
