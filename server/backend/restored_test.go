package backend_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// restorable is tables on DynamoDB Local, and a Redis.
func restorable(t *testing.T) backend.Distributed {
	t.Helper()
	local, redis := os.Getenv("PARLEY_TEST_DYNAMODB"), os.Getenv("PARLEY_TEST_REDIS")
	for name, value := range map[string]string{"PARLEY_TEST_DYNAMODB": local, "PARLEY_TEST_REDIS": redis} {
		if value == "" {
			t.Skip("not run: " + name + " is not set")
		}
	}
	id := "restored_" + strings.ToLower(rand.Text()[:8])
	d := backend.Distributed{Tables: backend.Tables{Endpoint: local, Prefix: id + "_"},
		Redis: routing.Options{URL: redis, Prefix: id + ":"}}
	tables := testkit.Value(d.Tables.Open(t.Context()))(t)
	defer tables.Close()
	testkit.Value(tables.Apply(t.Context()))(t)
	return d
}

func opened(t *testing.T, d backend.Distributed) (*backend.Backend, error) {
	t.Helper()
	e, err := backend.Open(backend.Config{Distributed: &d, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Cleanup(func() { testkit.Must(t, e.Close()) })
	}
	return e, err
}

// heartbeats is how many heartbeats the tables have.
func heartbeats(t *testing.T, e *backend.Backend) int64 {
	t.Helper()
	return testkit.Value(e.Tables().Line(t.Context(), store.Strong))(t).Heartbeats
}

// markKeys are the keys of the rows that say how far the tables are.
func markKeys() []store.Key {
	keys := []store.Key{{Table: store.Meta, PK: "generation"}}
	for _, d := range store.Tables() {
		k := store.Key{Table: d.Name, PK: "\x01mark"}
		if d.SortKey {
			k.SK = k.PK
		}
		if d.Name != store.Meta {
			keys = append(keys, k)
		}
	}
	return keys
}

// A process that starts on an older copy of the tables than Redis has seen is refused, until another
// line of history has begun.
func TestTablesOlderThanSeen(t *testing.T) {
	t.Parallel()
	d := restorable(t)
	e := testkit.Value(opened(t, d))(t)
	e.WatchEvery(10 * time.Millisecond)
	e.HeartbeatEvery(30 * time.Millisecond)
	ended := watch(t, e)
	testkit.Eventually(t, "a heartbeat", func() bool { return heartbeats(t, e) >= 1 })
	earlier := testkit.Value(e.Store.BatchGet(t.Context(), markKeys(), store.Strong))(t)
	was := earlier[0].Get("beat").Int64()
	testkit.Eventually(t, "more heartbeats", func() bool { return heartbeats(t, e) > was+2 })
	testkit.Value(opened(t, d))(t) // tables that nobody restored

	var p store.Plan // an older copy, under the process
	for i, k := range markKeys() {
		p.Writes = append(p.Writes, store.Write{Op: store.OpPut, Key: k, Item: earlier[i]})
	}
	testkit.Must(t, e.Store.Transact(t.Context(), p))
	if err := <-ended; !errors.Is(err, backend.ErrReplaced) ||
		!strings.Contains(err.Error(), "workers restore --execute") {
		t.Fatalf("ended with %v", err)
	}
	_, err := opened(t, d)
	if !errors.Is(err, backend.ErrOlder) || strings.Contains(err.Error(), "\n") ||
		!strings.Contains(err.Error(), "workers restore --execute") {
		t.Fatalf("opened: %v", err)
	}

	r := testkit.Value(backend.OpenRestored(t.Context(), d))(t)
	defer func() { testkit.Must(t, r.Close()) }()
	testkit.Must(t, r.Begin(t.Context(), "another"))
	testkit.Equal(t, "the generation", testkit.Value(opened(t, d))(t).Generation, "another")
	if n := heartbeats(t, e); n <= was+2 {
		t.Errorf("the line begins at heartbeat %d, seen was one beyond %d", n, was+2)
	}
	// The copy once more: it is of the line before.
	p.Writes[0].Item = earlier[0]
	testkit.Must(t, e.Store.Transact(t.Context(), p))
	if _, err := opened(t, d); !errors.Is(err, backend.ErrOlder) {
		t.Errorf("opened: %v", err)
	}
}

// Redis has seen tables that an export has closed. Once the export is cancelled they have a generation
// of their own, and processes start: it follows on the one that Redis has seen.
func TestSeenBeforeExport(t *testing.T) {
	t.Parallel()
	d := restorable(t)
	e := testkit.Value(opened(t, d))(t)
	e.WatchEvery(10 * time.Millisecond)
	e.HeartbeatEvery(30 * time.Millisecond)
	ended := watch(t, e)
	redis := testkit.Value(routing.OpenRedis(d.Redis))(t)
	defer redis.Close()
	testkit.Eventually(t, "Redis has seen the tables", func() bool {
		return strings.HasPrefix(testkit.Value(redis.Seen(t.Context()))(t), e.Generation+" ")
	})
	row := store.NewItem(store.Attr{Name: "at", Value: store.Int(time.Now().UnixMilli())})
	testkit.Must(t, e.Store.Transact(t.Context(), store.Plan{Writes: []store.Write{
		{Op: store.OpPut, Key: table.ExportKey(), Item: row}}}))
	if err := <-ended; err == nil {
		t.Fatal("the process goes on")
	}
	if _, err := opened(t, d); err == nil || errors.Is(err, backend.ErrOlder) {
		t.Fatalf("opened: %v", err)
	}
	testkit.Must(t, backend.CancelExport(t.Context(), backend.Config{Distributed: &d}))
	if after := testkit.Value(opened(t, d))(t); after.Generation == e.Generation {
		t.Error("the tables have the generation that was exported")
	}
}

// A server whose lease is in Redis runs, and so does a process that renews a row of the leases. Rows
// that others have left behind are no sign of life.
func TestRunning(t *testing.T) {
	t.Parallel()
	d := restorable(t)
	r := testkit.Value(backend.OpenRestored(t.Context(), d))(t)
	defer func() { testkit.Must(t, r.Close()) }()
	r.Observe(200*time.Millisecond, 400*time.Millisecond)
	running := func(want ...string) {
		t.Helper()
		testkit.Equal(t, "the processes that run", testkit.Value(r.Running(t.Context()))(t), want)
	}
	renew := func(key store.Key, holder string, n int64) {
		row := table.Worker{Process: holder, Count: n}
		err := r.Store.Transact(t.Context(), store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: key, Item: row.Item()}}})
		if err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
	}
	renew(table.WorkerKey("left"), "wrk_0", 9)
	running()
	ctx, stop := context.WithCancel(t.Context())
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for n := int64(0); ctx.Err() == nil; n++ {
			renew(table.WorkerKey("pod"), "wrk_1", n)
		}
	})
	running("wrk_1")
	stop()
	renewing.Wait()
	redis := testkit.Value(routing.OpenRedis(d.Redis))(t)
	defer redis.Close()
	server := routing.Server{ID: "srv_1", Addr: "h:1", Generation: "g", Epoch: 1}
	testkit.Must(t, redis.Claim(t.Context(), server, time.Minute))
	running("srv_1 h:1")
	testkit.Must(t, redis.Release(t.Context(), server))
	running()
}
