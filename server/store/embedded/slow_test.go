package embedded

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/embedded/space"
)

// While a sync or a read hangs, the store says which one, and answers what needs no disk.
func TestCallThatHangs(t *testing.T) {
	for _, kind := range []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileRead, errorfs.OpGetDiskUsage} {
		var hangs atomic.Bool
		release := make(chan struct{})
		mem := vfs.NewMem()
		fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			like := op.Kind == kind || kind == errorfs.OpFileSync && op.Kind == errorfs.OpFileSyncData ||
				kind == errorfs.OpFileRead && op.Kind == errorfs.OpFileReadAt
			if hangs.Load() && like {
				<-release
			}
			return nil
		}))
		s := open1(t, Options{Dir: "/data", FS: fs})
		testkit.Must(t, s.Transact(t.Context(), putRow(1)))
		testkit.Must(t, s.db.Flush())
		hangs.Store(true)
		done := make(chan error, 3)
		go func() { done <- s.Transact(t.Context(), putRow(2)) }()
		go func() {
			_, err := s.db.Checkpoint("/copy"), error(nil) // which reads files that nothing keeps in memory
			done <- err
		}()
		go func() {
			s.disk.Full(time.Now().Add(time.Hour))
			done <- nil
		}()
		testkit.Eventually(t, "the call is seen", func() bool { return s.OldestCall().Took > 20*time.Millisecond })
		op := s.OldestCall()
		want := map[errorfs.OpKind]string{errorfs.OpFileSync: "sync", errorfs.OpFileRead: "read",
			errorfs.OpGetDiskUsage: "statfs"}[kind]
		if op.Op != want || !strings.HasPrefix(op.File, "/") {
			t.Errorf("%+v, want a %s", op, want)
		}
		if s.SlowestCall() < op.Took {
			t.Errorf("the slowest call took %s", s.SlowestCall())
		}
		s.Space()
		s.Stats()
		close(release)
		for range 3 {
			<-done
		}
		testkit.Must(t, s.Close())
	}
}

// A disk that fills is logged at a day, four hours and one hour, with directory and hours, and
// not again while the estimate goes to and fro.
func TestFillingDiskIsLogged(t *testing.T) {
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	var f filling
	now := time.Unix(1_000_000, 0)
	for _, step := range []struct {
		left  time.Duration // 0: it does not fill
		after time.Duration
		lines int
	}{
		{0, 0, 0}, {25 * time.Hour, 0, 0}, {23 * time.Hour, 0, 1}, {25 * time.Hour, time.Hour, 0}, {23 * time.Hour, 0, 0},
		{3 * time.Hour, 0, 1}, {5 * time.Hour, 0, 0}, {3 * time.Hour, time.Hour, 0}, {59 * time.Minute, 0, 1},
		{50 * time.Minute, 5 * time.Hour, 0}, {40 * time.Minute, time.Hour, 1}, {49 * time.Hour, 0, 0},
		{23 * time.Hour, 0, 1}, {0, 0, 0}, {23 * time.Hour, 0, 1},
	} {
		now = now.Add(step.after)
		said.Reset()
		f.report(log, "/data", space.State{Free: 9 << 30, Reserve: 4 << 30, Fills: step.left > 0, Left: step.left}, now)
		if n := strings.Count(said.String(), "\n"); n != step.lines {
			t.Errorf("%s: %d lines: %s", step.left, n, &said)
		}
		if step.lines > 0 && !strings.Contains(said.String(), "dir=/data hours_left=") {
			t.Error(&said)
		}
	}
}
