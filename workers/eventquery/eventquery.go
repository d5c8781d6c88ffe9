// Package eventquery reads the event store for people: the events of a chat from a version
// on, all events by type and time, how far their publication is, and what a chat was at a
// version or at a time.
//
// It owns which events a filter selects, how a long read is divided, and how a stored event
// is read. It does not own the fold of a chat (package check/derive), what rows of the
// outbox mean (package store/outbox), or permissions. It changes nothing.
//
// # Reads
//
// Events have no index but their chat and version. Of one chat they are read in order and
// consistently. Of all chats the whole table is read, in parts that callers bound and
// resume: the events of a chat come in order, chats in none, and events stored meanwhile
// may be missing. Events that are not published yet are found by the rows of the outbox
// instead, which are few.
//
// Concurrency: all functions are safe for concurrent use.
package eventquery

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/outbox"
	"github.com/parley-chat/parley/server/store/table"
)

// Errors of calls.
var (
	ErrInvalid  = errors.New("eventquery: invalid request")
	ErrNotFound = errors.New("eventquery: no such event")
)

// Filter selects events: those that match every field that is set.
type Filter struct {
	ChatID       string    // empty: all chats
	From, To     int64     // versions, both included; 0: open
	Types        []string  // of events
	After, Until time.Time // of the events' times, the second excluded
	Actor        string
	Correlation  string
	ID           string
	Statuses     []outbox.Status
}

// Validate refuses filters that select nothing by mistake. Errors wrap ErrInvalid.
func (f *Filter) Validate() error {
	switch {
	case f.From < 0 || f.To < 0 || f.To > 0 && f.To < f.From:
		return fmt.Errorf("%w: versions %d to %d", ErrInvalid, f.From, f.To)
	case !f.After.IsZero() && !f.Until.IsZero() && !f.After.Before(f.Until):
		return fmt.Errorf("%w: after is not before until", ErrInvalid)
	}
	for _, t := range f.Types {
		if event.Prototype(t) == nil {
			return fmt.Errorf("%w: there is no event type %q", ErrInvalid, t)
		}
	}
	return nil
}

// Matches reports whether the filter selects an event, its status aside. One that cannot be
// read is selected by what its row says, and by nothing that stands in the event.
func (f *Filter) Matches(e *Event) bool {
	switch {
	case f.ChatID != "" && e.ChatID != f.ChatID, e.Version < f.From, f.To > 0 && e.Version > f.To,
		f.ID != "" && e.ID != f.ID, !f.hasType(e.Type):
		return false
	case f.After.IsZero() && f.Until.IsZero() && f.Actor == "" && f.Correlation == "":
		return true
	case e.Body == nil:
		return false
	}
	md := e.Body.GetMetadata()
	at := md.GetEventTime().AsTime()
	return (f.After.IsZero() || !at.Before(f.After)) && (f.Until.IsZero() || at.Before(f.Until)) &&
		(f.Actor == "" || md.GetActorId() == f.Actor) && (f.Correlation == "" || md.GetCorrelationId() == f.Correlation)
}

func (f *Filter) hasType(t string) bool { return len(f.Types) == 0 || slices.Contains(f.Types, t) }

// Event is a stored event.
type Event struct {
	ChatID  string
	Version int64
	ID      string
	Type    string
	Size    int         // of the payload, in bytes
	Body    event.Event // nil: it cannot be read
	Problem error       // why it cannot be read
}

// Read reads a row of the event store.
func Read(row store.Row) Event {
	stored, err := table.EventFrom(row)
	e := Event{ChatID: row.Key.PK, Version: stored.Version, ID: stored.EventID, Type: stored.Type,
		Size: len(stored.Payload)}
	if err != nil {
		e.Problem = fmt.Errorf("the row cannot be read: %w", err)
		return e
	}
	body, err := event.Unmarshal(stored.Type, stored.Payload)
	if err != nil {
		e.Problem = err
		return e
	}
	if md := body.GetMetadata(); md.GetEventId() != e.ID || md.GetVersion() != e.Version || body.GetChatId() != e.ChatID {
		e.Problem = fmt.Errorf("its content is that of event %.80q, version %d of chat %.80q", md.GetEventId(),
			md.GetVersion(), body.GetChatId())
		return e
	}
	e.Body = body
	return e
}
