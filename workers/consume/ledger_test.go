package consume

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// ledger is a projection that notices what is lost, repeated or out of order: a row of each
// key has the number of its last record, how many there were, and their sum. Values are "key
// kind number", and the numbers of a key are 1, 2, 3 and so on.
type ledger struct {
	store store.Store
	// fail, if given, fails a record before it has an effect.
	fail func(ctx context.Context, key string, n int64) error
	// wrong is called if a record is none that may come next.
	wrong func(format string, args ...any)

	mu    sync.Mutex
	calls [][]int64 // numbers of the records of each call
}

func newLedger(t testing.TB, st store.Store) *ledger {
	return &ledger{store: st, wrong: t.Errorf}
}

func ledgerKey(key string) store.Key {
	return store.Key{Table: store.Notifications, PK: "ledger", SK: key}
}

func numberOf(r *kafka.Record) int64 {
	n, err := strconv.ParseInt(strings.Fields(string(r.Value))[2], 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func (l *ledger) handle(ctx context.Context, records []*kafka.Record) (Effect, error) {
	key := string(records[0].Key)
	row, err := l.store.Get(ctx, ledgerKey(key), store.Strong)
	if err != nil {
		return Effect{}, err
	}
	was, count, sum := row.Get("last").Int64(), row.Get("count").Int64(), row.Get("sum").Int64()
	last, e := was, Effect{}
	var failure error
	var numbers []int64
	for _, r := range records {
		n := numberOf(r)
		numbers = append(numbers, n)
		if n > last {
			if n != last+1 {
				l.wrong("%s: record %d after %d, expected the next one", key, n, last)
			}
			if l.fail != nil {
				if failure = l.fail(ctx, key, n); failure != nil {
					break
				}
			}
			last, count, sum = n, count+1, sum+n
		}
		e.Finished++
	}
	l.mu.Lock()
	l.calls = append(l.calls, numbers)
	l.mu.Unlock()
	if last == was {
		return e, failure
	}
	cond := store.Absent()
	if row != nil {
		cond = store.Exists().Eq("last", store.Int(was))
	}
	e.Writes = []store.Write{{Op: store.OpPut, Key: ledgerKey(key), Cond: cond, Name: "ledger", Item: store.NewItem(
		store.Attr{Name: "last", Value: store.Int(last)}, store.Attr{Name: "count", Value: store.Int(count)},
		store.Attr{Name: "sum", Value: store.Int(sum)})}}
	return e, failure
}

// check returns what is wrong with a key that has had its first n records; nil if nothing is.
func (l *ledger) check(ctx context.Context, key string, n int64) error {
	row, err := l.store.Get(ctx, ledgerKey(key), store.Strong)
	if err != nil {
		return err
	}
	last, count, sum := row.Get("last").Int64(), row.Get("count").Int64(), row.Get("sum").Int64()
	if last != n || count != n || sum != n*(n+1)/2 {
		return fmt.Errorf("%s: %d records up to %d, with the sum %d; expected %d records and %d", key, count, last, sum, n,
			n*(n+1)/2)
	}
	return nil
}

// last returns the number of the last record of a key.
func (l *ledger) last(t testing.TB, key string) int64 {
	t.Helper()
	row, err := l.store.Get(t.Context(), ledgerKey(key), store.Strong)
	testkit.Must(t, err)
	return row.Get("last").Int64()
}

// records makes records of a key with numbers, as of one partition.
func recordsOf(key string, numbers ...int64) (list []*kafka.Record) {
	for i, n := range numbers {
		list = append(list, &kafka.Record{Topic: topic, Offset: int64(i), Key: []byte(key),
			Value: fmt.Appendf(nil, "%s ok %d", key, n)})
	}
	return list
}
