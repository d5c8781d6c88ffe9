package chat

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store/table"
)

// MemberChange names a change of a group's membership.
type MemberChange struct {
	Caller    string
	ChatID    string
	UserID    string     // the target; Leave ignores it
	Role      table.Role // AddMember: admin or member
	RequestID string
	Cause     event.Cause
}

func (r MemberChange) plan(procedure string, content ...string) (plan.Change, error) {
	if err := checkChat(r.ChatID); err != nil {
		return plan.Change{}, err
	}
	if err := checkKeys(r.Caller, r.RequestID); err != nil {
		return plan.Change{}, err
	}
	if err := plan.CheckUser(r.UserID); err != nil {
		return plan.Change{}, err
	}
	return plan.Change{
		Caller: r.Caller, ChatID: r.ChatID, UserID: r.UserID, Role: r.Role, Cause: r.Cause,
		Request: plan.NewRequest(procedure, r.Caller, r.ChatID, r.RequestID, content...),
	}, nil
}

// AddMember makes a user a member of a group (L-062…L-076). Repeating a request
// returns the membership that it made. Errors: ErrInvalidArgument, ErrNotAMember,
// ErrInvalidOperation, ErrForbidden, ErrUserNotFound, ErrAlreadyMember,
// ErrChatFull, ErrKeyReused, and the store's.
func (s *Service) AddMember(ctx context.Context, r MemberChange) (table.Membership, error) {
	c, err := r.plan("add", r.UserID, string(r.Role))
	if err != nil {
		return table.Membership{}, err
	}
	var row table.Membership
	err = s.exclusive(ctx, c.ChatID, func(work context.Context, q *chatQueue) error {
		done, err := s.change(ctx, work, q, c, func(st *plan.State, at int64) (d *plan.Draft, err error) {
			d, row, err = s.maker.Add(st, c, at)
			return d, err
		})
		if done != nil {
			row = table.Membership{
				ChatID: c.ChatID, UserID: c.UserID, Role: c.Role, JoinedAt: done.CreatedAt,
				JoinedSequence: done.Sequence, JoinedVersion: done.Version, Version: done.Version,
			}
		}
		return err
	})
	if err != nil {
		return table.Membership{}, err
	}
	return row, nil
}

// RemoveMember ends another user's membership of a group, or takes the user off
// the list of those on their way in (L-077…L-087). Errors: as AddMember, and
// ErrMemberNotFound.
func (s *Service) RemoveMember(ctx context.Context, r MemberChange) error {
	c, err := r.plan("remove", r.UserID)
	if err != nil {
		return err
	}
	return s.exclusive(ctx, c.ChatID, func(work context.Context, q *chatQueue) error {
		_, err := s.change(ctx, work, q, c, func(st *plan.State, at int64) (*plan.Draft, error) { return s.maker.Remove(st, c, at) })
		return err
	})
}

// Leave ends the caller's own membership of a group (L-088…L-093). Errors: as
// RemoveMember.
func (s *Service) Leave(ctx context.Context, r MemberChange) error {
	r.UserID = r.Caller
	c, err := r.plan("leave")
	if err != nil {
		return err
	}
	return s.exclusive(ctx, c.ChatID, func(work context.Context, q *chatQueue) error {
		_, err := s.change(ctx, work, q, c, func(st *plan.State, at int64) (*plan.Draft, error) { return s.maker.Leave(st, c, at) })
		return err
	})
}

// change runs a change of a membership: read, decide, plan, and again on the rows
// that come back if something changed meanwhile. It returns the result of an
// earlier request with the same id instead, if there is one.
//
// The rows are read one by one, so they may be of different moments, in which a
// user who moves from pending to member is nowhere. What is refused by what was
// read is therefore refused only if the head is still the one known before the
// reads: then nothing of the chat changed, and the rows are of one moment. What is
// refused by what a failed plan brought back is of one moment anyway.
func (s *Service) change(lead, ctx context.Context, q *chatQueue, c plan.Change, decide func(*plan.State, int64) (*plan.Draft, error)) (*table.Request, error) {
	if err := s.knowHead(ctx, q); err != nil {
		return nil, err
	}
	pace := s.pacer()
	for {
		items, err := s.batchGet(ctx, c.Keys())
		if err != nil {
			return nil, err
		}
		st, done, err := c.Read(q.head, items)
		if err != nil || done != nil {
			return done, s.durable(ctx, err)
		}
		d, refusal := decide(st, s.stamp(q.head.ChangedAt))
		if refusal == nil {
			return s.carryOut(lead, ctx, q, c, pace, st, d, decide)
		}
		if err := s.readHead(ctx, q); err != nil {
			return nil, err
		}
		if q.head.Version == st.Head.Version {
			return nil, s.durable(ctx, refusal)
		}
		if err := pace.again(lead, ctx); err != nil {
			return nil, err
		}
	}
}

// carryOut commits a change's draft, or the ones that follow from its failures.
func (s *Service) carryOut(lead, ctx context.Context, q *chatQueue, c plan.Change, pace *pacer, st *plan.State, d *plan.Draft, decide func(*plan.State, int64) (*plan.Draft, error)) (*table.Request, error) {
	for {
		err := s.commit(lead, ctx, d)
		if err == nil {
			q.head = d.Head
			return nil, nil
		}
		failed := conditionError(err)
		if failed == nil {
			return nil, err
		}
		if f, ok := failed.Failed(plan.CondRequest); ok {
			done, err := c.Request.Replay(f.Current)
			return done, s.durable(ctx, err)
		}
		if !st.Learn(c, failed) {
			return nil, fmt.Errorf("%w: %w", errState, failed)
		}
		q.head = st.Head
		if err := pace.again(lead, ctx); err != nil {
			return nil, err
		}
		if d, err = decide(st, s.stamp(st.Head.ChangedAt)); err != nil {
			return nil, s.durable(ctx, err)
		}
	}
}
