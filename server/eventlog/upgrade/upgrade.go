// Package upgrade moves the event log of a data directory that an embedded broker wrote into
// the event log in the store.
//
// Records keep their offsets, times, keys, values and headers; the topics keep their ids. Offsets
// of markers, of transactions without a commit and of what was trimmed or is damaged become gaps.
// So every position stays valid that a reader has, here or elsewhere. An event of a chat becomes a
// reference if the row of the event makes the same record, and a copy otherwise. The committed
// offsets of all groups become rows of the coordinator of groups. Events that the old log has lost
// and the store still has go back into the outbox, as at each start of the broker (package
// restore).
//
// A run that was cut off is repeated from the start. It passes over what is there, because the
// end of each partition in the store says how far the run had come: each step is one commit, and
// a record has the same offset in each run. The old directory is only read. When all is there,
// the row of the log in table meta says so ([Done]), in place of the marks of the old log.
//
// The package owns the order of these steps and what becomes of a record. It owns neither the
// files (package logdir) nor either log.
//
// Concurrency: Run is called once, before anything else reads or writes the logs.
package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/group"
	"github.com/parley-chat/parley/server/kafka/logdir"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Config says what is moved where. Fields without another word are required.
type Config struct {
	Dir   string           // of the old log; it need not be there
	Store store.Store      // has the rows of events, the outbox and the row of the log
	Log   *commitlog.Local // on the records of the same engine
	// Topics are those that the old log must have if it is there: [versions.State.All] and the
	// undeclared ones of Search. Others that it has are moved, too. Topics of search events may
	// have another number of partitions in it, which they keep.
	Topics   []kafka.Topic
	Versions versions.State
	Search   search.Targets
	Groups   group.Store // gets the rows of groups
	Owner    string      // the credential that the coordinator counts the groups by
	// Room is how many bytes the store may still write before it refuses. Nil: it has enough.
	Room func() int64
	// Behind is called before anything is written if the store lacks the events with which
	// partitions of the old log end: it has lost what was acknowledged. An error ends the run;
	// nil accepts the loss.
	Behind func([]Event) error
	// Progress is called now and then, with bytes of the old log's files. May be nil.
	Progress func(done, total int64)
	Clock    func() time.Time // nil: time.Now
	Logger   *slog.Logger     // nil: none

	small bool // each batch of the old log is a step, for tests
}

// Event is an event that the old log has.
type Event struct {
	kafka.Partition
	Offset     int64
	Chat       string
	Version    int64
	Generation string
}

// Report is what a run has done; a repetition counts what was left to do.
type Report struct {
	// Moved is false if there was nothing to do.
	Moved      bool
	References int64 // records that became references
	Copies     int64 // records that became copies
	Bytes      int64 // of the old log's files
	Groups     int
	Offsets    int // committed offsets
	Damaged    int // partitions that have lost records
	Unreadable int // parts of the files of groups and producers that cannot be read
	Restored   int // events that were put back into the outbox
}

// Done reports whether the old log has been moved, or there was none: nothing in its directory
// counts any more, and it may be removed.
func Done(ctx context.Context, s store.Store) (bool, error) {
	it, err := s.Get(ctx, table.LogKey(), store.Strong)
	if err != nil {
		return false, fmt.Errorf("read the state of the event log: %w", err)
	}
	return it.Get(table.AttrLogMoved).Int64() > 0, nil
}

// Finish records that there is no old log to move, in a store that never had one.
func Finish(ctx context.Context, s store.Store, at time.Time) error {
	return (&state{store: s}).finish(ctx, at)
}

// Run moves the old log unless that is done, and returns when everything is durable. An error
// may end it at any point; the next call continues. Errors: those of Behind, of files, and of the
// store. The text says what to do where an operator can do something.
func Run(ctx context.Context, cfg Config) (Report, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	done, err := Done(ctx, cfg.Store)
	if err != nil || done {
		return Report{}, err
	}
	r := &run{Config: cfg}
	if err := r.load(ctx); err != nil {
		return r.report, fmt.Errorf("move the event log into the store: %w", err)
	}
	if err := r.move(ctx); err != nil {
		return r.report, fmt.Errorf("move the event log into the store: %w; the next start continues", err)
	}
	return r.report, nil
}

// run is one run.
type run struct {
	Config
	state  *state
	old    *logdir.Report
	topics []logdir.Topic // all that the old log has
	rows   bool           // some cannot be read, which was said
	report Report
}

// load reads the old log and refuses what cannot be moved. It changes nothing.
func (r *run) load(ctx context.Context) (err error) {
	if r.state, err = loadState(ctx, r.Store); err != nil {
		return err
	}
	if err := r.declare(); err != nil {
		return err
	}
	if r.old, err = logdir.Check(r.Dir, r.topics, r.state.marks); err != nil {
		return err
	}
	if err := r.checkRoom(ctx); err != nil {
		return err
	}
	return r.checkAhead(ctx)
}

// declare lists the topics of the old log. If its own list has another number of partitions than
// is declared, the check says so.
func (r *run) declare() error {
	counts, err := logdir.Counts(r.Dir)
	if err != nil {
		return err
	}
	if len(counts) == 0 && r.state.marks == nil {
		return nil // there never was a log, or nothing is left of it
	}
	for _, t := range r.Topics {
		if t.Kind == kafka.Searches || t.Kind == kafka.SearchDeadLetterKind {
			t.Partitions = max(counts[t.Name], 1)
		}
		r.topics = append(r.topics, logdir.Topic{Name: t.Name, Partitions: t.Partitions})
		delete(counts, t.Name)
	}
	for name, n := range counts {
		r.topics = append(r.topics, logdir.Topic{Name: name, Partitions: n})
	}
	return nil
}

// partitions calls each with all partitions of the old log.
func (r *run) partitions(each func(kafka.Partition) error) error {
	for _, t := range r.topics {
		for id := range t.Partitions {
			if err := each(kafka.Partition{Topic: t.Name, ID: id}); err != nil {
				return err
			}
		}
	}
	return nil
}

// move does all that load has found possible.
func (r *run) move(ctx context.Context) error {
	if err := r.reportDamage(ctx); err != nil {
		return err
	}
	m, err := r.mover(ctx)
	if err != nil {
		return err
	}
	if err := m.moveAll(ctx); err != nil {
		return err
	}
	if err := r.moveGroups(ctx); err != nil {
		return err
	}
	if err := r.restore(ctx); err != nil {
		return err
	}
	r.report.Moved = len(r.topics) > 0
	if err := r.state.finish(ctx, r.Clock()); err != nil {
		return err
	}
	if r.report.Moved {
		r.Logger.Info("the event log is in the store; its old directory is no longer used and may be removed", "dir", r.Dir,
			"references", r.report.References, "copies", r.report.Copies, "groups", r.report.Groups)
	}
	return nil
}

// absent reports whether there is no log at all, where nothing says what it had.
func (r *run) absent() bool {
	_, err := os.Stat(filepath.Join(r.Dir, "partitions"))
	return r.state.marks == nil && errors.Is(err, fs.ErrNotExist)
}
