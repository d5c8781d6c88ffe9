package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

// Action is what happened.
type Action string

// The actions.
const (
	CodeRequested  Action = "code_requested"       // a one-time code was sent, or was not
	SignedIn       Action = "signed_in"            // a user has proved an identity, or has failed to
	RefreshReused  Action = "refresh_token_reused" // a token that was replaced came again
	SessionEnded   Action = "session_ended"        // by its user or the server
	UserDeleted    Action = "user_deleted"         // by the user
	RoleChanged    Action = "role_changed"         // of the permissions on a topic
	TokenIssued    Action = "user_token_issued"    // for a service account
	ServiceRefused Action = "service_refused"      // a key that is not good, or a missing scope
	RoleRequired   Action = "operator_refused"     // an operator's call that wants another role
	GroupDied      Action = "group_died"           // of a topic: no member sent a heartbeat
)

// OK is the outcome of what was done; any other is one word that says why it was not.
const OK = "ok"

// Names of actors and targets in events: a word and an id. An operator is named by the name
// alone.

// User names a user.
func User(id string) string { return "user/" + id }

// Session names a session.
func Session(id string) string { return "session/" + id }

// Service names a service account.
func Service(id string) string { return "service/" + id }

// Bounds of what failures leave behind.
const (
	window     = time.Minute
	perWindow  = 5      // equal failures that are recorded one by one
	inAll      = 300    // failures of a window that are, of all kinds together
	maxWindows = 10_000 // different failures that are told apart
	flushTime  = 10 * time.Second
)

// Recorder records security events. Of equal failures it records the first few of a minute one by
// one, and the rest as a number, so that repeated failures of a caller do not fill the audit.
// Lines of the log belong to the package in which the event happens. It is safe for concurrent use.
type Recorder struct {
	log    *Log
	logger *slog.Logger

	mu      sync.Mutex
	windows map[failure]*count
	since   time.Time // of the window that singles are counted in
	singles int
}

// failure is what makes failures equal. The actor does not count, because an attacker tries
// to get at a target under many names.
type failure struct {
	action          Action
	target, outcome string
}

type count struct {
	began   time.Time
	single  int // that were recorded one by one
	more    int // that were not
	actor   string
	several bool // they had different actors
}

// NewRecorder makes a Recorder that writes to a Log and reads its clock.
func NewRecorder(log *Log, logger *slog.Logger) *Recorder {
	return &Recorder{log: log, logger: logger, windows: map[failure]*count{}}
}

// Record records an event. Errors are those of the store: whether what happened may proceed
// without a record is the caller's decision. Failures that are counted only return nil.
func (r *Recorder) Record(ctx context.Context, e Event) error {
	if e.Outcome != OK && !r.single(e) {
		return nil
	}
	return r.log.Record(ctx, e)
}

// single reports whether a failure is recorded by itself, and counts it otherwise.
func (r *Recorder) single(e Event) bool {
	now := r.log.clock()
	key := failure{e.Action, e.Target, e.Outcome}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.windows[key]
	if c == nil {
		if len(r.windows) >= maxWindows { // the rest are one failure of an action without a target
			key = failure{action: e.Action, outcome: e.Outcome}
			c = r.windows[key]
		}
		if c == nil {
			c = &count{began: now, actor: e.Actor}
			r.windows[key] = c
		}
	}
	if now.Sub(r.since) >= window {
		r.since, r.singles = now, 0
	}
	c.several = c.several || c.actor != e.Actor
	if c.single == perWindow || r.singles == inAll {
		c.more++
		return false
	}
	c.single++
	r.singles++
	return true
}

// Run writes the numbers of failures that were counted, until ctx ends, and what is left
// then.
func (r *Recorder) Run(ctx context.Context, ready func()) error {
	ready()
	for wait.For(ctx, window/4) == nil {
		r.report(ctx, r.log.clock().Add(-window))
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	r.report(end, r.log.clock())
	return nil
}

// report writes the numbers of the windows that began at a time or before it.
func (r *Recorder) report(ctx context.Context, until time.Time) {
	for _, e := range r.counted(until) {
		if err := r.log.Record(ctx, e); err != nil && !errors.Is(err, context.Canceled) {
			r.logger.Warn("a number of failures is missing in the audit", "action", string(e.Action), "error", err)
		}
	}
}

// counted takes those windows out, and returns what is recorded of them: of the largest
// numbers each, of the rest one for each action.
func (r *Recorder) counted(until time.Time) (list []Event) {
	type number struct {
		failure
		count
	}
	var numbers []number
	r.mu.Lock()
	for key, c := range r.windows {
		if c.began.After(until) {
			continue
		}
		delete(r.windows, key)
		if c.more > 0 {
			numbers = append(numbers, number{key, *c})
		}
	}
	r.mu.Unlock()
	slices.SortFunc(numbers, func(a, b number) int {
		return cmp.Or(cmp.Compare(b.more, a.more), cmp.Compare(a.action, b.action), cmp.Compare(a.target, b.target),
			cmp.Compare(a.outcome, b.outcome))
	})
	rest := map[failure]int{}
	for i, n := range numbers {
		if i >= inAll {
			rest[failure{action: n.action, outcome: n.outcome}] += n.more
			continue
		}
		e := Event{Action: n.action, Actor: n.actor, Target: n.target, Outcome: n.outcome,
			Detail: fmt.Sprintf("%d more within %s", n.more, window)}
		if n.several {
			e.Detail += ", by others too"
		}
		list = append(list, e)
	}
	for key, more := range rest { // as many as there are outcomes
		list = append(list, Event{Action: key.action, Outcome: key.outcome,
			Detail: fmt.Sprintf("%d more at others within %s", more, window)})
	}
	return list
}
