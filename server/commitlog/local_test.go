package commitlog_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/commitlogtest"
	"github.com/parley-chat/parley/server/internal/racetest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/workers/migrate"
)

// The round trip of all fields is HQ-B13, the position at a time HQ-J05.
func TestContract(t *testing.T) {
	commitlogtest.Log(t, func(t *testing.T, now func() time.Time) commitlog.Log {
		t.Helper()
		return commitlog.NewLocal(records.Of(embeddedtest.NewDisk(nil).Open(t, nil)), now)
	})
}

// openDir opens a log in a directory of the disk; the test closes the store.
func openDir(t testing.TB, dir string, now func() time.Time) (*commitlog.Local, *embedded.Store) {
	t.Helper()
	s, err := embedded.Open(embedded.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return commitlog.NewLocal(records.Of(s), now), s
}

var home = commitlog.Partition{Topic: 1}

func mustAppend(t testing.TB, log commitlog.Log, p commitlog.Partition, messages ...*commitlog.Message) {
	t.Helper()
	if _, err := log.Append(t.Context(), []commitlog.Append{{Partition: p, Messages: messages}}); err != nil {
		t.Fatal(err)
	}
}

// batchRecord is the key of the batch of topic 1, partition 0, that ends with a position.
func batchRecord(last byte) []byte {
	return []byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, last}
}

// Batches that were damaged, removed, put elsewhere or given another content are reported
// with their positions; all others are read, and publishing continues.
func TestDamagedBatches(t *testing.T) {
	put := func(last byte, v []byte) store.Record { return store.Record{Key: batchRecord(last), Value: v} }
	remove := func(from, until byte) store.Record {
		return store.Record{Key: batchRecord(from), Until: batchRecord(until)}
	}
	flip := func(at int) func([]byte) store.Record { // at of the value, or before its end
		return func(v []byte) store.Record {
			v[(at+len(v))%len(v)] ^= 1
			return put(5, v)
		}
	}
	for name, c := range map[string]struct {
		damage   func(value []byte) store.Record
		from, to int64
	}{
		"a bit of the body":  {flip(-1), 4, 6},
		"a bit of the time":  {flip(15), 4, 6},
		"another version":    {flip(0), 4, 6},
		"cut off":            {func(v []byte) store.Record { return put(5, v[:len(v)-3]) }, 4, 6},
		"empty":              {func([]byte) store.Record { return put(5, nil) }, 4, 6},
		"of another place":   {func(v []byte) store.Record { return put(7, v) }, 6, 8},
		"removed":            {func([]byte) store.Record { return remove(5, 6) }, 4, 6},
		"the last one":       {func(v []byte) store.Record { return put(9, v) }, 8, 10},
		"two of them, first": {func([]byte) store.Record { return remove(1, 4) }, 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			disk := embeddedtest.NewDisk(nil)
			engine := records.Of(disk.Open(t, nil))
			log := commitlog.NewLocal(engine, commitlogtest.NewClock().Now)
			for n := range 5 {
				mustAppend(t, log, home, commitlogtest.Message(2*n), commitlogtest.Message(2*n+1))
			}
			var value []byte
			err := engine.Seek(t.Context(), batchRecord(5), nil, false, func(_ []byte, read func() ([]byte, error)) bool {
				v, err := read()
				value = append(value, v...)
				return err != nil
			})
			if err != nil {
				t.Fatal(err)
			}
			wait, err := engine.Commit(t.Context(), []store.Record{c.damage(value)})
			if err == nil {
				err = wait()
			}
			if err != nil {
				t.Fatal(err)
			}
			log = commitlog.NewLocal(engine, commitlogtest.NewClock().Now)
			mustAppend(t, log, home, commitlogtest.Message(10))
			missing := map[int64]bool{}
			for n := c.from; n < c.to; n++ {
				missing[n] = true
			}
			if got, bad := readAround(t, log, 11); bad.From != c.from || bad.To != c.to || len(got)+len(missing) != 11 {
				t.Errorf("damaged are %d to %d, want %d to %d; %d positions are read", bad.From, bad.To, c.from, c.to, len(got))
			}
			found := 0
			_, err = commitlog.Inspect(t.Context(), engine, func() {}, func(_ part, where, what string) error {
				t.Logf("%s: %s", where, what)
				found++
				return nil
			})
			if err != nil || found == 0 {
				t.Errorf("an inspection finds %d, %v", found, err)
			}
		})
	}
}

// readAround reads all positions of home that can be read, behind damage too.
func readAround(t *testing.T, log commitlog.Log, end int64) (got []int64, bad commitlog.CorruptError) {
	t.Helper()
	for next := int64(0); next < end; {
		batches, err := log.Read(t.Context(), home, next, 1<<20)
		if damage := (*commitlog.CorruptError)(nil); errors.As(err, &damage) {
			if bad.To != 0 || !errors.Is(err, store.ErrCorrupt) {
				t.Fatalf("again: %v", err)
			}
			bad, next = *damage, damage.To
			continue
		}
		if err != nil || len(batches) == 0 {
			t.Fatalf("%d batches from %d on, %v", len(batches), next, err)
		}
		for _, b := range batches {
			for i := range b.Count() {
				m, err := b.Message(i)
				at := b.Base + int64(i)
				if want := fmt.Sprintf("message %d", at); err != nil || string(m.GetPayload()) != want {
					t.Fatalf("message at %d is %v, %v", at, m, err)
				}
				got = append(got, at)
			}
			next = b.End()
		}
	}
	return got, bad
}

// Readers that a trim overtakes get an error, or have read what was there; nobody sees a
// gap.
func TestTrimUnderReaders(t *testing.T) {
	log, s := openDir(t, t.TempDir(), time.Now)
	defer s.Close()
	const batches = 2000
	for range batches / 100 {
		list := make([]commitlog.Append, 100)
		for i := range list {
			list[i] = commitlog.Append{Partition: home, Messages: []*commitlog.Message{{Key: "k"}, {Key: "l"}}}
		}
		if _, err := log.Append(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	overtaken := make([]int, 4)
	for r := range overtaken {
		wg.Go(func() {
			for next := int64(0); next < 2*batches; {
				got, err := log.Read(t.Context(), home, next, 100)
				switch {
				case errors.Is(err, commitlog.ErrTrimmed):
					overtaken[r]++
					if next, _, err = log.Bounds(t.Context(), home); err != nil {
						t.Error(err)
						return
					}
				case err != nil || len(got) == 0:
					t.Errorf("%d batches from %d on, %v", len(got), next, err)
					return
				case got[0].Base != next:
					t.Errorf("position %d instead of %d", got[0].Base, next)
					return
				default:
					next = got[len(got)-1].End()
				}
			}
		})
	}
	for before := int64(3); before < 2*batches; before += 37 {
		start, err := log.Trim(t.Context(), home, before)
		if err != nil || start != before/2*2 {
			t.Fatalf("trimmed before %d: %d, %v", before, start, err)
		}
	}
	wg.Wait()
	t.Logf("overtaken %v", overtaken)
}

// counting counts what a log asks of the engine.
type counting struct {
	store.Records
	seeks, writes int
}

func (c *counting) Commit(
	ctx context.Context, list []store.Record, rows ...store.Key,
) (func() error, error) {
	c.writes += len(list)
	return c.Records.Commit(ctx, list, rows...)
}

func (c *counting) Seek(ctx context.Context, from, until []byte, descending bool,
	f func(key []byte, value func() ([]byte, error)) bool,
) error {
	return c.Records.Seek(ctx, from, until, descending, func(key []byte, value func() ([]byte, error)) bool {
		c.seeks++ // records seen
		return f(key, value)
	})
}

// A trim of a great part writes two records and checks 33 keys, however much it removes,
// one of up to 32 batches removes each, and neither touches another topic or partition; a
// position at a time checks few batches.
func TestTrimAndSearchAreCheap(t *testing.T) { // HQ-E10 HQ-E12
	engine := &counting{Records: records.Of(embeddedtest.NewDisk(nil).Open(t, nil))}
	clock := commitlogtest.NewClock()
	log := commitlog.NewLocal(engine, clock.Now)
	others := []commitlog.Partition{{Topic: 1, Number: 1}, {Topic: 2}, {Topic: 0, Number: 255}}
	const count = 20_000
	for range count / 100 {
		var list []commitlog.Append
		for range 100 {
			list = append(list, commitlog.Append{Partition: home, Messages: []*commitlog.Message{{Key: "k"}}})
		}
		if _, err := log.Append(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		clock.Advance(time.Millisecond)
	}
	for _, p := range others {
		mustAppend(t, log, p, commitlogtest.Message(1))
	}
	engine.seeks = 0
	at, err := log.PositionAt(t.Context(), home, clock.Now().Add(-50*time.Millisecond))
	if err != nil || at != count-5000 {
		t.Fatalf("position %d, %v", at, err)
	}
	if engine.seeks > 15 { // 2^15 > 20,000
		t.Errorf("a search among %d batches reads %d", count, engine.seeks)
	}
	for _, c := range []struct {
		before        int64
		seeks, writes int // two of the seeks see how many bytes go
	}{{32, 34, 33}, {count - 1, 35, 2}} {
		engine.seeks, engine.writes = 0, 0
		if start, err := log.Trim(t.Context(), home, c.before); err != nil || start != c.before {
			t.Fatalf("start %d, %v", start, err)
		}
		if engine.seeks != c.seeks || engine.writes != c.writes {
			t.Errorf("a trim to %d reads %d keys and writes %d records", c.before, engine.seeks, engine.writes)
		}
		engine.seeks = 0
		from, until := []byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1}, []byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2}
		all := func([]byte, func() ([]byte, error)) bool { return true }
		if err := engine.Seek(t.Context(), from, until, false, all); err != nil || int64(engine.seeks) != count-c.before {
			t.Errorf("%d batches are left of %d, %v", engine.seeks, count-c.before, err)
		}
	}
	for _, p := range others {
		if start, end, err := log.Bounds(t.Context(), p); err != nil || start != 0 || end != 1 {
			t.Errorf("partition %s has %d to %d, %v", p, start, end, err)
		}
	}
}

// A producer that has stopped is forgotten a day after all that it published was trimmed,
// however many there are; others are not.
func TestStoppedProducersAreForgotten(t *testing.T) {
	engine := &counting{Records: records.Of(embeddedtest.NewDisk(nil).Open(t, nil))}
	clock := commitlogtest.NewClock()
	log := commitlog.NewLocal(engine, clock.Now)
	const many = 2500
	publish := func(producer int) bool {
		got, err := log.Append(t.Context(), []commitlog.Append{{Partition: home, Messages: []*commitlog.Message{{}},
			Producer: commitlog.Producer{ID: fmt.Sprintf("%04d", producer), Number: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		return got[0].Replayed
	}
	remembered := func() (n int) {
		from := []byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2}
		err := engine.Seek(t.Context(), from, append(slices.Clone(from[:10]), 3), false,
			func([]byte, func() ([]byte, error)) bool { n++; return true })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for n := range many {
		publish(n)
	}
	trims := func() { // each has something to do
		for range 4 {
			mustAppend(t, log, home, &commitlog.Message{})
			was, _, err := log.Bounds(t.Context(), home)
			if err != nil {
				t.Fatal(err)
			}
			engine.seeks = 0
			start, err := log.Trim(t.Context(), home, 1<<40)
			if err != nil || engine.seeks > 1100+2*int(start-was) {
				t.Fatalf("a trim of %d messages reads %d records, %v", start-was, engine.seeks, err)
			}
		}
	}
	clock.Advance(23 * time.Hour)
	trims()
	if n := remembered(); n != many || !publish(7) {
		t.Fatalf("%d of %d are remembered within a day", n, many)
	}
	publish(many)
	clock.Advance(2 * time.Hour)
	trims()
	if n := remembered(); n != 1 || !publish(many) || publish(7) {
		t.Fatalf("%d are remembered after a day, not the one that published", n)
	}
}

// Producers that publish once each are forgotten as fast as they come, however many these are.
func TestManyProducersAreForgotten(t *testing.T) {
	racetest.SkipSerial(t)
	engine := records.Of(embeddedtest.NewDisk(nil).Open(t, nil))
	clock := commitlogtest.NewClock()
	log := commitlog.NewLocal(engine, clock.Now)
	const each = 3000
	highest := 0
	for step := range 12 {
		var appends []commitlog.Append
		for n := range each {
			appends = append(appends, commitlog.Append{Partition: home, Messages: []*commitlog.Message{{}},
				Producer: commitlog.Producer{ID: fmt.Sprintf("%d-%d", step, n), Number: 1}})
		}
		if _, err := log.Append(t.Context(), appends); err != nil {
			t.Fatal(err)
		}
		if _, err := log.Trim(t.Context(), home, 1<<40); err != nil {
			t.Fatal(err)
		}
		clock.Advance(12 * time.Hour)
		remembered := 0
		from := []byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2}
		err := engine.Seek(t.Context(), from, append(slices.Clone(from[:10]), 3), false,
			func([]byte, func() ([]byte, error)) bool { remembered++; return true })
		if err != nil {
			t.Fatal(err)
		}
		highest = max(highest, remembered)
	}
	if highest > 5*each {
		t.Errorf("%d producers are remembered, of %d in 24 hours", highest, 2*each)
	}
}

// What is older than a time is removed by its position, which nobody can prevent, and a
// partition continues when the clock is past midnight, without anything being made ahead.
func TestOldMessagesAreRemovedByTime(t *testing.T) { // HQ-E15 HQ-E16
	clock := commitlogtest.NewClock()
	log := commitlog.NewLocal(records.Of(embeddedtest.NewDisk(nil).Open(t, nil)), clock.Now)
	for day := range 40 {
		mustAppend(t, log, home, commitlogtest.Message(day))
		clock.Advance(24 * time.Hour)
	}
	at, err := log.PositionAt(t.Context(), home, clock.Now().Add(-30*24*time.Hour))
	if err != nil || at != 10 {
		t.Fatalf("30 days ago is position %d, %v", at, err)
	}
	if start, err := log.Trim(t.Context(), home, at); err != nil || start != 10 {
		t.Errorf("start %d, %v", start, err)
	}
}

// heap is what lives on it.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Memory does not grow with a backlog, neither while it is written nor while it is read.
func TestMemoryIsFlatOverABacklog(t *testing.T) {
	racetest.SkipMemory(t)
	log, s := openDir(t, t.TempDir(), time.Now)
	defer s.Close()
	const total, batch = 1_000_000, 500
	messages := make([]*commitlog.Message, batch)
	for i := range messages {
		messages[i] = &commitlog.Message{Key: fmt.Sprint("key ", i%100), Payload: make([]byte, 60)}
	}
	var first int64
	for n := range total / batch {
		mustAppend(t, log, home, messages...)
		if n == total/batch/5 {
			first = heap()
		}
	}
	written := heap()
	read := 0
	for next := int64(0); next < total; {
		got, err := log.Read(t.Context(), home, next, 1<<20)
		if err != nil || len(got) == 0 {
			t.Fatal(len(got), err)
		}
		for _, b := range got {
			read += b.Count()
			next = b.End()
		}
	}
	after := heap()
	t.Logf("heap with 1/5 of it %d KB, with all %d KB, after reading %d KB", first>>10, written>>10, after>>10)
	if read != total {
		t.Errorf("read %d messages", read)
	}
	if limit := max(written, after) - first; limit > 16<<20 { // the backlog is 90 MB
		t.Errorf("the heap grew by %d KB", limit>>10)
	}
}

// On a full disk publishing is refused and trimming is not.
func TestFullDisk(t *testing.T) {
	engine := &full{Records: records.Of(embeddedtest.NewDisk(nil).Open(t, nil))}
	log := commitlog.NewLocal(engine, time.Now)
	for range 3 {
		mustAppend(t, log, home, commitlogtest.Message(1))
	}
	engine.is = true
	producer := commitlog.Append{Partition: home, Messages: []*commitlog.Message{commitlogtest.Message(2)},
		Producer: commitlog.Producer{ID: "p", Number: 1}}
	if _, err := log.Append(t.Context(), []commitlog.Append{producer}); !errors.Is(err, store.ErrFull) {
		t.Errorf("append: %v", err)
	}
	if start, err := log.Trim(t.Context(), home, 2); err != nil || start != 2 {
		t.Errorf("trim: start %d, %v", start, err)
	}
	engine.is = false
	got, err := log.Append(t.Context(), []commitlog.Append{producer})
	if err != nil || got[0].Base != 3 || got[0].Replayed {
		t.Errorf("with room again: %+v, %v", got, err)
	}
}

// full is an engine that is full, as the real one says it.
type full struct {
	store.Records
	is bool
}

func (f *full) Commit(
	ctx context.Context, list []store.Record, rows ...store.Key,
) (func() error, error) {
	for _, r := range list {
		if f.is && r.Until == nil && !r.Frees {
			return nil, store.ErrFull
		}
	}
	return f.Records.Commit(ctx, list, rows...)
}

// A log has room for the partitions of every topic that can be configured or migrated to.
func TestPartitionsOfAllTopicsFit(t *testing.T) {
	for what, limit := range map[string]int32{
		"durable topics": topic.MaxPartitions, "migrations": migrate.MaxPartitions,
	} {
		log := commitlog.NewLocal(records.Of(embeddedtest.NewDisk(nil).Open(t, nil)), time.Now)
		last := commitlog.Partition{Topic: 1, Number: limit - 1}
		mustAppend(t, log, last, commitlogtest.Message(1))
		mustAppend(t, log, home, commitlogtest.Message(2))
		if err := log.Delete(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		for _, p := range []commitlog.Partition{home, last} {
			if _, end, err := log.Bounds(t.Context(), p); err != nil || end != 0 {
				t.Errorf("%s: partition %s of a deleted topic ends with %d, %v", what, p, end, err)
			}
		}
	}
}
