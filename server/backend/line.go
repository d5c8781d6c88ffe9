package backend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
)

// heartbeatEvery is how long a process waits, and up to a third longer at random, for another one
// to record a heartbeat of the tables before it records one itself. So mostly one of many does.
const heartbeatEvery = time.Minute

// ErrOlder says that processes have seen a later state of this installation than the tables have.
var ErrOlder = errors.New("backend: the tables are an older copy, or those of another installation; " +
	"after a restore, stop all processes, run: workers restore --execute, then start them")

// seenLine is the line of the tables as this process saw it last. Run alone uses it.
type seenLine struct {
	dynamo.Line
	every time.Duration
	due   time.Time // when this process records a heartbeat
}

func (l *seenLine) set(now dynamo.Line) {
	if l.due.IsZero() || now.Heartbeats != l.Heartbeats {
		l.due = time.Now().Add(l.every + rand.N(l.every/3))
	}
	l.Line = now
}

// sameLine returns ErrReplaced if the tables are not those that this process opened, or an older
// copy of them.
func (e *Backend) sameLine(ctx context.Context) error {
	for _, c := range []store.Consistency{store.Eventual, store.Strong} { // the first one may be old
		call, cancel := context.WithTimeout(ctx, watchTime)
		now, err := e.dynamo.Line(call, c)
		cancel()
		if err != nil {
			return nil //nolint:nilerr // a store that does not answer says nothing
		}
		switch err = e.compareLine(now); {
		case err == nil:
			e.seen.set(now)
			return nil
		case c == store.Strong:
			return err
		}
	}
	return nil
}

func (e *Backend) compareLine(now dynamo.Line) error {
	switch {
	case now.Generation == "":
		return fmt.Errorf("%w: the tables have no generation, they were emptied or removed; restore them, run: workers restore --execute, then start all processes", ErrReplaced)
	case now.Generation != e.Generation:
		return fmt.Errorf("%w: the tables have generation %.40q, this process began with %.40q; start all processes again",
			ErrReplaced, now.Generation, e.Generation)
	case now.Heartbeats < e.seen.Heartbeats:
		return fmt.Errorf("%w: the tables are an older copy (at heartbeat %d, and were at %d); stop all processes, run: workers restore --execute, then start them",
			ErrReplaced, now.Heartbeats, e.seen.Heartbeats)
	}
	return nil
}

// recordHeartbeat records a heartbeat of the tables, also in Redis, if this process is due. The
// first process of an installation does so at once. It returns ErrReplaced if one of the tables
// was exchanged.
func (e *Backend) recordHeartbeat(ctx context.Context) error {
	if e.seen.Heartbeats > 0 && time.Now().Before(e.seen.due) {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	next, err := e.dynamo.RecordHeartbeat(call, e.seen.Line)
	var lost *store.ConditionError
	switch {
	case errors.Is(err, dynamo.ErrMixed):
		return fmt.Errorf("%w: %w", ErrReplaced, err)
	case errors.As(err, &lost), errors.Is(err, store.ErrConflict): // another process has raised it
		return nil
	case err != nil:
		e.seen.due = time.Now().Add(e.seen.every)
		if ctx.Err() == nil {
			e.log.Warn("the tables cannot be marked, so that a copy of some of them would not be noticed; trying again",
				"error", err)
		}
		return nil
	}
	e.seen.set(next)
	e.keepSeen(call, next)
	return nil
}

// keepSeen has Redis keep how far the line was seen, for processes that start later. Redis that does
// not answer is reported elsewhere.
func (e *Backend) keepSeen(ctx context.Context, line dynamo.Line) {
	if e.Routing != nil {
		_ = e.Routing.SetSeen(ctx, seenText(line))
	}
}

// seenText is a line as Redis keeps it.
func seenText(line dynamo.Line) string {
	return line.Generation + " " + strconv.FormatInt(line.Heartbeats, 10)
}

// checkSeen returns ErrOlder if Redis has seen the tables further than they are. The tables are read
// after Redis: they are raised first.
func (e *Backend) checkSeen(ctx context.Context) error {
	generation, heartbeats, err := e.readSeen(ctx)
	if err != nil || generation == "" {
		return nil //nolint:nilerr // Redis may lose everything at any time
	}
	now, err := e.dynamo.Line(ctx, store.Strong)
	if err != nil {
		return err
	}
	if now.FollowsOn(generation) { // the data were moved since
		return nil
	}
	if now.Generation != generation || now.Heartbeats < heartbeats {
		return fmt.Errorf("%w: they have generation %.40s at heartbeat %d, seen was %.40s at %d", ErrOlder, now.Generation, now.Heartbeats,
			generation, heartbeats)
	}
	return nil
}

func (e *Backend) readSeen(ctx context.Context) (generation string, heartbeats int64, err error) {
	text, err := e.Routing.Seen(ctx)
	if err != nil {
		return "", 0, err
	}
	generation, number, _ := strings.Cut(text, " ")
	if heartbeats, err = strconv.ParseInt(number, 10, 64); err != nil {
		return "", 0, nil //nolint:nilerr // another release's
	}
	return generation, heartbeats, nil
}
