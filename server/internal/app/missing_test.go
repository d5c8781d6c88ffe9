package app_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file that is missing from a data directory with data is not recreated, which would
// end all sessions, take the data for those of an older version, or begin with none. The
// server says in one line what is missing, and works again when it is back.
func TestMissingFilesAreNotMadeAnew(t *testing.T) {
	dir := t.TempDir()
	_, _, stop := greeted(t, "127.0.0.1:0", dir)
	if code := stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for name, says := range map[string]string{"auth.key": "auth.key is missing", "FORMAT": "FORMAT file is missing",
		"store": "--accept-loss"} {
		path := filepath.Join(dir, name)
		if err := os.Rename(path, path+".away"); err != nil {
			t.Fatal(err)
		}
		code, stdout, stderr := run(t.Context(), nil, "--data-dir", dir, "--listen", "127.0.0.1:0", "--kafka-listen",
			"127.0.0.1:0", "--registry-listen", "127.0.0.1:0")
		if code != 1 || !strings.Contains(stderr, says) ||
			strings.Count(stderr[strings.Index(stderr, "parley: "):], "\n") != 1 {
			t.Errorf("%s: %d %s%s", name, code, stdout, stderr)
		}
		if name == "auth.key" {
			if code, _, stderr := run(t.Context(), nil, "--data-dir", dir, "token", "alice"); code != 1 ||
				!strings.Contains(stderr, says) {
				t.Errorf("a token: %d %s", code, stderr)
			}
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s was made", name)
		}
		if err := os.Rename(path+".away", path); err != nil {
			t.Fatal(err)
		}
	}
	_, _, stop = greeted(t, "127.0.0.1:0", dir)
	if code := stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
