package consume

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume/parked"
)

// Who does not own a partition parks nothing of it.
func TestParkingNeedsTheOwnership(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	log := parked.Log{Store: st, Clock: time.Now, Group: "g", Consumer: "me"}
	for _, owner := range []string{"", "other"} {
		if owner != "" {
			testkit.Must(t, st.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut,
				Key:  table.OwnershipKey(table.AttemptsPartition("g", topic, 0)),
				Item: table.Ownership{Consumer: owner}.Item()}}))
		}
		_, err := log.Begin(t.Context(), recordsOf("a", 1)[0], parked.Failure{Class: "permanent"})
		if ClassOf(err) != Authoritative {
			t.Errorf("owner %q: %v, expected a failure that passes", owner, err)
		}
	}
	if rows, err := parked.List(t.Context(), st, parked.Select{}); len(rows) > 0 || err != nil {
		t.Errorf("%+v, %v; expected nothing to be parked", rows, err)
	}
}

// After a crash records may come again that were finished before their key was parked: they are
// finished, and only what follows has dead letters.
func TestFinishedBeforeTheKeyWasParked(t *testing.T) {
	l, s := newLedger(t, storetest.NewMemory(time.Now)), &shelf{}
	e, err := New(Config{Addr: "-", Group: "g", Consumer: "me", Topics: []string{topic}, Store: l.store, Clock: time.Now,
		Logger: nopLogger, Aggregate: l.handle, WriteDeadLetter: s.write})
	testkit.Must(t, err)
	testkit.Must(t, l.store.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut,
		Key: table.OwnershipKey(table.AttemptsPartition("g", topic, 0)), Item: table.Ownership{Consumer: "me"}.Item()}}))
	l.fail = func(_ context.Context, _ string, n int64) error {
		if n == 3 {
			return Fail(Permanent, "bad", nil)
		}
		return nil
	}
	records := recordsOf("a", 1, 2, 3, 4)
	for range 3 { // the process ends each time before it commits
		po := &portion{batch: kafka.Batch{Records: records}, done: make([]bool, len(records))}
		var stop atomic.Bool
		e.workBatch(t.Context(), &keyBatch{portion: po, indexes: []int{0, 1, 2, 3}}, &stop)
		for i, done := range po.done {
			if !done {
				t.Fatalf("record %d is not finished, expected all to be", i)
			}
		}
	}
	testkit.Must(t, l.check(t.Context(), "a", 2))
	list := s.of("a")
	if len(list) != 2 || numberOf(list[0].Record) != 3 || numberOf(list[1].Record) != 4 {
		t.Fatalf("%d dead letters, expected those of 3 and 4", len(list))
	}
	rows, err := parked.List(t.Context(), l.store, parked.Select{})
	if err != nil || len(rows) != 1 || rows[0].Records != 2 {
		t.Fatalf("%+v, %v; expected one key with two records", rows, err)
	}
}

// Where order counts nothing is skipped: who is served must be there.
func TestNoRecordOfAnAggregateIsSkipped(t *testing.T) {
	defer func(old []time.Duration) { downstreamWaits = old }(downstreamWaits)
	downstreamWaits = []time.Duration{time.Microsecond}
	l, s := newLedger(t, storetest.NewMemory(time.Now)), &shelf{}
	e, err := New(Config{Addr: "-", Group: "g", Topics: []string{topic}, Store: l.store, Clock: time.Now,
		Logger: nopLogger, Aggregate: l.handle, WriteDeadLetter: s.write})
	testkit.Must(t, err)
	l.fail = func(_ context.Context, _ string, n int64) error {
		if n == 2 {
			return Fail(Downstream, "away", nil)
		}
		return nil
	}
	for _, indexes := range [][]int{{0, 1, 2}, {1}} { // among others, and alone
		po := &portion{batch: kafka.Batch{Records: recordsOf("a", 1, 2, 3)}, done: make([]bool, 3)}
		var stop atomic.Bool
		e.workBatch(t.Context(), &keyBatch{portion: po, indexes: indexes}, &stop)
		if po.done[1] || po.done[2] || len(s.of("a")) > 0 || e.Stats().Skipped > 0 {
			t.Fatalf("%v: finished %v with %d dead letters, expected the second and third to wait", indexes, po.done, len(s.of("a")))
		}
	}
	testkit.Must(t, l.check(t.Context(), "a", 1))
}

// slowStore lets others go ahead before each read.
type slowStore struct{ store.Store }

func (s slowStore) Get(ctx context.Context, key store.Key, c store.Consistency) (store.Item, error) {
	for range 10 {
		runtime.Gosched()
	}
	return s.Store.Get(ctx, key, c)
}

// Workers of one round find the last room one after the other.
func TestLastRoomIsGivenOnce(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	testkit.Must(t, st.BatchWrite(t.Context(), []store.Write{{Op: store.OpPut,
		Key: table.OwnershipKey(table.AttemptsPartition("g", topic, 0)), Item: table.Ownership{Consumer: "me"}.Item()}}))
	p := &parking{log: parked.Log{Store: slowStore{st}, Clock: time.Now, Group: "g", Consumer: "me"},
		bounds: parked.Bounds{Keys: 1}.WithDefaults(), keys: map[string]map[string]table.Parked{}}
	var wg sync.WaitGroup
	var refused atomic.Int64
	for k := range 50 {
		wg.Go(func() {
			err := p.begin(t.Context(), recordsOf(fmt.Sprint("k", k), 1)[0], parked.Failure{Class: "permanent"})
			if errors.Is(err, errBounds) {
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	rows, err := parked.List(t.Context(), st, parked.Select{})
	if err != nil || len(rows) != 1 || refused.Load() != 49 {
		t.Fatalf("%d keys are parked, %d refused, %v; expected 1 and 49", len(rows), refused.Load(), err)
	}
}
