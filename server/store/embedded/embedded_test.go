package embedded

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/itemcodec"
	"github.com/parley-chat/parley/server/store/storetest"
)

// abandoned are goroutines of stores that could not continue: their processes would
// have ended.
var abandoned []goleak.Option

func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(abandoned...); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func open1(t *testing.T, o Options) *Store {
	t.Helper()
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Engine {
		clock := storetest.NewClock()
		o := Options{Dir: t.TempDir(), Clock: clock.Now}
		s := open1(t, o)
		return storetest.Engine{Store: s, Clock: clock, Reopen: func() store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return open1(t, o)
		}}
	})
}

const lockEnv = "PARLEY_TEST_LOCKED_DIR"

// One directory has one process, and an error of one line for the others.
func TestSecondProcessIsRefused(t *testing.T) {
	if dir := os.Getenv(lockEnv); dir != "" { // the second process
		_, err := Open(Options{Dir: dir})
		if !errors.Is(err, ErrLocked) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), dir) {
			t.Fatalf("got %v", err)
		}
		return
	}
	dir := t.TempDir()
	s := open1(t, Options{Dir: dir})
	if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrLocked) {
		t.Fatalf("in the same process: %v", err)
	}
	second := exec.Command(os.Args[0], "-test.run=^TestSecondProcessIsRefused$")
	second.Env = append(os.Environ(), lockEnv+"="+dir)
	if out, err := second.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open1(t, Options{Dir: dir + string(os.PathSeparator)})
}

func TestDirectoryIsPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("permissions are not in the mode here")
	}
	dir := filepath.Join(t.TempDir(), "new", "data")
	open1(t, Options{Dir: dir})
	for _, d := range []string{dir, filepath.Dir(dir)} {
		info, err := os.Stat(d)
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Fatalf("%s: %v, %v", d, info.Mode(), err)
		}
	}
}

func TestFormats(t *testing.T) {
	for text, want := range map[string]error{
		"parley 1 1\n": nil, "parley 7 1\n": nil, "parley 7 7\n": ErrFormat, "": ErrFormat, "something else": ErrFormat,
		"parley x y": ErrFormat,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "FORMAT"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Options{Dir: dir})
		if !errors.Is(err, want) || (want == nil && err != nil) {
			t.Errorf("FORMAT %q: %v", text, err)
		}
		if s != nil {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestUnwritableDirectory(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no unwritable directory here")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: filepath.Join(file, "sub")}); err == nil {
		t.Fatal("opened a directory below a file")
	}
}

func TestSweepRemovesTheExpired(t *testing.T) {
	clock := storetest.NewClock()
	s := open1(t, Options{Dir: t.TempDir(), Clock: clock.Now})
	key := func(id string) store.Key { return store.Key{Table: store.IdempotencyKeys, PK: id} }
	put := func(id string, in time.Duration) {
		t.Helper()
		at := clock.Now().Add(in).Unix()
		it := store.NewItem(store.Attr{Name: store.ExpiresAtField, Value: store.Int(at)})
		if err := s.Transact(t.Context(),
			store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: key(id), Item: it}}}); err != nil {
			t.Fatal(err)
		}
	}
	put("soon", time.Minute)
	put("later", time.Hour)
	put("again", time.Minute)
	put("again", time.Hour)
	clock.Add(2 * time.Minute)
	if n, err := s.sweep(100); n != 1 || err != nil {
		t.Fatalf("swept %d, %v", n, err)
	}
	for id, want := range map[string]bool{"soon": false, "later": true, "again": true} {
		raw, err := s.load(appendKey(nil, key(id)))
		if err != nil || (raw != nil) != want {
			t.Fatalf("%s: %v, %v", id, raw, err)
		}
	}
	clock.Add(2 * time.Hour)
	if n, err := s.sweep(1); n != 1 || err != nil {
		t.Fatalf("swept %d, %v", n, err)
	}
	if n, err := s.sweep(100); n != 1 || err != nil {
		t.Fatalf("swept %d, %v", n, err)
	}
}

// The sweeper removes nothing that was rewritten, at whatever moment.
func TestSweepRacesRewrites(t *testing.T) {
	const rows = 300
	clock := storetest.NewClock()
	s := open1(t, Options{Dir: "/data", FS: vfs.NewMem(), Clock: clock.Now})
	write := func(i int, expires time.Time) {
		k := store.Key{Table: store.IdempotencyKeys, PK: fmt.Sprint(i)}
		it := store.NewItem(store.Attr{Name: store.ExpiresAtField, Value: store.Int(expires.Unix())})
		if err := s.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut, Key: k, Item: it}}); err != nil {
			t.Error(err)
		}
	}
	for i := range rows {
		write(i, clock.Now())
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range rows {
			write(i, clock.Now().Add(time.Hour))
		}
	})
	wg.Go(func() {
		for n := 1; n > 0; {
			var err error
			if n, err = s.sweep(7); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if _, err := s.sweep(rows); err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		it, err := s.Get(t.Context(), store.Key{Table: store.IdempotencyKeys, PK: fmt.Sprint(i)}, store.Strong)
		if it == nil || err != nil {
			t.Fatalf("row %d: %v, %v", i, it, err)
		}
	}
	clock.Add(2 * time.Hour)
	if n, err := s.sweep(2 * rows); n != rows || err != nil {
		t.Fatalf("swept %d of %d at the end, %v", n, rows, err)
	}
	it, err := s.db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	for ok := it.First(); ok; ok = it.Next() {
		left++
	}
	if err := it.Close(); err != nil || left != 1 { // the generation
		t.Fatalf("%d rows and entries are left, %v", left, err)
	}
}

// The sweeper finds what expires by itself, more than it takes in one go.
func TestSweeperRuns(t *testing.T) {
	clock := storetest.NewClock()
	s := open1(t, Options{Dir: "/data", FS: vfs.NewMem(), Clock: clock.Now, sweepEvery: time.Millisecond})
	b := s.db.NewBatch()
	const rows = sweepMax + 10
	for i := range rows {
		key := appendKey(nil, store.Key{Table: store.IdempotencyKeys, PK: fmt.Sprint(i)})
		at := clock.Now().Unix() + 60
		it := store.NewItem(store.Attr{Name: store.ExpiresAtField, Value: store.Int(at)})
		err := errors.Join(b.Set(key, itemcodec.Append(nil, it), nil), b.Set(appendExpiry(nil, at, key), nil, nil))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Commit(pebble.Sync); err != nil {
		t.Fatal(err)
	}
	clock.Add(time.Hour)
	until(func() bool { return s.Stats().Expired == rows })
}

// Each instance of expiry has one entry in the index, which goes with it.
func TestExpiryIndexFollows(t *testing.T) {
	clock := storetest.NewClock()
	s := open1(t, Options{Dir: "/data", FS: vfs.NewMem(), Clock: clock.Now})
	k := store.Key{Table: store.DeliveryState, PK: "u", SK: "c"}
	at := store.Attr{Name: store.ExpiresAtField, Value: store.Int(clock.Now().Unix() + 60)}
	later := store.Increment{Name: store.ExpiresAtField, N: 60}
	other := store.Attr{Name: "n", Value: store.Int(1)}
	for i, step := range []struct {
		write store.Write
		want  int
	}{
		{store.Write{Op: store.OpPut, Item: store.NewItem(other)}, 0},
		{store.Write{Op: store.OpPut, Item: store.NewItem(at)}, 1},
		{store.Write{Op: store.OpPut, Item: store.NewItem(at, other)}, 1},
		{store.Write{Op: store.OpUpdate, Update: store.Update{Add: []store.Increment{later}}}, 1},
		{store.Write{Op: store.OpUpdate, Update: store.Update{Remove: []string{store.ExpiresAtField}}}, 0},
		{store.Write{Op: store.OpUpdate, Update: store.Update{Set: []store.Attr{at}}}, 1},
		{store.Write{Op: store.OpDelete}, 0},
		{store.Write{Op: store.OpPut, Item: store.NewItem(store.Attr{Name: store.ExpiresAtField, Value: store.Int(-5)})}, 1},
		// of an expired item: begins with nothing
		{store.Write{Op: store.OpUpdate, Update: store.Update{Set: []store.Attr{other}}}, 0},
	} {
		step.write.Key = k
		if err := s.Transact(t.Context(), store.Plan{Writes: []store.Write{step.write}}); err != nil {
			t.Fatal(err)
		}
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{spaceExpiry}, UpperBound: []byte{spaceExpiry + 1}})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for ok := it.First(); ok; ok = it.Next() {
			n++
		}
		if err := it.Close(); err != nil || n != step.want {
			t.Fatalf("step %d: %d entries, want %d, %v", i, n, step.want, err)
		}
	}
}

func TestOutboxIsCompacted(t *testing.T) {
	s := open1(t, Options{Dir: "/data", FS: vfs.NewMem()})
	key := func(i int) store.Key { return store.Key{Table: store.Outbox, PK: "00", SK: fmt.Sprint("chat#", i)} }
	for from := 0; from < 1000; from += 20 {
		var puts, deletes []store.Write
		for i := from; i < from+20; i++ {
			puts = append(puts, store.Write{Op: store.OpPut, Key: key(i), Item: number(1)})
			deletes = append(deletes, store.Write{Op: store.OpDelete, Key: key(i)})
		}
		if from == 980 { // the last ones make it due
			s.outboxDeletes.Store(compactAfter - 1)
		}
		if err := errors.Join(s.BatchWrite(t.Context(), puts), s.BatchWrite(t.Context(), deletes)); err != nil {
			t.Fatal(err)
		}
	}
	until(func() bool { return s.Stats().Compactions == 1 })
	if n := s.outboxDeletes.Load(); n != 0 {
		t.Fatalf("%d deletes count for the next one", n)
	}
	until(func() bool { // a table that was only moved down is emptied right after
		levels, err := s.db.SSTables(pebble.WithKeyRangeFilter(outboxRange()))
		if err != nil {
			t.Fatal(err)
		}
		return len(slices.Concat(levels...)) == 0
	})
}

func TestStats(t *testing.T) {
	clock := storetest.NewClock()
	s := open1(t, Options{Dir: "/data", FS: vfs.NewMem(), Clock: clock.Now})
	absent := putRow(1)
	absent.Writes[0].Cond, absent.Writes[0].Name = store.Absent(), "row"
	expiring := store.Write{Op: store.OpPut, Key: store.Key{Table: store.IdempotencyKeys, PK: "a"},
		Item: store.NewItem(store.Attr{Name: store.ExpiresAtField, Value: store.Int(1)})}
	if err := errors.Join(s.Transact(t.Context(), absent),
		s.BatchWrite(t.Context(), []store.Write{expiring})); err != nil {
		t.Fatal(err)
	}
	if err := s.Transact(t.Context(), absent); err == nil {
		t.Fatal("the condition holds")
	}
	if _, err := s.sweep(1); err != nil {
		t.Fatal(err)
	}
	got := s.Stats()
	if got.LogBytes == 0 || got.DiskBytes == 0 {
		t.Errorf("no bytes: %+v", got)
	}
	got.LogBytes, got.DiskBytes = 0, 0
	if want := (Stats{Plans: 2, Failed: 1, Expired: 1}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := s.Stats(); got != (Stats{}) {
		t.Errorf("closed: %+v", got)
	}
}

// A page of a segment does not read the partitions of others: a large one in
// between costs no more than a small one.
func TestScanSkipsOtherSegments(t *testing.T) {
	s := open1(t, Options{Dir: "/data", FS: vfs.NewMem()})
	const segments, large = 4, "large"
	var want []string
	for i := range 40 {
		if pk := fmt.Sprint("p", i); store.Segment(pk, segments) != store.Segment(large, segments) {
			want = append(want, pk)
		}
	}
	b := s.db.NewBatch()
	for i := range 20_000 {
		if err := b.Set(appendKey(nil, store.Key{Table: store.Messages, PK: large, SK: fmt.Sprint(i)}),
			[]byte("not an item: reading it fails"), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, pk := range want {
		if err := b.Set(appendKey(nil, store.Key{Table: store.Messages, PK: pk, SK: "1"}), itemcodec.Append(nil, number(1)),
			nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Commit(pebble.Sync); err != nil {
		t.Fatal(err)
	}
	var got []string
	for segment := range segments {
		if segment == store.Segment(large, segments) {
			continue
		}
		p, err := s.Scan(t.Context(), store.Scan{Table: store.Messages, Segment: segment, Segments: segments})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range p.Rows {
			got = append(got, r.Key.PK)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// A plan holds the locks of all its items while it is evaluated, and none afterwards.
func TestPlanLocksAllItsItems(t *testing.T) {
	inside, goOn := make(chan struct{}), make(chan struct{})
	var armed atomic.Bool
	s, err := Open(Options{Dir: t.TempDir(), sweepEvery: time.Hour, Clock: func() time.Time {
		if armed.Swap(false) { // a plan asks for the time once it has its locks
			close(inside)
			<-goOn
		}
		return time.Now()
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	var writes []store.Write
	for i := range 40 {
		writes = append(writes, store.Write{Op: store.OpPut, Key: headKey(i), Item: store.NewItem()})
	}
	armed.Store(true)
	done := make(chan error, 1)
	go func() { done <- s.Transact(context.WithoutCancel(t.Context()), store.Plan{Writes: writes}) }()
	<-inside
	for i, it := range newWorkspace(writes).items {
		l := &s.stripes[maphash.Bytes(s.seed, it.key)%4096]
		if l.TryLock() {
			l.Unlock()
			t.Errorf("item %d is not locked", i)
		}
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i := range s.stripes {
		if !s.stripes[i].TryLock() {
			t.Fatalf("stripe %d is still locked", i)
		}
		s.stripes[i].Unlock()
	}
}
