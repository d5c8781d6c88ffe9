package backend_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/backend/clock"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
)

// watch calls Run; its result comes through the channel.
func watch(t *testing.T, e *backend.Backend) <-chan error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- e.Run(ctx, func() {})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return ended
}

// A data directory that is moved, removed or exchanged under its server is noticed: the
// process is not ready and ends with a line that says why.
func TestReplacedDirectory(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(dir string) error{
		"moved": func(dir string) error { return os.Rename(dir, dir+".away") },
		"exchanged": func(dir string) error {
			if err := os.Rename(dir, dir+".away"); err != nil {
				return err
			}
			return os.CopyFS(dir, os.DirFS(dir+".away"))
		},
		"store moved": func(dir string) error {
			return os.Rename(filepath.Join(dir, "store"), filepath.Join(dir, "store.away"))
		},
		"lock removed": func(dir string) error { return os.Remove(filepath.Join(dir, "LOCK")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			e, err := backend.Open(config(dir))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close() })
			ended := watch(t, e)
			if err := e.Ready(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := do(dir); err != nil {
				t.Fatal(err)
			}
			err = <-ended
			if !errors.Is(err, backend.ErrReplaced) || strings.Contains(err.Error(), "\n") {
				t.Errorf("ended with %v", err)
			}
			if err := e.Ready(t.Context()); !errors.Is(err, backend.ErrReplaced) {
				t.Errorf("ready: %v", err)
			}
		})
	}
}

// A directory in which nothing was exchanged ends nobody.
func TestSameDirectory(t *testing.T) {
	t.Parallel()
	e, err := backend.Open(config(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	e.WatchEvery(time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := e.Run(ctx, func() {}); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// An embedded process is not ready while its clock is far off what it was before
// somebody set it, by the same rule as elsewhere.
func TestSetClockIsNotReady(t *testing.T) {
	t.Parallel()
	var by atomic.Int64
	began := time.Now()
	cfg := config(t.TempDir())
	cfg.Embedded.Clocks = clock.Clocks{
		Wall:   func() time.Time { return time.Now().Add(time.Duration(by.Load())) },
		Steady: func() time.Duration { return time.Since(began) },
	}
	e, err := backend.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, c := range []struct {
		by    time.Duration
		ready bool
	}{{0, true}, {10 * time.Second, true}, {25 * time.Second, false}, {-25 * time.Second, false},
		{365 * 24 * time.Hour, false}, {0, true}} {
		by.Store(int64(c.by))
		if err := e.Ready(t.Context()); (err == nil) != c.ready || (err != nil && !errors.Is(err, backend.ErrSkew)) {
			t.Errorf("set by %v: %v", c.by, err)
		}
	}
}

// Tables that are emptied, removed, restored or written by a newer version under running processes
// are noticed.
func TestReplacedTables(t *testing.T) {
	t.Parallel()
	local := os.Getenv("PARLEY_TEST_DYNAMODB")
	if local == "" {
		t.Skip("not run: PARLEY_TEST_DYNAMODB is not set")
	}
	key := store.Key{Table: store.Meta, PK: "generation"}
	for name, tt := range map[string]struct {
		do   store.Write
		want error
		says string
	}{
		"an older copy": {store.Write{Op: store.OpUpdate, Key: key, Update: store.Update{Remove: []string{"beat"}}},
			backend.ErrReplaced, "the tables are an older copy (at heartbeat 0, and were at "},
		"one table of an older copy": {store.Write{Op: store.OpDelete, Key: store.Key{Table: store.Users, PK: "\x01mark"}},
			backend.ErrReplaced, "users was emptied"},
		"emptied": {store.Write{Op: store.OpDelete, Key: key}, backend.ErrReplaced, "workers restore"},
		"replaced": {store.Write{Op: store.OpPut, Key: key, Item: store.NewItem(
			store.Attr{Name: "id", Value: store.String("another")})}, backend.ErrReplaced, "start all processes again"},
		"written by a newer version": {store.Write{Op: store.OpPut, Key: store.Key{Table: store.Meta, PK: "format"},
			Item: store.NewItem(store.Attr{Name: "format", Value: store.Int(99)},
				store.Attr{Name: "reader", Value: store.Int(99)})}, dynamo.ErrFormat, "start the newer version"},
	} {
		t.Run(name, func(t *testing.T) {
			at := backend.Tables{Endpoint: local, Prefix: "watch_" + strings.ToLower(rand.Text()[:8]) + "_"}
			cfg := backend.Config{Distributed: &backend.Distributed{Tables: at}, Logger: slog.New(slog.DiscardHandler)}
			tables, err := at.Open(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tables.Close()
			if _, err := tables.Apply(t.Context()); err != nil {
				t.Fatal(err)
			}
			e, err := backend.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close() })
			e.WatchEvery(50 * time.Millisecond)
			e.HeartbeatEvery(200 * time.Millisecond)
			ended := watch(t, e)
			select {
			case err := <-ended:
				t.Fatalf("ended with %v before anything happened", err)
			case <-time.After(time.Second):
			}
			if err := e.Store.Transact(t.Context(), store.Plan{Writes: []store.Write{tt.do}}); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; !errors.Is(err, tt.want) || strings.Contains(err.Error(), "\n") ||
				!strings.Contains(err.Error(), tt.says) {
				t.Errorf("ended with %v", err)
			}
			if err := e.Ready(t.Context()); !errors.Is(err, tt.want) {
				t.Errorf("ready: %v", err)
			}
		})
	}
}
