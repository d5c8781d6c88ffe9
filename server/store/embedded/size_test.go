package embedded

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
)

var (
	sizeMessages = flag.Int("messages", 0, "measure what so many messages take")
	sizeRivals   = flag.Bool("rivals", false, "with other compression, too")
)

// sizeText is the length of a message's text in bytes.
const sizeText = 200

// TestBytesPerMessage says what messages of 200 bytes of prose take, sent with the plans of
// the service by 128 callers into 256 chats of ten people and published: processor time by
// tenths, bytes of the log, of keys and values by table, and of files before and after
// compaction. With -rivals it writes the same rows with other compression, too, and says
// what files take, what writing them costs, and what a page of 50 messages and a single row
// cost that are not in memory, in processor time. Nothing is synced.
//
//	go test ./server/store/embedded -run BytesPerMessage -messages 300000 -rivals -v
func TestBytesPerMessage(t *testing.T) {
	if *sizeMessages == 0 {
		t.Skip("-messages says how many")
	}
	z := &sizes{T: t, n: float64(*sizeMessages)}
	s := open1(t, Options{Dir: t.TempDir(), noSync: true})
	defer s.Close()
	z.fill(s)
	z.must(s.db.Flush())
	time.Sleep(time.Second) // for compactions that are under way: a sample
	z.Logf("files before compaction: %.1f B a message", z.files(s.db))
	z.must(s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, true))
	var rows float64
	for _, d := range append(store.Tables(), store.Def{Name: indexOfExpiries}) {
		n, keys, values := z.rows(s.db, d.Name)
		if n < *sizeMessages/100 {
			continue
		}
		rows += float64(keys + values)
		z.Logf("%-18s %8d rows; a message: %6.1f B of keys, %6.1f B of values, %6.1f B in files", d.Name, n,
			float64(keys)/z.n, float64(values)/z.n, z.disk(s.db, d.Name))
	}
	z.Logf("together: %.1f B of keys and values, %.1f B in files", rows/z.n, z.files(s.db))
	for _, r := range rivals() {
		if *sizeRivals {
			z.compare(s.db, r)
		}
	}
}

// sizes is a measurement under way.
type sizes struct {
	*testing.T
	n     float64 // messages
	chats []string
}

func (z *sizes) must(errs ...error) {
	z.Helper()
	if err := errors.Join(errs...); err != nil {
		z.Fatal(err)
	}
}

// used is the processor time that the process has taken.
func (z *sizes) used() time.Duration {
	var u syscall.Rusage
	z.must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func micros(d time.Duration, n float64) float64 { return float64(d.Nanoseconds()) / 1000 / n }

// prose returns pieces of the book that comes with Go.
func (z *sizes) prose() func(*rand.Rand) string {
	root, err := exec.CommandContext(z.Context(), "go", "env", "GOROOT").Output()
	z.must(err)
	book, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "src/testdata/Isaac.Newton-Opticks.txt"))
	z.must(err)
	return func(rng *rand.Rand) string {
		at := rng.IntN(len(book) - sizeText)
		return string(bytes.ToValidUTF8(book[at:at+sizeText], []byte("?")))
	}
}

// fill sends the messages, and publishes each: it deletes the outbox rows.
func (z *sizes) fill(s *Store) {
	const chats, members, callers = 256, 10, 128
	ctx := z.Context()
	var mu sync.Mutex
	var committed []store.Write
	publish := func() {
		mu.Lock()
		writes := committed
		committed = nil
		mu.Unlock()
		for chunk := range slices.Chunk(writes, store.MaxBatchWrite) {
			z.must(s.BatchWrite(ctx, chunk))
		}
	}
	svc, err := chat.New(ctx, chat.Config{Store: s, Clock: time.Now, Generation: s.Generation(), Producer: "size",
		Committed: func(c chat.Commit) {
			mu.Lock()
			defer mu.Unlock()
			committed = append(committed, store.Write{Op: store.OpDelete, Key: c.Outbox.Key})
		}})
	z.must(err)
	users := make([]string, 1000)
	for i := range users {
		users[i] = chat.NewID("user_")
		z.must(svc.EnsureUser(ctx, users[i]))
	}
	groups := make([][]string, chats)
	for i := range groups {
		for j := range members {
			groups[i] = append(groups[i], users[(i*7+j*31)%len(users)])
		}
		c, err := svc.CreateGroup(ctx, chat.CreateGroup{Caller: groups[i][0], Name: "group", Members: groups[i][1:]})
		z.must(err)
		z.chats = append(z.chats, c.ChatID)
	}
	publish()
	log, used, text := s.Stats().LogBytes, z.used(), z.prose()
	var next atomic.Int64
	var wg sync.WaitGroup
	var tenths [10]float64
	last, tenth := used, int64(z.n)/10
	for caller := range callers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(caller), 1))
			for i := next.Add(1); i <= int64(z.n); i = next.Add(1) {
				c := rng.IntN(chats)
				m := chat.Send{Caller: groups[c][rng.IntN(members)], ChatID: z.chats[c], Content: text(rng)}
				if _, err := svc.Send(ctx, m); err != nil {
					z.Error(err)
					return
				}
				if i%1000 == 0 {
					publish()
				}
				if tenth > 0 && i%tenth == 0 {
					mu.Lock()
					now := z.used()
					tenths[min(i/tenth, 10)-1], last = micros(now-last, float64(tenth)), now
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	publish()
	z.Logf("log: %.0f B a message; processor time %.1f µs, by tenths %.1f", float64(s.Stats().LogBytes-log)/z.n,
		micros(z.used()-used, z.n), tenths)
}

// indexOfExpiries stands for the engine's own index among the tables.
const indexOfExpiries store.Table = "index of expiries"

func rangeOf(t store.Table) (from, to []byte) {
	if t == indexOfExpiries {
		return ExpiryRange()
	}
	return TableRange(t)
}

func (z *sizes) rows(db *pebble.DB, t store.Table) (rows, keys, values int) {
	from, to := rangeOf(t)
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	z.must(err)
	for ok := it.First(); ok; ok = it.Next() {
		rows, keys, values = rows+1, keys+len(it.Key()), values+len(it.Value())
	}
	z.must(it.Close())
	return rows, keys, values
}

// disk is about what a table takes in files, in bytes a message.
func (z *sizes) disk(db *pebble.DB, t store.Table) float64 {
	from, to := rangeOf(t)
	n, err := db.EstimateDiskUsage(from, to)
	z.must(err)
	return float64(n) / z.n
}

func (z *sizes) files(db *pebble.DB) float64 { return float64(db.Metrics().Total().TablesSize) / z.n }

// A rival is another way to keep the lowest level's files.
type rival struct {
	name    string
	profile sstable.CompressionProfile
	block   int // bytes
}

func rivals() (list []rival) {
	minlz2 := *sstable.MinLZCompression
	minlz2.DataBlocks.Level, minlz2.ValueBlocks.Level, minlz2.OtherBlocks.Level = 2, 2, 2
	zstd1, zstd3 := *sstable.BalancedCompression, *sstable.GoodCompression
	zstd1.AdaptiveReductionCutoffPercent, zstd3.AdaptiveReductionCutoffPercent = 0, 0
	for _, block := range []int{4 << 10, 16 << 10, 32 << 10} {
		list = append(list, rival{"none", *sstable.NoCompression, block}, rival{"snappy", *sstable.SnappyCompression, block},
			rival{"minlz 1", *sstable.MinLZCompression, block}, rival{"minlz 2", minlz2, block},
			rival{"zstd 1", zstd1, block}, rival{"zstd 3", zstd3, block})
	}
	return list
}

// compare writes all rows into a store of the rival's.
func (z *sizes) compare(from *pebble.DB, r rival) {
	cache := pebble.NewCache(1 << 20)
	defer cache.Unref()
	opts := &pebble.Options{Cache: cache, DisableWAL: true, MemTableSize: 64 << 20, FormatMajorVersion: pebbleFormat,
		Logger: logger{}}
	for i := range opts.Levels {
		opts.Levels[i].Compression = func() *sstable.CompressionProfile { return &r.profile }
		opts.Levels[i].BlockSize = r.block
	}
	db, err := pebble.Open(z.TempDir(), opts)
	z.must(err)
	defer db.Close()
	it, err := from.NewIter(nil)
	z.must(err)
	used := z.used()
	for ok := it.First(); ok; {
		b := db.NewBatch()
		for n := 0; ok && n < 1000; n++ {
			z.must(b.Set(it.Key(), it.Value(), nil))
			ok = it.Next()
		}
		z.must(b.Commit(pebble.NoSync))
	}
	z.must(it.Close(), db.Flush(), db.Compact(z.Context(), []byte{0}, []byte{0xff}, true))
	used = z.used() - used
	other := &Store{db: db, opts: Options{}.withDefaults()}
	rng := rand.New(rand.NewPCG(3, 4))
	last := *sizeMessages/len(z.chats) - 60 // about what each chat has, and a page less
	number := func() string { return fmt.Sprintf("%020d", 1+rng.IntN(max(1, last))) }
	const reads = 3000
	page := z.cost(reads, func() {
		q := store.Query{Table: store.Messages, PK: z.chats[rng.IntN(len(z.chats))], From: number(), Limit: 50}
		_, err := other.Query(z.Context(), q)
		z.must(err)
	})
	row := z.cost(reads, func() {
		k := store.Key{Table: store.Events, PK: z.chats[rng.IntN(len(z.chats))], SK: number()}
		_, err := other.Get(z.Context(), k, store.Strong)
		z.must(err)
	})
	z.Logf("%-8s %2d KB: %6.1f B (%.1f, %.1f, %.1f, %.1f), written in %4.1f µs; page in %5.1f µs, row in %4.1f µs",
		r.name, r.block>>10, z.files(db), z.disk(db, store.Messages), z.disk(db, store.Events),
		z.disk(db, store.IdempotencyKeys), z.disk(db, indexOfExpiries), micros(used, z.n), page, row)
}

// cost is what one of n calls takes, in µs of processor time.
func (z *sizes) cost(n int, f func()) float64 {
	used := z.used()
	for range n {
		f()
	}
	return micros(z.used()-used, float64(n))
}
