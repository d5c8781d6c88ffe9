//go:build unix

package app_test

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// In a directory that an operator made for all to read, under a umask that takes nothing away,
// nobody else can read what the server writes: not while it runs, not after it, nor what an
// earlier version left open.
func TestDataAreTheServersAlone(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(t *testing.T, dir string){
		"new": func(*testing.T, string) {},
		"of an earlier version": func(t *testing.T, dir string) {
			p := startOpen(t, dir)
			serve(t, p, dir)
			leave(p)
			open(t, dir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			testkit.Must(t, os.Mkdir(dir, 0o755))
			testkit.Must(t, os.Chmod(dir, 0o755))
			begin(t, dir)
			seen := map[string]bool{}
			for range 2 { // a start, and one over what it left
				p := startOpen(t, dir)
				serve(t, p, dir)
				checkPrivate(t, dir, seen)
				leave(p)
				checkPrivate(t, dir, seen)
			}
			for _, want := range []string{"auth.key", "kafka.properties", "LOCK", "FORMAT", "SEAL", "MANIFEST-", ".log"} {
				names := slices.Collect(maps.Keys(seen))
				if !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, want) }) {
					t.Errorf("no file like %s was seen", want)
				}
			}
		})
	}
}

// startOpen starts a server whose umask leaves everything to everybody.
func startOpen(t *testing.T, dir string) *process {
	t.Helper()
	return start(t, exec.Command("sh", "-c", `umask 0 && exec "$0" "$@"`, binary(t), "--listen", "127.0.0.1:0",
		"--kafka-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--data-dir",
		dir))
}

// serve has a server write to all that it has: chats, the event log, topics.
func serve(t *testing.T, p *process, dir string) {
	t.Helper()
	r := &benchFixture{b: t, ctx: t.Context(), p: p, dir: dir}
	r.readKey()
	ann := r.user("ann", false)
	r.user("bob", false)
	chat := r.group(ann, "bob")
	for range 20 {
		r.send(ann, chat, strings.Repeat("words ", 200))
	}
	testkit.Eventually(t, "events are published", func() bool {
		return scrape(t, p.addr, "parley_relay_published_total") >= 20
	})
}

// leave ends a server in good order, so that it writes what it keeps for the next start.
func leave(p *process) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	<-p.gone
}

// open gives everything in a directory to everybody, as versions did that left it to the umask;
// the file of keys was always the server's alone.
func open(t *testing.T, dir string) {
	t.Helper()
	testkit.Must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil || e.Name() == "auth.key":
			return err
		case e.IsDir():
			return os.Chmod(path, 0o755)
		}
		return os.Chmod(path, 0o644)
	}))
}

// checkPrivate walks all files, and notes their names.
func checkPrivate(t *testing.T, dir string, seen map[string]bool) {
	t.Helper()
	testkit.Must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return skipGone(err)
		}
		info, err := e.Info()
		if err != nil {
			return skipGone(err)
		}
		if mode := info.Mode().Perm(); mode&0o077 != 0 {
			t.Errorf("%s has mode %04o", path, mode)
		}
		seen[e.Name()] = true
		return nil
	}))
}

// skipGone leaves out what a running server has removed meanwhile.
func skipGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
