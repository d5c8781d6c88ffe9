package backup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/infra/telemetry"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// scheduled is a data directory with a schedule of an hour that keeps three.
type scheduled struct {
	*backup.Schedule
	fails atomic.Bool
	taken atomic.Int64
}

func newScheduled(t *testing.T, from, to string) *scheduled {
	s := &scheduled{Schedule: &backup.Schedule{DataDir: from, To: to, Every: time.Hour, Keep: 3, Clock: time.Now,
		Logger: slog.New(slog.DiscardHandler)}}
	s.Take = func(context.Context) (string, func(), error) {
		s.taken.Add(1)
		if s.fails.Load() {
			return "", nil, errors.New("no room")
		}
		dir := filepath.Join(from, backup.Snapshots)
		list := testkit.Value(backup.Describe(from, time.Now()))(t)
		testkit.Must(t, os.Mkdir(dir, 0o700))
		testkit.Must(t, backup.LinkBeside(from, dir))
		testkit.Must(t, list.Write(dir))
		return dir, func() { testkit.Must(t, os.RemoveAll(dir)) }, nil
	}
	return s
}

// runFor runs the schedule for a time, and returns how many backups were begun.
func (s *scheduled) runFor(t *testing.T, d time.Duration) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	before := s.taken.Load()
	testkit.Must(t, s.Run(ctx, func() {}))
	if ctx.Err() == nil {
		t.Error("the schedule ended by itself")
	}
	return s.taken.Load() - before
}

// exposed are the metrics as they are served.
func exposed(t *testing.T, m *telemetry.Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	return w.Body.String()
}

// A backup is made at once, then every hour; one that fails is tried again within minutes, and a
// process that starts goes on where the last one was. The metrics say how old the newest one is.
func TestSchedule(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	put(t, from, map[string]string{"FORMAT": "parley 2 2\n"})
	synctest.Test(t, func(t *testing.T) {
		s := newScheduled(t, from, to)
		m := telemetry.NewMetrics()
		s.Measure(m)
		overdue := func() (seconds float64) {
			for line := range strings.Lines(exposed(t, m)) {
				_, _ = fmt.Sscanf(line, "parley_backup_overdue_seconds %g", &seconds)
			}
			return seconds
		}
		if n := s.runFor(t, time.Minute); n != 1 {
			t.Errorf("%d backups in the first minute", n)
		}
		if n := s.runFor(t, 10*time.Hour); n != 10 {
			t.Errorf("%d backups in ten hours", n)
		}
		if all := testkit.Value(backup.All(to))(t); len(all) != 3 {
			t.Errorf("%d backups are there", len(all))
		}
		if overdue() > 0 {
			t.Errorf("overdue by %g s although all were made", overdue())
		}
		s.fails.Store(true)
		if n := s.runFor(t, 5*time.Hour); n < 30 || n > 50 {
			t.Errorf("%d tries in five hours", n)
		}
		if late := overdue(); late < 4*3600 || late > 5*3600 {
			t.Errorf("overdue by %g s after five hours of failures", late)
		}
		next := newScheduled(t, from, to) // of another process
		if n := next.runFor(t, time.Minute); n != 1 {
			t.Errorf("%d backups although the newest is hours old", n)
		}
		if n := newScheduled(t, from, to).runFor(t, 50*time.Minute); n != 0 {
			t.Errorf("%d backups although the newest is minutes old", n)
		}
	})
}
