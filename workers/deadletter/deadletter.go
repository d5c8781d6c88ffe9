// Package deadletter is what an operator does with dead letters: list them, read one, hand
// them to their handlers again, or discard them.
//
// A letter is a record of the topic of dead letters (package letter); what was done about
// it is a row in the store. The package owns neither the handlers nor who may call it.
// Nothing here writes to a topic: a letter that is redriven goes straight to its handler,
// so that other groups do not see its record twice. Letters are read from the topic, one
// partition after the other, and never kept: a call costs what the topic holds.
//
// Concurrency: all methods may be called from many goroutines. Two that work on the same
// letter do not both get it: the letter's row says who has it.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/deadletter/letter"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

// Limits of a call.
const (
	maxLetters = 10_000
	maxIDs     = 1_000
	maxActor   = 128                 // bytes
	maxResult  = 1_024               // bytes
	keepFor    = 40 * 24 * time.Hour // longer than the topic keeps the letter
	maxSeen    = 100_000
)

// Errors of this package.
var (
	ErrNotFound    = errors.New("deadletter: no such dead letter")
	ErrInvalid     = errors.New("deadletter: invalid request") // with what is wrong
	ErrUnavailable = errors.New("deadletter: the event log cannot be read")
)

// Status says what was done about a letter. Its values are those of the operators' API, in
// small letters.
type Status string

// The states of a letter.
const (
	Open      Status = "open"      // nothing was done, or it failed again
	Running   Status = "running"   // somebody redrives it just now
	Redriven  Status = "redriven"  // its handler accepted it
	Discarded Status = "discarded" // an operator gave it up
	failed    Status = "failed"    // as stored; to users it is open, with a result
)

// Letter is a dead letter, and what was done about it.
type Letter struct {
	letter.Letter
	Status Status
	// Handling is who did something about it last, when, and with what result; zero for
	// nobody.
	Handling table.DeadLetter

	row      store.Item // of Handling, as it was read
	position Position
}

// Position is where in the topic of dead letters a letter stands.
type Position struct {
	Partition int32
	Offset    int64
}

// Filter selects letters; an empty field selects all.
type Filter struct {
	IDs           []string
	Group         string
	Topic         string // a declared topic, with all its versions, or one of its later versions alone
	Key           string
	Class         eventv1.FailureClass // unspecified: any
	Reason        string               // a part of it
	After, Before time.Time
	Statuses      []Status // empty: Open

	orderingKeys map[string]bool // nil: all
}

func (f Filter) validate() error {
	switch {
	case len(f.IDs) > maxIDs:
		return fmt.Errorf("%w: at most %d ids", ErrInvalid, maxIDs)
	case !f.After.IsZero() && !f.Before.IsZero() && !f.After.Before(f.Before):
		return fmt.Errorf("%w: the first time is not before the second", ErrInvalid)
	}
	return nil
}

// matches checks all but the status.
func (f Filter) matches(l *Letter) bool {
	return (len(f.IDs) == 0 || slices.Contains(f.IDs, l.ID())) &&
		(f.Group == "" || f.Group == l.Group) && (f.Topic == "" || f.Topic == l.Record.Topic || f.Topic == declared(l.Record.Topic)) &&
		(f.Key == "" || f.Key == string(l.Record.Key)) && strings.Contains(l.Reason, f.Reason) &&
		(f.Class == eventv1.FailureClass_FAILURE_CLASS_UNSPECIFIED || f.Class == l.Class) &&
		(f.After.IsZero() || !l.FailedAt.Before(f.After)) && (f.Before.IsZero() || l.FailedAt.Before(f.Before)) &&
		(f.orderingKeys == nil || f.orderingKeys[l.orderingKey()])
}

func (f Filter) matchesStatus(s Status) bool {
	if len(f.Statuses) == 0 {
		return s == Open
	}
	return slices.Contains(f.Statuses, s)
}

// declared is the topic that a topic is a version of, or itself if it is none of Parley's.
func declared(topic string) string {
	if base, _, ok := versions.Base(topic); ok {
		return base
	}
	return topic
}

// Config sets a Manager up.
type Config struct {
	Addr   string         // of Kafka
	Kafka  []kafka.Option // for its clients
	Store  store.Store
	Clock  func() time.Time
	Logger *slog.Logger
}

// Manager handles dead letters.
type Manager struct{ cfg Config }

// New makes a Manager.
func New(cfg Config) (*Manager, error) {
	if cfg.Addr == "" || cfg.Store == nil || cfg.Clock == nil || cfg.Logger == nil {
		return nil, errors.New("deadletter: incomplete configuration")
	}
	return &Manager{cfg}, nil
}

// errStop ends a scan early.
var errStop = errors.New("stop")

// scan passes the letters that a filter selects to onLetter, in the order of their topic
// from a position on. errStop ends it without an error.
func (m *Manager) scan(ctx context.Context, f Filter, from Position, onLetter func(*Letter) error) error {
	if err := f.validate(); err != nil {
		return err
	}
	spans, err := lag.Spans(ctx, m.cfg.Addr, kafka.DeadLetters, m.cfg.Kafka...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	for i := range spans {
		switch s := &spans[i]; {
		case s.Partition.ID < from.Partition:
			s.From = s.To
		case s.Partition.ID == from.Partition:
			s.From = max(s.From, from.Offset)
		}
	}
	s := scanner{manager: m, filter: f, onLetter: onLetter, seen: map[string]bool{}}
	err = lag.Read(ctx, m.cfg.Addr, spans, func(r *kafka.Record) error { return s.add(ctx, r) }, m.cfg.Kafka...)
	if err == nil {
		err = s.flush(ctx)
	}
	switch {
	case errors.Is(s.own, errStop):
		return nil
	case err != nil && s.own == nil && ctx.Err() == nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// scanner is one scan.
type scanner struct {
	manager  *Manager
	filter   Filter
	onLetter func(*Letter) error
	seen     map[string]bool
	chunk    []Letter
	own      error // of onLetter or the store, as opposed to Kafka
}

// add takes the next record of the topic.
func (s *scanner) add(ctx context.Context, r *kafka.Record) error {
	l, err := letterFrom(r)
	if err != nil { // somebody else wrote to the topic
		s.manager.cfg.Logger.Warn("deadletter: a record is no dead letter", "partition", r.Partition, "offset", r.Offset)
		return nil
	}
	id := l.ID()
	if s.seen[id] || !s.filter.matches(&l) { // seen: a consumer crashed between the letter and its commit
		return nil
	}
	if len(s.seen) == maxSeen { // the row of a letter that comes twice tells so, too
		clear(s.seen)
	}
	s.seen[id] = true
	s.chunk = append(s.chunk, l)
	if len(s.chunk) == store.MaxBatchGet || s.complete() {
		return s.flush(ctx)
	}
	return nil
}

// complete reports whether all letters that the filter names were found.
func (s *scanner) complete() bool {
	return len(s.filter.IDs) > 0 && len(s.seen) == len(s.filter.IDs)
}

// flush reads the rows of the letters that have come, and passes those on that the filter
// selects.
func (s *scanner) flush(ctx context.Context) error {
	if s.own = s.manager.loadRows(ctx, s.chunk); s.own != nil {
		return s.own
	}
	for i := range s.chunk {
		if l := &s.chunk[i]; s.filter.matchesStatus(l.Status) {
			if s.own = s.onLetter(l); s.own != nil {
				return s.own
			}
		}
	}
	s.chunk = s.chunk[:0]
	if s.complete() {
		s.own = errStop
	}
	return s.own
}

func letterFrom(r *kafka.Record) (Letter, error) {
	_, payload, err := event.Unframe(r.Value)
	if err != nil {
		return Letter{}, err
	}
	l, err := letter.Decode(payload)
	return Letter{Letter: l, Status: Open, position: Position{r.Partition, r.Offset}}, err
}

func (l *Letter) key() store.Key {
	return table.DeadLetterKey(l.Group, l.Record.Topic, l.Record.Partition, l.Record.Offset)
}

// loadRows reads what was done about letters, at most store.MaxBatchGet.
func (m *Manager) loadRows(ctx context.Context, list []Letter) error {
	if len(list) == 0 {
		return nil
	}
	keys := make([]store.Key, len(list))
	for i := range list {
		keys[i] = list[i].key()
	}
	rows, err := m.cfg.Store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return fmt.Errorf("read what was done about dead letters: %w", err)
	}
	for i, row := range rows {
		list[i].setRow(row, m.cfg.Clock())
	}
	return nil
}

func (l *Letter) setRow(row store.Item, now time.Time) {
	l.row = row
	if row == nil {
		return
	}
	l.Handling = table.DeadLetterFrom(row)
	switch l.Status = Status(l.Handling.Status); {
	case l.Status == failed:
		l.Status = Open
	case l.Status == Running && now.Sub(time.UnixMilli(l.Handling.At)) > claimFor:
		l.Status = Open // the process that claimed it has ended
	}
}

// setStatus writes what was done about a letter, unless somebody else did something
// meanwhile.
func (m *Manager) setStatus(ctx context.Context, l *Letter, s Status, actor, result string) error {
	if len(result) > maxResult {
		result = strings.ToValidUTF8(result[:maxResult], "")
	}
	now := m.cfg.Clock()
	next := table.DeadLetter{Status: string(s), By: actor, At: now.UnixMilli(), Result: result, Tries: l.Handling.Tries, ExpiresAt: now.Add(keepFor).Unix()}
	if s == Running {
		next.Tries++
	}
	cond := store.Absent()
	if l.row != nil {
		cond = store.Exists().Eq(table.AttrStatus, store.String(l.Handling.Status)).Eq(table.AttrAt, store.Int(l.Handling.At))
	}
	row := next.Item()
	if err := m.cfg.Store.Transact(ctx, store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: l.key(), Item: row, Cond: cond, Name: "letter"}}}); err != nil {
		return err
	}
	l.row, l.Handling, l.Status = row, next, s
	return nil
}
