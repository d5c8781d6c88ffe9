package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/kafka/logdir"
)

// state tells whether a file has changed.
type state struct {
	size int64
	at   time.Time
}

// check looks at the log before the broker opens it, and mends what is damaged: the
// broker would drop whatever stands behind a byte that it cannot read, and use the
// offsets again.
func (b *Broker) check() error {
	report, err := CheckLog(b.cfg.Dir, *b.topics.Load(), b.cfg.Known)
	if err != nil {
		return err
	}
	if b.cfg.Logger != nil {
		for _, note := range report.Notes {
			b.cfg.Logger.Warn("the log is damaged; made again", "file", note)
		}
	}
	if len(report.Damage) > 0 && b.cfg.Damaged != nil {
		if err := b.cfg.Damaged(report.Damage); err != nil {
			return err
		}
	}
	b.marks = report.Marks
	return report.Mend()
}

// CheckLog reads the topics of an embedded log that nobody has open, without changing it.
func CheckLog(dir string, list []Topic, known Marks) (*logdir.Report, error) {
	var topics []logdir.Topic
	for _, t := range list {
		topics = append(topics, logdir.Topic{Name: t.Name, Partitions: t.Partitions, Configs: embeddedConfigs(t)})
	}
	return logdir.Check(dir, topics, known)
}

// ends are the marks as they will be once all that is written is on the disk.
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

// keep keeps marks that have changed.
func (b *Broker) keep(ctx context.Context, marks Marks) error {
	if b.cfg.Keep != nil && !maps.Equal(marks, b.marks) {
		if err := b.cfg.Keep(ctx, marks); err != nil {
			return fmt.Errorf("keep the log's marks: %w", err)
		}
	}
	b.marks = marks
	return nil
}

// Stable returns when everything that was acknowledged before is on the disk. The
// broker writes its files without buffers of its own, so it is enough to sync
// those that have changed.
func (b *Broker) Stable(ctx context.Context) error {
	b.syncing.Lock()
	defer b.syncing.Unlock()
	marks := b.ends() // before: what comes while files are synced is not promised
	if err := b.syncFiles(ctx); err != nil {
		return err
	}
	return b.keep(ctx, marks)
}

// syncFiles syncs what has changed since the last time. Indexes are left out: they are
// compared with the log at every start, and made again from it.
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
		if err == nil && !known {
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
	for dir := range dirs { // a new file is only there once its directory says so
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

// private takes the rights of others from a new file or directory: the broker gives
// them to all.
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

// syncDir makes new names durable; Windows does so by itself.
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

// Read reads the committed records of a partition, from its beginning to its end as it
// is now.
func (b *Broker) Read(ctx context.Context, p Partition, each func(*Record)) error {
	info := b.cluster.PartitionInfo(p.Topic, p.ID)
	if info == nil || info.LogStartOffset >= info.HighWatermark {
		return nil
	}
	c, err := kgo.NewClient(append(b.Options(),
		seeds(b.addr), kgo.ClientID("parley-recovery"), kgo.DisableClientMetrics(), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // the last record may be one
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{p.Topic: {p.ID: kgo.NewOffset().At(info.LogStartOffset)}}),
	)...)
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer c.Close()
	for {
		fetches := c.PollFetches(ctx)
		if err := cmp.Or(ctx.Err(), fetches.Err()); err != nil {
			return fmt.Errorf("read %s: %w", p, err)
		}
		end := false
		fetches.EachRecord(func(r *Record) {
			if !r.Attrs.IsControl() {
				each(r)
			}
			end = end || r.Offset >= info.HighWatermark-1
		})
		if end {
			return nil
		}
	}
}

// Ends reads the last committed record of each partition that has one near its end.
func (b *Broker) Ends(ctx context.Context) ([]*Record, error) {
	from, ends := map[string]map[int32]kgo.Offset{}, map[Partition]int64{}
	for _, t := range *b.topics.Load() {
		from[t.Name] = map[int32]kgo.Offset{}
		for _, p := range b.cluster.PartitionInfos(t.Name) {
			if p.LogStartOffset >= p.HighWatermark {
				continue
			}
			// The last one is the end of a transaction.
			from[t.Name][p.Partition] = kgo.NewOffset().At(max(p.LogStartOffset, p.HighWatermark-2))
			ends[Partition{Topic: t.Name, ID: p.Partition}] = p.HighWatermark - 1
		}
	}
	if len(ends) == 0 {
		return nil, nil
	}
	c, err := kgo.NewClient(append(b.Options(),
		seeds(b.addr), kgo.ClientID("parley-recovery"), kgo.DisableClientMetrics(), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), kgo.ConsumePartitions(from),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	defer c.Close()
	last := map[Partition]*Record{}
	for len(ends) > 0 {
		fetches := c.PollFetches(ctx)
		if err := cmp.Or(ctx.Err(), fetches.Err()); err != nil {
			return nil, fmt.Errorf("read the ends of the log: %w", err)
		}
		fetches.EachRecord(func(r *Record) {
			p := Partition{Topic: r.Topic, ID: r.Partition}
			if !r.Attrs.IsControl() {
				last[p] = r
			}
			if r.Offset >= ends[p] {
				delete(ends, p)
			}
		})
	}
	return slices.Collect(maps.Values(last)), nil
}

// Options are what clients in this process need to be let in.
func (b *Broker) Options() []Option {
	if b.cfg.Readers == "" {
		return nil
	}
	return b.port.Options(b.own)
}
