package backend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/backend/clock"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
)

// How often the store under a process is checked, and how long that may take.
const (
	watchEvery = 2 * time.Second
	watchTime  = 5 * time.Second
)

// ErrReplaced says that the store is not the one that this process opened. The process's
// caches belong to the other store, so it must end.
var ErrReplaced = errors.New("backend: the store was replaced or removed under this process")

// Run checks, until ctx ends, whether the store is still the one that was opened, whether it
// answers, and whether the clock was set. It returns ErrReplaced if the store is another one;
// Ready says so from then on.
func (e *Backend) Run(ctx context.Context, ready func()) error {
	ready()
	watching, stop := context.WithCancel(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	defer stop()
	if e.clock != nil {
		others.Go(func() { e.clock.Run(watching) })
	}
	if e.dynamo != nil {
		others.Go(func() { watchStore(watching, e.log, e.ping) })
		e.keepSeen(ctx, e.seen.Line)
	}
	t := time.NewTicker(e.watchEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := e.same(ctx); err != nil {
			e.replaced.Store(&err)
			e.log.Error("this process is not ready any more, and ends", "error", err)
			return err
		}
	}
}

// identity is what a data directory is known by while it is open.
type identity struct {
	dir   string
	paths []string
	files []fs.FileInfo
}

func identify(dir string) (id identity, err error) {
	id.dir = dir
	for _, name := range []string{"LOCK", "store"} {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		if err != nil {
			return id, err
		}
		id.paths, id.files = append(id.paths, path), append(id.files, info)
	}
	return id, nil
}

// same returns ErrReplaced with what was found instead of the store, dynamo.ErrFormat if a newer version
// has written to the tables what this one cannot read, and dynamo.ErrMoving if they are being moved. It
// records a heartbeat of the tables.
func (e *Backend) same(ctx context.Context) error {
	for i, path := range e.identity.paths {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w: %s is not there any more; put the directory back as it was, what was written since is lost",
				ErrReplaced, path)
		case err == nil && !os.SameFile(info, e.identity.files[i]):
			return fmt.Errorf("%w: %s is another one; a data directory is exchanged while its server does not run", ErrReplaced,
				path)
		}
	}
	if e.dynamo == nil {
		return nil
	}
	// Where a release was skipped, a newer process writes rows that this one would misread.
	call, cancel := context.WithTimeout(ctx, watchTime)
	err := e.dynamo.CheckFormat(call, store.Eventual)
	cancel()
	if errors.Is(err, dynamo.ErrFormat) || errors.Is(err, dynamo.ErrMoving) {
		return err
	}
	if err := e.sameLine(ctx); err != nil {
		return err
	}
	return e.recordHeartbeat(ctx)
}

// skew is by how much this machine's clock is off. It is measured against the store's
// clock, or, where the store is in this process, against the clock before it was set.
func (e *Backend) skew() time.Duration {
	if e.dynamo != nil {
		return e.dynamo.Stats().Skew
	}
	return e.clock.Skew()
}

// initWatch sets up what Run checks.
func (e *Backend) initWatch(cfg Config) {
	e.watchEvery, e.log = watchEvery, cfg.Logger
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.dynamo == nil {
		clocks := cfg.Embedded.Clocks
		if clocks.Wall == nil {
			clocks = clock.System()
		}
		e.clock = clock.New(clocks, e.log)
	}
}
