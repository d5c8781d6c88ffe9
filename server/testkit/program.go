package testkit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// ServerVariable is the environment variable that names a built server by an absolute path. Tests run
// that server instead of linking one for each package. It must be built from the code that
// is tested: the tests do not compare.
const ServerVariable = "PARLEY_TEST_SERVER"

// BuildServer returns the path of the server that tests run: the one that ServerVariable
// names, or one that it builds into dir. An error says what the compiler printed.
func BuildServer(dir string) (path string, err error) {
	if path := os.Getenv(ServerVariable); path != "" {
		if !filepath.IsAbs(path) { // tests run in the directories of their packages
			return "", fmt.Errorf("%s is %q, not an absolute path", ServerVariable, path)
		}
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", ServerVariable, err)
		}
		return path, nil
	}
	path = filepath.Join(dir, "parley")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	build := exec.CommandContext(context.Background(), "go", "build", "-o", path, "github.com/parley-chat/parley/server")
	out, err := build.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the server: %w: %s", err, out)
	}
	return path, nil
}
