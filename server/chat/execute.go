package chat

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/chat/queue"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// runGroup carries a group's commands out, as package queue demands it.
func (s *Service) runGroup(ctx context.Context, q *queue.Chat, group []*queue.Command) (left []*queue.Command, err error) {
	defer func() {
		if p := recover(); p != nil {
			q.Head = table.Head{}
			left, err = nil, fmt.Errorf("%w: %v\n%s", ErrPanic, p, debug.Stack())
		}
	}()
	// Store calls do not end with the leader's context, because they are others'
	// calls too.
	work := context.WithoutCancel(ctx)
	s.clock.Keep(work, s.transact)
	if group[0].Send != nil {
		return s.runSends(ctx, work, q, group)
	}
	return nil, group[0].Run(work, q)
}

// exclusive runs a function alone in a chat's queue, on the caller's goroutine: a
// command that is not a send runs only when its caller has the lead. The user is whose
// turn it takes; the system's own has none.
func (s *Service) exclusive(ctx context.Context, user, chatID string, run func(ctx context.Context, q *queue.Chat) error) error {
	return s.queues.Submit(ctx, chatID, &queue.Command{Caller: user, Run: run})
}

// PlanAge is how long a command is tried. No plan is sent that is older: its stamp
// must not lie further back than the overlap of synchronisation allows (view.Overlap).
const PlanAge = 20 * time.Second

// Waits between attempts, with full jitter.
const (
	firstWait = 5 * time.Millisecond
	maxWait   = time.Second
)

// commit runs a draft's plan until its outcome is known. nil: it is committed, and
// the hook was told. *store.ConditionError: it is not, and never will be.
// store.ErrAmbiguous: it may be committed, or be committed yet. Other errors: it
// is not.
//
// # Unknown outcomes
//
// After an unknown outcome the very same plan goes again, with the same token,
// until the store gives a definite answer; the plan is its own question:
//
//   - Success: committed, now, or before on an engine that knows the token. It
//     cannot be twice: each plan compares the head's version and raises it.
//   - A failed condition: the first attempt was committed, or never can be. If the
//     head is past the plan's base, the base never returns. If the head still is
//     the base, another condition failed, on a row that changes only with this
//     chat's head (memberships, users' rows, pending, requests) or is never taken
//     back while an attempt can be under way (index of direct chats, requests).
//     The numbers of users' chats are neither: what failed on them alone stays open.
//     Which of the two it is, the change log tells: the event at the plan's first
//     version is the plan's own or another's, by its random id, and stays.
//   - Conflict, throttling, unavailability: nothing about the first attempt.
//
// This finds out the same as reading the request's row and then the head, but holds
// for all plans, with or without such a row, and distinguishes this attempt from
// another process's with the same request. If the plan grows too old before the
// answer comes, the log is looked at once more, and then the outcome is
// store.ErrAmbiguous. The next plan of the chat settles it: it is on the present
// head, and once it is committed the lost one cannot come any more.
//
// lead is the context of the caller on whose goroutine this runs: when it ends, no
// retry is waited for, unless an outcome is open.
//
// A draft without events changes no chat, and repeating its plan is harmless.
func (s *Service) commit(lead, ctx context.Context, d *plan.Draft) error {
	return s.commitTelling(lead, ctx, d, func() {})
}

// commitTelling is commit; repeated is told of each time that the plan goes again.
func (s *Service) commitTelling(lead, ctx context.Context, d *plan.Draft, repeated func()) error {
	p := d.Plan()
	if len(d.Events) == 0 {
		return s.repeat(ctx, p.Writes...)
	}
	deadline := s.cfg.Clock().Add(PlanAge)
	unknown := false
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		err := s.transact(ctx, p)
		if err == nil {
			s.committed(d)
			return nil
		}
		switch {
		case errors.Is(err, store.ErrAmbiguous):
			unknown = true
		case errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrThrottled):
		case !unknown:
			return err
		case errors.Is(err, store.ErrClosed):
			return errUnknown
		case conditionError(err) != nil:
			ours, readErr := s.wrote(ctx, d)
			if readErr == nil && ours {
				s.committed(d)
				return nil
			}
			switch {
			case readErr != nil:
			case !d.OnlyChats(conditionError(err)):
				return err
			default:
				if _, full := d.ChatsFailed(conditionError(err)); full != nil {
					return err
				}
				// Counting would let the first attempt succeed, if it is still under way: the
				// same plan goes again, so that its outcome is known.
				if s.countFailed(ctx, d, conditionError(err)) != nil {
					return errUnknown
				}
			}
		}
		if !unknown && lead.Err() != nil {
			return lead.Err()
		}
		if s.cfg.Clock().Before(deadline) && s.cfg.Sleep(ctx, rand.N(wait)) == nil && s.cfg.Clock().Before(deadline) {
			repeated()
			continue
		}
		if !unknown {
			return err
		}
		if ours, readErr := s.wrote(ctx, d); readErr == nil && ours {
			s.committed(d)
			return nil
		}
		return errUnknown
	}
}

var errUnknown = fmt.Errorf("chat: the plan may be committed: %w", store.ErrAmbiguous)

// transact runs a plan once.
func (s *Service) transact(ctx context.Context, p store.Plan) error {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	err := s.cfg.Store.Transact(call, p)
	if err != nil && call.Err() != nil && errors.Is(err, call.Err()) {
		// It ended in the middle of the call, wherever that was.
		return fmt.Errorf("%w: %w", store.ErrAmbiguous, err)
	}
	return err
}

// wrote reads whether the change log has the draft's events.
func (s *Service) wrote(ctx context.Context, d *plan.Draft) (bool, error) {
	first := d.Events[0].GetMetadata()
	key := table.EventKey(d.Head.ChatID, first.GetVersion())
	it, err := s.get(ctx, key)
	if err != nil || it == nil {
		return false, err
	}
	row, err := table.EventFrom(store.Row{Key: key, Item: it})
	if err != nil || row.EventID != first.GetEventId() {
		return false, err
	}
	return true, s.durable(ctx, nil)
}

// committed tells of a commit.
func (s *Service) committed(d *plan.Draft) {
	s.remember(d)
	s.cfg.Committed(Commit{ChatID: d.Head.ChatID, Head: d.Head, Events: d.Events, Outbox: d.Outbox()})
}

// repeat runs a plan that is safe to repeat until its outcome is known.
func (s *Service) repeat(ctx context.Context, writes ...store.Write) error {
	deadline := s.cfg.Clock().Add(PlanAge)
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		err := s.transact(ctx, store.Plan{Writes: writes})
		switch {
		case errors.Is(err, store.ErrAmbiguous), errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrThrottled):
		default:
			return err
		}
		if !s.cfg.Clock().Before(deadline) || s.cfg.Sleep(ctx, rand.N(wait)) != nil || !s.cfg.Clock().Before(deadline) {
			return err
		}
	}
}

// A chat that always has something to send would keep its head to itself: this process
// knows a new head as soon as it has made it, another one only when its own plan failed
// on it, and by then the next one is on its way. So after a turn of plans in a row the
// chat pauses for as long as two plans take, in which another process gets its own in:
// whoever loses tries so many times at once that one falls into a pause. What waits here
// meanwhile shares the next plan.
const (
	turn     = 8
	tries    = turn + 4
	maxPause = 100 * time.Millisecond
)

// giveWay pauses where it is others' turn.
func (s *Service) giveWay(ctx context.Context, q *queue.Chat) {
	if !s.cfg.Shared || q.Row < turn {
		return
	}
	if pause := min(2*q.Took, maxPause) - s.cfg.Clock().Sub(q.Ended); pause > 0 {
		_ = s.cfg.Sleep(ctx, pause) // or the leader goes, which is told later
	}
	q.Row = 0
}

// pacer slows the attempts of a command down that keeps losing against another
// process, and ends them.
type pacer struct {
	svc      *Service
	deadline time.Time
	n        int
}

func (s *Service) pacer() *pacer { return &pacer{svc: s, deadline: s.cfg.Clock().Add(PlanAge)} }

// again is to be called after each plan that failed on a stale fact: the first
// repetitions go at once, because the present facts came with the failure, and so do,
// where others write too, those after a wait, which begin on facts that are old again.
func (p *pacer) again(lead, ctx context.Context) error {
	p.n++
	switch {
	case lead.Err() != nil:
		return lead.Err()
	case !p.svc.cfg.Clock().Before(p.deadline):
		return fmt.Errorf("chat: %w: the chat is contended", store.ErrConflict)
	case p.svc.cfg.Shared && p.n%tries != 0, p.n <= 2:
		return nil
	}
	waits := p.n - 3
	if p.svc.cfg.Shared {
		waits = p.n / tries
	}
	return p.svc.cfg.Sleep(ctx, rand.N(min(firstWait<<min(waits, 8), maxWait)))
}

// knowHead makes sure that the queue has a head. Errors: ErrNotAMember if there is
// no such chat.
func (s *Service) knowHead(ctx context.Context, q *queue.Chat) (err error) {
	if q.Head.Version == 0 {
		q.Head, err = s.readHead(ctx, q.ID)
	}
	return err
}

// readHead reads the present head. Errors: ErrNotAMember if there is no such chat.
func (s *Service) readHead(ctx context.Context, chatID string) (table.Head, error) {
	it, err := s.get(ctx, table.HeadKey(chatID))
	if err != nil {
		return table.Head{}, err
	}
	if it == nil {
		return table.Head{}, s.durable(ctx, ErrNotAMember)
	}
	return table.HeadFrom(chatID, it), nil
}

// conditionError returns the failed conditions of err, nil for other errors.
func conditionError(err error) *store.ConditionError {
	var failed *store.ConditionError
	if errors.As(err, &failed) {
		return failed
	}
	return nil
}
