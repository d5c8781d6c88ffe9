package app

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
)

// The commands do what they say, and never tell a secret.
func TestCommands(t *testing.T) {
	dir := t.TempDir()
	if _, err := auth.LoadKey(dir); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	run := func(args ...string) (string, error) {
		var out strings.Builder
		c := keysCommand(keysConfig{Stdout: &out, Clock: func() time.Time { return now },
			Path: func() (string, error) { return filepath.Join(dir, auth.KeyFile), nil }})
		c.SetArgs(args)
		c.SilenceErrors, c.SilenceUsage = true, true
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	for _, args := range [][]string{{"list", "x"}, {"rotate", "x"}, {"rotate", "--notice", "0s"},
		{"rotate", "--notice", "200h"}, {"rotate", "--root"}} {
		if _, err := run(args...); err == nil {
			t.Errorf("%v is taken", args)
		}
	}
	made, err := run("rotate")
	if err != nil || !strings.HasSuffix(made, " signs from 2030-01-01T00:10:00Z on\n") {
		t.Fatal(made, err)
	}
	if _, err := run("rotate"); err == nil {
		t.Fatal("a rotation during another")
	}
	listed, err := run("list")
	lines := strings.Split(strings.TrimSpace(listed), "\n")
	if err != nil || len(lines) != 3 || !strings.Contains(lines[1], "the beginning") ||
		!strings.Contains(lines[1], "2030-01-02T00:10:00Z") || !strings.HasSuffix(lines[1], "signs now") ||
		!strings.HasPrefix(made, strings.Fields(lines[2])[0]) {
		t.Fatal(listed, err)
	}
	now = now.Add(time.Minute)
	if made, err = run("rotate", "--at-once"); err != nil || !strings.Contains(made, "2030-01-01T00:01:00Z") {
		t.Fatal(made, err)
	}
	k, err := auth.ReadKey(filepath.Join(dir, auth.KeyFile))
	if err != nil || strings.Contains(listed+made, "PRIVATE") || len(k.Keys(now)) != 2 {
		t.Fatal(k.Keys(now), err)
	}
	if made, err = run("rotate", "--at-once", "--root"); err != nil || !strings.Contains(made, "stop all servers") {
		t.Fatal(made, err)
	}
	after, err := auth.ReadKey(filepath.Join(dir, auth.KeyFile))
	if err != nil || len(after.Keys(now)) != 1 || string(after.Derive("x", 32)) == string(k.Derive("x", 32)) {
		t.Fatal(after.Keys(now), err)
	}
}
