package records_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/raw"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

func outboxRow(n int) store.Key {
	return store.Key{Table: store.Outbox, PK: "07", SK: fmt.Sprintf("chat#%06d", n)}
}

func putRows(t *testing.T, s store.Store, keys ...store.Key) {
	t.Helper()
	for _, k := range keys {
		w := store.Write{Op: store.OpPut, Key: k, Item: store.NewItem(store.Attr{Name: "n", Value: store.Int(1)})}
		if def, _ := store.Lookup(k.Table); def.TTL {
			w.Item = store.NewItem(store.Attr{Name: store.ExpiresAtField, Value: store.Int(time.Now().Add(time.Hour).Unix())})
		}
		testkit.Must(t, s.Transact(t.Context(), store.Plan{Writes: []store.Write{w}}))
	}
}

func exists(t *testing.T, s store.Store, k store.Key) bool {
	t.Helper()
	return testkit.Value(s.Get(t.Context(), k, store.Strong))(t) != nil
}

// Rows are gone with the commit that has the records, and with nothing else: also those that are
// cached and those that would have expired, whose place in the index goes with them. A commit
// that is refused deletes nothing.
func TestRowsAreDeleted(t *testing.T) {
	mem := vfs.NewMem()
	s := open(t, mem)
	r := records.Of(s)
	rows := []store.Key{
		outboxRow(1), outboxRow(2), {Table: store.ChatCounters, PK: "chat"}, {Table: store.DeliveryState, PK: "u", SK: "c"},
		{Table: store.IdempotencyKeys, PK: "key"},
	}
	putRows(t, s, append(rows, outboxRow(3))...)
	for _, k := range rows { // cached from now on, where the engine caches
		if !exists(t, s, k) {
			t.Fatalf("%s is not there", k)
		}
	}
	index := raw.New(s, "/data")
	if x := testkit.Value(index.CheckIndex(t.Context()))(t); x != (raw.Index{Entries: 2}) {
		t.Fatalf("index %+v", x)
	}
	unknown := store.Key{Table: "none", PK: "x"}
	if _, err := r.Commit(t.Context(), []store.Record{put("a")}, rows[0], unknown); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a row of no table: %v", err)
	}
	if got := seek(t, r, "", "", false, 99); len(got) > 0 || !exists(t, s, rows[0]) {
		t.Errorf("what was refused left records %q, the row is there: %v", got, exists(t, s, rows[0]))
	}
	wait := testkit.Value(r.Commit(t.Context(), []store.Record{put("a"), put("b")}, append(rows, outboxRow(99))...))(t)
	for round := range 2 {
		for _, k := range rows {
			if exists(t, s, k) {
				t.Errorf("round %d: %s is still there", round, k)
			}
		}
		if got := seek(t, r, "", "", false, 99); len(got) != 2 || !exists(t, s, outboxRow(3)) {
			t.Errorf("round %d: records %q", round, got)
		}
		if x := testkit.Value(raw.New(s, "/data").CheckIndex(t.Context()))(t); x != (raw.Index{}) {
			t.Errorf("round %d: index %+v", round, x)
		}
		if round == 0 {
			testkit.Must(t, wait())
			testkit.Must(t, s.Close())
			s = open(t, mem)
			r = records.Of(s)
		}
	}
	wait = testkit.Value(r.Commit(t.Context(), nil, outboxRow(3)))(t) // without records
	testkit.Must(t, wait())
	wait = testkit.Value(r.Commit(t.Context(), nil))(t)
	testkit.Must(t, wait())
	if exists(t, s, outboxRow(3)) {
		t.Error("a row that is deleted without records is still there")
	}
	testkit.Must(t, s.Close())
	if _, err := r.Commit(t.Context(), nil, outboxRow(3)); !errors.Is(err, store.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// What the cache has is what the engine has, while plans write rows, and commits of records
// delete them, at the same time and in any order of their keys.
func TestRowsAndPlansAtOnce(t *testing.T) {
	s := open(t, vfs.NewMem())
	defer s.Close()
	r := records.Of(s)
	key := func(n int) store.Key { return store.Key{Table: store.ChatCounters, PK: fmt.Sprint("chat_", n)} }
	const rows, steps = 6, 400
	var wg sync.WaitGroup
	for worker := range 4 {
		rng := rand.New(rand.NewPCG(7, uint64(worker)))
		wg.Go(func() {
			for step := range steps {
				order := rng.Perm(rows)
				if worker%2 == 0 {
					var writes []store.Write
					for _, n := range order[:3] {
						writes = append(writes, store.Write{Op: store.OpPut, Key: key(n),
							Item: store.NewItem(store.Attr{Name: "n", Value: store.Int(int64(step))})})
					}
					if err := s.Transact(t.Context(), store.Plan{Writes: writes}); err != nil {
						t.Error(err)
					}
				} else {
					wait, err := r.Commit(t.Context(), []store.Record{put(fmt.Sprint(worker, step))}, key(order[0]), key(order[1]))
					if err == nil {
						err = wait()
					}
					if err != nil {
						t.Error(err)
					}
				}
				if _, err := s.Get(t.Context(), key(order[0]), store.Strong); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	stored := map[store.Key]int64{}
	for row, err := range store.ScanAll(t.Context(), s, store.Scan{Table: store.ChatCounters, Segments: 1}) {
		testkit.Must(t, err)
		stored[row.Key] = row.Item.Get("n").Int64()
	}
	for n := range rows {
		it := testkit.Value(s.Get(t.Context(), key(n), store.Strong))(t)
		if want, ok := stored[key(n)]; ok != (it != nil) || it.Get("n").Int64() != want {
			t.Errorf("%s is %v by its key, and %d (%v) by a scan", key(n), it, want, ok)
		}
	}
	if got := seek(t, r, "", "", false, 10_000); len(got) != 2*steps {
		t.Errorf("%d records", len(got))
	}
}

// 100,000 rows of the outbox that commits of records delete make its compaction due, as those
// that plans delete.
func TestDeletedRowsOfTheOutboxCount(t *testing.T) {
	s := open(t, vfs.NewMem())
	defer s.Close()
	r := records.Of(s)
	const each = 1000
	for n := range 100 {
		if c := s.Stats().Compactions; c != 0 {
			t.Fatalf("%d compactions after %d rows", c, n*each)
		}
		rows := make([]store.Key, each)
		for i := range rows {
			rows[i] = outboxRow(n*each + i)
		}
		wait := testkit.Value(r.Commit(t.Context(), []store.Record{put(fmt.Sprint(n))}, rows...))(t)
		testkit.Must(t, wait())
	}
	testkit.Eventually(t, "the outbox is compacted", func() bool { return s.Stats().Compactions == 1 })
}

// On a full disk records are stored with the deletion of rows until half of the reserve is
// used. Then only what frees room is.
func TestRowsOnAFullDisk(t *testing.T) {
	const gb = 1 << 30 // the reserve of 100 GB is 4 GB
	for name, c := range map[string]struct {
		free                   uint64
		records, rows, freeing error
	}{
		"room":               {5 * gb, nil, nil, nil},
		"full":               {4*gb - 1, store.ErrFull, nil, nil},
		"half of it is left": {2 * gb, store.ErrFull, nil, nil},
		"less than half":     {2*gb - 1, store.ErrFull, store.ErrFull, nil},
	} {
		mem := vfs.NewMem()
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 50 * gb, TotalBytes: 100 * gb})
		s := open(t, mem)
		putRows(t, s, outboxRow(1))
		testkit.Must(t, s.Close())
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: c.free, TotalBytes: 100 * gb})
		s = open(t, mem)
		r := records.Of(s)
		try := func(list []store.Record, rows ...store.Key) error {
			wait, err := r.Commit(context.Background(), list, rows...)
			if err == nil {
				err = wait()
			}
			return err
		}
		refused := s.Stats().Refused
		if err := try([]store.Record{put("a")}); !errors.Is(err, c.records) {
			t.Errorf("%s, a record alone: %v", name, err)
		}
		if err := try([]store.Record{put("b")}, outboxRow(1)); !errors.Is(err, c.rows) {
			t.Errorf("%s, a record and a row: %v", name, err)
		}
		if exists(t, s, outboxRow(1)) != (c.rows != nil) {
			t.Errorf("%s: the row is there: %v", name, exists(t, s, outboxRow(1)))
		}
		if err := try([]store.Record{{Key: []byte("a"), Until: []byte("z")}}, outboxRow(1)); !errors.Is(err, c.freeing) {
			t.Errorf("%s, removals: %v", name, err)
		}
		want := int64(0)
		for _, err := range []error{c.records, c.rows} {
			if err != nil {
				want++
			}
		}
		if n := s.Stats().Refused - refused; n != want {
			t.Errorf("%s: %d refusals are counted, want %d", name, n, want)
		}
		testkit.Must(t, s.Close())
	}
}
