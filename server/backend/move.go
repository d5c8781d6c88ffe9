package backend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/parley-chat/parley/server/backend/restore"
	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/eventlog/upgrade"
	"github.com/parley-chat/parley/server/infra/durable"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/move"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/raw"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic"
)

// ErrImported says that an import was complete already, but for the files' way to their places, which they
// have now.
var ErrImported = errors.New("the import is complete")

// modeEmbedded is what an export says of its source.
const modeEmbedded = "embedded"

// Moving says how an installation is moved.
type Moving struct {
	KeyFile     string         // where the keys go; "": into the data directory
	TopicSlots  int            // of durable topics, of the target with many processes
	Replication int            // of topics that are made in Kafka
	Search      search.Targets // where search events go
	// Drain is how long an export waits until all processes have ended that used the tables, and Waits is called
	// with that, if it has to.
	Drain time.Duration
	Waits func(time.Duration)
}

// OpenExport opens an installation that does not run, for an export; closing must be called. Errors:
// ErrRunning, ErrLost of a store that lacks data, and those of the mode.
func OpenExport(ctx context.Context, cfg Config, m Moving) (src move.Source, closing func() error, err error) {
	if m.Drain == 0 {
		m.Drain = drainTime
	}
	if cfg.Distributed != nil {
		return openDistributedExport(ctx, cfg, m)
	}
	return openEmbeddedExport(ctx, cfg)
}

// checkTopics refuses durable topics that no other place can have.
func checkTopics(ctx context.Context, st store.Store) error {
	topics, err := topic.MovedTopics(ctx, st)
	if err != nil {
		return err
	}
	for _, t := range topics {
		_, number, named := versions.Base(t.Name)
		switch {
		case t.Shared:
			return fmt.Errorf("the topic %s is shared with producers of Kafka, which another place does not have: remove it first", t.Name)
		case named && number > 1:
			return fmt.Errorf("the topic %s is of an event log that was migrated, and another place begins with the first version: remove it first",
				t.Name)
		}
	}
	return nil
}

func loggerOf(cfg Config) *slog.Logger {
	if cfg.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return cfg.Logger
}

func openEmbeddedExport(ctx context.Context, cfg Config) (src move.Source, closing func() error, err error) {
	if err := backup.CheckUnfinished(cfg.Embedded.DataDir); err != nil {
		return src, nil, err
	}
	st, err := embedded.Open(embedded.Options{Dir: cfg.Embedded.DataDir, Logger: cfg.Logger, Fatal: cfg.Fatal,
		ReadOnly: true})
	if err != nil {
		return src, nil, err
	}
	if err = st.Lacks(); err == nil {
		src, err = embeddedSource(ctx, st)
	}
	if err != nil {
		return src, nil, errors.Join(err, st.Close())
	}
	return src, st.Close, nil
}

func embeddedSource(ctx context.Context, st *embedded.Store) (src move.Source, err error) {
	if err := checkTopics(ctx, st); err != nil {
		return src, err
	}
	src = contentOf(st)
	src.Header.Mode = modeEmbedded
	if src.Header.History, err = st.Lineage(); err != nil {
		return src, err
	}
	counters, err := topic.ReadMovedCounters(ctx, st)
	src.Header.Topics = move.TopicCounters(counters)
	return src, err
}

// contentOf is what an export reads of an embedded store. Of the records it is those of durable
// topics: events of the event log are published again in the new place.
func contentOf(st *embedded.Store) move.Source {
	read := func(ctx context.Context, after []byte, each func(key, value []byte) bool) error {
		var from []byte
		if len(after) > 0 {
			from = append(bytes.Clone(after), 0)
		}
		var failed error
		until := commitlog.CarriedEnd()
		err := records.Of(st).Seek(ctx, from, until, false, func(key []byte, value func() ([]byte, error)) bool {
			v, err := value()
			failed = err
			return err == nil && each(key, v)
		})
		if err == nil {
			err = failed
		}
		return err
	}
	return move.Source{Store: st, Records: read}
}

// OpenImport opens a place where nothing is yet, or a part of an import, for an import; closing must be
// called. Errors: ErrImported, and those of the mode.
func OpenImport(ctx context.Context, cfg Config, m Moving) (to move.Target, closing func() error, err error) {
	if cfg.Distributed != nil {
		return openDistributedImport(ctx, cfg, m)
	}
	return openEmbeddedImport(cfg, m.KeyFile)
}

func openEmbeddedImport(cfg Config, keyFile string) (to move.Target, closing func() error, err error) {
	dir := cfg.Embedded.DataDir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	work := filepath.Join(dir, backup.Importing)
	if _, err := os.Stat(filepath.Join(work, backup.Imported)); err == nil {
		return nil, nil, errors.Join(backup.Install(work, dir), ErrImported)
	}
	if err := backup.CheckEmpty(dir, backup.Importing); err != nil {
		return nil, nil, err
	}
	st, err := embedded.Open(embedded.Options{Dir: work, Logger: cfg.Logger, Fatal: cfg.Fatal,
		Reserve: cfg.Embedded.DiskReserve})
	if err != nil {
		return nil, nil, err
	}
	if keyFile == "" {
		keyFile = filepath.Join(work, move.KeyFile)
	}
	t := &embeddedTarget{st: st, raw: raw.New(st, work), work: work, dir: dir, key: keyFile, search: cfg.Embedded.Search}
	return t, t.close, nil
}

// embeddedTarget is a store in a directory of its own within the data directory. Until Finish nothing is
// where a server looks for it.
type embeddedTarget struct {
	st             *embedded.Store
	raw            *raw.Store
	search         search.Targets
	work, dir, key string
	closed         bool
}

func (t *embeddedTarget) close() error {
	if t.closed {
		return nil
	}
	t.closed = true
	return t.st.Close()
}

// Begin implements move.Target.
func (t *embeddedTarget) Begin(ctx context.Context, _ move.Header) (move.Progress, error) {
	return importOf(ctx, t.st)
}

// importOf reads how far an import into a store is.
func importOf(ctx context.Context, st store.Store) (p move.Progress, err error) {
	it, err := st.Get(ctx, table.ImportKey(), store.Strong)
	if it == nil || err != nil {
		return p, err
	}
	i := table.ImportFrom(it)
	return move.Progress{Export: i.Export, Frames: uint64(i.Frames), Verified: i.Verified}, nil
}

// reached remembers how far an import into a store is.
func reached(ctx context.Context, st store.Store, p move.Progress) error {
	i := table.Import{Export: p.Export, Frames: int64(p.Frames), Verified: p.Verified}
	return st.BatchWrite(ctx, []store.Write{{Op: store.OpPut, Key: table.ImportKey(), Item: i.Item()}})
}

// File implements move.Target.
func (t *embeddedTarget) File(f move.File) error { return putKey(t.key, f.Content) }

// putKey writes the file of keys, unless it is there. Another one stays, and is an error: servers with
// its keys refuse the tokens that the keys of the export have signed.
func putKey(path string, content []byte) error {
	had, err := os.ReadFile(path)
	switch {
	case err == nil && bytes.Equal(had, content):
		return nil
	case err == nil:
		return fmt.Errorf("%s has other keys than the export: move it away, or name another file with --key-file", path)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return durable.Replace(path, content)
}

// Rows implements move.Target.
func (t *embeddedTarget) Rows(_ context.Context, rows []store.Row) error {
	if t.st.Crowded() {
		return fmt.Errorf("%w: make room on the disk of %s, and repeat the command", store.ErrFull, t.dir)
	}
	return t.raw.Put(rows)
}

// Records implements move.Target. Error: commitlog.ErrNotCarried.
func (t *embeddedTarget) Records(ctx context.Context, list []store.Record) error {
	for i := range list {
		// A key that is none of a log is damage, which moves to an engine of the same kind.
		if _, _, err := commitlog.CarriedTo(list[i].Key); errors.Is(err, commitlog.ErrNotCarried) {
			return err
		}
	}
	wait, err := records.Of(t.st).Commit(ctx, list)
	if err != nil {
		return err
	}
	return wait()
}

// Reached implements move.Target. Pebble's log has the rows before this one, so they are on the disk with it.
func (t *embeddedTarget) Reached(ctx context.Context, p move.Progress) error {
	return reached(ctx, t.st, p)
}

// Written implements move.Target.
func (t *embeddedTarget) Written(context.Context) (move.Source, error) { return contentOf(t.st), nil }

// Finish implements move.Target.
func (t *embeddedTarget) Finish(ctx context.Context, h move.Header) error {
	if err := topic.CompleteMove(ctx, t.st, topic.MovedCounters(h.Topics), 0); err != nil {
		return err
	}
	all := func(t kafka.Topic) int32 { return t.Partitions }
	if err := announce(ctx, t.st, t.search, all); err != nil {
		return err
	}
	if err := upgrade.Finish(ctx, t.st, time.Now()); err != nil {
		return err
	}
	if err := t.st.Follow(h.History); err != nil {
		return err
	}
	if err := t.close(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(t.work, backup.Imported), nil, 0o600); err != nil {
		return err
	}
	return backup.Install(t.work, t.dir)
}

// announce puts all events of a store into its outbox: the event log of its new place has none of them.
func announce(ctx context.Context, st store.Store, targets search.Targets, partitions func(kafka.Topic) int32) error {
	state, err := versions.Load(ctx, st)
	if err != nil {
		return err
	}
	if targets == nil {
		targets = search.DefaultTargets()
	}
	cfg := restore.Config{Store: st, Clock: time.Now, Topics: state, Search: targets, Partitions: map[string]int{},
		Read: func(context.Context, kafka.Partition, func(*kafka.Record)) error { return nil }}
	for _, topic := range state.All() {
		n := partitions(topic)
		for id := range n {
			cfg.Lost = append(cfg.Lost, restore.Lost{Partition: kafka.Partition{Topic: topic.Name, ID: id}})
		}
		if topic.Kind == kafka.Searches {
			cfg.Partitions[topic.Name] = int(n)
		}
	}
	_, err = restore.Run(ctx, cfg)
	return err
}
