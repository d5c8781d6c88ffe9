package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/parley-chat/parley/server/store"
)

// again runs a plan until the store gives a definite answer, as callers do.
func again(ctx context.Context, s store.Store, writes ...store.Write) error {
	for {
		err := s.Transact(ctx, store.Plan{Writes: writes})
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrThrottled) {
			return err
		}
	}
}

// testNoLostUpdate has goroutines increase one item, half of them blindly, half by
// comparing and setting: none may be lost, and none counted twice.
func testNoLostUpdate(f *fixture) {
	f.must(f.transact(put(user("n"), item(0))))
	const workers, each = 16, 20
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range each {
				var err error
				if w%2 == 0 {
					err = again(f.ctx, f.Store, increase(user("n"), 1))
				} else {
					err = compareAndSet(f.ctx, f.Store, user("n"))
				}
				if err != nil {
					f.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	f.wantItem(user("n"), item(workers*each))
}

func compareAndSet(ctx context.Context, s store.Store, k store.Key) error {
	for {
		it, err := s.Get(ctx, k, store.Strong)
		if err != nil {
			return err
		}
		n := it.Get("n")
		err = again(ctx, s, store.Write{Op: store.OpPut, Key: k, Item: item(n.Int64() + 1),
			Cond: store.Condition{}.Eq("n", n), Name: "n"})
		var failed *store.ConditionError
		if !errors.As(err, &failed) {
			return err
		}
	}
}

// testTransfers moves amounts between items in plans that name them in any order:
// they must not block each other for ever, no amount may appear or vanish, and none
// may become negative, which the conditions forbid.
func testTransfers(f *fixture) {
	const accounts, workers, each, start = 6, 8, 30, 10
	account := func(i int) store.Key { return user(fmt.Sprint("account", i)) }
	for i := range accounts {
		f.must(f.transact(put(account(i), item(start))))
	}
	var wg sync.WaitGroup
	var moved atomic.Int64
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range each {
				order, amount := rng.Perm(accounts), rng.Int64N(8)+1
				from := increase(account(order[0]), -amount)
				from.Cond, from.Name = store.Condition{}.Gt("n", store.Int(amount-1)), "enough"
				err := again(f.ctx, f.Store, from, increase(account(order[1]), amount))
				var failed *store.ConditionError
				if err == nil {
					moved.Add(1)
				} else if !errors.As(err, &failed) {
					f.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	total := int64(0)
	for i := range accounts {
		n := f.get(account(i)).Get("n").Int64()
		if n < 0 {
			f.Fatalf("account %d has %d", i, n)
		}
		total += n
	}
	if total != accounts*start || moved.Load() == 0 {
		f.Fatalf("%d transfers left %d of %d", moved.Load(), total, accounts*start)
	}
}

// testOneWinner has many create the same item where there is none: one succeeds, the
// others are shown its item.
func testOneWinner(f *fixture) {
	const racers = 16
	var wins atomic.Int64
	var winner atomic.Int64
	shown := make([]int64, racers)
	var wg sync.WaitGroup
	for r := range racers {
		wg.Go(func() {
			w := put(user("one"), item(int64(r+1)))
			w.Cond, w.Name = store.Absent(), "one"
			err := again(f.ctx, f.Store, w)
			var failed *store.ConditionError
			switch {
			case err == nil:
				wins.Add(1)
				winner.Store(int64(r + 1))
				shown[r] = int64(r + 1)
			case errors.As(err, &failed):
				shown[r] = failed.Failures[0].Current.Get("n").Int64()
			default:
				f.Error(err)
			}
		})
	}
	wg.Wait()
	for r, n := range shown {
		if n != winner.Load() {
			f.Fatalf("racer %d was shown %d, the winner is %d", r, n, winner.Load())
		}
	}
	if wins.Load() != 1 {
		f.Fatalf("%d of %d won", wins.Load(), racers)
	}
}

// testStrongReads checks that a consistent read, and a read and query of another
// goroutine, see each plan that has returned.
func testStrongReads(f *fixture) {
	for i := range 50 {
		f.must(f.transact(put(user("a"), item(int64(i))), put(message("c", fmt.Sprintf("%04d", i)), item(int64(i)))))
		errs := make(chan error)
		go func() { errs <- f.sees(i) }()
		f.must(<-errs)
	}
}

func (f *fixture) sees(i int) error {
	it, err := f.Store.Get(f.ctx, user("a"), store.Strong)
	if err != nil || it.Get("n").Int64() != int64(i) {
		return fmt.Errorf("get after plan %d: %v, %w", i, it, err)
	}
	many, err := f.Store.BatchGet(f.ctx, []store.Key{user("a")}, store.Strong)
	if err != nil || many[0].Get("n").Int64() != int64(i) {
		return fmt.Errorf("batch get after plan %d: %v, %w", i, many, err)
	}
	p, err := f.Store.Query(f.ctx,
		store.Query{Table: store.Messages, PK: "c", Descending: true, Limit: 1, Consistency: store.Strong})
	if err != nil || len(p.Rows) != 1 || p.Rows[0].Item.Get("n").Int64() != int64(i) {
		return fmt.Errorf("query after plan %d: %v, %w", i, p, err)
	}
	return f.Store.Durable(f.ctx)
}

// testCloseUnderLoad closes the store while it is used: each call either succeeds
// as ever or fails with ErrClosed.
func testCloseUnderLoad(f *fixture) {
	const workers = 8
	started := make(chan struct{}, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := 0; ; i++ {
				err := again(f.ctx, f.Store, put(user(fmt.Sprint(w)), item(int64(i))))
				if err == nil {
					_, err = f.Store.Get(f.ctx, user(fmt.Sprint(w)), store.Strong)
				}
				if err == nil {
					err = f.Store.Durable(f.ctx)
				}
				if i == 0 {
					started <- struct{}{}
				}
				if errors.Is(err, store.ErrClosed) {
					return
				}
				if err != nil {
					f.Error(err)
					return
				}
			}
		})
	}
	for range workers {
		<-started
	}
	f.must(f.Store.Close())
	wg.Wait()
}

// testContext checks that a call whose context has ended does nothing.
func testContext(f *fixture) {
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	late, stop := context.WithTimeout(f.ctx, 0)
	defer stop()
	for want, ctx := range map[error]context.Context{context.Canceled: ctx, context.DeadlineExceeded: late} {
		for what, err := range f.all(ctx) {
			if !errors.Is(err, want) {
				f.Errorf("%s: %v, want %v", what, err, want)
			}
		}
	}
	f.wantItem(user("a"), nil)
	f.wantItem(user("b"), nil)
}

func testClosed(f *fixture) {
	f.must(f.Store.Close())
	f.must(f.Store.Close())
	for what, err := range f.all(f.ctx) {
		if !errors.Is(err, store.ErrClosed) {
			f.Errorf("%s after close: %v", what, err)
		}
	}
}

// all makes a call of each kind.
func (f *fixture) all(ctx context.Context) map[string]error {
	_, get := f.Store.Get(ctx, user("a"), store.Strong)
	_, batch := f.Store.BatchGet(ctx, []store.Key{user("a")}, store.Eventual)
	_, query := f.Store.Query(ctx, store.Query{Table: store.Messages, PK: "a"})
	_, scan := f.Store.Scan(ctx, store.Scan{Table: store.Messages, Segments: 1})
	return map[string]error{
		"get": get, "batch get": batch, "query": query, "scan": scan,
		"transact":    f.Store.Transact(ctx, store.Plan{Writes: []store.Write{put(user("a"), item(1))}}),
		"batch write": f.Store.BatchWrite(ctx, []store.Write{put(user("b"), item(1))}),
		"durable":     f.Store.Durable(ctx),
	}
}
