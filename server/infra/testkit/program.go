package testkit

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// ServerVariable is the environment variable that names a built server by an absolute path. Tests run
// that server instead of linking one for each package. It must be built from the code that
// is tested: the tests do not compare.
const ServerVariable = "PARLEY_TEST_SERVER"

// Program is a program of this module that the tests of a package run, found or built at most once. TestMain calls
// Remove. It is safe for concurrent use.
type Program struct {
	Name string // its directory: server or workers

	once sync.Once
	dir  string // of what was built; empty: nothing was
	path string
	err  error
}

// Path returns the path of the program. The test ends if there is none.
func (p *Program) Path(t testing.TB) string {
	t.Helper()
	p.once.Do(func() {
		p.dir, p.err = os.MkdirTemp("", "parley-test-*") //nolint:usetesting // it outlives the test
		switch {
		case p.err != nil:
		case p.Name == server:
			p.path, p.err = BuildServer(p.dir)
		default:
			p.path, p.err = build(p.dir, p.Name)
		}
	})
	Must(t, p.err)
	return p.path
}

// Remove removes what Path has built.
func (p *Program) Remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir)
	}
}

const server = "server"

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
	return build(dir, server)
}

func build(dir, name string) (path string, err error) {
	path = filepath.Join(dir, name)
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	run := exec.CommandContext(context.Background(), "go", "build", "-o", path, "github.com/parley-chat/parley/"+name)
	out, err := run.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build %s: %w: %s", name, err, out)
	}
	return path, nil
}
