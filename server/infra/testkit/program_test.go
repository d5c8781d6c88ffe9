package testkit_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// A server that the environment names is taken as it is; one that is not there is an error,
// not a reason to build another.
func TestBuildServerNamed(t *testing.T) {
	dir := t.TempDir()
	named := filepath.Join(dir, "named")
	if err := os.WriteFile(named, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{named: named, filepath.Join(dir, "missing"): "", "named": ""} {
		t.Setenv(testkit.ServerVariable, name)
		path, err := testkit.BuildServer(dir)
		if path != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", name, path, err)
		}
	}
}
