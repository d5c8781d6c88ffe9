package chat

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// exclusive runs a function alone in a chat's queue, on the caller's goroutine: a
// command that is not a send runs only when its caller has the lead. It waits for the
// user's turn; the system's own commands have none. ctx, for the function, does not end
// with the caller's context.
func (s *Service) exclusive(
	callerCtx context.Context, user, chatID string, run func(ctx context.Context, q *queuedChat) error,
) error {
	_, err := s.queues.Submit(callerCtx, chatID, &queuedCommand{Caller: user, Run: run})
	return err
}

// execute runs a group of commands for queues.
func (s *Service) execute(
	callerCtx context.Context, q *queuedChat, group []*queuedCommand,
) (outcomes []plan.Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			q.Head = table.Head{}
			outcomes, err = nil, fmt.Errorf("%w: %v\n%s", ErrPanic, p, debug.Stack())
		}
	}()
	// Store calls do not end with the leader's context, because they are others'
	// calls too.
	ctx := context.WithoutCancel(callerCtx)
	s.clock.Keep(ctx, s.commits.Transact)
	if group[0].Send != nil {
		return s.executeSends(callerCtx, ctx, q, group)
	}
	return nil, group[0].Run(ctx, q)
}

// ensureHead makes sure that the queue has a head. Errors: ErrNotAMember if there is
// no such chat.
func (s *Service) ensureHead(ctx context.Context, q *queuedChat) (err error) {
	if q.Head.Version == 0 {
		q.Head, err = s.commits.Head(ctx, q.ID)
	}
	return err
}

// commit runs a plan until its outcome is known, and advances the queue's head with it.
// retried, if given, is called each time that the plan runs again.
func (s *Service) commit(callerCtx, ctx context.Context, q *queuedChat, p *plan.Plan, retried func()) error {
	err := s.commits.Commit(callerCtx, ctx, p, retried)
	if err == nil {
		q.Head = p.Head
	}
	return err
}

// countChats counts the chats of users whose rows turned out not to have the number, so
// that the next plan can rely on it.
func (s *Service) countChats(ctx context.Context, p *plan.Plan, failed *store.ConditionError) error {
	uncounted, _ := p.ChatCountConflicts(failed)
	return s.people.Count(ctx, uncounted)
}

// conditionError returns the failed conditions of err, nil for other errors.
func conditionError(err error) *store.ConditionError { return commit.ConditionError(err) }
