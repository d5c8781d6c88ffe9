package auth

import (
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// A file of keys in which a bit has changed is refused, or has the same keys.
func TestFlippedBit(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, KeyFile)
	testkit.Must(t, createKey(dir, path))
	for _, what := range []string{"new", "rotated"} {
		if what == "rotated" {
			testkit.Value(Rotate(path, time.Now(), time.Minute))(t)
		}
		want := testkit.Value(readRing(path))(t)
		text := []byte(want.text)
		refused := 0
		for at := range text {
			for bit := range 8 {
				text[at] ^= 1 << bit
				got, err := parseRing(text)
				text[at] ^= 1 << bit
				if err != nil {
					refused++
				} else if !reflect.DeepEqual(got.entries, want.entries) || !reflect.DeepEqual(got.root, want.root) {
					t.Errorf("%s: with another bit %d at byte %d it has other keys", what, bit, at)
				}
			}
		}
		if refused < 4*len(text) {
			t.Errorf("%s: %d of %d bits are noticed", what, refused, 8*len(text))
		}
	}
}
