// Package projection keeps read models: tables that follow from the events, and that can be
// thrown away and made again at any time.
//
// It owns builds of projections, how events get into them once, and how a build takes the place of
// another. It does not own the content of a projection (package chatactivity and its neighbours),
// the consumption of records (package consume), or the permission to start a rebuild (package
// ops).
//
// # Folds
//
// Most projections are a fold of the event store: the rows of a chat follow from the events of the
// chat, in the order of their versions. Topics only say which chats have new events; the events
// themselves are read from the store, from the version on up to which the chat is folded. Nothing
// of a record but its key is checked. The position stands in a row of its own, and a plan that
// changes rows of the chat moves it, on the condition that it is where it was read. So an event
// counts once, regardless of how often its record comes, in which order, from which topic, and how
// many processes work on the chat. After any crash, the rows reflect exactly the events up to the
// position. A definition cannot break this: its functions are pure, and see the rows of one chat.
//
// # Records
//
// Some projections show records that are no events of the store. Each record makes rows under
// keys of its own, and nothing else, so that it may come any number of times.
//
// # Builds
//
// All rows of a projection belong to a build, which has a number. Queries read the build that
// is live. A rebuild makes the next one beside it: it goes through all chats, or the whole
// topic, while every record goes into both builds. At the end one write makes the next build
// the live one. If an event could not be read, the build has a gap: the rebuild is paused instead,
// and the live build stays until an operator resumes, accepts the gaps or cancels. The
// predecessor, and the build of a rebuild that was canceled, is removed after a while, when no
// process can still be working on it.
//
// Nothing falls between the rebuild and the records: a process reads which builds there are
// after it got a record. If it does not find the next build, this was begun later, and the
// rebuild reads the event, which was in the store before its record.
//
// A definition has a version. Code of another version does not touch a build: a process that
// finds a build of a newer version waits, and one that finds none of its own begins a
// rebuild.
//
// Concurrency: a Set is safe for concurrent use; one goroutine calls Run.
package projection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/pace"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Group is the consumer group that brings records to the projections.
const Group = kafka.ProjectorGroup

// MaxRows is how many rows an event may change: with the position they fit into a plan.
const MaxRows = store.MaxPlanWrites - 1

// Rows are rows of one chat by sort key; a row that is not there is nil.
type Rows map[string]store.Item

// Decode reads a record as an event; an error that wraps event.ErrSchema is about the record.
type Decode func(ctx context.Context, key, value []byte) (event.Event, error)

// Row is a row of a record: where it stands in its build, and what it says.
type Row struct {
	Aggregate, SK string
	Item          store.Item
}

// Definition says what a projection is. It has either Touches and Apply, or Rows and Source.
type Definition struct {
	Name    string // of the projection; in keys and commands
	About   string // what it says, in a few words
	Version int64  // of this code; a greater one makes all rows again
	Table   store.Table
	Topics  []string // declared topics whose records it follows

	// Types are the events that change rows. Others only move the position.
	Types []string
	// Touches returns the sort keys of the rows that an event may change, at most MaxRows and
	// none that begins with "#".
	Touches func(e event.Event) []string
	// Apply changes these rows. Both functions are pure.
	Apply func(e event.Event, rows Rows)

	// Rows returns what a record says. It must depend on the record alone, and no two records
	// may have the same row. An error of package consume's classes decides what becomes of
	// the record; without one, other errors are unknown.
	Rows func(ctx context.Context, r *kafka.Record, decode Decode) ([]Row, error)
	// Source is the topic that holds all records, for a rebuild.
	Source string
}

// folds reports whether the projection is a fold of the event store.
func (d *Definition) folds() bool { return d.Apply != nil }

func (d *Definition) check() error {
	folds, shows := d.Touches != nil && d.Apply != nil && len(d.Types) > 0, d.Rows != nil && d.Source != ""
	if d.Name == "" || d.Version < 1 || d.Table == "" || len(d.Topics) == 0 || folds == shows {
		return fmt.Errorf("projection: the definition of %q is incomplete", d.Name)
	}
	return nil
}

// Config sets a Set up. Addr and Kafka are used by projections with a Source.
type Config struct {
	Definitions []Definition
	Store       store.Store
	Decode      Decode
	Addr        string
	Kafka       []kafka.Option
	Process     string        // id of this process
	History     store.History // of the store; after another one all rows are made again
	// Exclusive says that no other process can be alive: a rebuild that exists at the start is
	// continued at once.
	Exclusive bool
	Clock     func() time.Time
	Logger    *slog.Logger

	// Parallel is how many chats a rebuild works on at a time; 2.
	Parallel int
	// Rest is how long a rebuild rests after each step, as a multiple of the step's time, so
	// that it leaves the processor to others; negative: not at all. 1.
	Rest float64
	// Throttle, if given, holds rebuilds back while others are slowed down by them.
	Throttle *pace.Throttle
	// PollEvery is how often a process checks for something to rebuild; 1 s.
	PollEvery time.Duration
	// RemoveAfter is how long the rows of a build stay that is not used any more; 5 min. A
	// handler that works on it has ended by then.
	RemoveAfter time.Duration
}

// Set has the projections of a process.
type Set struct {
	cfg   Config
	known []*projection
}

// projection is one of them in this process.
type projection struct {
	Definition
	builds atomic.Pointer[table.Projection] // as last read

	folded, rebuilt, conflicts, stuck atomic.Int64
	todo, done                        atomic.Int64 // of the rebuild that this process works on
}

// New makes a Set.
func New(cfg Config) (*Set, error) {
	if len(cfg.Definitions) == 0 || cfg.Store == nil || cfg.Decode == nil || cfg.Process == "" || cfg.Clock == nil ||
		cfg.Logger == nil {
		return nil, errors.New("projection: incomplete configuration")
	}
	cfg.Parallel = cmp.Or(max(cfg.Parallel, 0), 2)
	cfg.Rest = max(cmp.Or(cfg.Rest, 1), 0)
	cfg.PollEvery = cmp.Or(cfg.PollEvery, time.Second)
	cfg.RemoveAfter = cmp.Or(cfg.RemoveAfter, 5*time.Minute)
	s := &Set{cfg: cfg}
	for _, d := range cfg.Definitions {
		if err := d.check(); err != nil {
			return nil, err
		}
		p := &projection{Definition: d}
		p.builds.Store(&table.Projection{})
		s.known = append(s.known, p)
	}
	return s, nil
}

// Topics lists the declared topics that the projections follow.
func (s *Set) Topics() (list []string) {
	for _, p := range s.known {
		for _, t := range p.Topics {
			if !slices.Contains(list, t) {
				list = append(list, t)
			}
		}
	}
	return list
}

// Stats counts what a process did for a projection.
type Stats struct {
	Folded    int64 // events folded because of a record, or rows of records
	Rebuilt   int64 // events folded by rebuilds
	Conflicts int64 // plans that another process was faster with
	Stuck     int64 // times that an event could not be read, live or in a rebuild; its chat waits there
	ToDo      int64 // events of the rebuild that this process works on, and those that are
	Done      int64 // done; both 0 without one
	Paused    int64 // 1 while a rebuild is paused, by an operator or because its build has gaps
}

// Stats returns the counts of a projection; it may be called from any goroutine.
func (s *Set) Stats(name string) Stats {
	i := slices.IndexFunc(s.known, func(p *projection) bool { return p.Name == name })
	if i < 0 {
		return Stats{}
	}
	p := s.known[i]
	return Stats{Folded: p.folded.Load(), Rebuilt: p.rebuilt.Load(), Conflicts: p.conflicts.Load(), Stuck: p.stuck.Load(),
		ToDo: p.todo.Load(), Done: p.done.Load(), Paused: p.paused()}
}

// paused is 1 while an operator has to resume or cancel a rebuild.
func (p *projection) paused() int64 {
	if b := p.builds.Load(); b != nil && b.Next != 0 && b.Paused {
		return 1
	}
	return 0
}

// Slowed counts the turns of rebuilds at which others were slow.
func (s *Set) Slowed() int64 {
	if s.cfg.Throttle == nil {
		return 0
	}
	return s.cfg.Throttle.Slowed()
}

// Names lists the projections.
func (s *Set) Names() (list []string) {
	for _, p := range s.known {
		list = append(list, p.Name)
	}
	return list
}

// Prepare makes sure that each projection has a build that records go into. It is called
// before the first record is consumed.
func (s *Set) Prepare(ctx context.Context) error {
	for _, p := range s.known {
		if err := s.begin(ctx, p); err != nil {
			return err
		}
	}
	return nil
}
