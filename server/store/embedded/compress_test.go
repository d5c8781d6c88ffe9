package embedded

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/store"
)

// Blocks are read however they are compressed: a store may have been written by an earlier
// version, or by a program that was built otherwise.
func TestEveryCompressionIsRead(t *testing.T) {
	native, other := *sstable.BalancedCompression, *sstable.MinLZCompression
	native.AdaptiveReductionCutoffPercent, other.DataBlocks.Level = 0, 2
	for name, p := range map[string]*sstable.CompressionProfile{"": nil, "none": sstable.NoCompression,
		"snappy": sstable.SnappyCompression, "minlz": sstable.MinLZCompression, "better minlz": &other, "zstd": &native} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			s := open1(t, Options{Dir: "/data", FS: mem})
			text := strings.Repeat("the quick brown fox ", 10)
			const rows, all = 500, 500 * 200
			for i := range rows {
				w := store.Write{Op: store.OpPut, Key: store.Key{Table: store.Messages, PK: "chat", SK: fmt.Sprintf("%04d", i)},
					Item: store.NewItem(store.Attr{Name: "content", Value: store.String(text)})}
				if err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{w}}); err != nil {
					t.Fatal(err)
				}
			}
			opts := &pebble.Options{FS: mem, FormatMajorVersion: pebbleFormat, Logger: logger{}}
			if p == nil { // as this program does
				setLevels(opts, nil)
			} else {
				opts.Levels[0].Compression = func() *sstable.CompressionProfile { return p }
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			db, err := pebble.Open("/data/store", opts)
			if err == nil {
				err = errors.Join(db.Flush(), db.Compact(t.Context(), []byte{0}, []byte{0xff}, false))
			}
			if err != nil {
				t.Fatal(err)
			}
			size := db.Metrics().Total().TablesSize
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			if small := size < all/4; small != (name != "none") {
				t.Errorf("%d rows take %d bytes in files", rows, size)
			}
			s = open1(t, Options{Dir: "/data", FS: mem})
			page, err := s.Query(t.Context(), store.Query{Table: store.Messages, PK: "chat"})
			if err != nil || len(page.Rows) != rows || page.Rows[rows-1].Item.Get("content").Str() != text {
				t.Errorf("%d rows, %v", len(page.Rows), err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// What reaches the lowest level is compressed better there than above.
func TestLowestLevel(t *testing.T) {
	s := open1(t, Options{Dir: "/data", FS: vfs.NewMem()})
	defer s.Close()
	for i := range 100 {
		k := store.Key{Table: store.Users, PK: fmt.Sprint("user", i)}
		w := store.Write{Op: store.OpPut, Key: k, Item: number(int64(i))}
		err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{w}})
		if err == nil && i == 50 {
			err = errors.Join(s.db.Flush(), s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	levels, err := s.db.SSTables(pebble.WithProperties())
	if err != nil {
		t.Fatal(err)
	}
	last := len(levels) - 1
	if len(levels[0]) == 0 || len(levels[last]) == 0 {
		t.Fatalf("files of the levels: %v", levels)
	}
	above, below := levels[0][0].Properties.CompressionName, levels[last][0].Properties.CompressionName
	if above != sstable.SnappyCompression.Name || below != lowest().Name || above == below {
		t.Errorf("level 0 has %s, the lowest %s", above, below)
	}
}
