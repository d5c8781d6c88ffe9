package kafka

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/kafka/logdir"
)

// state is the state of a file by which a change is detected.
type state struct {
	size int64
	at   time.Time
}

// ends are the marks that hold once everything written so far is on the disk.
func (b *Broker) ends() Marks {
	marks := Marks{}
	for _, t := range *b.topics.Load() {
		for _, p := range b.cluster.PartitionInfos(t.Name) {
			id := Partition{Topic: t.Name, ID: p.Partition}
			if p.HighWatermark == 0 {
				continue
			}
			m, known := b.marks[id]
			if !known {
				m = logdir.Mark{Start: p.LogStartOffset, Since: time.Now().UnixMilli()}
			}
			m.End = p.HighWatermark
			marks[id] = m
		}
	}
	return marks
}

// keep records marks that have changed.
func (b *Broker) keep(ctx context.Context, marks Marks) error {
	if b.cfg.Keep != nil && !maps.Equal(marks, b.marks) {
		if err := b.cfg.Keep(ctx, marks); err != nil {
			return fmt.Errorf("keep the log's marks: %w", err)
		}
	}
	b.marks = marks
	return nil
}

// Flush returns when everything that was acknowledged before is on the disk. The broker
// writes its files without buffers of its own, so it is enough to sync those that have
// changed.
func (b *Broker) Flush(ctx context.Context) error {
	b.syncing.Lock()
	defer b.syncing.Unlock()
	marks := b.ends() // before the sync, which may not cover later records
	if err := b.syncFiles(ctx); err != nil {
		return err
	}
	return b.keep(ctx, marks)
}

// syncFiles syncs what has changed since the last time, except indexes: every start
// compares them with the log and rebuilds them from it.
func (b *Broker) syncFiles(ctx context.Context) error {
	dirs := map[string]bool{}
	var files []string
	changed := map[string]state{}
	err := filepath.WalkDir(b.cfg.Dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // trimmed meanwhile
			return nil
		}
		old, known := b.synced[path]
		derived := !d.IsDir() && filepath.Ext(path) == logdir.IndexSuffix
		if err != nil || (d.IsDir() || derived) && known {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil { // the broker replaces its lists by new files
			err = private(path, info)
		}
		if err != nil {
			return err
		}
		now := state{info.Size(), info.ModTime()}
		switch {
		case d.IsDir() || derived:
			b.synced[path] = now
			return nil
		case known && old == now:
			return nil
		case !known:
			dirs[filepath.Dir(path)] = true
		}
		files = append(files, path)
		changed[path] = now
		return nil
	})
	if err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	if err := syncAll(ctx, files); err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	for dir := range dirs { // a new file is durable once its directory is synced
		for ; len(dir) >= len(b.cfg.Dir); dir = filepath.Dir(dir) {
			if err := syncDir(dir); err != nil {
				return fmt.Errorf("sync log: %w", err)
			}
		}
	}
	maps.Copy(b.synced, changed)
	return nil
}

// syncers is how many files are synced at a time: file systems commit them together.
const syncers = 8

// syncAll syncs files.
func syncAll(ctx context.Context, files []string) error {
	errs := make([]error, syncers)
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range min(syncers, len(files)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(files) && errs[w] == nil; i = int(next.Add(1)) - 1 {
				if errs[w] = ctx.Err(); errs[w] == nil {
					errs[w] = syncFile(files[i])
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// private removes the permissions of others from a new file or directory: the broker
// creates them for all.
func private(path string, info fs.FileInfo) error {
	mode := fs.FileMode(0o600)
	if info.IsDir() {
		mode = 0o700
	}
	if info.Mode().Perm() == mode {
		return nil
	}
	if err := os.Chmod(path, mode); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func syncFile(path string) error { return syncPath(path, os.O_RDWR) }

// syncDir makes new names durable; Windows does that by itself.
func syncDir(path string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	return syncPath(path, os.O_RDONLY)
}

func syncPath(path string, flag int) error {
	f, err := os.OpenFile(path, flag, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
