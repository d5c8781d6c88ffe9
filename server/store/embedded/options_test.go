package embedded

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// A store opens, for reading only and for writing, whatever has become of the files in which Pebble
// keeps its options.
func TestDamagedOptions(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func([]byte) []byte{
		"halved":   func(b []byte) []byte { return b[:len(b)/2] },
		"emptied":  func([]byte) []byte { return nil },
		"zeroed":   func(b []byte) []byte { return make([]byte, len(b)) },
		"comparer": func(b []byte) []byte { return bytes.Replace(b, []byte("comparer=l"), []byte("comparer=m"), 1) },
	} {
		dir := t.TempDir()
		s := testkit.Value(openSealed(t, dir, ""))(t)
		sealed(t, s, 0, 20)
		testkit.Must(t, s.Close())
		paths := testkit.Value(filepath.Glob(filepath.Join(dir, "store", optionsPrefix+"*")))(t)
		if len(paths) != 1 {
			t.Fatal(paths)
		}
		testkit.Must(t, os.WriteFile(paths[0], damage(testkit.Value(os.ReadFile(paths[0]))(t)), 0o600))
		var log bytes.Buffer
		for _, readOnly := range []bool{true, false, false} {
			s, err := Open(Options{Dir: dir, ReadOnly: readOnly, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Errorf("%s, read-only %v: %v", name, readOnly, err)
				break
			}
			if n := rows(t, s); n != 20 {
				t.Errorf("%s: %d rows", name, n)
			}
			testkit.Must(t, s.Close())
		}
		if n := strings.Count(log.String(), "was damaged"); name != "emptied" && n != 1 {
			t.Errorf("%s: %s", name, log.String())
		}
	}
}
