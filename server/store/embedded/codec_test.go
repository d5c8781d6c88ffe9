package embedded

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/store"
)

var rewrite = flag.Bool("rewrite", false, "write the golden items anew; only for a new format")

func goldenItem() store.Item {
	return store.NewItem(
		store.Attr{Name: "name", Value: store.String("Tea ☕")}, store.Attr{Name: "empty", Value: store.String("")},
		store.Attr{Name: "version", Value: store.Int(1<<62 + 7)}, store.Attr{Name: "negative", Value: store.Int(-5)},
		store.Attr{Name: "payload", Value: store.Bytes([]byte{0, 255, 10})}, store.Attr{Name: "archived", Value: store.Bool(true)},
		store.Attr{Name: "members", Value: store.List([]string{"alice", "", "bob"})},
	)
}

// Every released encoding must be read by every later head.
func TestGoldenItems(t *testing.T) {
	path := filepath.Join("testdata", "items.hex")
	if *rewrite {
		if err := os.WriteFile(path, []byte(hex.EncodeToString(appendItem(nil, goldenItem()))+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		b, err := hex.DecodeString(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		it, err := decodeItem(b)
		if err != nil || !bytes.Equal(appendItem(nil, it), appendItem(nil, goldenItem())) {
			t.Fatalf("%s reads as %v, %v", line, it, err)
		}
	}
}

func FuzzDecodeItem(f *testing.F) {
	f.Add(appendItem(nil, goldenItem()))
	f.Add([]byte{1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Add([]byte{2})
	f.Fuzz(func(t *testing.T, b []byte) {
		it, err := decodeItem(b)
		if err != nil {
			return
		}
		again, err := decodeItem(appendItem(nil, it))
		if err != nil || !bytes.Equal(appendItem(nil, again), appendItem(nil, it)) {
			t.Fatalf("%x reads as %v, then as %v, %v", b, it, again, err)
		}
	})
}
