package chat

import (
	"context"
	"fmt"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Changed says what a change of a membership came to.
type Changed struct {
	Member   table.Membership // after OpAdd and OpRole
	Replayed bool             // the answer to an earlier request with the same id
}

// Change changes a membership of a group: OpAdd makes a user a member,
// OpRemove ends another user's membership or takes the user off the
// list of pending members, OpLeave ends the caller's own, OpRole makes a member an admin
// or an admin a member. Errors: ErrInvalidArgument, ErrNotAMember, ErrInvalidOperation,
// ErrForbidden, ErrUserNotFound, ErrAlreadyMember, ErrChatFull, ErrTooManyChats,
// ErrMemberNotFound, ErrKeyReused, ErrBusy, and the store's.
func (s *Service) Change(ctx context.Context, op Operation, r MemberChange) (Changed, error) {
	c, err := r.Check(op)
	if err != nil {
		return Changed{}, err
	}
	began := s.cfg.Clock()
	out, err := s.change(ctx, c)
	switch {
	case err != nil:
		return Changed{}, open("request_id", r.RequestID, err)
	case out.replayed != nil:
		return Changed{Member: replayedMember(c, out), Replayed: true}, nil
	case out.changed:
		s.cfg.Meter.MembershipChanged(op, s.cfg.Clock().Sub(began))
	}
	return Changed{Member: out.Member}, nil
}

// replayedMember is the membership that an earlier request made. Fields that the request's
// row does not hold come from the membership as it is now, if it is the same.
func replayedMember(c command.Change, out changeOutcome) table.Membership {
	done, now := out.replayed, out.state.Target
	m := table.Membership{ChatID: c.ChatID, UserID: c.UserID, Role: c.Role, Version: done.Version}
	switch {
	case c.Op == OpAdd:
		m.JoinedAt, m.JoinedSequence, m.JoinedVersion = done.CreatedAt, done.Sequence, done.Version
	case now != nil && now.JoinedVersion <= done.Version:
		m.JoinedAt, m.JoinedSequence, m.JoinedVersion = now.JoinedAt, now.JoinedSequence, now.JoinedVersion
	}
	return m
}

// UpdateChat changes the metadata of a group. It returns the chat as the
// change left it, also for a repetition of the request. Errors:
// ErrInvalidArgument, ErrNotAMember, ErrInvalidOperation, ErrForbidden,
// ErrVersionMismatch, ErrKeyReused, ErrBusy, and the store's.
func (s *Service) UpdateChat(ctx context.Context, r ChatChange) (row table.Chat, replayed bool, err error) {
	c, err := r.Check()
	if err != nil {
		return table.Chat{}, false, err
	}
	out, err := s.change(ctx, c)
	row = out.Chat
	if err == nil && out.replayed != nil {
		row, err = s.replayedChat(ctx, r.Caller, r.ChatID, out.replayed.Version)
	}
	if err != nil {
		return table.Chat{}, false, open("request_id", r.RequestID, err)
	}
	return row, out.replayed != nil, nil
}

// replayedChat reads what a user's earlier request for a change of a chat came to. The
// event of the change has this result, regardless of later changes, and the user knew it
// then. A request that changed nothing has no event: then it is the chat as it is now, if
// the user may see it.
func (s *Service) replayedChat(ctx context.Context, user, chatID string, version int64) (table.Chat, error) {
	key := table.EventKey(chatID, version)
	it, err := s.commits.Get(ctx, key)
	if err != nil {
		return table.Chat{}, err
	}
	if it != nil {
		row, err := table.EventFrom(store.Row{Key: key, Item: it})
		if err != nil {
			return table.Chat{}, fmt.Errorf("%w: %w", errState, err)
		}
		if row.Type == event.TypeChatUpdated {
			e, err := event.Unmarshal(row.Type, row.Payload)
			if err != nil {
				return table.Chat{}, fmt.Errorf("%w: %w", errState, err)
			}
			if u, ok := e.(*eventv1.ChatUpdated); ok && u.GetUpdatedBy() == user {
				return plan.ChatOf(u), s.commits.Durable(ctx, nil)
			}
		}
	}
	return s.presentChat(ctx, user, chatID)
}

// presentChat reads a chat for one of its members. The membership is read last: a user
// who was removed meanwhile sees nothing newer than the removal.
func (s *Service) presentChat(ctx context.Context, user, chatID string) (table.Chat, error) {
	it, err := s.commits.Get(ctx, table.ChatKey(chatID))
	if err != nil {
		return table.Chat{}, err
	}
	own, err := s.commits.Get(ctx, table.MembershipKey(chatID, user))
	if err != nil {
		return table.Chat{}, err
	}
	if it == nil || own == nil {
		return table.Chat{}, s.commits.Durable(ctx, ErrNotAMember)
	}
	return table.ChatFrom(chatID, it), s.commits.Durable(ctx, nil)
}

// changeOutcome is what a change came to.
type changeOutcome struct {
	plan.Result
	changed  bool           // and was not the case already
	replayed *table.Request // the result of an earlier request with the same id, instead
	state    *plan.State    // the rows that were read last
}

// change runs a change of a chat: read and decide, then, in the queue, plan, and again
// on the rows that come back if something changed meanwhile.
func (s *Service) change(callerCtx context.Context, c command.Change) (out changeOutcome, err error) {
	if err := s.begin(c.Caller, c.ChatID); err != nil {
		return changeOutcome{}, err
	}
	defer s.admission.End(c.Caller, c.ChatID)
	allowed, err := s.lookUp(callerCtx, c.Caller, func() (allowed bool, err error) {
		out.replayed, out.state, err = s.readState(callerCtx, c)
		return err == nil && out.replayed == nil, err
	})
	if !allowed {
		return out, err
	}
	err = s.exclusive(callerCtx, c.Caller, c.ChatID, func(ctx context.Context, q *queuedChat) error {
		if q.Head.Version < out.state.Head.Version {
			q.Head = out.state.Head
		}
		out.state.Head = q.Head
		return s.commitChange(callerCtx, ctx, q, c, &out)
	})
	return out, err
}

// commitChange commits the plan of a change, or those that follow from its failures: the
// failures bring the present rows, all of one moment, so a change that these refuse is
// refused.
func (s *Service) commitChange(
	callerCtx, ctx context.Context, q *queuedChat, c command.Change, out *changeOutcome,
) error {
	for backoff := s.commits.Backoff(); ; {
		st := out.state
		p, result, err := s.planner.Change(st, c, s.timestamp(st.Head.ChangedAt))
		if err != nil {
			return s.commits.Durable(ctx, err)
		}
		if err = s.commit(callerCtx, ctx, q, p, nil); err == nil {
			out.Result, out.changed = result, len(p.Events) > 0
			return nil
		}
		failed := conditionError(err)
		if failed == nil {
			return err
		}
		if f, ok := failed.Failed(plan.CondRequest); ok {
			out.replayed, err = c.Idempotency.Replay(f.Current)
			return s.commits.Durable(ctx, err)
		}
		if !st.ApplyConflict(c, failed) {
			return fmt.Errorf("%w: %w", errState, failed)
		}
		if err := s.countChats(ctx, p, failed); err != nil {
			return err
		}
		q.Head = st.Head
		if err := backoff.Wait(callerCtx, ctx); err != nil {
			return err
		}
	}
}
