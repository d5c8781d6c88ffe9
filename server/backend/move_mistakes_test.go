package backend_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/move"
)

// What a move cannot do it refuses, in one line, and changes nothing.
func TestMoveMistakes(t *testing.T) {
	t.Parallel()
	m := newMoving(t)
	export, other := m.export(), m.export()
	dir := filepath.Join(t.TempDir(), "moved")
	to, closing, err := backend.OpenImport(t.Context(), config(dir), backend.Moving{})
	testkit.Must(t, err)
	_, err = move.Import(t.Context(), bytes.NewReader(export), &lossy{Target: to}, nil)
	if !errors.Is(err, move.ErrDiffers) || !strings.Contains(err.Error(), "messages") {
		t.Errorf("a row is missing: %v", err)
	}
	testkit.Must(t, closing())
	if _, err := load(t.Context(), dir, other); !errors.Is(err, move.ErrOther) {
		t.Errorf("another export: %v", err)
	}
	if _, err := backend.Open(config(dir)); err == nil {
		t.Error("a server starts")
	}
	if _, err := load(t.Context(), m.dir, export); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("into data: %v", err)
	}
	keyed := filepath.Join(t.TempDir(), "key")
	testkit.Must(t, os.WriteFile(keyed, []byte("other"), 0o600))
	to, closing, err = backend.OpenImport(t.Context(), config(filepath.Join(t.TempDir(), "keyed")),
		backend.Moving{KeyFile: keyed})
	testkit.Must(t, err)
	_, err = move.Import(t.Context(), bytes.NewReader(export), to, nil)
	if err == nil || !strings.Contains(err.Error(), "other keys") {
		t.Errorf("other keys: %v", err)
	}
	testkit.Must(t, closing())
	n := start(t, m.dir)
	if _, _, err := backend.OpenExport(t.Context(), config(m.dir), backend.Moving{}); !errors.Is(err, backend.ErrRunning) {
		t.Errorf("of a server that runs: %v", err)
	}
	testkit.Must(t, n.eng.Close())
	// The process ended when only the files' way to their places was left.
	placed := filepath.Join(t.TempDir(), "placed")
	testkit.Value(load(t.Context(), placed, export))(t)
	work := filepath.Join(placed, backup.Importing)
	testkit.Must(t, os.Mkdir(work, 0o700))
	testkit.Must(t, os.Rename(filepath.Join(placed, "store"), filepath.Join(work, "store")))
	testkit.Must(t, os.WriteFile(filepath.Join(work, backup.Imported), nil, 0o600))
	if _, err := load(t.Context(), placed, nil); !errors.Is(err, backend.ErrImported) {
		t.Error(err)
	}
	m.compare(placed)
}
