package iowatch

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// clock is a time that a test sets.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newWatch() (*Watch, *clock) {
	c := &clock{now: time.Unix(1_000, 0)}
	return New(c.time), c
}

// Every call that waits for the disk is seen while it is under way, with its file.
func TestEveryCallIsSeen(t *testing.T) {
	w, c := newWatch()
	var during []string // operations as the file system below gets them
	fs := w.FS(errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		c.advance(time.Second)
		seen := w.Oldest()
		if seen.Took != time.Second || seen.File == "" {
			t.Errorf("%v of %s is seen as %+v", op.Kind, op.Path, seen)
		}
		during = append(during, seen.Op)
		c.advance(-time.Second)
		return nil
	})))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	f, err := fs.Create("a", vfs.WriteCategoryUnspecified)
	must(err)
	_, err = f.Write([]byte("text"))
	must(err)
	must(f.Preallocate(0, 10))
	must(f.Sync())
	must(f.SyncData())
	_, err = f.SyncTo(4)
	must(err)
	must(f.Close())
	f, err = fs.Open("a")
	must(err)
	_, err = f.Read(make([]byte, 2))
	must(err)
	_, err = f.ReadAt(make([]byte, 2), 1)
	must(err)
	must(f.Close())
	f, err = fs.OpenReadWrite("a", vfs.WriteCategoryUnspecified)
	must(err)
	_, err = f.WriteAt([]byte("T"), 0)
	must(err)
	must(f.Close())
	must(fs.Link("a", "b"))
	must(fs.Rename("b", "c"))
	f, err = fs.ReuseForWrite("c", "d", vfs.WriteCategoryUnspecified)
	must(err)
	must(f.Close())
	_, err = fs.Stat("d")
	must(err)
	must(fs.Remove("d"))
	_, err = fs.List("/")
	must(err)
	d, err := fs.OpenDir("/")
	must(err)
	must(d.Sync())
	_, _ = fs.GetDiskUsage("/")
	for _, want := range []string{"create", "write", "allocate", "sync", "open", "read", "link", "rename", "stat",
		"remove", "list", "statfs", "close"} {
		if !slices.Contains(during, want) && want != "close" { // which the file system below does not report
			t.Errorf("no %s was seen: %q", want, during)
		}
	}
	if n := strings.Count(strings.Join(during, " "), "sync"); n < 4 {
		t.Errorf("%d syncs of 4 were seen", n)
	}
	if left := w.Oldest(); left != (Call{}) {
		t.Errorf("%+v is left", left)
	}
}

// The oldest of several calls counts, in whatever order they return.
func TestOldest(t *testing.T) {
	w, c := newWatch()
	var begun []int
	for i := range 40 {
		begun = append(begun, w.begin("read", fmt.Sprint(i)))
		c.advance(time.Second)
	}
	for i := range 40 {
		if got := w.Oldest(); got.File != fmt.Sprint(i) || got.Took != 40*time.Second-time.Duration(i)*time.Second {
			t.Fatalf("%+v, want %d", got, i)
		}
		w.end(begun[i])
	}
	w.begin("sync", "new")
	if len(w.slots) != 40 {
		t.Errorf("%d slots", len(w.slots))
	}
}

// The slowest call of a minute is shown until a scrape has seen it, and not much longer.
func TestRecent(t *testing.T) {
	w, c := newWatch()
	i := w.begin("sync", "a")
	c.advance(7 * time.Second)
	if got := w.Recent(); got != 7*time.Second {
		t.Errorf("under way: %s", got)
	}
	w.end(i)
	for range 6 {
		c.advance(5 * time.Second)
		w.end(w.begin("sync", "a"))
		if got := w.Recent(); got != 7*time.Second {
			t.Errorf("within half a minute: %s", got)
		}
	}
	for range 12 {
		c.advance(5 * time.Second)
		w.end(w.begin("sync", "a"))
	}
	if got := w.Recent(); got != 0 {
		t.Errorf("after a minute and a half: %s", got)
	}
}

// A disk that hangs is logged at one second, at each doubling, and when it is over; so is one
// whose calls return late. The lines name the directory, the call, the file and the time.
func TestReport(t *testing.T) {
	w, c := newWatch()
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	run := func(d time.Duration) (lines []string) {
		for range int(d / (time.Second / 2)) {
			c.advance(time.Second / 2)
			w.Report(log, "/data")
		}
		defer said.Reset()
		return strings.Split(strings.TrimSuffix(said.String(), "\n"), "\n")
	}
	if got := run(time.Minute); len(got) != 1 || got[0] != "" {
		t.Errorf("an idle disk: %q", got)
	}
	i := w.begin("sync", "/data/store/1.log")
	got := run(9 * time.Second)
	for n, seconds := range []int{1, 2, 4, 8} {
		want := fmt.Sprintf(`level=WARN msg="the disk is slow or hangs: calls that need it wait" dir=/data waits_for=sync `+
			`file=/data/store/1.log seconds=%d`, seconds)
		if len(got) != 4 || got[n] != want {
			t.Fatalf("%q", got)
		}
	}
	w.end(i)
	got = run(11 * time.Second)
	if len(got) != 1 || got[0] != `level=INFO msg="the disk is no longer slow" dir=/data longest_seconds=9` {
		t.Errorf("%q", got)
	}
	// Between two reports, and not under way at either.
	i = w.begin("read", "b")
	c.advance(1400 * time.Millisecond)
	w.end(i)
	if got = run(time.Second); len(got) != 1 || !strings.Contains(got[0], "waits_for=read file=b seconds=1.4") {
		t.Errorf("%q", got)
	}
	i = w.begin("read", "c")
	lines := 0
	for range 10 {
		lines += len(run(time.Minute))
	}
	if lines < 10 || lines > 20 {
		t.Errorf("%d lines of a disk that hangs for ten minutes", lines)
	}
	w.end(i)
}
