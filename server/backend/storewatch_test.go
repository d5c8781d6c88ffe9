package backend

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lines is a log.
type lines struct {
	mu   sync.Mutex
	list []string
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, string(p))
	return len(p), nil
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.list...)
}

// A store that stops answering, at once or never, is reported within 5 s in one line, once
// a minute while it lasts, and once more when it answers again.
func TestStoreAway(t *testing.T) {
	for name, broken := range map[string]func(context.Context) error{
		"refuses": func(context.Context) error { return errors.New("connection refused") },
		"silent":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				away := false
				set := func(v bool) { mu.Lock(); away = v; mu.Unlock() }
				ask := func(ctx context.Context) error {
					mu.Lock()
					gone := away
					mu.Unlock()
					if gone {
						return broken(ctx)
					}
					return nil
				}
				var log lines
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { watchStore(ctx, slog.New(slog.NewTextHandler(&log, nil)), ask) })
				expect := func(after time.Duration, n int, text string) {
					t.Helper()
					time.Sleep(after)
					synctest.Wait()
					list := log.all()
					if len(list) != n || n > 0 && !strings.Contains(list[n-1], text) {
						t.Fatalf("%q", list)
					}
				}
				expect(time.Minute, 0, "")
				set(true)
				expect(5*time.Second, 1, "level=ERROR msg=\"DynamoDB does not answer")
				expect(50*time.Second, 1, "")
				expect(10*time.Second, 2, "DynamoDB does not answer")
				set(false)
				expect(5*time.Second, 3, "DynamoDB answers again")
				expect(time.Hour, 3, "")
				set(true)
				expect(5*time.Second, 4, "does not answer")
				cancel()
				running.Wait()
			})
		})
	}
}
