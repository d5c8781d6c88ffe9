package backend

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/store/embedded"
)

// momentTime bounds how long a checkpoint takes, and releaseTime how long a snapshot waits for
// the one before, whose caller has gone, to be removed.
const (
	momentTime  = 30 * time.Second
	releaseTime = 3 * time.Second
)

// Snapshot makes the files of the data directory readable as they are at one moment, in a
// directory within it, until release is called. Only one exists at a time. If release cannot
// remove the directory, it logs that, and the next start removes it.
//
// The moment is one that a process which is killed could have left.
func (e *Backend) Snapshot(ctx context.Context) (dir string, release func(), err error) {
	if e.embedded == nil {
		return "", nil, backup.ErrElsewhere
	}
	select {
	case e.snapshot <- struct{}{}:
	case <-time.After(releaseTime):
		return "", nil, backup.ErrRunning
	case <-ctx.Done():
		return "", nil, ctx.Err()
	}
	dir = filepath.Join(e.identity.dir, backup.Snapshots)
	release = func() {
		if err := os.RemoveAll(dir); err != nil {
			e.log.Warn("a snapshot was not removed; the next start removes it", "dir", dir, "error", err)
		}
		<-e.snapshot
	}
	if err := e.takeSnapshot(ctx, dir); err != nil {
		release()
		return "", nil, fmt.Errorf("snapshot: %w", err)
	}
	return dir, release, nil
}

func (e *Backend) takeSnapshot(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, momentTime)
	defer cancel()
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	var list *backup.List
	err := e.embedded.Checkpoint(ctx, dir, func(take func() error) error {
		list = backup.NewList(e.identity.dir, time.Now())
		return take()
	})
	if err == nil { // the keys, and what programs need to connect: files that are replaced, never changed
		err = backup.LinkBeside(e.identity.dir, dir)
	}
	if err != nil {
		return err
	}
	files, err := backup.Scan(dir)
	if err != nil {
		return err
	}
	list.Add(files)
	return list.Write(dir)
}

// ErrRunning says that a server runs on a data directory.
var ErrRunning = embedded.ErrLocked

// Lock keeps servers from a data directory until it is closed. Errors: ErrRunning, and those of
// the file system.
func Lock(dataDir string) (io.Closer, error) { return embedded.Lock(dataDir) }

// PrepareRestored begins a generation of the store in a directory that was restored, as a start does: commits shown
// after the backup are not in its history.
func PrepareRestored(cfg Config, dir string) error {
	st, err := embedded.Open(embedded.Options{Dir: dir, Logger: cfg.Logger, Fatal: cfg.Fatal})
	if err != nil {
		return err
	}
	return st.Close()
}
