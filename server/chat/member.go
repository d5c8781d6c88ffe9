package chat

import (
	"context"
	"fmt"
	"strconv"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/chat/queue"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Operation is what is done to a membership.
type Operation = plan.Operation

// The operations.
const (
	OpAdd    = plan.OpAdd
	OpRemove = plan.OpRemove
	OpLeave  = plan.OpLeave
	OpRole   = plan.OpRole
)

// MemberChange names a change of a group's membership.
type MemberChange struct {
	Caller    string
	ChatID    string
	UserID    string     // the target; OpLeave ignores it
	Role      table.Role // OpAdd and OpRole: admin or member
	RequestID string
	Cause     event.Cause
}

// Changed says what a change of a membership came to.
type Changed struct {
	Member   table.Membership // after OpAdd and OpRole
	Replayed bool             // the answer to an earlier request with the same id
}

func (r MemberChange) plan(op Operation) (plan.Change, error) {
	if op == OpLeave {
		r.UserID = r.Caller
	}
	if err := checkChat(r.ChatID); err != nil {
		return plan.Change{}, err
	}
	if err := checkKeys(r.Caller, r.RequestID); err != nil {
		return plan.Change{}, err
	}
	if err := plan.CheckUser(r.UserID); err != nil {
		return plan.Change{}, err
	}
	var content []string
	switch op {
	case OpAdd, OpRole:
		content = []string{r.UserID, string(r.Role)}
	case OpRemove:
		content = []string{r.UserID}
	case OpLeave:
	default:
		return plan.Change{}, fmt.Errorf("%w: no such operation", ErrInvalidArgument)
	}
	return plan.Change{
		Caller: r.Caller, ChatID: r.ChatID, UserID: r.UserID, Role: r.Role, Cause: r.Cause,
		Request: plan.NewRequest(string(op), r.Caller, r.ChatID, r.RequestID, content...),
	}, nil
}

// Change changes a membership of a group: OpAdd makes a user a member
// (L-062…L-076), OpRemove ends another user's membership or takes the user off the
// list of those on their way in (L-077…L-087), OpLeave ends the caller's own
// (L-088…L-093), OpRole makes a member an admin or an admin a member
// (L-094…L-100). Errors: ErrInvalidArgument, ErrNotAMember, ErrInvalidOperation,
// ErrForbidden, ErrUserNotFound, ErrAlreadyMember, ErrChatFull, ErrTooManyChats,
// ErrMemberNotFound, ErrKeyReused, ErrBusy, and the store's.
func (s *Service) Change(ctx context.Context, op Operation, r MemberChange) (Changed, error) {
	c, err := r.plan(op)
	if err != nil {
		return Changed{}, err
	}
	began := s.cfg.Clock()
	done, st, out, err := s.change(ctx, op, c)
	switch {
	case err != nil:
		return Changed{}, open("request_id", r.RequestID, err)
	case done != nil:
		return Changed{Member: remembered(op, c, done, st), Replayed: true}, nil
	case out.changed:
		s.cfg.Meter.MembershipChanged(op, s.cfg.Clock().Sub(began))
	}
	return Changed{Member: out.Member}, nil
}

// remembered is the membership that an earlier request made. What the request's
// row does not hold comes from the membership as it is now, if it is the same.
func remembered(op Operation, c plan.Change, done *table.Request, st *plan.State) table.Membership {
	m := table.Membership{ChatID: c.ChatID, UserID: c.UserID, Role: c.Role, Version: done.Version}
	switch {
	case op == OpAdd:
		m.JoinedAt, m.JoinedSequence, m.JoinedVersion = done.CreatedAt, done.Sequence, done.Version
	case st.Target != nil && st.Target.JoinedVersion <= done.Version:
		m.JoinedAt, m.JoinedSequence, m.JoinedVersion = st.Target.JoinedAt, st.Target.JoinedSequence, st.Target.JoinedVersion
	}
	return m
}

// AddMember is Change with OpAdd.
func (s *Service) AddMember(ctx context.Context, r MemberChange) (table.Membership, error) {
	out, err := s.Change(ctx, OpAdd, r)
	return out.Member, err
}

// RemoveMember is Change with OpRemove.
func (s *Service) RemoveMember(ctx context.Context, r MemberChange) error {
	_, err := s.Change(ctx, OpRemove, r)
	return err
}

// Leave is Change with OpLeave.
func (s *Service) Leave(ctx context.Context, r MemberChange) error {
	_, err := s.Change(ctx, OpLeave, r)
	return err
}

// ChangeRole is Change with OpRole.
func (s *Service) ChangeRole(ctx context.Context, r MemberChange) (table.Membership, error) {
	out, err := s.Change(ctx, OpRole, r)
	return out.Member, err
}

// ChatChange names a change of a group's metadata.
type ChatChange struct {
	Caller    string
	ChatID    string
	Name      *string // nil leaves it
	Expected  int64   // version of the chat that the change is based on; 0: any
	RequestID string
	Cause     event.Cause
}

// UpdateChat changes the metadata of a group (L-134). It returns the chat as the
// change left it, also for a repetition of the request. Errors:
// ErrInvalidArgument, ErrNotAMember, ErrInvalidOperation, ErrForbidden,
// ErrVersionMismatch, ErrKeyReused, ErrBusy, and the store's.
func (s *Service) UpdateChat(ctx context.Context, r ChatChange) (row table.Chat, replayed bool, err error) {
	if err := checkChat(r.ChatID); err != nil {
		return table.Chat{}, false, err
	}
	if err := checkKeys(r.Caller, r.RequestID); err != nil {
		return table.Chat{}, false, err
	}
	var content []string
	if r.Name != nil {
		if err := plan.CheckName(*r.Name); err != nil {
			return table.Chat{}, false, err
		}
		content = append(content, "name", *r.Name)
	}
	if r.Expected != 0 {
		content = append(content, "expected_version", strconv.FormatInt(r.Expected, 10))
	}
	c := plan.Change{
		Caller: r.Caller, ChatID: r.ChatID, Name: r.Name, Expected: r.Expected, Cause: r.Cause,
		Request: plan.NewRequest("update", r.Caller, r.ChatID, r.RequestID, content...),
	}
	done, _, out, err := s.change(ctx, plan.OpUpdate, c)
	row = out.Chat
	if err == nil && done != nil {
		row, err = s.updatedBy(ctx, r.Caller, r.ChatID, done.Version)
	}
	if err != nil {
		return table.Chat{}, false, open("request_id", r.RequestID, err)
	}
	return row, done != nil, nil
}

// updatedBy reads what a user's earlier request for a change of a chat came to. The
// event of the change tells it, whatever happened since; the user knew it then. A
// request that changed nothing has no event: then it is the chat as it is now, if
// the user may see it.
func (s *Service) updatedBy(ctx context.Context, user, chatID string, version int64) (table.Chat, error) {
	key := table.EventKey(chatID, version)
	it, err := s.get(ctx, key)
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
				return plan.ChatOf(u), s.durable(ctx, nil)
			}
		}
	}
	return s.present(ctx, user, chatID)
}

// present reads a chat for one of its members. The membership is read last: who
// was removed meanwhile sees nothing newer than the removal.
func (s *Service) present(ctx context.Context, user, chatID string) (table.Chat, error) {
	it, err := s.get(ctx, table.ChatKey(chatID))
	if err != nil {
		return table.Chat{}, err
	}
	own, err := s.get(ctx, table.MembershipKey(chatID, user))
	if err != nil {
		return table.Chat{}, err
	}
	if it == nil || own == nil {
		return table.Chat{}, s.durable(ctx, ErrNotAMember)
	}
	return table.ChatFrom(chatID, it), s.durable(ctx, nil)
}

// result is what a change came to.
type result struct {
	plan.Result
	changed bool // and was not there already
}

// change runs a change of a chat: read and decide, then, in the queue, plan, and again
// on the rows that come back if something changed meanwhile. It returns the result of an
// earlier request with the same id instead, if there is one, and what was known last.
func (s *Service) change(ctx context.Context, op plan.Operation, c plan.Change) (*table.Request, *plan.State, result, error) {
	if err := s.enter(c.Caller, c.ChatID); err != nil {
		return nil, nil, result{}, err
	}
	defer s.door.Leave(c.Caller, c.ChatID)
	var done *table.Request
	var st *plan.State
	may, err := s.look(ctx, c.Caller, func() (may bool, err error) {
		done, st, err = s.allowed(ctx, op, c)
		return err == nil && done == nil, err
	})
	if !may {
		return done, st, result{}, err
	}
	var out result
	err = s.exclusive(ctx, c.Caller, c.ChatID, func(work context.Context, q *queue.Chat) (err error) {
		if q.Head.Version < st.Head.Version {
			q.Head = st.Head
		}
		st.Head = q.Head
		done, out, err = s.carryOut(ctx, work, q, op, c, st)
		return err
	})
	return done, st, out, err
}

// carryOut commits the plan of a change, or those that follow from its failures: what
// failed brings the present rows, all of one moment, so that what they refuse is refused.
func (s *Service) carryOut(lead, ctx context.Context, q *queue.Chat, op plan.Operation, c plan.Change, st *plan.State) (*table.Request, result, error) {
	for pace := s.pacer(); ; {
		d, out, err := s.maker.Make(op, st, c, s.stamp(st.Head.ChangedAt))
		if err != nil {
			return nil, result{}, s.durable(ctx, err)
		}
		if err = s.commit(lead, ctx, d); err == nil {
			q.Head = d.Head
			return nil, result{out, len(d.Events) > 0}, nil
		}
		failed := conditionError(err)
		if failed == nil {
			return nil, result{}, err
		}
		if f, ok := failed.Failed(plan.CondRequest); ok {
			done, err := c.Request.Replay(f.Current)
			return done, result{}, s.durable(ctx, err)
		}
		if !st.Learn(c, failed) {
			return nil, result{}, fmt.Errorf("%w: %w", errState, failed)
		}
		if err := s.countFailed(ctx, d, failed); err != nil {
			return nil, result{}, err
		}
		q.Head = st.Head
		if err := pace.again(lead, ctx); err != nil {
			return nil, result{}, err
		}
	}
}

// Meter is told what commands did, for metrics (L-164…L-169). It must be quick; nil
// functions are not called.
type Meter struct {
	// ChatCreated is told of each new chat, and of how long each phase took: 1, and
	// for a group 2.
	ChatCreated  func(kind table.Type)
	CreationTook func(kind table.Type, phase int, took time.Duration)
	// CreationRetried is told of each chunk of a group's members that has to be
	// tried again.
	CreationRetried func()
	// DirectAsked is told of each direct chat that was asked for.
	DirectAsked func(existed bool)
	// MembershipChanged is told of each change of a membership by a member.
	MembershipChanged func(op Operation, took time.Duration)
}

func (m *Meter) complete() {
	if m.ChatCreated == nil {
		m.ChatCreated = func(table.Type) {}
	}
	if m.CreationTook == nil {
		m.CreationTook = func(table.Type, int, time.Duration) {}
	}
	if m.CreationRetried == nil {
		m.CreationRetried = func() {}
	}
	if m.DirectAsked == nil {
		m.DirectAsked = func(bool) {}
	}
	if m.MembershipChanged == nil {
		m.MembershipChanged = func(Operation, time.Duration) {}
	}
}
