// Package commit runs plans against the store until their outcome is known, and reads
// what plans are made from.
//
// It owns the time limit of each call, the retries and their waits, and the resolution
// of unknown outcomes. It does not own what plans contain (package plan), nor in which
// order those of a chat run (package chat). A Committer has no state of its own and may
// be used by many goroutines.
package commit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// PlanAge is how long a plan is tried. No plan is sent that is older: its timestamp
// must not lie further back than the overlap of synchronisation allows (view.Overlap).
const PlanAge = 20 * time.Second

// Config sets up a Committer. All of it is required.
type Config struct {
	Store store.Store
	Clock func() time.Time
	// Sleep waits between attempts.
	Sleep func(ctx context.Context, d time.Duration) error
	// Shared says that other processes write to the store, too.
	Shared bool
	// Committed is called for each plan with events that is known to be committed, before
	// Commit returns.
	Committed func(*plan.Plan)
	// CountChats records the number of chats of users whose rows do not have it.
	CountChats func(ctx context.Context, users []string) error
}

// Committer runs plans.
type Committer struct{ cfg Config }

// New makes a Committer.
func New(cfg Config) *Committer { return &Committer{cfg} }

// Commit runs a plan until its outcome is known. nil: it is committed, and the hook was
// called. *store.ConditionError: it is not, and never will be. store.ErrAmbiguous: it may
// be committed, or be committed yet. Other errors: it is not.
//
// # Unknown outcomes
//
// After an unknown outcome the very same plan runs again, with the same token,
// until the store gives a definite answer; the plan is its own question:
//
//   - Success: committed, now, or before on a store that knows the token. It
//     cannot be twice: each plan compares the head's version and raises it.
//   - A failed condition: the first attempt was committed, or never can be. If the head is
//     past the plan's base, the base never returns. If the head still is the base, another
//     condition failed, on a row that changes only with this chat's head (memberships,
//     users' rows, pending, requests) or is never taken back while an attempt can be under
//     way (index of direct chats, requests). The numbers of users' chats, block lists and
//     what people allow are neither: a plan that failed on them alone stays open. Which of
//     the two it is, the change log says: the event at the plan's first version is the
//     plan's own or another's, by its random id, and stays.
//   - Conflict, throttling, unavailability: nothing about the first attempt.
//
// This finds out the same as reading the request's row and then the head, but holds
// for all plans, with or without such a row, and distinguishes this attempt from
// another process's with the same request. If the plan grows too old before the
// answer comes, the log is read once more, and then the outcome is
// store.ErrAmbiguous. The next plan of the chat resolves it: it is on the present
// head, and once it is committed the lost one cannot come any more.
//
// callerCtx is the context of the caller on whose goroutine this runs: when it ends, no
// retry is waited for, unless an outcome is open. retried, if given, is called each time
// that the plan runs again.
//
// A plan without events changes no chat, and repeating it is harmless.
func (c *Committer) Commit(callerCtx, ctx context.Context, p *plan.Plan, retried func()) error {
	transaction := p.Transaction()
	if len(p.Events) == 0 {
		return c.Repeat(ctx, transaction.Writes...)
	}
	deadline := c.cfg.Clock().Add(PlanAge)
	unknown := false
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		err := c.Transact(ctx, transaction)
		switch {
		case err == nil:
			c.cfg.Committed(p)
			return nil
		case errors.Is(err, store.ErrAmbiguous):
			unknown = true
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrThrottled):
		case !unknown:
			return err
		default:
			if outcome, known := c.resolve(ctx, p, err); known {
				return outcome
			}
		}
		if !unknown && callerCtx.Err() != nil {
			return callerCtx.Err()
		}
		if c.waitUntil(ctx, deadline, wait) {
			if retried != nil {
				retried()
			}
			continue
		}
		if !unknown {
			return err
		}
		if ours, readErr := c.wrote(ctx, p); readErr == nil && ours {
			c.cfg.Committed(p)
			return nil
		}
		return errUnknown
	}
}

var errUnknown = fmt.Errorf("chat: the plan may be committed: %w", store.ErrAmbiguous)

// resolve decides what the error of a repetition says about a plan whose outcome was
// unknown. known is false if the plan must run once more.
func (c *Committer) resolve(ctx context.Context, p *plan.Plan, err error) (outcome error, known bool) {
	if errors.Is(err, store.ErrClosed) {
		return errUnknown, true
	}
	failed := ConditionError(err)
	if failed == nil {
		return nil, false
	}
	ours, readErr := c.wrote(ctx, p)
	switch {
	case readErr != nil:
		return nil, false //nolint:nilerr // the outcome stays unknown
	case ours:
		c.cfg.Committed(p)
		return nil, true
	case !p.MayStillSucceed(failed):
		return err, true
	}
	uncounted, full := p.ChatCountConflicts(failed)
	if full != nil {
		return err, true
	}
	// Counting would let the first attempt succeed, if it is still under way: the
	// same plan runs again, so that its outcome is known.
	if c.cfg.CountChats(ctx, uncounted) != nil {
		return errUnknown, true
	}
	return nil, false
}

// wrote reads whether the change log has the plan's events.
func (c *Committer) wrote(ctx context.Context, p *plan.Plan) (bool, error) {
	first := p.Events[0].GetMetadata()
	key := table.EventKey(p.Head.ChatID, first.GetVersion())
	it, err := c.Get(ctx, key)
	if err != nil || it == nil {
		return false, err
	}
	row, err := table.EventFrom(store.Row{Key: key, Item: it})
	if err != nil || row.EventID != first.GetEventId() {
		return false, err
	}
	return true, c.Durable(ctx, nil)
}

// Repeat runs a plan that is safe to repeat until its outcome is known.
func (c *Committer) Repeat(ctx context.Context, writes ...store.Write) error {
	deadline := c.cfg.Clock().Add(PlanAge)
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		err := c.Transact(ctx, store.Plan{Writes: writes})
		switch {
		case errors.Is(err, store.ErrAmbiguous), errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrThrottled):
		default:
			return err
		}
		if !c.waitUntil(ctx, deadline, wait) {
			return err
		}
	}
}

// Transact runs a plan once.
func (c *Committer) Transact(ctx context.Context, p store.Plan) error {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	err := c.cfg.Store.Transact(call, p)
	if err != nil && call.Err() != nil && errors.Is(err, call.Err()) {
		// It ended in the middle of the call, wherever that was.
		return fmt.Errorf("%w: %w", store.ErrAmbiguous, err)
	}
	return err
}

// waitUntil waits for a random part of a duration. It reports whether the deadline is
// still ahead, before the wait and after it.
func (c *Committer) waitUntil(ctx context.Context, deadline time.Time, wait time.Duration) bool {
	return c.cfg.Clock().Before(deadline) && c.cfg.Sleep(ctx, rand.N(wait)) == nil && c.cfg.Clock().Before(deadline)
}

// ConditionError returns the failed conditions of err, nil for other errors.
func ConditionError(err error) *store.ConditionError {
	var failed *store.ConditionError
	if errors.As(err, &failed) {
		return failed
	}
	return nil
}
