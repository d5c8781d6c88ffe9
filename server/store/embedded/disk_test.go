package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/space"
)

// onSync calls f before each sync of a log; its error is the sync's.
func onSync(fs vfs.FS, f func() error) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
			if strings.HasSuffix(op.Path, ".log") {
				return f()
			}
		}
		return nil
	}))
}

// gate holds syncs back while it is shut.
type gate struct{ p atomic.Pointer[chan struct{}] }

func (g *gate) shut() (open func()) {
	c := make(chan struct{})
	g.p.Store(&c)
	return func() {
		g.p.Store(nil)
		close(c)
	}
}

func (g *gate) pass() error {
	if c := g.p.Load(); c != nil {
		<-*c
	}
	return nil
}

// until waits for something that another goroutine is about to bring about.
func until(f func() bool) {
	for !f() {
		runtime.Gosched()
	}
}

var rowKey = store.Key{Table: store.Users, PK: "a"}

func putRow(n int64) store.Plan {
	return store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: rowKey, Item: number(n)}}}
}

func number(n int64) store.Item {
	return store.NewItem(store.Attr{Name: "n", Value: store.Int(n)})
}

func rowNumber(t *testing.T, s *Store) int64 {
	t.Helper()
	it, err := s.Get(t.Context(), rowKey, store.Strong)
	if err != nil {
		t.Fatal(err)
	}
	return it.Get("n").Int64()
}

// What a read, a failed condition or a check saw is waited for, though another
// writer has to bring it to the disk.
func TestDurableWaitsForWhatWasSeen(t *testing.T) {
	mem := vfs.NewCrashableMem()
	var g gate
	s := open1(t, Options{Dir: "/data", FS: onSync(mem, g.pass)})
	open := g.shut()
	wrote := make(chan error, 1)
	go func() { wrote <- s.Transact(context.Background(), putRow(1)) }()
	until(func() bool { return rowNumber(t, s) == 1 })

	absent := putRow(2)
	absent.Writes[0].Cond, absent.Writes[0].Name = store.Absent(), "row"
	var failed *store.ConditionError
	if err := s.Transact(t.Context(), absent); !errors.As(err, &failed) ||
		failed.Failures[0].Current.Get("n").Int64() != 1 {
		t.Fatalf("the condition does not see the row: %v", err)
	}
	for what, call := range map[string]func(context.Context) error{
		"durable": s.Durable,
		"check": func(ctx context.Context) error {
			return s.Transact(ctx, store.Plan{
				Writes: []store.Write{{Op: store.OpCheck, Key: rowKey, Cond: store.Exists(), Name: "row"}}})
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		done, before := make(chan error, 1), s.barrier.Waiting()
		go func() { done <- call(ctx) }()
		until(func() bool { return s.barrier.Waiting() > before || len(done) > 0 })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s did not wait: %v", what, err)
		}
	}
	lost := open1(t, Options{Dir: "/data", FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if n := rowNumber(t, lost); n != 0 {
		t.Fatalf("the row is on disk before its sync: %d", n)
	}
	done := make(chan error, 1)
	go func() { done <- s.Durable(context.Background()) }()
	open()
	if err := errors.Join(<-done, <-wrote); err != nil {
		t.Fatal(err)
	}
	kept := open1(t, Options{Dir: "/data", FS: mem.CrashClone(vfs.CrashCloneCfg{})})
	if n := rowNumber(t, kept); n != 1 {
		t.Fatalf("the row is not on disk after its sync: %d", n)
	}
}

// Close lets calls under way end, and no new ones begin.
func TestCloseWaitsForCalls(t *testing.T) {
	var g gate
	s := open1(t, Options{Dir: "/data", FS: onSync(vfs.NewMem(), g.pass)})
	open := g.shut()
	wrote, closed := make(chan error, 1), make(chan error, 1)
	go func() { wrote <- s.Transact(context.Background(), putRow(1)) }()
	until(func() bool { return s.barrier.InFlight() > 0 })
	go func() { closed <- s.Close() }()
	until(func() bool { // Close waits
		if s.life.TryRLock() {
			s.life.RUnlock()
			return false
		}
		return true
	})
	select {
	case err := <-closed:
		t.Fatalf("closed under a call: %v", err)
	default:
	}
	open()
	if err := errors.Join(<-wrote, <-closed); err != nil {
		t.Fatal(err)
	}
	if err := s.Transact(t.Context(), putRow(2)); !errors.Is(err, store.ErrClosed) {
		t.Fatal(err)
	}
}

// A failed sync ends the process; until then nothing is promised any more.
func TestFailedSync(t *testing.T) {
	mayAbandon(t)
	var broken atomic.Bool
	fs := onSync(vfs.NewMem(), func() error {
		if broken.Load() {
			return syscall.EIO
		}
		return nil
	})
	var fatal atomic.Pointer[error]
	s, err := Open(Options{Dir: "/data", FS: fs, Fatal: func(err error) { fatal.CompareAndSwap(nil, &err) }})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Transact(t.Context(), putRow(1)); err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	if err := s.Transact(t.Context(), putRow(2)); !errors.Is(err, store.ErrAmbiguous) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("the write whose sync failed: %v", err)
	}
	if err := fatal.Load(); err == nil || !errors.Is(*err, syscall.EIO) {
		t.Fatalf("fatal got %v", err)
	}
	broken.Store(false) // a disk that recovers changes nothing: what is lost is unknown
	for what, err := range map[string]error{
		"durable": s.Durable(t.Context()), "transact": s.Transact(t.Context(), putRow(3)),
		"check": s.Transact(t.Context(),
			store.Plan{Writes: []store.Write{{Op: store.OpCheck, Key: rowKey, Cond: store.Exists(), Name: "row"}}}),
	} {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s after a failed sync: %v", what, err)
		}
	}
	if n := rowNumber(t, s); n == 3 {
		t.Fatal("a write continued after a failed sync")
	}
	_ = s.Close() // may fail or not; it must return
}

const failEnv = "PARLEY_TEST_FAILING_SYNC"

// Without a Fatal of the caller's the process ends, whatever recovers its panics.
func TestFailedSyncEndsTheProcess(t *testing.T) {
	if os.Getenv(failEnv) == "" {
		p := exec.Command(os.Args[0], "-test.run=^TestFailedSyncEndsTheProcess$")
		p.Env = append(os.Environ(), failEnv+"=1")
		out, err := p.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !strings.Contains(string(out), "the disk cannot be relied on") ||
			strings.Contains(string(out), "still here") {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	defer func() { _ = recover() }()
	var broken atomic.Bool
	fs := onSync(vfs.NewMem(), func() error {
		if broken.Load() {
			return syscall.EIO
		}
		return nil
	})
	s, err := Open(Options{Dir: "/data", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	broken.Store(true)
	_ = s.Transact(t.Context(), putRow(1))
	<-time.After(time.Minute) // the end comes before
	t.Log("still here")
}

// Errors of Open tell in one line what is wrong with the directory.
func TestOpenErrors(t *testing.T) {
	mayAbandon(t)
	for what, kind := range map[string]errorfs.OpKind{
		"mkdir": errorfs.OpMkdirAll, "lock": errorfs.OpLock, "create": errorfs.OpCreate, "list": errorfs.OpList,
		"sync": errorfs.OpFileSync,
	} {
		for _, cause := range []error{syscall.EROFS, syscall.EACCES, syscall.ENOSPC} {
			fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == kind {
					return &os.PathError{Op: what, Path: op.Path, Err: cause}
				}
				return nil
			}))
			s, err := openOrFatal(Options{Dir: "/data", FS: fs})
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, cause) || errors.Is(err, ErrLocked) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s fails with %v: %v", what, cause, err)
			}
		}
	}
	if _, err := Open(Options{}); err == nil {
		t.Error("opened without a directory")
	}
}

// mayAbandon lets a test leave stores behind that cannot continue. What earlier tests
// left is looked for before.
func mayAbandon(t *testing.T) {
	t.Helper()
	if err := goleak.Find(abandoned...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { abandoned = []goleak.Option{goleak.IgnoreCurrent()} })
}

// openOrFatal opens a store; where Pebble finds no way on, that is an error.
func openOrFatal(o Options) (s *Store, err error) {
	o.Fatal = func(error) {}
	defer func() {
		if r := recover(); r != nil {
			s, err = nil, fmt.Errorf("no way on: %v", r)
		}
	}()
	return Open(o)
}

func TestDiskWatch(t *testing.T) {
	mem := vfs.NewMem()
	now := time.Unix(1000, 0)
	usage := func(percent uint64) {
		// 5 % of 50 GB are less than what the reserve is at most.
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: percent << 29, TotalBytes: 100 << 29,
			UsedBytes: (100 - percent) << 29})
	}
	s := open1(t, Options{Dir: "/data", FS: mem, now: func() time.Time { return now }})
	put, del := putRow(1), store.Plan{Writes: []store.Write{{Op: store.OpDelete, Key: rowKey},
		{Op: store.OpCheck, Key: store.Key{Table: store.Users, PK: "b"}, Cond: store.Absent(), Name: "b"}}}
	for i, step := range []struct {
		percent uint64
		after   time.Duration
		want    error
	}{
		{0, 0, nil}, // unknown
		{5, space.Every, nil},
		{4, space.Every / 2, nil}, // not asked again yet
		{4, space.Every / 2, store.ErrFull},
		{50, space.Every / 2, store.ErrFull},
		{50, space.Every / 2, nil},
		{1, space.Every, store.ErrFull},
	} {
		if step.percent > 0 {
			usage(step.percent)
		}
		now = now.Add(step.after)
		if err := s.Transact(t.Context(), put); !errors.Is(err, step.want) || (err == nil) != (step.want == nil) {
			t.Fatalf("step %d: %v", i, err)
		}
		if s.Stats().Full != (step.want != nil) {
			t.Fatalf("step %d: the gauge says otherwise", i)
		}
	}
	if err := s.BatchWrite(t.Context(), put.Writes); !errors.Is(err, store.ErrFull) {
		t.Fatalf("batch on a full disk: %v", err)
	}
	if n := rowNumber(t, s); n != 1 {
		t.Fatalf("read on a full disk: %d", n)
	}
	if err := errors.Join(s.Durable(t.Context()), s.Transact(t.Context(), del)); err != nil {
		t.Fatalf("delete on a full disk: %v", err)
	}
	if n := rowNumber(t, s); n != 0 {
		t.Fatal("a delete on a full disk does nothing")
	}
	if got := s.Stats().Refused; got != 4 {
		t.Fatalf("%d refused", got)
	}
}

// A flipped bit is found; it never becomes an answer.
func TestFlippedBits(t *testing.T) {
	racetest.SkipSerial(t)
	mayAbandon(t)
	const rows = 50
	key := func(i int) store.Key { return store.Key{Table: store.Users, PK: fmt.Sprintf("user%04d", i)} }
	text := func(i int) string { return strings.Repeat(fmt.Sprint(i, " "), 20) }
	mem := vfs.NewMem()
	s := open1(t, Options{Dir: "/data", FS: mem})
	for i := range rows {
		it := store.NewItem(store.Attr{Name: "s", Value: store.String(text(i))})
		if err := s.Transact(t.Context(),
			store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: key(i), Item: it}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.db.Flush(), s.Close()); err != nil {
		t.Fatal(err)
	}
	var tables []string
	files, err := mem.List("/data/store")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, ".sst") {
			tables = append(tables, "/data/store/"+f)
		}
	}
	if len(tables) == 0 {
		t.Fatalf("no tables among %v", files)
	}
	good := readFile(t, mem, tables[0])
	found := 0
	for at := 0; at < len(good); at += 1 + len(good)/60 {
		bad := slices.Clone(good)
		bad[at] ^= 0x10
		copied := vfs.NewMem()
		if _, err := vfs.Clone(mem, copied, "/data", "/data"); err != nil {
			t.Fatal(err)
		}
		writeFile(t, copied, tables[0], bad)
		s, err := openOrFatal(Options{Dir: "/data", FS: copied})
		if err != nil {
			found++
			continue
		}
		for i := range rows {
			it, err := s.Get(t.Context(), key(i), store.Strong)
			switch {
			case err != nil && !errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrUnavailable):
				t.Errorf("byte %d, row %d: %v", at, i, err)
			case err != nil:
				found++
			case it.Get("s").Str() != text(i):
				t.Errorf("byte %d, row %d reads as %v", at, i, it)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if found == 0 {
		t.Fatal("nothing was found: the test flips nothing that matters")
	}
}

func readFile(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, f); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func writeFile(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// An item that is not one of the engine's encodings is an error of its own.
func TestCorruptItems(t *testing.T) {
	s := open1(t, Options{Dir: "/data", FS: vfs.NewMem()})
	for _, k := range []store.Key{rowKey, seqKey(1, 1)} {
		if err := s.db.Set(appendKey(nil, k), []byte{99}, nil); err != nil {
			t.Fatal(err)
		}
	}
	_, get := s.Get(t.Context(), rowKey, store.Strong)
	_, batch := s.BatchGet(t.Context(), []store.Key{rowKey}, store.Strong)
	_, query := s.Query(t.Context(), store.Query{Table: store.Messages, PK: "chat1"})
	_, scan := s.Scan(t.Context(), store.Scan{Table: store.Users, Segments: 1})
	p := putRow(1)
	p.Writes[0].Cond, p.Writes[0].Name = store.Absent(), "row"
	for what, err := range map[string]error{"get": get, "batch get": batch, "query": query, "scan": scan,
		"transact": s.Transact(t.Context(), p)} {
		if !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
