package relay

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// left counts the rows of the outbox.
func (r *fixture) left() int {
	r.t.Helper()
	page, err := r.store.Scan(context.WithoutCancel(r.ctx), store.Scan{Table: store.Outbox, Segments: 1})
	r.must(err)
	return len(page.Rows)
}

// A disk that hangs does not stop publishing. A row is deleted only after a sync that started
// when its records were published: an earlier sync promises nothing.
func TestPublishingContinuesWhileTheDiskSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		id := r.group()
		re := r.relay()
		re.cfg.Clock, re.cfg.Sweep = time.Now, time.Hour
		var published atomic.Int64
		re.cfg.Publish = Flatten(func(_ context.Context, records []*kafka.Record) error {
			published.Add(int64(len(records)))
			return nil
		})
		syncs := make(chan struct{})
		re.cfg.Flush = func(ctx context.Context) error {
			select {
			case <-syncs:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		finish := func() { // the running sync
			t.Helper()
			select {
			case syncs <- struct{}{}:
			default:
				t.Error("no sync is running, expected one that hangs")
			}
			synctest.Wait()
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- re.Run(ctx) }()
		testkit.Advance(2 * time.Second) // the creation is published, its sync hangs
		for range 20 {
			r.send(id)
			re.Nudge(r.commits[len(r.commits)-1])
			testkit.Advance(time.Second)
		}
		if n := published.Load(); n != 22 {
			t.Errorf("%d events are published while the disk hangs, expected all 22", n)
		}
		finish()
		if n := r.left(); n != 20 {
			t.Errorf("%d rows remain after a sync that started before 20 of them were published, expected these 20", n)
		}
		testkit.Advance(2 * time.Second)
		finish()
		if n := r.left(); n != 0 {
			t.Errorf("%d rows remain after the second sync, expected none", n)
		}
		r.send(id)
		re.Nudge(r.commits[len(r.commits)-1])
		testkit.Advance(2 * time.Second)
		stop() // with a sync that hangs
		began := time.Now()
		if err := <-done; !errors.Is(err, context.Canceled) || time.Since(began) > 3*time.Second {
			t.Errorf("Run returned %v after %v, expected context.Canceled within 3 s", err, time.Since(began))
		}
	})
}

// When Run returns, its deletion has ended too.
func TestRunEndsAfterItsDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		r.group()
		re := r.relay()
		re.cfg.Clock = time.Now
		var syncing atomic.Int64
		re.cfg.Flush = func(context.Context) error {
			syncing.Add(1)
			defer syncing.Add(-1)
			time.Sleep(3 * time.Second) // in simulated time: a slow disk that ignores the context
			return nil
		}
		fenced := false
		var mu sync.Mutex
		re.cfg.Publish = Flatten(func(context.Context, []*kafka.Record) error {
			mu.Lock()
			defer mu.Unlock()
			if fenced {
				return kafka.ErrFenced
			}
			fenced = true
			return nil
		})
		done := make(chan error, 1)
		go func() { done <- re.Run(t.Context()) }()
		testkit.Advance(1500 * time.Millisecond) // a sync is running
		r.group()
		re.Nudge(r.commits[len(r.commits)-1])
		if err := <-done; !errors.Is(err, kafka.ErrFenced) {
			t.Errorf("Run returned %v, expected %v", err, kafka.ErrFenced)
		}
		if syncing.Load() != 0 {
			t.Error("a sync still runs after Run has returned")
		}
	})
}

// halting fails some deletions.
type halting struct {
	store.Store
	fails atomic.Int64
}

func (h *halting) BatchWrite(ctx context.Context, writes []store.Write) error {
	if h.fails.Add(-1) >= 0 {
		return errors.New("the store is unavailable")
	}
	return h.Store.BatchWrite(ctx, writes)
}

// Rows whose deletion fails are deleted later, and nothing is published again for them.
func TestDeletionsThatFail(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	for range 200 {
		r.send(id)
	}
	re := r.relay()
	st := &halting{Store: r.store}
	st.fails.Store(3)
	re.cfg.Store = st
	if err := re.Cycle(r.ctx); err == nil {
		t.Fatal("the cycle succeeded, expected the error of three failed deletions")
	}
	if n := r.left(); n == 0 || n == 202 || n != len(re.pendingDelete) || n != len(re.isPending) {
		t.Fatalf("%d of 202 rows remain, expected some; %d are pending, expected as many", n, len(re.pendingDelete))
	}
	r.rest(re)
	r.check(true)
	if len(r.log) != 202 {
		t.Fatalf("%d records, expected each of 202 events once", len(r.log))
	}
}

// When too many rows wait for the disk, the relay waits too.
func TestRowsThatWaitForTheDiskAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		re := r.relay()
		re.cfg.Flush = func(context.Context) error {
			time.Sleep(time.Minute) // in simulated time: a slow disk
			return nil
		}
		re.pendingDelete = make([]store.Key, 65_536)
		r.must(re.startDeletion(t.Context()))
		began := time.Now()
		_ = re.startDeletion(t.Context()) // the rows do not exist: only the wait matters
		if d := time.Since(began); d < time.Minute {
			t.Errorf("the relay waited %v, expected at least the minute of the sync", d)
		}
		r.must(context.Cause(t.Context()))
	})
}

// Under load the relay batches records into few transactions. A single send is published
// at once, and so is a full transaction.
func TestRecordsAreBatchedUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		id := r.group()
		re := r.relay()
		re.cfg.Clock, re.cfg.Sweep, re.cfg.MaxBatch = time.Now, time.Hour, 500
		re.inbox = newInbox(1000, 500)
		var mu sync.Mutex
		transactions, records := 0, 0
		count := func() (int, int) {
			mu.Lock()
			defer mu.Unlock()
			return transactions, records
		}
		re.cfg.Publish = Flatten(func(_ context.Context, list []*kafka.Record) error {
			time.Sleep(5 * time.Millisecond) // in simulated time: what a transaction takes
			mu.Lock()
			defer mu.Unlock()
			transactions++
			records += len(list)
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- re.Run(ctx) }()
		send := func() {
			r.send(id)
			re.Nudge(r.commits[len(r.commits)-1])
		}
		testkit.Advance(time.Second)
		before, _ := count()
		send()
		testkit.Advance(6 * time.Millisecond)
		if n, _ := count(); n != before+1 {
			t.Errorf("%d transactions after a single send, expected 1 at once", n-before)
		}
		testkit.Advance(time.Second)
		for range 1000 { // one each millisecond
			send()
			testkit.Advance(time.Millisecond)
		}
		testkit.Advance(200 * time.Millisecond)
		n, m := count()
		if n -= before + 1; n < 10 || n > 30 {
			t.Errorf("%d transactions in a second, expected 10 to 30", n)
		}
		if m != 1003 {
			t.Errorf("%d records, expected 1003", m)
		}
		before, _ = count()
		for range 1000 { // the first of them may be published before a transaction is full
			send()
		}
		testkit.Advance(25 * time.Millisecond) // longer than three transactions, shorter than a rest
		if n, m = count(); n < before+2 || m < 1503 {
			t.Errorf("%d transactions of %d records, expected at least 2 of 500", n-before, m-1003)
		}
		stop()
		<-done
	})
}

// Published rows are deleted even while nothing more can be published: on a full disk
// nothing else frees space.
func TestPublishedRowsAreDeletedWhilePassesFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t)
		id := r.group()
		for range 50 {
			r.send(id)
		}
		before := r.left()
		re := r.relay()
		re.cfg.Clock = time.Now
		transactions := 0
		re.cfg.Publish = Flatten(func(context.Context, []*kafka.Record) error {
			if transactions++; transactions > 3 {
				return errors.New("the disk is full")
			}
			return nil
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- re.Run(ctx) }()
		testkit.Advance(10 * time.Second)
		// Of 21 records at most the first two are of one row, that of the creation.
		if deleted := before - r.left(); deleted < 18 || deleted > 21 {
			t.Errorf("%d of %d rows are deleted, expected 18 to 21 of the 21 published records", deleted, before)
		}
		stop()
		<-done
	})
}

// A sweep of a long backlog keeps a bounded number of rows that wait for the disk in memory.
func TestSweepBoundsRowsThatWaitForTheDisk(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	for range 100 {
		r.send(id)
	}
	re := r.relay()
	for n := range 65_530 { // published earlier in the sweep
		k := table.Outbox{AggregateID: "chat_0", FirstVersion: int64(n + 1)}.Key()
		re.pendingDelete, re.isPending[k] = append(re.pendingDelete, k), true
	}
	publish, highest := re.cfg.Publish, 0
	re.cfg.Publish = func(ctx context.Context, list []eventlog.Publication) error {
		highest = max(highest, len(re.pendingDelete), len(re.isPending))
		return publish(ctx, list)
	}
	r.must(re.pass(r.ctx))
	if len(r.log) != 102 || highest > 65_536+7 {
		t.Errorf("%d records, expected 102; at most %d rows pending, expected up to 65543", len(r.log), highest)
	}
	if len(re.pendingDelete) > 102 {
		t.Errorf("%d rows still wait, expected up to 102", len(re.pendingDelete))
	}
}

// Events that an operator replays are published even if nudges of their chat never stop:
// nudges do not announce replays.
func TestReplayOfBusyChat(t *testing.T) {
	for name, version := range map[string]int64{"an old event": 1, "an event whose own row is still pending": 3} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t)
			re := r.relay()
			id := r.group()
			r.must(re.Cycle(r.ctx)) // the creation's two events
			row := table.Outbox{Shard: event.Shard(id), AggregateID: id, FirstVersion: version, Count: 1, CreatedAt: 1,
				Replay: true, ReplayID: "again"}
			for n := range 5 {
				r.send(id)
				if n == 0 {
					r.must(r.store.BatchWrite(r.ctx, []store.Write{{Op: store.OpPut, Key: row.Key(), Item: row.Item()}}))
				}
				re.Nudge(r.commits[len(r.commits)-1])
				r.now = r.now.Add(3 * time.Second)
				r.must(re.Cycle(r.ctx)) // sweeps while a nudge waits
				if n == 0 && len(r.log) != 4 {
					t.Errorf("%d records after a sweep, expected 3 events and a replay", len(r.log))
				}
			}
			seen := map[int64]int{}
			for _, e := range r.log {
				seen[e.GetMetadata().GetVersion()]++
			}
			if len(r.log) != 8 || seen[version] != 2 {
				t.Errorf("%d records, expected 7 events and a replay of version %d; count by version: %v", len(r.log), version, seen)
			}
			r.rest(re)
			r.check(true)
		})
	}
}
