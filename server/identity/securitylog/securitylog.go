// Package securitylog records the events of an account: sign-ins, wrong codes, tokens that
// were used twice.
//
// It owns the kinds of events and their form in the log and in the counters. It keeps
// nothing. Events have ids only: no identifier, no code, no token.
//
// Concurrency: a Log is safe for concurrent use.
package securitylog

import (
	"context"
	"log/slog"
	"sync/atomic"
)

// Kind is what happened.
type Kind int

// The kinds of events.
const (
	CodeRequested  Kind = iota // a code was sent
	CodeRefused                // a code was asked for, and a limit forbade it
	CodeWrong                  // a code was wrong, used, or too late
	CodeUnsent                 // a code could not be sent
	SignedIn                   // a session began
	SignInRefused              // the account is suspended or deleted
	Refreshed                  // a session's tokens were refreshed
	RefreshRefused             // a refresh token that is not valid
	RefreshReused              // a refresh token came again after its successor: it was stolen
	SessionEnded               // a session was ended
	kinds
)

// words are the kinds in the log.
var words = [kinds]string{
	CodeRequested: "code requested", CodeRefused: "code refused", CodeWrong: "code wrong", CodeUnsent: "code not sent",
	SignedIn: "signed in", SignInRefused: "sign-in refused", Refreshed: "refreshed", RefreshRefused: "refresh refused",
	RefreshReused: "refresh token reused", SessionEnded: "session ended",
}

// String is the kind as the log has it.
func (k Kind) String() string { return words[k] }

// Event is something that happened to an account.
type Event struct {
	Kind    Kind
	User    string // "" where no user is known
	Session string // "" where there is none
	Reason  string // one of few words, may be ""
	Client  string // network of the client, "" where it is not known
}

// Log counts events and writes them to the process's log.
type Log struct {
	log    *slog.Logger
	counts [kinds]atomic.Int64
	next   []func(context.Context, Event)
}

// New makes a Log. Events are passed on to next.
func New(log *slog.Logger, next ...func(context.Context, Event)) *Log {
	return &Log{log: log, next: next}
}

// Count is how many events of a kind there were.
func (l *Log) Count(k Kind) int64 { return l.counts[k].Load() }

// Record records an event.
func (l *Log) Record(ctx context.Context, e Event) {
	l.counts[e.Kind].Add(1)
	level := slog.LevelInfo
	switch e.Kind {
	case Refreshed, CodeRequested: // every client does it all the time
		level = slog.LevelDebug
	case RefreshReused, CodeUnsent, CodeWrong, CodeRefused, RefreshRefused, SignInRefused:
		level = slog.LevelWarn // of which the log repeats few
	}
	var args []any
	for _, a := range []struct{ name, value string }{
		{"user_id", e.User}, {"session_id", e.Session}, {"reason", e.Reason}, {"client", e.Client},
	} {
		if a.value != "" {
			args = append(args, a.name, a.value)
		}
	}
	// Each kind has a message of its own, by which the log counts repetitions.
	l.log.Log(ctx, level, "security: "+e.Kind.String(), args...)
	for _, f := range l.next {
		f(ctx, e)
	}
}
