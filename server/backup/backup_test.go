package backup_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// put writes files below a directory.
func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testkit.Must(t, os.WriteFile(path, []byte(content), 0o600))
	}
}

// files reads those below a directory, without the list.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for _, f := range testkit.Value(backup.Scan(dir))(t) {
		got[f.Path] = string(testkit.Value(os.ReadFile(filepath.Join(dir, filepath.FromSlash(f.Path))))(t))
	}
	return got
}

func filled() map[string]string {
	big := make([]byte, 3<<20)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(big)
	return map[string]string{"FORMAT": "parley 2 2\n", "auth.key": "k", "store/000001.sst": string(big),
		"store/000002.log": "wal", "log/partitions/a-0/0.dat": strings.Repeat("x", 4096), "log/empty": ""}
}

// write makes a backup of what is in a directory, as of a minute.
func write(t *testing.T, from, to string, minute, keep int) (backup.Report, error) {
	t.Helper()
	list := testkit.Value(backup.Describe(from, time.Date(2026, 11, 27, 9, minute, 0, 0, time.UTC)))(t)
	return backup.Write(t.Context(), backup.Options{From: from, Of: list, To: to, Keep: keep})
}

// restored is what a restore of a backup puts into a directory.
func restored(t *testing.T, path string) map[string]string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	testkit.Must(t, backup.Restore(t.Context(), path, dir, nil, func(work string) error {
		return os.WriteFile(filepath.Join(work, "LOCK"), nil, 0o600) // as a store leaves it
	}))
	if err := backup.CheckUnfinished(dir); err != nil {
		t.Error(err)
	}
	return files(t, dir)
}

// What is written is restored, from a directory and from an archive.
func TestRoundTrip(t *testing.T) {
	for _, to := range []string{"backups", "one.tar.zst"} {
		from, want := t.TempDir(), filled()
		put(t, from, want)
		put(t, from, map[string]string{"LOCK": "", "store/LOCK": "", "snapshot/x": "x"})
		target := filepath.Join(t.TempDir(), "new", to)
		r := testkit.Value(write(t, from, target, 0, 0))(t)
		testkit.Must(t, backup.Verify(t.Context(), r.Path, nil))
		path := testkit.Value(backup.Find(t.Context(), target))(t)
		if got := restored(t, path); path != r.Path || r.Files != len(want) || !maps.Equal(got, want) {
			t.Errorf("%s: %+v, restored %d files", path, r, len(got))
		}
		info := testkit.Value(os.Stat(r.Path))(t)
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("others may read the backup: %s", info.Mode())
		}
	}
}

// A backup takes from the one before what has not changed, and stays complete when that one goes.
func TestIncremental(t *testing.T) {
	from, to, want := t.TempDir(), t.TempDir(), filled()
	put(t, from, want)
	for minute := range 5 {
		change := map[string]string{"store/000002.log": fmt.Sprint("wal", minute)}
		put(t, from, change)
		maps.Copy(want, change)
		r := testkit.Value(write(t, from, to, minute, 2))(t)
		if minute > 0 && r.Written != int64(len(change["store/000002.log"])) {
			t.Errorf("backup %d: %d bytes are new", minute, r.Written)
		}
		if removed := min(1, minute/2); r.Removed != removed {
			t.Errorf("backup %d: %d removed", minute, r.Removed)
		}
	}
	if all := testkit.Value(backup.All(to))(t); len(all) != 2 || !maps.Equal(restored(t, all[1]), want) {
		t.Errorf("%d backups", len(all))
	}
	// Those of another data directory stay.
	other := t.TempDir()
	put(t, other, filled())
	if r := testkit.Value(write(t, other, to, 9, 1))(t); r.Removed != 0 {
		t.Errorf("%d backups of another data directory were removed", r.Removed)
	}
}

// What an earlier backup has lost is copied again, although the name and the size are the same.
func TestEarlierBackupIsDamaged(t *testing.T) {
	from, to, want := t.TempDir(), t.TempDir(), filled()
	put(t, from, want)
	first := testkit.Value(write(t, from, to, 0, 0))(t)
	path := filepath.Join(first.Path, "store", "000001.sst")
	b := testkit.Value(os.ReadFile(path))(t)
	b[len(b)/2] ^= 1
	testkit.Must(t, os.WriteFile(path, b, 0o600))
	second := testkit.Value(write(t, from, to, 1, 0))(t)
	err := backup.Verify(t.Context(), first.Path, nil)
	if !errors.Is(err, backup.ErrDamaged) || !strings.Contains(err.Error(), "000001.sst") {
		t.Errorf("the first backup: %v", err)
	}
	if second.Written != int64(len(b)) || !maps.Equal(restored(t, second.Path), want) {
		t.Errorf("%+v", second)
	}
}

// What is appended to a file after the moment is not in the backup.
func TestGrowing(t *testing.T) {
	from, want := t.TempDir(), filled()
	put(t, from, want)
	moment := t.TempDir()
	list := backup.NewList(from, time.Now())
	list.Files = testkit.Value(backup.Link(from, moment))(t)
	f := testkit.Value(os.OpenFile(filepath.Join(from, "log/partitions/a-0/0.dat"), os.O_APPEND|os.O_WRONLY, 0))(t)
	_, err := f.WriteString("later")
	testkit.Must(t, errors.Join(err, f.Close(), os.Remove(filepath.Join(from, "store/000001.sst"))))
	for _, to := range []string{t.TempDir(), filepath.Join(t.TempDir(), "a.tar.zst")} {
		r := testkit.Value(backup.Write(t.Context(), backup.Options{From: moment, Of: list, To: to}))(t)
		if !maps.Equal(restored(t, r.Path), want) {
			t.Errorf("%s has other files", to)
		}
	}
}

// A backup of which a byte is changed, or the end is missing, is refused, and nothing is restored.
func TestDamage(t *testing.T) {
	from := t.TempDir()
	put(t, from, filled())
	seed := testkit.Seed(t, 1)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, to := range []string{t.TempDir(), filepath.Join(t.TempDir(), "a.tar.zst")} {
		r := testkit.Value(write(t, from, to, 0, 0))(t)
		var paths []string
		if backup.IsArchive(to) {
			paths = []string{to}
		} else {
			for _, f := range testkit.Value(backup.ReadList(r.Path))(t).Files {
				if f.Size > 0 {
					paths = append(paths, filepath.Join(r.Path, filepath.FromSlash(f.Path)))
				}
			}
		}
		for range 40 {
			path := paths[random.IntN(len(paths))]
			good := testkit.Value(os.ReadFile(path))(t)
			bad := bytes.Clone(good)
			at := random.IntN(len(good))
			if random.IntN(2) == 0 {
				bad = bad[:at]
			} else {
				bad[at] ^= 1 << random.IntN(8)
			}
			testkit.Must(t, os.WriteFile(path, bad, 0o600))
			dir := filepath.Join(t.TempDir(), "data")
			err := backup.Restore(t.Context(), r.Path, dir, nil, func(string) error { return nil })
			verified, got := backup.Verify(t.Context(), r.Path, nil), files(t, dir)
			harmless := backup.IsArchive(to) && err == nil && maps.Equal(got, filled()) // a bit of a header that says nothing
			if !harmless && (!errors.Is(err, backup.ErrDamaged) || verified == nil || len(got) > 0) {
				t.Fatalf("seed %d: byte %d of %s: restore %v, verify %v", seed, at, path, err, verified)
			}
			testkit.Must(t, os.WriteFile(path, good, 0o600))
		}
		testkit.Must(t, backup.Verify(t.Context(), r.Path, nil))
	}
}

// A restore changes nothing in a directory that has something, and one that was cut off neither
// starts a server nor is in the way of the next.
func TestRestoreIntoSomething(t *testing.T) {
	from, to, dir := t.TempDir(), t.TempDir(), t.TempDir()
	put(t, from, filled())
	r := testkit.Value(write(t, from, to, 0, 0))(t)
	put(t, dir, map[string]string{"FORMAT": "mine"})
	err := backup.Restore(t.Context(), r.Path, dir, nil, func(string) error { return nil })
	if got := files(t, dir); err == nil || !strings.Contains(err.Error(), "is not empty") || len(got) != 1 ||
		got["FORMAT"] != "mine" {
		t.Error(err, got)
	}
	testkit.Must(t, os.Remove(filepath.Join(dir, "FORMAT")))
	put(t, dir, map[string]string{backup.Unfinished + "/store/000001.sst": "half"})
	if backup.CheckUnfinished(dir) == nil {
		t.Error("a server starts on half of a backup")
	}
	testkit.Must(t, backup.Restore(t.Context(), r.Path, dir, nil, func(string) error { return nil }))
	if !maps.Equal(files(t, dir), filled()) {
		t.Error("other files than those of the backup")
	}
}

// A backup that is cut off leaves nothing that counts as one, and the next one removes it.
func TestCutOff(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	put(t, from, filled())
	for _, target := range []string{to, filepath.Join(to, "a.tar.zst")} {
		ctx, cancel := context.WithCancel(t.Context())
		list := testkit.Value(backup.Describe(from, time.Now()))(t)
		_, err := backup.Write(ctx, backup.Options{From: from, Of: list, To: target,
			Progress: func(done, _ int64) {
				if done > 2<<20 {
					cancel()
				}
			}})
		left := testkit.Value(os.ReadDir(to))(t)
		if !errors.Is(err, context.Canceled) || len(left) > 0 {
			t.Errorf("%s: %v, %d left", target, err, len(left))
		}
	}
	// What a process has left that was killed is removed; what another one writes is not.
	ctx, cancel := context.WithCancel(t.Context())
	other, kept := t.TempDir(), filepath.Join(t.TempDir(), "kept")
	put(t, other, filled())
	list, name := testkit.Value(backup.Describe(other, time.Now()))(t), ""
	_, _ = backup.Write(ctx, backup.Options{From: other, Of: list, To: to, Progress: func(int64, int64) {
		if ctx.Err() == nil {
			cancel()
			name = testkit.Value(filepath.Glob(filepath.Join(to, "*.partial")))(t)[0]
			testkit.Must(t, os.CopyFS(kept, os.DirFS(name)))
		}
	}})
	testkit.Must(t, os.Rename(kept, name)) // as a kill leaves it
	if _, err := backup.Find(t.Context(), to); !errors.Is(err, backup.ErrNone) {
		t.Error(err)
	}
	testkit.Value(write(t, from, to, 0, 0))(t)
	if left := testkit.Value(os.ReadDir(to))(t); len(left) != 2 {
		t.Errorf("%d entries: a backup, and what another process writes", len(left))
	}
	testkit.Value(write(t, other, to, 1, 0))(t)
	if left := testkit.Value(os.ReadDir(to))(t); len(left) != 2 {
		t.Errorf("%d entries, should be two backups", len(left))
	}
}

// A list that is damaged, and a clock that was set back, are in no new backup's way.
func TestEarlierListIsDamaged(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	put(t, from, filled())
	first := testkit.Value(write(t, from, to, 30, 0))(t)
	testkit.Must(t, os.WriteFile(filepath.Join(first.Path, backup.ListFile), []byte("{"), 0o600))
	testkit.Value(write(t, from, to, 31, 1))(t)
	earlier := testkit.Value(write(t, from, to, 10, 1))(t)
	all := testkit.Value(backup.All(to))(t)
	if earlier.Removed != 1 || len(all) != 2 || all[0] != earlier.Path {
		t.Errorf("%+v, %v", earlier, all)
	}
}

// Links: one to the data directory is followed, one in it is refused, as what it leads to would be missing.
func TestSymbolicLinks(t *testing.T) {
	from, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	put(t, from, filled())
	testkit.Must(t, os.Symlink(from, link))
	r := testkit.Value(write(t, link, t.TempDir(), 0, 0))(t)
	if !maps.Equal(restored(t, r.Path), filled()) {
		t.Error("other files")
	}
	testkit.Must(t, os.Symlink(t.TempDir(), filepath.Join(from, "log2")))
	if _, err := backup.Describe(from, time.Now()); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Error(err)
	}
	if _, err := write(t, t.TempDir(), t.TempDir(), 0, 0); err == nil {
		t.Error("a backup of nothing")
	}
}

// A list that leads out of the backup is refused, and so are other formats.
func TestForeignLists(t *testing.T) {
	for _, list := range []string{
		`{"format":1,"files":[{"path":"../x","size":1}]}`, `{"format":1,"files":[{"path":"/etc/x","size":1}]}`,
		`{"format":1,"files":[{"path":"x","size":-1}]}`, `{"format":2}`, `{`, ``,
	} {
		dir := t.TempDir()
		put(t, dir, map[string]string{backup.ListFile: list})
		if err := backup.Verify(t.Context(), dir, nil); err == nil {
			t.Errorf("%s is accepted", list)
		}
	}
}
