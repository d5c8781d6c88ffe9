// Package audit keeps what operators did, and what happened that matters to security: of a
// call one row when it starts, durable before the call acts, and another when it has ended;
// of an event one row. Rows are never changed and expire after 396 days.
//
// It owns how the rows are written, paged and joined, and the names of security events. Which
// calls have rows, and what a request contains, belongs to package ops. No event contains what
// users wrote, a token, a code or an identifier. A hash names an actor that is not known yet.
//
// # Partitions
//
// Calls of a month are a partition, and so are its events: a query of calls does not read
// through sign-ins. A record with a target stands once more in the target's partition of
// the month, an event also in its actor's. They are written in one plan.
//
// Concurrency: a Log is safe for concurrent use, also by several processes.
package audit

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// retention is how long a row is kept: a year and a month.
const retention = 396 * 24 * time.Hour

// Sizes in bytes of what is written; more is truncated.
const (
	maxText = 4096 // of a request or result
	maxName = 320  // of the names of an actor and of a target
)

// ErrInvalid says what is wrong with a call of this package.
var ErrInvalid = errors.New("audit: invalid request")

// Log writes and reads rows.
type Log struct {
	store store.Store
	clock func() time.Time
}

// New makes a Log.
func New(s store.Store, clock func() time.Time) *Log { return &Log{s, clock} }

// Entry is a call that has started.
type Entry struct {
	log   *Log
	start time.Time
	id    string
	row   table.Audit
}

// Begin writes the start of a call. Once it has returned without an error, the row survives
// a crash. Errors are those of the store: a call that cannot be recorded must not act.
func (l *Log) Begin(ctx context.Context, actor, call, request string) (*Entry, error) {
	return l.BeginOn(ctx, actor, call, "", request)
}

// BeginOn writes the start of a call on a target, see Record.Target.
func (l *Log) BeginOn(ctx context.Context, actor, call, target, request string) (*Entry, error) {
	e := &Entry{log: l, start: l.clock(), id: rand.Text(),
		row: table.Audit{By: actor, Call: call, Target: truncate(target, maxName)}}
	row := e.row
	row.Request = truncate(request, maxText)
	if err := l.put(ctx, e.start, e.id, table.AuditBegun, row, "", row.Target); err != nil {
		return nil, err
	}
	return e, l.store.Durable(ctx)
}

// End writes how the call ended.
func (e *Entry) End(ctx context.Context, code, result string) error {
	row := e.row
	row.Code, row.Result = code, truncate(result, maxText)
	return e.log.put(ctx, e.start, e.id, table.AuditEnded, row, "", row.Target)
}

// Event is what happened.
type Event struct {
	Actor   string // a user, session or service, or an operator's name
	Action  Action
	Target  string // of the action; empty if it has none
	Outcome string // OK, or why not, as one word
	Detail  string // for people
}

// Record writes an event. It is durable like any write of the store. Errors are those of
// the store.
func (l *Log) Record(ctx context.Context, e Event) error {
	row := table.Audit{By: truncate(e.Actor, maxName), Call: string(e.Action), Target: truncate(e.Target, maxName),
		Code: e.Outcome, Result: truncate(e.Detail, maxText)}
	also := []string{row.By}
	if row.Target != row.By {
		also = append(also, row.Target)
	}
	return l.put(ctx, l.clock(), rand.Text(), table.AuditEvent, row, eventsPrefix, also...)
}

// The prefixes of partitions; those of calls are months.
const (
	eventsPrefix = "events/"
	aboutPrefix  = "of/"
)

// about is the prefix of the partitions of a name.
func about(name string) string { return aboutPrefix + name + "/" }

// put writes a row into a partition, and once more for each one that it is about.
func (l *Log) put(
	ctx context.Context, began time.Time, id, half string, row table.Audit, partition string, names ...string,
) error {
	now := l.clock()
	row.At, row.ExpiresAt = now.UnixMilli(), now.Add(retention).Unix()
	item, prefixes := row.Item(), []string{partition}
	for _, name := range names {
		if name != "" {
			prefixes = append(prefixes, about(name))
		}
	}
	var plan store.Plan
	for _, prefix := range prefixes {
		key := table.AuditKey(began, id, half)
		key.PK = prefix + key.PK
		plan.Writes = append(plan.Writes, store.Write{
			// A deletion by an operator is recorded first, also while the storage is full. Events can
			// come from any caller and have no such right.
			Op: store.OpPut, Key: key, Item: item, Cond: store.Absent(), Name: "audit", Frees: half != table.AuditEvent,
		})
	}
	err := l.store.Transact(ctx, plan)
	var written *store.ConditionError
	if errors.As(err, &written) {
		return nil // an earlier attempt wrote the rows and lost its answer: the id is unique
	}
	return err
}

// truncate shortens a text to a number of bytes.
func truncate(s string, limit int) string {
	const ellipsis = "…"
	if len(s) <= limit {
		return strings.ToValidUTF8(s, "?")
	}
	return strings.ToValidUTF8(s[:limit-len(ellipsis)], "") + ellipsis
}

// Kind tells records apart.
type Kind int

// The kinds of records.
const (
	Calls  Kind = iota // the zero value: a query without a kind gets calls
	Events             // of security
	All                // both
)

// Call is a recorded call, or an event, which has all of a call but a request and an end.
type Call struct {
	ID           string
	Event        bool
	Began        time.Time
	Actor, Name  string
	Target       string // of whom there is one: a word, a slash and an id
	Request      string
	Ended        time.Time // zero: it runs, or its process ended first
	Code, Result string
}

// Filter selects records; an empty field selects all, but Kind, which selects calls.
type Filter struct {
	Kind          Kind
	After, Before time.Time // After is part of the span, Before is not
	Actor, Name   string
	Target        string
	Accept        func(Call) bool // if given
}

// check refuses names that no record has.
func (f Filter) check() error {
	for _, name := range []string{f.Actor, f.Target} {
		if len(name) > maxName || strings.ContainsRune(name, 0) {
			return fmt.Errorf("%w: a name has at most %d bytes", ErrInvalid, maxName)
		}
	}
	return nil
}

// partitions are the prefixes of the partitions that the filter's records are in.
func (f Filter) partitions() []string {
	switch {
	case f.Target != "": // all that it matches are there
		return []string{about(f.Target)}
	case f.Kind == Calls:
		return []string{""}
	case f.Actor != "" && f.Kind == Events:
		return []string{about(f.Actor)}
	case f.Actor != "":
		return []string{"", about(f.Actor)}
	case f.Kind == Events:
		return []string{eventsPrefix}
	}
	return []string{"", eventsPrefix}
}

// matches reports whether a record is selected.
func (f Filter) matches(c Call) bool {
	return (f.Kind == All || c.Event == (f.Kind == Events)) && (f.Actor == "" || c.Actor == f.Actor) &&
		(f.Name == "" || c.Name == f.Name) && (f.Target == "" || c.Target == f.Target) &&
		(f.Accept == nil || f.Accept(c))
}
