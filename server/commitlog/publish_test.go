package commitlog_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

const (
	relayWriters = 4
	relayRows    = 12 // of each writer between two losses of power
	relayLosses  = 4  // of one disk, one after the other
)

// rowID is a row of the outbox: the nth of a writer, from 1 on.
type rowID struct {
	writer int
	n      int64
}

func (id rowID) key() store.Key {
	return store.Key{Table: store.Outbox, PK: "07", SK: fmt.Sprintf("chat_%d#%016d", id.writer, id.n)}
}

func rowIDOf(key string) (id rowID, err error) {
	_, err = fmt.Sscanf(key, "chat_%d#%d", &id.writer, &id.n)
	return id, err
}

// relayed is an outbox and an event log on one disk, and what was promised of them.
type relayed struct {
	store *embedded.Store
	log   *commitlog.Local
	topic uint64

	mu        sync.Mutex
	stored    map[rowID]bool // acknowledged to its writer
	published map[rowID]bool // acknowledged to the relay
	shown     [2]int64       // ends of partitions
	next      [relayWriters]int64
}

func (r *relayed) partition(n int) commitlog.Partition {
	return commitlog.Partition{Topic: r.topic, Number: int32(n)}
}

// openRelayed opens what is on a disk.
func openRelayed(t *testing.T, disk *embeddedtest.Disk, bug func(store.Records) store.Records) *relayed {
	t.Helper()
	r := &relayed{store: disk.Open(t, nil), stored: map[rowID]bool{}, published: map[rowID]bool{}}
	r.log = commitlog.NewLocal(bug(records.Of(r.store)), time.Now)
	r.topic = eventTopic(t, r.log, "events", 2).Number
	return r
}

// write stores the next row of a writer, as a chat does with its event.
func (r *relayed) write(ctx context.Context, writer int) error {
	r.mu.Lock()
	r.next[writer]++
	id := rowID{writer, r.next[writer]}
	r.mu.Unlock()
	put := store.Write{Op: store.OpPut, Key: id.key(), Item: store.NewItem(store.Attr{Name: "count", Value: store.Int(1)})}
	if err := r.store.Transact(ctx, store.Plan{Writes: []store.Write{put}}); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stored[id] = true
	return nil
}

// publish publishes some rows as they are visible and deletes them; pending waits.
func (r *relayed) publish(ctx context.Context, limit int) (ids []rowID, pending *commitlog.Pending, err error) {
	page, err := r.store.Query(ctx, store.Query{Table: store.Outbox, PK: "07", Limit: limit})
	if err != nil || len(page.Rows) == 0 {
		return nil, nil, err
	}
	var refs record.References
	var copies []record.Record
	var rows []store.Key
	for _, row := range page.Rows {
		id, err := rowIDOf(row.Key.SK)
		if err != nil {
			return nil, nil, err
		}
		if id.writer%2 == 0 {
			refs.List = append(refs.List, record.Reference{Chat: fmt.Sprint("chat_", id.writer), Version: id.n})
		} else {
			copies = append(copies, record.Record{Key: []byte(row.Key.SK)})
		}
		ids, rows = append(ids, id), append(rows, row.Key)
	}
	var appends []commitlog.Append
	if len(refs.List) > 0 {
		appends = append(appends, commitlog.Append{Partition: r.partition(0), References: refs})
	}
	if len(copies) > 0 {
		appends = append(appends, commitlog.Append{Partition: r.partition(1), Records: copies})
	}
	pending, err = r.log.Publish(ctx, appends, rows)
	return ids, pending, err
}

func (r *relayed) wait(ctx context.Context, ids []rowID, pending *commitlog.Pending) error {
	if err := pending.Wait(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		r.published[id] = true
	}
	for n := range r.shown {
		_, end, err := r.log.Bounds(ctx, r.partition(n))
		if err != nil {
			return err
		}
		r.shown[n] = max(r.shown[n], end)
	}
	return nil
}

// run writes and publishes at the same time until the power fails, and returns what is left on
// the disk and what was promised by then.
func (r *relayed) run(
	t *testing.T, disk *embeddedtest.Disk, rng *rand.Rand,
) (left *embeddedtest.Disk, promised *relayed) {
	t.Helper()
	var mu sync.Mutex // of the loss
	until := rng.IntN(relayWriters * relayRows)
	step := func() (failed bool) {
		mu.Lock()
		defer mu.Unlock()
		if until--; until < 0 && left == nil {
			promised = r.snapshot() // must be on the disk now
			left = disk.PowerLoss(rng)
		}
		return left != nil
	}
	own := rand.New(rand.NewPCG(rng.Uint64(), 1)) // the relay's: rng is step's from here on
	var writers, relay sync.WaitGroup
	done := make(chan struct{})
	for writer := range relayWriters {
		writers.Go(func() {
			for range relayRows {
				if err := r.write(t.Context(), writer); err != nil {
					t.Error(err)
				}
				if step() {
					return
				}
			}
		})
	}
	relay.Go(func() { // with up to three commits whose sync is under way
		var under []func() error
		for {
			ids, pending, err := r.publish(t.Context(), 1+own.IntN(9))
			if err != nil {
				t.Error(err)
				return
			}
			if pending != nil {
				under = append(under, func() error { return r.wait(t.Context(), ids, pending) })
			}
			for len(under) > 0 && (pending == nil || len(under) > own.IntN(4)) {
				if err := under[0](); err != nil {
					t.Error(err)
				}
				under = under[1:]
			}
			select {
			case <-done:
				if pending == nil {
					return
				}
			default:
				runtime.Gosched()
			}
		}
	})
	writers.Wait()
	close(done)
	relay.Wait()
	if left == nil {
		until = 0
		step()
	}
	return left, promised
}

func (r *relayed) snapshot() *relayed {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &relayed{stored: maps.Clone(r.stored), published: maps.Clone(r.published), shown: r.shown}
}

// logged reads the log: which row is there, in order of each writer, and none twice.
func (r *relayed) logged(ctx context.Context) (map[rowID]bool, error) {
	all := map[rowID]bool{}
	last := map[int]int64{}
	for n := range 2 {
		next, end, err := r.log.Bounds(ctx, r.partition(n))
		for err == nil && next < end {
			var batches []*commitlog.Batch
			if batches, err = r.log.Read(ctx, r.partition(n), next, 1000); err != nil {
				break
			}
			for _, b := range batches {
				for i := range b.Count() {
					var key string
					if b.Form == commitlog.References {
						ref := b.References().List[i]
						key = fmt.Sprintf("%s#%d", ref.Chat, ref.Version)
					} else {
						key = string(b.Record(i).Key)
					}
					id, err := rowIDOf(key)
					if err != nil {
						return nil, err
					}
					if all[id] || id.n <= last[id.writer] {
						return nil, fmt.Errorf("row %+v is logged after row %d of its writer; it was before: %v", id, last[id.writer], all[id])
					}
					all[id], last[id.writer] = true, id.n
				}
				next = b.End()
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// check compares what is left after a loss of power with what was promised: each row that was
// stored waits, or is in the log, and not both.
func (r *relayed) check(ctx context.Context, promised *relayed) error {
	logged, err := r.logged(ctx)
	if err != nil {
		return err
	}
	waiting := map[rowID]bool{}
	for row, err := range store.ScanAll(ctx, r.store, store.Scan{Table: store.Outbox, Segments: 1}) {
		if err != nil {
			return err
		}
		id, err := rowIDOf(row.Key.SK)
		if err != nil {
			return err
		}
		if waiting[id] = true; logged[id] {
			return fmt.Errorf("row %+v is in the log and waits, too", id)
		}
	}
	for id := range promised.stored {
		if !waiting[id] && !logged[id] {
			return fmt.Errorf("row %+v was stored, and neither waits nor is in the log", id)
		}
	}
	for id := range promised.published {
		if !logged[id] {
			return fmt.Errorf("row %+v was published and is not in the log", id)
		}
	}
	for n, shown := range promised.shown {
		if _, end, err := r.log.Bounds(ctx, r.partition(n)); err != nil || end < shown {
			return fmt.Errorf("partition %d ends with %d (%w), %d was shown", n, end, err, shown)
		}
	}
	for _, ids := range []map[rowID]bool{logged, waiting} { // all of it is promised from now on
		for id := range ids {
			r.stored[id] = true
			r.next[id.writer] = max(r.next[id.writer], id.n)
		}
	}
	for id := range logged {
		r.published[id] = true
	}
	return nil
}

// relayedRound lets the power fail several times, on the disk that the last loss has left.
func relayedRound(t *testing.T, seed uint64, bug func(store.Records) store.Records) error {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 5))
	disk := embeddedtest.NewDisk(runtime.Gosched)
	r := openRelayed(t, disk, bug)
	for loss := range relayLosses {
		left, promised := r.run(t, disk, rng)
		disk = left
		r = openRelayed(t, disk, bug)
		if err := r.check(t.Context(), promised); err != nil {
			return fmt.Errorf("loss %d: %w", loss, err)
		}
	}
	for { // what still waits is published once
		ids, pending, err := r.publish(t.Context(), 100)
		if err == nil && pending != nil {
			err = r.wait(t.Context(), ids, pending)
		}
		if err != nil {
			return err
		}
		if pending == nil {
			break
		}
	}
	logged, err := r.logged(t.Context())
	if err == nil && len(logged) != len(r.stored) {
		err = fmt.Errorf("%d rows are in the log, %d were stored", len(logged), len(r.stored))
	}
	return err
}

// After any number of losses of power each row that was stored waits in the outbox or is in the
// log, once, in the order of its chat.
func TestPublishAndPowerLoss(t *testing.T) {
	base := testkit.Seed(t, 0)
	for n := range testkit.Rounds(t, "PARLEY_PUBLISH_LOSSES", 25) {
		seed := base + uint64(n)
		if !t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			testkit.Must(t, relayedRound(t, seed, func(r store.Records) store.Records { return r }))
		}) {
			return
		}
	}
}

// apart is an engine that deletes rows in a commit of their own, behind or before the records.
type apart struct {
	store.Records
	first bool
}

func (a apart) Commit(
	ctx context.Context, list []store.Record, rows ...store.Key,
) (func() error, error) {
	if len(rows) == 0 {
		return a.Records.Commit(ctx, list)
	}
	commits := []func() (func() error, error){
		func() (func() error, error) { return a.Records.Commit(ctx, list) },
		func() (func() error, error) { return a.Records.Commit(ctx, nil, rows...) },
	}
	if a.first {
		commits[0], commits[1] = commits[1], commits[0]
	}
	one, err := commits[0]()
	if err != nil {
		return nil, err
	}
	runtime.Gosched()
	two, err := commits[1]()
	if err != nil {
		return nil, err
	}
	return func() error { return errors.Join(one(), two()) }, nil
}

// The same rounds must notice commits that are not one, and promises that come too early.
func TestPublishAndPowerLossNoticesMistakes(t *testing.T) {
	for name, bug := range map[string]func(store.Records) store.Records{
		"rows are deleted later":            func(r store.Records) store.Records { return apart{r, false} },
		"rows are deleted before":           func(r store.Records) store.Records { return apart{r, true} },
		"acknowledged before it is durable": func(r store.Records) store.Records { return hasty{r} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(200) {
				if err := relayedRound(t, seed, bug); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Fatal("every round was passed")
		})
	}
}

// Nothing of a publish is shown before it is durable, though its rows are gone at once; one that
// is refused deletes nothing; rows go without appends, too.
func TestPublish(t *testing.T) {
	var disks sync.RWMutex // while it is locked, no sync ends
	disk := embeddedtest.NewDisk(func() {
		disks.RLock()
		defer disks.RUnlock()
	})
	r := openRelayed(t, disk, func(r store.Records) store.Records { return r })
	testkit.Must(t, r.write(t.Context(), 0))
	testkit.Must(t, r.write(t.Context(), 1))
	row := func(id rowID) bool {
		it, err := r.store.Get(t.Context(), id.key(), store.Strong)
		if err != nil {
			t.Error(err)
		}
		return it != nil
	}
	bad := []commitlog.Append{{Partition: r.partition(2), Records: recordsOf(0, 1)}}
	one := []store.Key{rowID{0, 1}.key()}
	if _, err := r.log.Publish(t.Context(), bad, one); !errors.Is(err, commitlog.ErrNoTopic) {
		t.Errorf("a partition that is not there: %v", err)
	}
	good := []commitlog.Append{{Partition: r.partition(1), Records: recordsOf(0, 1)}}
	unknown := append(one, store.Key{Table: "none", PK: "x"})
	if _, err := r.log.Publish(t.Context(), good, unknown); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a row of no table: %v", err)
	}
	disks.Lock()
	ids, pending, err := r.publish(t.Context(), 9)
	_, end, bounds := r.log.Bounds(t.Context(), r.partition(1))
	gone := !row(rowID{0, 1}) && !row(rowID{1, 1})
	disks.Unlock()
	testkit.Must(t, err)
	testkit.Must(t, bounds)
	if len(ids) != 2 || end != 0 || !gone {
		t.Errorf("rows %v are gone: %v; the end is %d", ids, gone, end)
	}
	testkit.Must(t, pending.Wait(t.Context()))
	if _, end, err := r.log.Bounds(t.Context(), r.partition(1)); err != nil || end != 1 {
		t.Errorf("the end is %d, %v", end, err)
	}
	testkit.Must(t, r.write(t.Context(), 0))
	pending = testkit.Value(r.log.Publish(t.Context(), nil, []store.Key{rowID{0, 2}.key()}))(t)
	testkit.Must(t, pending.Wait(t.Context()))
	if row(rowID{0, 2}) {
		t.Error("a row that is deleted alone is still there")
	}
	pending = testkit.Value(r.log.Publish(t.Context(), nil, nil))(t)
	testkit.Must(t, pending.Wait(t.Context()))
}
