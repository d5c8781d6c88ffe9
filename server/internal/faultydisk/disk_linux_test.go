package faultydisk

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

func mount(t *testing.T, size int64) (*Disk, string) {
	t.Helper()
	dir := t.TempDir()
	d, err := Mount(dir, size)
	if errors.Is(err, ErrUnusable) {
		t.Skip("not run: ", err)
	}
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, d.Close()) })
	return d, dir
}

func write(t *testing.T, path, text string, sync bool) {
	t.Helper()
	f := testkit.Value(os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600))(t)
	testkit.Value(f.WriteString(text))(t)
	if sync {
		testkit.Must(t, f.Sync())
	}
	testkit.Must(t, f.Close())
}

func syncDir(t *testing.T, path string) {
	t.Helper()
	f := testkit.Value(os.Open(path))(t)
	testkit.Must(t, f.Sync())
	testkit.Must(t, f.Close())
}

// state lists the files with their contents.
func state(t *testing.T, dir string) string {
	t.Helper()
	var list []string
	testkit.Must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		list = append(list, rel+"="+string(b))
		return err
	}))
	return strings.Join(list, " ")
}

// Only what was synced is there after a power loss: pages and sizes of files, and names.
func TestPowerLoss(t *testing.T) {
	d, dir := mount(t, 64<<20)
	in := func(name string) string { return filepath.Join(dir, name) }
	write(t, in("a"), "first", true)
	write(t, in("b"), "text", false) // its name is durable, and nothing in it
	write(t, in("c"), "old", true)
	write(t, in("e"), "linked", true)
	testkit.Must(t, os.Mkdir(in("sub"), 0o700))
	syncDir(t, dir)
	write(t, in("sub/x"), "x", true) // without a name after a loss
	write(t, in("a"), "FIRST and more", false)
	write(t, in("c.new"), "new", true)
	testkit.Must(t, os.Rename(in("c.new"), in("c")))
	testkit.Must(t, os.Link(in("e"), in("f")))
	testkit.Must(t, os.Remove(in("e")))
	write(t, in("d"), "d", true)
	if got := state(t, dir); got != "a=FIRST and more b=text c=new d=d f=linked sub/x=x" {
		t.Fatal(got)
	}
	testkit.Must(t, d.PowerLoss(nil))
	if got := state(t, dir); got != "a=first b= c=old e=linked" {
		t.Fatal(got)
	}
	write(t, in("c.new"), "new", true)
	testkit.Must(t, os.Rename(in("c.new"), in("c")))
	syncDir(t, dir)
	testkit.Must(t, os.Truncate(in("a"), 2))
	testkit.Must(t, d.PowerLoss(nil))
	if got := state(t, dir); got != "a=first b= c=new e=linked" {
		t.Fatal(got)
	}
}

// With a source of random numbers a part of the rest survives, the same part for the same
// numbers: of a directory the first changes, of a file any pages.
func TestPartsSurvive(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(40) {
		d := &Disk{tree: newTree(1 << 20)}
		root := d.tree.root
		f, err := d.tree.create(root, "f", false, 0o600)
		testkit.Must(t, err)
		root.sync()
		for i := range 4 {
			_, err := d.tree.write(f, bytes.Repeat([]byte{'a'}, pageSize), int64(i)*pageSize)
			testkit.Must(t, err)
		}
		f.sync()
		for i := range 4 {
			_, err := d.tree.write(f, bytes.Repeat([]byte{'b'}, pageSize), int64(i)*pageSize)
			testkit.Must(t, err)
		}
		for _, name := range []string{"1", "2"} {
			_, err := d.tree.create(root, name, false, 0o600)
			testkit.Must(t, err)
		}
		d.tree.lose(rand.New(rand.NewPCG(seed, 0)))
		left := ""
		for i := range 4 {
			p := make([]byte, 1)
			f.read(p, int64(i)*pageSize)
			left += string(p)
		}
		if root.entries["2"] != nil && root.entries["1"] == nil {
			t.Fatal("the second change survived without the first")
		}
		seen[left], seen[map[bool]string{true: "name"}[root.entries["1"] != nil]] = true, true
	}
	for _, want := range []string{"aaaa", "bbbb", "name", ""} {
		if !seen[want] {
			t.Errorf("never %q: %v", want, seen)
		}
	}
	if len(seen) < 8 {
		t.Errorf("only %v", seen)
	}
}

// A disk without room takes the part of a write that has room, says so in statfs, and takes
// more when there is room again. What is removed gives its room back.
func TestFull(t *testing.T) {
	d, dir := mount(t, 1<<20)
	free := func() int64 {
		t.Helper()
		var s syscall.Statfs_t
		testkit.Must(t, syscall.Statfs(dir, &s))
		if int64(s.Bavail)*s.Bsize != d.Free() || s.Blocks*uint64(s.Bsize) != 1<<20 {
			t.Fatalf("%+v with %d free", s, d.Free())
		}
		return d.Free()
	}
	path := filepath.Join(dir, "f")
	f := testkit.Value(os.Create(path))(t)
	d.Fill(98)
	left := free()
	if left <= 0 || left > 1<<20/50+pageSize {
		t.Fatal(left)
	}
	n, err := syscall.Pwrite(int(f.Fd()), make([]byte, left+1000), 0)
	if int64(n) != left || err != nil || free() != 0 {
		t.Errorf("%d of %d, %v", n, left, err)
	}
	if _, err := f.WriteAt([]byte("x"), left); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if _, err := f.WriteAt([]byte("x"), 0); err != nil { // over what is there
		t.Error(err)
	}
	if _, err := os.Create(filepath.Join(dir, "g")); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if err := syscall.Fallocate(int(f.Fd()), 1, 0, left+pageSize); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	d.Fill(0)
	testkit.Value(f.WriteAt([]byte("x"), left))(t)
	before := free()
	testkit.Must(t, syscall.Fallocate(int(f.Fd()), 1, 0, 100*pageSize))
	if free() >= before {
		t.Errorf("%d free after an allocation, %d before", free(), before)
	}
	testkit.Must(t, f.Close())
	testkit.Must(t, os.Remove(path))
	testkit.Eventually(t, "the room is back", func() bool { return free() == 1<<20-pageSize }) // the root has a page
}

// Calls hang until a fault ends, or fail when they are aborted; errors and flipped bits concern
// the files of a pattern only. A sync that fails does not make its pages durable later.
func TestFaults(t *testing.T) {
	d, dir := mount(t, 1<<20)
	in := func(name string) string { return filepath.Join(dir, name) }
	write(t, in("a.log"), "text", true)
	write(t, in("b.sst"), "text", true)
	syncDir(t, dir)
	put := func(name, text string) error {
		f, err := os.OpenFile(in(name), os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.WriteString(text)
		return errors.Join(err, f.Sync(), f.Close())
	}
	h := d.Inject(Fault{Ops: []string{"sync"}, Files: "*.log", Hang: true})
	done := make(chan error, 1)
	go func() { done <- put("a.log", "TEXT") }()
	testkit.Eventually(t, "a sync hangs", func() bool { return h.Met() == 1 })
	testkit.Must(t, put("b.sst", "TEXT"))
	h.Stop()
	testkit.Must(t, <-done)
	h = d.Inject(Fault{Hang: true})
	go func() { done <- put("a.log", "TEXT") }()
	testkit.Eventually(t, "a call hangs", func() bool { return h.Met() > 0 })
	select {
	case err := <-done:
		t.Fatalf("it does not hang: %v", err)
	case <-time.After(20 * time.Millisecond): // that it returned is what must not happen
	}
	h.Stop()
	testkit.Must(t, <-done)

	e := d.Inject(Fault{Ops: []string{"sync"}, Files: "*.sst", Err: syscall.EIO})
	if err := put("b.sst", "lost"); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	testkit.Must(t, put("a.log", "TEXT"))
	e.Stop()
	f := testkit.Value(os.OpenFile(in("b.sst"), os.O_WRONLY, 0))(t)
	testkit.Must(t, f.Sync())
	testkit.Must(t, f.Close())
	flips := d.Inject(Fault{Files: "b.*", Flip: rand.New(rand.NewPCG(1, 1))})
	if got := state(t, dir); !strings.HasPrefix(got, "a.log=TEXT b.sst=") || strings.HasSuffix(got, "=lost") {
		t.Error(got)
	}
	flips.Stop()
	// A call that hangs when the power fails has no effect.
	h = d.Inject(Fault{Ops: []string{"sync"}, Files: "a.*", Hang: true})
	write(t, in("a.log"), "last", false)
	go func() {
		f, err := os.OpenFile(in("a.log"), os.O_WRONLY, 0)
		if err == nil {
			err = errors.Join(f.Sync(), f.Close())
		}
		done <- err
	}()
	testkit.Eventually(t, "a sync hangs again", func() bool { return h.Met() == 1 })
	d.Abort()
	if err := <-done; !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	h.Stop()
	testkit.Must(t, d.PowerLoss(nil))
	if got := state(t, dir); got != "a.log=TEXT b.sst=TEXT" {
		t.Error(got)
	}
	damage, ok := d.Flip("*.sst", rand.New(rand.NewPCG(1, 1)))
	if got := state(t, dir); !ok || damage.File != "b.sst" || got == "a.log=TEXT b.sst=TEXT" {
		t.Errorf("%+v %v: %s", damage, ok, got)
	}
	testkit.Must(t, d.PowerLoss(nil))
	if got := state(t, dir); got == "a.log=TEXT b.sst=TEXT" {
		t.Error("a bit that was flipped at rest is back")
	}
	if _, ok := d.Flip("none", rand.New(rand.NewPCG(1, 1))); ok {
		t.Error("a bit of no file")
	}
}
