package dynamo

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/tables"
	"github.com/parley-chat/parley/server/store/dynamo/wire"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// endpoint is where DynamoDB Local listens; tests that need it are skipped where
// there is none.
func endpoint(t testing.TB) string {
	t.Helper()
	e := os.Getenv("PARLEY_TEST_DYNAMODB")
	if e == "" {
		t.Skip("not run: PARLEY_TEST_DYNAMODB is not set")
	}
	return e
}

// pool keeps the tables of tests that have ended: making them takes longer than most
// tests.
var pool struct {
	sync.Mutex
	free []string
	made int
}

// prefix returns tables that are empty.
func prefix(t testing.TB, endpoint string) string {
	t.Helper()
	pool.Lock()
	var p string
	if n := len(pool.free); n > 0 {
		p, pool.free = pool.free[n-1], pool.free[:n-1]
	} else {
		p = fmt.Sprintf("t%d_%d_%d_", os.Getpid(), time.Now().UnixNano(), pool.made)
		pool.made++
	}
	pool.Unlock()
	tb, err := tables.Open(context.Background(), wire.Config{Endpoint: endpoint}, p)
	if err != nil {
		t.Fatal(err)
	}
	defer tb.Close()
	if _, err := tb.Apply(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := clear(context.Background(), endpoint, p); err != nil {
			t.Error(err)
		}
		pool.Lock()
		defer pool.Unlock()
		pool.free = append(pool.free, p)
	})
	return p
}

// clear empties the tables.
func clear(ctx context.Context, endpoint, prefix string) error {
	neverExpired := func() time.Time { return time.Time{} }
	s, err := Open(ctx, Options{Wire: wire.Config{Endpoint: endpoint}, Prefix: prefix, Clock: neverExpired})
	if err != nil {
		return err
	}
	defer s.Close()
	for _, d := range store.Tables() {
		for cursor, first := "", true; first || cursor != ""; first = false {
			page, err := s.Scan(ctx, store.Scan{Table: d.Name, Segments: 1, Cursor: cursor})
			if err != nil {
				return err
			}
			for list := range slices.Chunk(page.Rows, store.MaxBatchWrite) {
				writes := make([]store.Write, len(list))
				for i, r := range list {
					writes[i] = store.Write{Op: store.OpDelete, Key: r.Key}
				}
				if err := s.BatchWrite(ctx, writes); err != nil {
					return err
				}
			}
			cursor = page.Cursor
		}
	}
	return nil
}

func open(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), o)
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

// fresh opens a store without rows.
func fresh(t testing.TB, change ...func(*Options)) *Store {
	t.Helper()
	e := endpoint(t)
	o := Options{Wire: wire.Config{Endpoint: e}, Prefix: prefix(t, e)}
	for _, f := range change {
		f(&o)
	}
	return open(t, o)
}

func contract(t *testing.T, change ...func(*Options)) {
	endpoint(t)
	storetest.Run(t, func(t *testing.T) storetest.Engine {
		clock := storetest.NewClock()
		s := fresh(t, append(change, func(o *Options) { o.Clock = clock.Now })...)
		return storetest.Engine{Store: s, Clock: clock, Reopen: func() store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, s.opts)
		}}
	})
}

func TestContract(t *testing.T) { contract(t) }

// Transactions of one write keep the contract, too.
func TestContractWithoutSingleWrites(t *testing.T) {
	contract(t, func(o *Options) { o.noShort = true })
}

func TestOpenWithoutTables(t *testing.T) {
	_, err := Open(t.Context(), Options{Wire: wire.Config{Endpoint: endpoint(t)}, Prefix: "nothing_here_"})
	if err == nil || !strings.Contains(err.Error(), wire.ErrNoTables.Error()) || strings.Contains(err.Error(), "\n") {
		t.Fatal(err)
	}
}
