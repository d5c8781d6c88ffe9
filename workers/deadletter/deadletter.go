// Package deadletter is what an operator does with dead letters: list them, read one,
// redrive them to the group that gave them up, or discard them.
//
// There are two kinds behind one small interface: records of the event log that a consumer
// group could not process (a record of the topic of dead letters, package encoding), and
// messages of durable topics that failed too often for a group (package topic). The result
// for each of them is a row in the store. The package does not own the handlers or the
// permission to call it. A dead letter that is redriven goes to the group that gave it up
// alone: an event straight to its handler, a message back into its topic, addressed.
// Dead letters are read where they stand, one partition after the other, and never kept: a call
// costs what is there.
//
// Concurrency: all methods may be called from many goroutines. Two callers that work on the
// same dead letter do not both get it: its row names the caller that has it.
package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/infra/bounded"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/deadletter/encoding"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
)

// Limits of a call.
const (
	maxDeadLetters = 10_000
	maxIDs         = 1_000
	maxActor       = 128                 // bytes
	maxResult      = 1_024               // bytes
	keepFor        = 40 * 24 * time.Hour // longer than the topic keeps the dead letter
	maxSeen        = 100_000
)

// Errors of this package.
var (
	ErrNotFound    = errors.New("deadletter: no such dead letter")
	ErrInvalid     = errors.New("deadletter: invalid request") // with what is wrong
	ErrUnavailable = errors.New("deadletter: the event log cannot be read")
)

// Status says what was done about a dead letter. Its values are those of the operators' API, in
// small letters.
type Status string

// The states of a dead letter.
const (
	Open      Status = "open"      // nothing was done, or it failed again
	Running   Status = "running"   // a caller redrives it just now
	Redriven  Status = "redriven"  // its handler accepted it
	Discarded Status = "discarded" // an operator gave it up
	failed    Status = "failed"    // as stored; to users it is open, with a result
)

// DeadLetter is a dead letter, and what was done about it.
type DeadLetter struct {
	encoding.DeadLetter
	Status Status
	// Handling is the last action on it: actor, time and result; zero if there was none.
	Handling table.DeadLetter

	Source Source
	// First is when it failed for the first time, before it was redriven for the first time.
	First  time.Time
	Parked bool   // it waits in its topic, and with it its key
	Type   string // of a topic's message, as its publisher calls it

	row      store.Item // of Handling, as it was read
	position Position
	topic    *topicDeadLetter // nil: of an event
}

// Source is a kind of dead letters. Its values are those of the operators' API, in small
// letters.
type Source string

// The sources, in the order of lists.
const (
	Events Source = "events" // records of the event log
	Topics Source = "topics" // messages of durable topics
)

// Position is where a dead letter stands. The zero Position is before all.
type Position struct {
	Source    Source // empty: the first
	Log       string // topic, of a topic's message
	Parked    bool
	Partition int32
	Offset    int64
	Group     string // of a parked message
}

// source has the dead letters of one kind.
type source interface {
	name() Source
	// scan passes dead letters to f in their order from a position on: those that the filter
	// selects, and maybe others. An error of f ends it and is returned.
	scan(ctx context.Context, filter *Filter, from Position, f func(DeadLetter) error) error
}

// Filter selects dead letters; an empty field selects all.
type Filter struct {
	Source        Source
	IDs           []string
	Group         string
	Topic         string // a declared topic, with all its versions, or one of its later versions alone
	Key           string
	Class         eventv1.FailureClass // unspecified: any
	Reason        string               // a part of it
	After, Before time.Time
	Statuses      []Status // empty: Open

	orderingKeys map[string]bool // nil: all
	logs         map[string]bool // that they stand in, by name, that of events is empty; nil: all
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
func (f Filter) matches(l *DeadLetter) bool {
	return (f.Source == "" || f.Source == l.Source) && (len(f.IDs) == 0 || slices.Contains(f.IDs, l.ID())) &&
		(f.Group == "" || f.Group == l.Group) &&
		(f.Topic == "" || f.Topic == l.Record.Topic || f.Topic == declared(l.Record.Topic)) &&
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
	Topics TopicDeadLetters // of durable topics; nil: there are none here
	Clock  func() time.Time
	Logger *slog.Logger
}

// Manager handles dead letters.
type Manager struct {
	cfg     Config
	sources []source // in the order of lists
}

// New makes a Manager.
func New(cfg Config) (*Manager, error) {
	if cfg.Addr == "" || cfg.Store == nil || cfg.Clock == nil || cfg.Logger == nil {
		return nil, errors.New("deadletter: incomplete configuration")
	}
	m := &Manager{cfg, []source{&eventDeadLetters{cfg}}}
	if cfg.Topics != nil {
		m.sources = append(m.sources, &topicDeadLetters{cfg.Topics})
	}
	return m, nil
}

// errStop ends a scan early.
var errStop = errors.New("stop")

// scan passes the dead letters that a filter selects to onDeadLetter, in the order of lists from
// a position on. errStop ends it without an error.
func (m *Manager) scan(ctx context.Context, f Filter, from Position, onDeadLetter func(*DeadLetter) error) error {
	if err := f.validate(); err != nil {
		return err
	}
	s := scanner{manager: m, filter: f, onDeadLetter: onDeadLetter, seen: map[string]bool{}}
	begun := from.Source == ""
	for _, src := range m.sources {
		at := Position{}
		if src.name() == from.Source {
			at, begun = from, true
		}
		if !begun || (f.Source != "" && f.Source != src.name()) {
			continue
		}
		err := src.scan(ctx, &f, at, func(l DeadLetter) error { return s.add(ctx, l) })
		if err == nil {
			err = s.flush(ctx)
		}
		if errors.Is(err, errStop) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scanner is one scan.
type scanner struct {
	manager      *Manager
	filter       Filter
	onDeadLetter func(*DeadLetter) error
	seen         map[string]bool
	chunk        []DeadLetter
}

// add takes the next dead letter.
func (s *scanner) add(ctx context.Context, l DeadLetter) error {
	id := l.ID()
	if s.seen[id] || !s.filter.matches(&l) { // seen: a consumer crashed between the dead letter and its commit
		return nil
	}
	bounded.Put(s.seen, id, true, maxSeen) // the row of a dead letter that comes twice tells so, too
	s.chunk = append(s.chunk, l)
	if len(s.chunk) == store.MaxBatchGet || s.complete() {
		return s.flush(ctx)
	}
	return nil
}

// complete reports whether all dead letters that the filter names were found.
func (s *scanner) complete() bool {
	return len(s.filter.IDs) > 0 && len(s.seen) == len(s.filter.IDs)
}

// flush reads the rows of the dead letters that have come, and passes those on that the filter
// selects.
func (s *scanner) flush(ctx context.Context) error {
	if err := s.manager.loadRows(ctx, s.chunk); err != nil {
		return err
	}
	for i := range s.chunk {
		if l := &s.chunk[i]; s.filter.matchesStatus(l.Status) {
			if err := s.onDeadLetter(l); err != nil {
				return err
			}
		}
	}
	s.chunk = s.chunk[:0]
	if s.complete() {
		return errStop
	}
	return nil
}

// key is the key of the dead letter's row. A parked message has none: once it is not parked any
// more it is no dead letter.
func (l *DeadLetter) key() store.Key {
	if l.topic != nil {
		p := l.topic.LogPosition
		return table.TopicDeadLetterKey(l.topic.Number, p.Partition, p.Position)
	}
	return table.DeadLetterKey(l.Group, l.Record.Topic, l.Record.Partition, l.Record.Offset)
}

// ID identifies a dead letter: two of one record and group are the same.
func (l *DeadLetter) ID() string {
	if l.topic != nil {
		return l.topic.LogPosition.ID()
	}
	return l.DeadLetter.ID()
}

// loadRows reads what was done about dead letters, at most store.MaxBatchGet.
func (m *Manager) loadRows(ctx context.Context, list []DeadLetter) error {
	var keys []store.Key
	var of []*DeadLetter
	for i := range list {
		if !list[i].Parked {
			keys, of = append(keys, list[i].key()), append(of, &list[i])
		}
	}
	if len(keys) == 0 {
		return nil
	}
	rows, err := m.cfg.Store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return fmt.Errorf("read what was done about dead letters: %w", err)
	}
	for i, row := range rows {
		of[i].setRow(row, m.cfg.Clock())
	}
	return nil
}

func (l *DeadLetter) setRow(row store.Item, now time.Time) {
	l.row = row
	if row != nil {
		l.Status, l.Handling = StatusOf(row, now)
	}
}

// StatusOf reads the row of what was done about a dead letter, nil for nothing.
func StatusOf(row store.Item, now time.Time) (Status, table.DeadLetter) {
	if row == nil {
		return Open, table.DeadLetter{}
	}
	h := table.DeadLetterFrom(row)
	switch s := Status(h.Status); {
	case s == failed:
		return Open, h
	case s == Running && now.Sub(time.UnixMilli(h.At)) > claimFor:
		return Open, h // the process that claimed it has ended
	default:
		return s, h
	}
}

// setStatus writes the action on a dead letter, unless another caller has changed its
// status meanwhile.
func (m *Manager) setStatus(ctx context.Context, l *DeadLetter, s Status, actor, result string) error {
	if l.Parked {
		return nil // the machine of its partition says so
	}
	if len(result) > maxResult {
		result = strings.ToValidUTF8(result[:maxResult], "")
	}
	now := m.cfg.Clock()
	next := table.DeadLetter{Status: string(s), By: actor, At: now.UnixMilli(), Result: result, Tries: l.Handling.Tries,
		ExpiresAt: now.Add(keepFor).Unix()}
	if s == Running {
		next.Tries++
	}
	cond := store.Absent()
	if l.row != nil {
		cond = store.Exists().Eq(table.AttrStatus, store.String(l.Handling.Status)).Eq(table.AttrAt, store.Int(l.Handling.At))
	}
	row := next.Item()
	plan := store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: l.key(), Item: row, Cond: cond, Name: "letter"}}}
	err := m.cfg.Store.Transact(ctx, plan)
	for n := 1; n < maxAttempts && errors.Is(err, store.ErrAmbiguous); n++ {
		err = m.cfg.Store.Transact(ctx, plan)
		// An earlier attempt may have succeeded. At the first one a row like this would be another process's.
		var lost *store.ConditionError
		if errors.As(err, &lost) && len(lost.Failures) > 0 && table.DeadLetterFrom(lost.Failures[0].Current) == next {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	l.row, l.Handling, l.Status = row, next, s
	return nil
}

// maxAttempts bounds the attempts of a write whose outcome stays unknown.
const maxAttempts = 5
