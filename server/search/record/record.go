// Package record stores events of searches: it answers when they are on stable storage, and
// leaves to the outbox that they get to Kafka.
//
// # How
//
// A process writes streams of its own, a few at a time (lanes): no other process writes to
// them, so its writes need no conditions. Events that are recorded at about the same time
// share rows and transactions (package chat/groupcommit). A row of events and the row of the
// outbox that announces it are stored together. A stream ends after some thousand events, so
// that the relay never reads a long one.
//
// A transaction whose outcome is unknown runs again as it was: its rows are the same. At worst
// its events are published twice, with the same ids. Numbers of events that could not be
// stored are left out.
//
// The package owns the rows that it writes, the limits of a caller and of the process. It
// does not own the form of events (package search) or the permission to call.
//
// # Concurrency
//
// A Recorder is safe for concurrent use. A lane's stream belongs to the goroutine that
// runs the lane's group.
package record

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/chat/admit"
	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/chat/groupcommit"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/search"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Limits.
const (
	// MaxEvents is how many events a call has.
	MaxEvents = 100
	// MaxEvent bounds an event as it is stored, in bytes. As JSON it must fit into a record, too.
	MaxEvent = 64 << 10
	// MaxAge and MaxAhead are how far the time of an event is from the server's clock.
	MaxAge   = 7 * 24 * time.Hour
	MaxAhead = 5 * time.Minute

	// perUser is how many calls a user has under way.
	perUser = 64
	// largest is how many calls are carried out together, waiting how many wait for a lane.
	largest, waiting = 256, 1024
	// pending bounds what waits in a process, in bytes.
	pending = 64 << 20
	// maxCall bounds the events of a call, in bytes.
	maxCall = 1 << 20
	// planRows and planBytes bound the rows of events in a transaction, each of which has one
	// of the outbox beside it; the store takes 100 rows and 4 MiB.
	planRows  = 40
	planBytes = 3 << 20
	// streamEvents is after how many events a lane begins a new stream.
	streamEvents = 4096
)

// Errors that callers see. Those of the store are passed on.
var (
	ErrBusy     = errors.New("record: too many calls of one user under way")
	ErrTooLarge = errors.New("record: an event is too large")
	ErrTime     = errors.New("record: an event is of another time")
	ErrLogFull  = errors.New("record: the event log has no room for search events")
)

// Config sets up a Recorder. All of it but Lanes, Recorded and LogFull is required.
type Config struct {
	Store store.Store
	Clock func() time.Time
	// NewID returns a new id with a prefix, different in all processes.
	NewID func(prefix string) string
	// Retention is how long events can be published again.
	Retention time.Duration
	// Lanes are the streams that are written at a time; 1. Where the store is far away one
	// transaction after the other is too few, and a partition of it takes only so much.
	Lanes int
	// Recorded, if given, is called for streams that have new events, once these are on stable
	// storage. It must not wait.
	Recorded func(stream string)
	// LogFull, if given, reports whether events would only wait for room in the log. Then
	// none are accepted.
	LogFull func() bool
}

// Recorder stores events.
type Recorder struct {
	cfg     Config
	commits *commit.Committer
	callers *admit.Admission
	groups  *groupcommit.Lanes[*call]
	streams []stream     // by lane
	waiting atomic.Int64 // bytes
	stored  atomic.Int64 // events
	refused atomic.Int64 // calls
	logFull atomic.Int64 // calls
}

// stream is what a lane writes.
type stream struct {
	id   string
	next int64 // number of the next event
}

// call is what one caller records.
type call struct {
	lane  int
	parts []part
	size  int64
	ids   []string // the outcome
	err   error
}

// part is events of a call that stand in one row.
type part struct {
	count, size int64
	events      []byte
}

// hasRoom reports whether a row of one part has room for another.
func (p part) hasRoom(more part) bool {
	return p.count+more.count <= table.MaxSearchEvents && p.size+more.size <= table.MaxSearchBytes
}

// New makes a Recorder.
func New(cfg Config) *Recorder {
	r := &Recorder{cfg: cfg,
		commits: commit.New(commit.Config{Store: cfg.Store, Clock: cfg.Clock, Sleep: wait.For}),
		callers: admit.New(admit.Config{Clock: cfg.Clock, PerCaller: perUser})}
	r.streams = make([]stream, max(1, cfg.Lanes))
	r.groups = groupcommit.New(groupcommit.Config[*call]{Run: r.run, Largest: largest, Waiting: waiting})
	return r
}

// Stats are the counters of a Recorder.
type Stats struct {
	Stored  int64 // events
	Refused int64 // calls that there was no room for
	LogFull int64 // calls that there was no room for in the log
}

// Stats returns the counters.
func (r *Recorder) Stats() Stats {
	return Stats{Stored: r.stored.Load(), Refused: r.refused.Load(), LogFull: r.logFull.Load()}
}

// Record stores events of a user, all or none, and returns their ids once they are on stable
// storage. An event without a time happens now. Errors: ErrBusy, ErrTooLarge, ErrTime,
// ErrLogFull, those of the store, and the context's, after which the events may be stored or not.
func (r *Recorder) Record(ctx context.Context, user string, events []search.Event) ([]string, error) {
	if err := r.callers.Begin(user, ""); err != nil {
		r.refused.Add(1)
		return nil, ErrBusy
	}
	defer r.callers.End(user, "")
	c, err := r.prepare(user, events)
	if err != nil {
		return nil, err
	}
	if r.cfg.LogFull != nil && r.cfg.LogFull() {
		r.logFull.Add(1)
		return nil, ErrLogFull
	}
	if r.waiting.Add(c.size) > pending {
		r.waiting.Add(-c.size)
		r.refused.Add(1)
		return nil, fmt.Errorf("record: %w: too many events wait", store.ErrThrottled)
	}
	defer r.waiting.Add(-c.size)
	// The events of a user come one after the other.
	c.lane = event.Bucket(user) % len(r.streams)
	if err := r.groups.Submit(ctx, strconv.Itoa(c.lane), c); err != nil {
		if errors.Is(err, store.ErrThrottled) {
			r.refused.Add(1)
		}
		return nil, err
	}
	return c.ids, c.err
}

// prepare encodes the events of a call, on the caller's goroutine.
func (r *Recorder) prepare(user string, events []search.Event) (*call, error) {
	if len(events) == 0 || len(events) > MaxEvents {
		return nil, fmt.Errorf("%w: a call has 1 to %d events, not %d", ErrTooLarge, MaxEvents, len(events))
	}
	now := r.cfg.Clock()
	c := &call{parts: make([]part, 0, 1)}
	for i, e := range events {
		if e.OccurredAt.IsZero() {
			e.OccurredAt = now
		}
		if age := now.Sub(e.OccurredAt); age > MaxAge || age < -MaxAhead {
			return nil, fmt.Errorf("%w: events[%d].occurred_at is not within 7 days before and 5 minutes after now", ErrTime, i)
		}
		b, err := search.Encode(user, e)
		if err != nil {
			return nil, err
		}
		if len(b) > MaxEvent {
			return nil, fmt.Errorf("%w: events[%d] has %d bytes, of at most %d", ErrTooLarge, i, len(b), MaxEvent)
		}
		switch fits, err := search.Fits(b); {
		case err != nil:
			return nil, err
		case !fits:
			return nil, fmt.Errorf("%w: events[%d] is larger than 254 KiB as JSON", ErrTooLarge, i)
		}
		c.size += int64(len(b))
		c.parts = appendPart(c.parts, part{1, int64(len(b)), b})
	}
	if c.size > maxCall {
		return nil, fmt.Errorf("%w: the events have %d bytes, of at most %d", ErrTooLarge, c.size, maxCall)
	}
	return c, nil
}

// appendPart adds events to the last part if it has room for them, or behind it.
func appendPart(parts []part, p part) []part {
	if n := len(parts); n > 0 {
		last := &parts[n-1]
		if last.hasRoom(p) {
			last.count, last.size = last.count+p.count, last.size+p.size
			last.events = append(last.events, p.events...)
			return parts
		}
	}
	return append(parts, p)
}
