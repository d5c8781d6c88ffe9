package chat

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// Created names the chat.
type Created struct {
	ChatID   string
	Replayed bool // the chat was there before
	// Incomplete says why members of a new group are still pending: the
	// group is there, and FinishPending or a repetition of the request completes
	// it. Usually nil.
	Incomplete error
}

// CreateDirect creates the direct chat of two people, or returns the one that
// they have. Errors: ErrInvalidOperation for a chat with oneself,
// ErrInvalidArgument, ErrUserNotFound, ErrTooManyChats, ErrKeyReused, ErrBusy, and the
// store's.
func (s *Service) CreateDirect(ctx context.Context, r CreateDirect) (Created, error) {
	c, err := r.Check()
	if err != nil {
		return Created{}, err
	}
	if err := s.begin(c.Caller, ""); err != nil {
		return Created{}, err
	}
	defer s.admission.End(c.Caller, "")
	out, err := s.createDirect(ctx, s.cfg.NewID("chat_"), c)
	if err != nil {
		return Created{}, open("request_id", c.RequestID, err)
	}
	s.cfg.Meter.DirectAsked(out.Replayed)
	return out, nil
}

func (s *Service) createDirect(ctx context.Context, chatID string, c CreateDirect) (Created, error) {
	began := s.cfg.Clock()
	key := c.Idempotency()
	existing, err := s.findDirect(ctx, c, key)
	if err != nil || existing.ChatID != "" {
		return existing, err
	}
	if err := s.people.Check(ctx, s.planner, "", []string{c.Other}); err != nil {
		return Created{}, err
	}
	err = s.create(ctx, c.Caller, chatID, func(at int64) (*plan.Plan, error) { return s.planner.Direct(chatID, c, at) })
	failed := conditionError(err)
	if failed == nil {
		if err == nil {
			s.cfg.Meter.ChatCreated(table.Direct)
			s.cfg.Meter.CreationTook(table.Direct, 1, s.cfg.Clock().Sub(began))
		}
		return Created{ChatID: chatID}, err
	}
	// Lost a race, with an equal request or for the pair: the winner's chat is the answer.
	// The winning row is never removed, so it is there.
	existing, err = s.findDirect(ctx, c, key)
	if err == nil && existing.ChatID == "" {
		err = fmt.Errorf("%w: %w", errState, failed)
	}
	return existing, err
}

// findDirect returns what an equal request was answered, or the chat that the two
// people have; an empty Created if there is neither.
func (s *Service) findDirect(ctx context.Context, c CreateDirect, key command.Idempotency) (Created, error) {
	done, err := s.commits.Replay(ctx, key)
	if err != nil {
		return Created{}, err
	}
	if done != nil {
		return Created{ChatID: done.ChatID, Replayed: true}, nil
	}
	it, err := s.commits.Get(ctx, table.DirectIndexKey(c.Caller, c.Other))
	if err != nil || it == nil {
		return Created{}, err
	}
	found := Created{ChatID: table.DirectIndexFrom(it).ChatID, Replayed: true}
	if key.Key == "" {
		return found, s.commits.Durable(ctx, nil)
	}
	// Recorded like a creation: the same key must not make another chat.
	err = s.commits.Repeat(ctx, key.Record(found.ChatID, 0, 0, s.timestamp(0)))
	if conditionError(err) == nil {
		return found, err
	}
	return s.findDirect(ctx, c, key) // an equal request was faster, or an own attempt: its row is there now
}

// create runs the plan that creates a chat. It passes the new chat's queue, so that
// the hook gets the creation before anything that others, who may find the chat as soon as
// it is committed, do in it.
func (s *Service) create(
	callerCtx context.Context, caller, chatID string, make func(at int64) (*plan.Plan, error),
) error {
	return s.exclusive(callerCtx, caller, chatID, func(ctx context.Context, q *queuedChat) error {
		for backoff := s.commits.Backoff(); ; {
			p, err := make(s.timestamp(0))
			if err != nil {
				return err
			}
			if err = s.commit(callerCtx, ctx, q, p, nil); err == nil {
				return nil
			}
			failed := conditionError(err)
			if failed == nil || !p.MayStillSucceed(failed) {
				return err
			}
			if refusal := p.Disallowed(caller, failed); refusal != nil {
				return s.commits.Durable(ctx, refusal)
			}
			// Nothing but the numbers of chats stood against it.
			if _, full := p.ChatCountConflicts(failed); full != nil {
				return s.commits.Durable(ctx, full)
			}
			if err := s.countChats(ctx, p, failed); err != nil {
				return err
			}
			if err := backoff.Wait(callerCtx, ctx); err != nil {
				return err
			}
		}
	})
}

// CreateGroup creates a group in two phases: one plan creates it
// with its owner and the list of the others as pending; then plans of a chunk
// each make these members. After a crash in between FinishPending, or a
// repetition of the request, completes the group. Errors, all of the first phase:
// ErrInvalidArgument, ErrUserNotFound, ErrTooManyChats, ErrKeyReused, ErrBusy, and the
// store's.
func (s *Service) CreateGroup(ctx context.Context, r CreateGroup) (Created, error) {
	c, err := r.Check(s.planner.MaxMembers())
	if err != nil {
		return Created{}, err
	}
	if err := s.begin(c.Caller, ""); err != nil {
		return Created{}, err
	}
	defer s.admission.End(c.Caller, "")
	out, err := s.createGroup(ctx, s.cfg.NewID("chat_"), c)
	return out, open("request_id", c.RequestID, err)
}

func (s *Service) createGroup(ctx context.Context, chatID string, c CreateGroup) (Created, error) {
	began := s.cfg.Clock()
	key := c.Idempotency()
	done, err := s.commits.Replay(ctx, key)
	if err == nil && done == nil {
		if err := s.people.Check(ctx, s.planner, c.Caller, c.Members); err != nil {
			return Created{}, err
		}
		err = s.create(ctx, c.Caller, chatID, func(at int64) (*plan.Plan, error) { return s.planner.Group(chatID, c, at) })
		if err == nil {
			made := s.cfg.Clock()
			s.cfg.Meter.ChatCreated(table.Group)
			s.cfg.Meter.CreationTook(table.Group, 1, made.Sub(began))
			created := Created{ChatID: chatID, Incomplete: s.addMembers(ctx, chatID, c)}
			if created.Incomplete == nil {
				s.cfg.Meter.CreationTook(table.Group, 2, s.cfg.Clock().Sub(made))
			}
			return created, nil
		}
		failed := conditionError(err)
		if failed == nil {
			return Created{}, err
		}
		// Lost a race with an equal request, whose row is there.
		if done, err = s.commits.Replay(ctx, key); err == nil && done == nil {
			err = fmt.Errorf("%w: %w", errState, failed)
		}
	}
	if err != nil {
		return Created{}, err
	}
	return Created{ChatID: done.ChatID, Replayed: true, Incomplete: s.addMembers(ctx, done.ChatID, c)}, nil
}

// addMembers makes the pending members of a group members whose creation was asked for. Users
// who have blocked the creator since the members were checked are not among them: the plan
// does not compare block lists, which would let it grow with the members.
func (s *Service) addMembers(ctx context.Context, chatID string, c CreateGroup) error {
	return s.finishPending(ctx, chatID, c.Caller, c.Members)
}

// FinishPending makes the pending members of a group members. Any process may
// call it at any time; without pending members it does nothing. Each chunk passes
// the chat's queue by itself, so that sends continue in between.
func (s *Service) FinishPending(callerCtx context.Context, chatID string) error {
	if err := command.CheckChat(chatID); err != nil {
		return err
	}
	return s.finishPending(callerCtx, chatID, "", nil)
}

// finishPending is FinishPending. First it takes those members off the list that have
// blocked the creator.
func (s *Service) finishPending(callerCtx context.Context, chatID, creator string, members []string) error {
	for {
		asked := members[:min(len(members), store.MaxBatchGet-2)]
		keys := []store.Key{table.PendingKey(chatID), table.ChatKey(chatID)}
		for _, u := range asked {
			keys = append(keys, rows.BlockKey(u, creator))
		}
		items, err := s.commits.BatchGet(callerCtx, keys)
		if err != nil {
			return fmt.Errorf("add pending members: %w", err)
		}
		if items[0] == nil {
			return nil // that needs no place in the queue
		}
		dropped, err := s.dropBlocking(callerCtx, table.PendingFrom(chatID, items[0]), creator, asked, items[2:])
		if err != nil {
			return fmt.Errorf("take off pending members: %w", err)
		}
		if members = members[len(asked):]; dropped || len(members) > 0 {
			continue
		}
		var more bool
		err = s.exclusive(callerCtx, "", chatID, func(ctx context.Context, q *queuedChat) error {
			st, err := s.pendingState(ctx, q, items[0], items[1])
			if err == nil {
				more, err = s.finishChunk(callerCtx, ctx, q, st)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("add pending members: %w", err)
		}
		if !more {
			return nil
		}
	}
}

// dropBlocking takes those members off the list of a group's pending ones that have blocked
// its creator, by the items of their block lists. A user who is a member already stays.
func (s *Service) dropBlocking(
	ctx context.Context, pending table.Pending, creator string, members []string, blocks []store.Item,
) (dropped bool, err error) {
	for i, u := range members {
		if blocks[i] == nil || !slices.Contains(pending.Members, u) {
			continue
		}
		_, err = s.Change(ctx, OpRemove, MemberChange{Caller: creator, ChatID: pending.ChatID, UserID: u,
			Cause: plan.CreationCause(&pending)})
		if err != nil && !errors.Is(err, ErrMemberNotFound) && !errors.Is(err, ErrNotAMember) {
			return false, err
		}
		dropped = true
	}
	return dropped, nil
}

// pendingState makes the state that a chunk is decided on, of rows read before.
func (s *Service) pendingState(
	ctx context.Context, q *queuedChat, pendingItem, chatItem store.Item,
) (*plan.State, error) {
	if err := s.ensureHead(ctx, q); err != nil {
		return nil, err
	}
	if chatItem == nil {
		return nil, fmt.Errorf("%w: pending members without a chat", errState)
	}
	pending, row := table.PendingFrom(q.ID, pendingItem), table.ChatFrom(q.ID, chatItem)
	return &plan.State{Head: q.Head, Chat: &row, Pending: &pending}, nil
}

// finishChunk moves one chunk of pending members to membership, and reports whether more
// are pending. Only what the store refuses counts as retried. A chunk that failed because
// a member left or a message was sent since its rows were read is another chunk, planned on
// the present rows; that happens in every busy group.
func (s *Service) finishChunk(callerCtx, ctx context.Context, q *queuedChat, st *plan.State) (more bool, err error) {
	for backoff := s.commits.Backoff(); ; {
		if st.Chat.Status != table.Active {
			return false, s.commits.Durable(ctx, command.ChatNotActive)
		}
		p, err := s.planner.Chunk(st, s.cfg.Chunk, s.timestamp(st.Head.ChangedAt))
		if err != nil {
			return false, err
		}
		if err = s.commit(callerCtx, ctx, q, p, s.cfg.Meter.CreationRetried); err == nil {
			return len(st.Pending.Members) > s.cfg.Chunk, nil
		}
		failed := conditionError(err)
		if failed == nil {
			return false, err
		}
		applied := st.ApplyConflict(command.Change{MemberChange: MemberChange{ChatID: q.ID}}, failed)
		_, targetFailed := failed.Failed(plan.CondTarget)
		_, pendingFailed := failed.Failed(plan.CondPending)
		if !applied || st.Chat == nil || (targetFailed && !pendingFailed) {
			return false, fmt.Errorf("%w: %w", errState, failed) // another attempt would not help
		}
		q.Head = st.Head
		if st.Pending == nil {
			return false, nil
		}
		if err := s.countChats(ctx, p, failed); err != nil {
			return false, err
		}
		if err := backoff.Wait(callerCtx, ctx); err != nil {
			return false, err
		}
	}
}
