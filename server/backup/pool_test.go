package backup_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/backup/bucket"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// folder has the objects of a pool in a directory. Calls can be made to fail.
type folder struct {
	dir string
	now time.Time

	mu     sync.Mutex
	left   int  // calls that succeed before one fails, as do all after it; negative: all succeed
	silent bool // that one is done, and only its answer is lost
	before func(call, key string)
}

func newFolder(t *testing.T) *folder {
	return &folder{dir: t.TempDir(), now: time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC), left: -1}
}

var errCut = errors.New("the connection was cut off")

func (f *folder) call(name, key string, do func(path string) error) error {
	f.mu.Lock()
	left, before := f.left, f.before
	if f.left > 0 {
		f.left--
	}
	f.mu.Unlock()
	if before != nil {
		before(name, key)
	}
	if left == 0 && !f.silent {
		return errCut
	}
	err := do(filepath.Join(f.dir, filepath.FromSlash(key)))
	if left == 0 {
		return errCut
	}
	return err
}

func (f *folder) Put(_ context.Context, key string, body io.ReadSeeker, size int64, sum [sha256.Size]byte) error {
	return f.call("put", key, func(path string) error {
		b, err := io.ReadAll(body)
		if err != nil {
			return err
		}
		if int64(len(b)) != size || sha256.Sum256(b) != sum {
			return errors.New("another content")
		}
		return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600),
			os.Chtimes(path, f.now, f.now))
	})
}

func (f *folder) Get(_ context.Context, key string, limit int64) (b []byte, err error) {
	err = f.call("get", key, func(path string) error { b, err = os.ReadFile(path); return err })
	if err == nil && int64(len(b)) > limit {
		err = errors.New("too large")
	}
	return b, err
}

func (f *folder) List(_ context.Context, prefix string, each func(bucket.Object)) error {
	return f.call("list", prefix, func(string) error {
		return filepath.WalkDir(f.dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(f.dir, path)
			if err != nil || !strings.HasPrefix(filepath.ToSlash(rel), prefix) {
				return err
			}
			info, err := d.Info()
			if err == nil {
				each(bucket.Object{Key: filepath.ToSlash(rel), Size: info.Size(), Changed: info.ModTime()})
			}
			return err
		})
	})
}

func (f *folder) Remove(_ context.Context, key string) error {
	return f.call("remove", key, func(path string) error {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
}

func (*folder) URL(key string) string { return "s3://test/" + key }

// keys are those of objects, by prefix.
func (f *folder) keys(t *testing.T, prefix string) (keys []string) {
	t.Helper()
	testkit.Must(t, f.List(t.Context(), prefix, func(o bucket.Object) { keys = append(keys, o.Key) }))
	return keys
}

// write makes a backup of what is in a directory, an hour after the one before.
func (f *folder) write(t *testing.T, from string, keep int) (backup.Report, error) {
	t.Helper()
	f.now = f.now.Add(time.Hour)
	list := testkit.Value(backup.Describe(from, f.now))(t)
	return backup.Pool{Objects: f}.Write(t.Context(), backup.Options{From: from, Of: list, Keep: keep})
}

// content is what a backup extracts to.
func (f *folder) content(t *testing.T, key string) (map[string]string, error) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	if err := (backup.Pool{Objects: f}).Extract(t.Context(), key, dir, nil); err != nil {
		return nil, err
	}
	return files(t, dir), nil
}

func key(r backup.Report) string { return strings.TrimPrefix(r.Path, "s3://test/") }

// A file of 40 MiB is stored in pieces, of which a later backup stores those that have changed; content that
// is there twice is stored once.
func TestPoolPieces(t *testing.T) {
	f, from, want := newFolder(t), t.TempDir(), filled()
	big := make([]byte, 40<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(big)
	want["log/partitions/a-0/1.dat"], want["log/partitions/a-0/2.dat"] = string(big), want["store/000001.sst"]
	put(t, from, want)
	first := testkit.Value(f.write(t, from, 0))(t)
	once := first.Bytes - int64(len(want["store/000001.sst"]))
	if first.Written != once || first.Files != len(want) {
		t.Errorf("%+v, of which %d bytes are different", first, once)
	}
	for _, k := range f.keys(t, "data/") {
		if info := testkit.Value(os.Stat(filepath.Join(f.dir, k)))(t); info.Size() > 16<<20 {
			t.Errorf("%s has %d bytes", k, info.Size())
		}
	}
	grown := maps.Clone(want)
	grown["log/partitions/a-0/1.dat"] += "more"
	put(t, from, grown)
	puts := 0
	f.before = func(call, _ string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if call == "put" {
			puts++
		}
	}
	second := testkit.Value(f.write(t, from, 0))(t)
	if second.Written != 8<<20+4 || puts != 2 {
		t.Errorf("%d bytes in %d objects were stored for a file that has grown by 4", second.Written, puts)
	}
	for r, want := range map[backup.Report]map[string]string{first: want, second: grown} {
		if got, err := f.content(t, key(r)); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %d files, %v", r.Path, len(got), err)
		}
	}
}

// --keep counts the backups of one data directory. What only removed backups had goes a day later, and nothing of
// another data directory does.
func TestPoolKeep(t *testing.T) {
	f, from, other := newFolder(t), t.TempDir(), t.TempDir()
	put(t, other, filled())
	kept := testkit.Value(f.write(t, other, 1))(t)
	others := len(f.keys(t, "data/"))
	for n := range 40 {
		put(t, from, map[string]string{"FORMAT": "parley 2 2\n", "store/000001.sst": fmt.Sprint("content ", n)})
		r := testkit.Value(f.write(t, from, 3))(t)
		if removed := min(1, n/3); r.Removed != removed {
			t.Errorf("backup %d: %d removed", n, r.Removed)
		}
		// Those of three backups and of the day before, and the file that does not change.
		if n := len(f.keys(t, "data/")) - others; n > 3+26+1 {
			t.Errorf("%d objects", n)
		}
	}
	if n := len(f.keys(t, "backups/")); n != 4 {
		t.Errorf("%d lists", n)
	}
	if got, err := f.content(t, key(kept)); err != nil || !maps.Equal(got, filled()) {
		t.Errorf("the backup of another data directory: %d files, %v", len(got), err)
	}
	if _, err := (backup.Pool{Objects: f}).Find(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "2 data directories") || !strings.Contains(err.Error(), kept.Path) {
		t.Errorf("the newest of which: %v", err)
	}
}

// The newest is found, and an empty pool has none. A clock that was set back removes no new backup.
func TestPoolFind(t *testing.T) {
	f, from := newFolder(t), t.TempDir()
	put(t, from, filled())
	pool := backup.Pool{Objects: f}
	if _, err := pool.Find(t.Context()); !errors.Is(err, backup.ErrNone) {
		t.Error(err)
	}
	put(t, f.dir, map[string]string{"backups/notes.json": "{}", "backups/20261127T093000.000Z.json": "{}"})
	testkit.Value(f.write(t, from, 0))(t)
	newest := testkit.Value(f.write(t, from, 0))(t)
	if got, err := pool.Find(t.Context()); err != nil || got != key(newest) {
		t.Errorf("%s %v, not %s", got, err, newest.Path)
	}
	if err := pool.Extract(t.Context(), "backups/20260101T000000.000Z-00000000.json", filepath.Join(t.TempDir(), "x"),
		nil); !errors.Is(err, backup.ErrNone) {
		t.Error(err)
	}
	f.now = f.now.Add(-48 * time.Hour)
	back := testkit.Value(f.write(t, from, 1))(t)
	if got, err := f.content(t, key(back)); err != nil || back.Removed != 2 || !maps.Equal(got, filled()) {
		t.Errorf("%+v: %d files, %v", back, len(got), err)
	}
	f.now = f.now.Add(-time.Hour)
	if _, err := f.write(t, from, 0); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("two backups of one moment: %v", err)
	}
}

// After a failure of any call, carried out or not, every list that is there is complete, and a later backup removes
// the remains of one that was cut off.
func TestPoolCutOff(t *testing.T) {
	seed := testkit.Seed(t, 1)
	random := rand.New(rand.NewPCG(seed, 0))
	f := newFolder(t)
	want := map[string]map[string]string{} // by list
	dirs := []string{t.TempDir(), t.TempDir()}
	cuts := 0
	step := func(dir string, keep, left int, silent bool) error {
		for _, name := range []string{"FORMAT", "store/1.sst", "store/2.sst", "log/0.dat"} {
			if random.IntN(2) == 0 { // content comes back
				put(t, dir, map[string]string{name: strings.Repeat("x", random.IntN(12))})
			}
		}
		put(t, dir, map[string]string{"auth.key": "k"})
		f.now = f.now.Add(time.Duration(random.IntN(20)) * time.Hour)
		f.left, f.silent = left, silent
		_, err := f.write(t, dir, keep)
		f.left = -1
		for _, k := range f.keys(t, "backups/") {
			if want[k] == nil {
				want[k] = files(t, dir)
			}
			if got, err := f.content(t, k); err != nil || !maps.Equal(got, want[k]) {
				t.Fatalf("seed %d: %s has %v, not %v: %v", seed, k, got, want[k], err)
			}
		}
		return err
	}
	for range 60 {
		if err := step(dirs[random.IntN(2)], random.IntN(4), random.IntN(20), random.IntN(2) == 0); err != nil {
			cuts++
		}
	}
	if cuts < 10 {
		t.Errorf("only %d of 60 backups were cut off", cuts)
	}
	for range 6 {
		for _, dir := range dirs {
			testkit.Must(t, step(dir, 1, -1, false))
			f.now = f.now.Add(10 * time.Hour)
		}
	}
	if n := len(f.keys(t, "")); n > 2*(1+5*4) {
		t.Errorf("%d objects are left", n)
	}
}

// A backup that another one of the same name overtakes, and removes all lists that it relies on, is complete.
func TestPoolOvertaken(t *testing.T) {
	f, from := newFolder(t), t.TempDir()
	put(t, from, filled())
	testkit.Value(f.write(t, from, 0))(t)
	put(t, from, map[string]string{"store/000002.log": "new", "store/000001.sst": "new", "FORMAT": "new"})
	testkit.Value(f.write(t, from, 0))(t)
	f.now = f.now.Add(48 * time.Hour)
	put(t, from, filled())
	overtake := sync.OnceFunc(func() { testkit.Value(f.write(t, from, 1))(t) })
	f.before = func(call, key string) {
		if call == "put" && strings.HasPrefix(key, "backups/") {
			f.mu.Lock()
			f.before = nil
			f.mu.Unlock()
			put(t, from, map[string]string{"store/000001.sst": "newer"})
			overtake()
		}
	}
	testkit.Value(f.write(t, from, 3))(t)
	for _, k := range f.keys(t, "backups/") {
		if _, err := f.content(t, k); err != nil {
			t.Errorf("%s: %v", k, err)
		}
	}
}

// What a cut-off backup has left is still there for a backup that has found it, although another one of the same name
// removes what is old before that one ends.
func TestPoolOvertakenReuse(t *testing.T) {
	f, from := newFolder(t), t.TempDir()
	put(t, from, map[string]string{"FORMAT": "left by a cut-off backup"})
	f.left = 3 // lists, objects, an object, and not the list
	_, err := f.write(t, from, 0)
	f.left, f.now = -1, f.now.Add(10*time.Hour)
	if !errors.Is(err, errCut) || len(f.keys(t, "")) != 1 {
		t.Fatal(err)
	}
	f.before = func(call, key string) {
		if call != "put" {
			return
		}
		f.mu.Lock()
		f.before = nil
		f.mu.Unlock()
		if !strings.HasPrefix(key, "backups/") {
			t.Errorf("%s is stored again", key)
		}
		f.now = f.now.Add(4 * time.Hour)
		put(t, from, map[string]string{"FORMAT": "another content"})
		testkit.Value(f.write(t, from, 1))(t)
	}
	r := testkit.Value(f.write(t, from, 1))(t)
	if got, err := f.content(t, key(r)); err != nil || got["FORMAT"] != "left by a cut-off backup" {
		t.Errorf("%v, %v", got, err)
	}
}

// An object that is missing, cut off or has another content makes a backup a damaged one, as does a list that does
// not say what its files are made of; nothing is restored of it. The next backup stores again what is missing or has
// another size.
func TestPoolDamage(t *testing.T) {
	f, from := newFolder(t), t.TempDir()
	put(t, from, map[string]string{"FORMAT": "parley 2 2\n", "store/000001.sst": "some content"})
	r := testkit.Value(f.write(t, from, 0))(t)
	paths := append(f.keys(t, "data/"), key(r))
	for _, k := range paths {
		path := filepath.Join(f.dir, filepath.FromSlash(k))
		good := testkit.Value(os.ReadFile(path))(t)
		flipped := bytes.Clone(good)
		flipped[len(good)/2] ^= 4
		for what, bad := range map[string][]byte{"flipped": flipped, "cut off": good[:len(good)/2], "missing": nil} {
			if what == "flipped" && k == key(r) {
				continue // what S3 itself keeps of a list's checksum is not read here
			}
			testkit.Must(t, os.Remove(path))
			if bad != nil {
				testkit.Must(t, os.WriteFile(path, bad, 0o600))
			}
			_, err := f.content(t, key(r))
			if isList := strings.HasPrefix(k, "backups/"); err == nil ||
				!isList && (!errors.Is(err, backup.ErrDamaged) || !strings.Contains(err.Error(), k)) {
				t.Errorf("%s, %s: %v", k, what, err)
			}
			if strings.HasPrefix(k, "data/") && what != "flipped" {
				testkit.Value(f.write(t, from, 0))(t)
				if got := testkit.Value(os.ReadFile(path))(t); !bytes.Equal(got, good) {
					t.Errorf("%s, %s, is not stored again", k, what)
				}
			}
			testkit.Must(t, os.WriteFile(path, good, 0o600))
		}
	}
}

// While a list cannot be read, no object is removed: it could be one of that backup.
func TestPoolUnreadableList(t *testing.T) {
	f, from := newFolder(t), t.TempDir()
	put(t, from, map[string]string{"FORMAT": "first"})
	first := testkit.Value(f.write(t, from, 0))(t)
	path := filepath.Join(f.dir, filepath.FromSlash(key(first)))
	good := testkit.Value(os.ReadFile(path))(t)
	testkit.Must(t, os.WriteFile(path, good[:len(good)-9], 0o600))
	put(t, from, map[string]string{"FORMAT": "second"})
	for range 3 {
		f.now = f.now.Add(30 * time.Hour)
		r, err := f.write(t, from, 10)
		if r.Path == "" || err == nil || !strings.Contains(err.Error(), first.Path) {
			t.Errorf("%+v %v", r, err)
		}
	}
	testkit.Must(t, os.WriteFile(path, good, 0o600))
	if got, err := f.content(t, key(first)); err != nil || got["FORMAT"] != "first" {
		t.Error(got, err)
	}
}

// Lists that would have a restore read other objects, or more memory than it has, are refused.
func TestPoolForeignLists(t *testing.T) {
	sum := strings.Repeat("0", 64)
	for name, list := range map[string]string{
		"no pieces":         `{"format":1,"files":[{"path":"x","size":1,"sha256":"` + sum + `"}]}`,
		"a piece of 1 GB":   `{"format":1,"piece_size":1000000000,"files":[{"path":"x","size":1,"sha256":"` + sum + `"}]}`,
		"another directory": `{"format":1,"piece_size":16,"files":[{"path":"x","size":1,"sha256":"../../secret"}]}`,
		"too few pieces":    `{"format":1,"piece_size":1,"files":[{"path":"x","size":2,"sha256":"` + sum + `"}]}`,
		"out of it":         `{"format":1,"piece_size":16,"files":[{"path":"../x","size":1,"sha256":"` + sum + `"}]}`,
	} {
		f := newFolder(t)
		k := "backups/20261127T093000.000Z-00000000.json"
		put(t, f.dir, map[string]string{k: list, "data/00000000/" + sum: "x", "data/secret": "x"})
		if _, err := f.content(t, k); !errors.Is(err, backup.ErrDamaged) || strings.Contains(err.Error(), "is not there") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A backup whose caller gives up ends, and counts as none.
func TestPoolCanceled(t *testing.T) {
	f, from := newFolder(t), t.TempDir()
	put(t, from, filled())
	ctx, cancel := context.WithCancel(t.Context())
	list := testkit.Value(backup.Describe(from, f.now))(t)
	_, err := backup.Pool{Objects: f}.Write(ctx, backup.Options{From: from, Of: list,
		Progress: func(int64, int64) { cancel() }})
	if !errors.Is(err, context.Canceled) || len(f.keys(t, "backups/")) > 0 {
		t.Errorf("%v", err)
	}
}

// Places that are none are refused with a word that helps.
func TestTargets(t *testing.T) {
	for to, says := range map[string]string{
		"":                          "",
		"s3://bucket":               "",
		"s3://bucket/":              "",
		"s3://my-bucket.eu/a/b=1_2": "",
		"s3://":                     "s3://BUCKET/PREFIX",
		"s3://B/x":                  "s3://BUCKET/PREFIX",
		"s3://user:secret@host/x":   "s3://BUCKET/PREFIX",
		"s3://bucket/../x":          "s3://BUCKET/PREFIX",
		"s3://bucket//x":            "s3://BUCKET/PREFIX",
		"s3://bucket/a b":           "s3://BUCKET/PREFIX",
		"s3://bucket/x.tar.zst":     "names one file",
		"s3://bucket/x.json":        "names one file",
		"gs://bucket/x":             "neither a path nor an address of S3",
	} {
		err := backup.CheckTarget(to, "/data")
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v", to, err)
		}
	}
	for _, path := range []string{"s3://bucket/x.json", "s3://bucket/backups/x.json"} {
		if _, err := backup.Find(t.Context(), path); err == nil || !strings.Contains(err.Error(), "names no backup") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
