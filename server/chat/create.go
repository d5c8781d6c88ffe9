package chat

import (
	"context"
	"fmt"
	"strings"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/chat/queue"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// CreateDirect asks for the direct chat of two people.
type CreateDirect struct {
	Caller    string
	Other     string
	History   table.History // empty: table.All
	RequestID string
	Cause     event.Cause
}

// CreateGroup asks for a group.
type CreateGroup struct {
	Caller    string
	Name      string
	Members   []string      // the others; repetitions and the caller are dropped
	History   table.History // empty: table.All
	RequestID string
	Cause     event.Cause
}

// Created names the chat.
type Created struct {
	ChatID   string
	Replayed bool // the chat was there before
	// Incomplete says why members of a new group are still on their way in: the
	// group is there, and FinishPending or a repetition of the request completes
	// it. Usually nil.
	Incomplete error
}

// CreateDirect creates the direct chat of two people, or returns the one that
// they have (L-012…L-024). Errors: ErrInvalidOperation for a chat with oneself,
// ErrInvalidArgument, ErrUserNotFound, ErrTooManyChats, ErrKeyReused, ErrBusy, and the
// store's.
func (s *Service) CreateDirect(ctx context.Context, r CreateDirect) (Created, error) {
	if err := checkKeys(r.Caller, r.RequestID); err != nil {
		return Created{}, err
	}
	if err := plan.CheckUser(r.Other); err != nil {
		return Created{}, err
	}
	if r.Caller == r.Other {
		return Created{}, plan.DirectChatWithSelf
	}
	history, err := plan.CheckHistory(r.History)
	if err != nil {
		return Created{}, err
	}
	c := plan.NewChat{
		ChatID: s.cfg.NewID("chat_"), Caller: r.Caller, Others: []string{r.Other}, History: history, Cause: r.Cause,
		Request: plan.NewRequest("create", r.Caller, "", r.RequestID, "direct", r.Other, string(history)),
	}
	if err := s.enter(c.Caller, ""); err != nil {
		return Created{}, err
	}
	defer s.door.Leave(c.Caller, "")
	out, err := s.createDirect(ctx, c)
	return out, open("request_id", r.RequestID, err)
}

func (s *Service) createDirect(ctx context.Context, c plan.NewChat) (Created, error) {
	began := s.cfg.Clock()
	existing, err := s.findDirect(ctx, c)
	if err != nil || existing.ChatID != "" {
		return s.askedDirect(existing, err)
	}
	if err := s.people.Check(ctx, s.maker, c.Others); err != nil {
		return Created{}, err
	}
	err = s.create(ctx, c, s.maker.Direct)
	failed := conditionError(err)
	if failed == nil {
		if err == nil {
			s.cfg.Meter.ChatCreated(table.Direct)
			s.cfg.Meter.CreationTook(table.Direct, 1, s.cfg.Clock().Sub(began))
		}
		return s.askedDirect(Created{ChatID: c.ChatID}, err)
	}
	// Lost a race, with an equal request or for the pair: the winner's chat is the
	// answer (L-018). What was lost against is never taken back, so it is there.
	existing, err = s.findDirect(ctx, c)
	if err == nil && existing.ChatID == "" {
		err = fmt.Errorf("%w: %w", errState, failed)
	}
	return s.askedDirect(existing, err)
}

func (s *Service) askedDirect(c Created, err error) (Created, error) {
	if err != nil {
		return Created{}, err
	}
	s.cfg.Meter.DirectAsked(c.Replayed)
	return c, nil
}

// findDirect returns what an equal request was answered, or the chat that the two
// people have; an empty Created if there is neither.
func (s *Service) findDirect(ctx context.Context, c plan.NewChat) (Created, error) {
	done, err := s.replay(ctx, c.Request)
	if err != nil {
		return Created{}, err
	}
	if done != nil {
		return Created{ChatID: done.ChatID, Replayed: true}, nil
	}
	it, err := s.get(ctx, table.DirectIndexKey(c.Caller, c.Others[0]))
	if err != nil || it == nil {
		return Created{}, err
	}
	found := Created{ChatID: table.DirectIndexFrom(it).ChatID, Replayed: true}
	if c.Request.Scope == "" {
		return found, s.durable(ctx, nil)
	}
	// Remembered like a creation: the same key must not make another chat (S-53).
	err = s.repeat(ctx, c.Request.Remember(found.ChatID, 0, 0, s.stamp(0)))
	if conditionError(err) == nil {
		return found, err
	}
	return s.findDirect(ctx, c) // an equal request was faster, or an own attempt: its row is there now
}

// replay returns the result of a request that was carried out before, nil if it
// was not. Errors: ErrKeyReused.
func (s *Service) replay(ctx context.Context, r plan.Request) (*table.Request, error) {
	if r.Scope == "" {
		return nil, nil
	}
	it, err := s.get(ctx, table.RequestKey(r.Scope))
	if err != nil || it == nil {
		return nil, err
	}
	done, err := r.Replay(it)
	return done, s.durable(ctx, err)
}

// create runs the plan that creates a chat. It passes the new chat's queue, so that
// the hook is told of the creation before it is told of anything that others, who
// may find the chat as soon as it is committed, do in it.
func (s *Service) create(ctx context.Context, c plan.NewChat, draft func(plan.NewChat, int64) (*plan.Draft, error)) error {
	return s.exclusive(ctx, c.Caller, c.ChatID, func(work context.Context, q *queue.Chat) error {
		for pace := s.pacer(); ; {
			d, err := draft(c, s.stamp(0))
			if err != nil {
				return err
			}
			if err = s.commit(ctx, work, d); err == nil {
				q.Head = d.Head
				return nil
			}
			failed := conditionError(err)
			if failed == nil || failed.Failures[0].Name != plan.CondChats {
				return err
			}
			// Nothing but the numbers of chats stood against it.
			if _, full := d.ChatsFailed(failed); full != nil {
				return s.durable(work, full)
			}
			if err := s.countFailed(work, d, failed); err != nil {
				return err
			}
			if err := pace.again(ctx, work); err != nil {
				return err
			}
		}
	})
}

// CreateGroup creates a group in two phases (L-025…L-046): one plan creates it
// with its owner and the list of the others as pending; then plans of a chunk
// each make these members. After a crash in between FinishPending, or a
// repetition of the request, completes the group. Errors, all of the first phase:
// ErrInvalidArgument, ErrUserNotFound, ErrTooManyChats, ErrKeyReused, ErrBusy, and the
// store's.
func (s *Service) CreateGroup(ctx context.Context, r CreateGroup) (Created, error) {
	if err := checkKeys(r.Caller, r.RequestID); err != nil {
		return Created{}, err
	}
	if err := plan.CheckName(r.Name); err != nil {
		return Created{}, err
	}
	history, err := plan.CheckHistory(r.History)
	if err != nil {
		return Created{}, err
	}
	others, err := s.maker.Others(r.Caller, r.Members)
	if err != nil {
		return Created{}, err
	}
	c := plan.NewChat{
		ChatID: s.cfg.NewID("chat_"), Caller: r.Caller, Name: r.Name, Others: others, History: history, Cause: r.Cause,
		Request: plan.NewRequest("create", r.Caller, "", r.RequestID, "group", r.Name, string(history), strings.Join(others, "#")),
	}
	if err := s.enter(c.Caller, ""); err != nil {
		return Created{}, err
	}
	defer s.door.Leave(c.Caller, "")
	out, err := s.createGroup(ctx, c)
	return out, open("request_id", r.RequestID, err)
}

func (s *Service) createGroup(ctx context.Context, c plan.NewChat) (Created, error) {
	began := s.cfg.Clock()
	done, err := s.replay(ctx, c.Request)
	if err == nil && done == nil {
		if err := s.people.Check(ctx, s.maker, c.Others); err != nil {
			return Created{}, err
		}
		err = s.create(ctx, c, s.maker.Group)
		if err == nil {
			made := s.cfg.Clock()
			s.cfg.Meter.ChatCreated(table.Group)
			s.cfg.Meter.CreationTook(table.Group, 1, made.Sub(began))
			created := Created{ChatID: c.ChatID, Incomplete: s.FinishPending(ctx, c.ChatID)}
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
		if done, err = s.replay(ctx, c.Request); err == nil && done == nil {
			err = fmt.Errorf("%w: %w", errState, failed)
		}
	}
	if err != nil {
		return Created{}, err
	}
	return Created{ChatID: done.ChatID, Replayed: true, Incomplete: s.FinishPending(ctx, done.ChatID)}, nil
}

// FinishPending makes the pending members of a group members. Any process may
// call it at any time; without pending members it does nothing. Each chunk passes
// the chat's queue by itself, so that sends go on in between.
func (s *Service) FinishPending(ctx context.Context, chatID string) error {
	if err := checkChat(chatID); err != nil {
		return err
	}
	for {
		items, err := s.batchGet(ctx, []store.Key{table.PendingKey(chatID), table.ChatKey(chatID)})
		if err != nil {
			return fmt.Errorf("add pending members: %w", err)
		}
		if items[0] == nil {
			return nil // nobody has to wait for that in the queue
		}
		var more bool
		err = s.exclusive(ctx, "", chatID, func(work context.Context, q *queue.Chat) (err error) {
			more, err = s.finishChunk(ctx, work, q, items[0], items[1])
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

// finishChunk moves one chunk of pending members to membership; waiting and chat are
// the rows of both, as they were read before.
func (s *Service) finishChunk(lead, ctx context.Context, q *queue.Chat, waiting, chat store.Item) (more bool, err error) {
	if err := s.knowHead(ctx, q); err != nil {
		return false, err
	}
	if chat == nil {
		return false, fmt.Errorf("%w: pending members without a chat", errState)
	}
	pending, row := table.PendingFrom(q.ID, waiting), table.ChatFrom(q.ID, chat)
	st := &plan.State{Head: q.Head, Chat: &row, Pending: &pending}
	for pace := s.pacer(); ; {
		if st.Chat.Status != table.Active {
			return false, s.durable(ctx, plan.NotActive())
		}
		d, err := s.maker.Chunk(st, s.cfg.Chunk, s.stamp(st.Head.ChangedAt))
		if err != nil {
			return false, err
		}
		if err = s.commitTelling(lead, ctx, d, s.cfg.Meter.CreationRetried); err == nil {
			q.Head = d.Head
			return len(st.Pending.Members) > s.cfg.Chunk, nil
		}
		failed := conditionError(err)
		if failed == nil {
			return false, err
		}
		learned := st.Learn(plan.Change{ChatID: q.ID}, failed)
		_, there := failed.Failed(plan.CondTarget)
		_, moved := failed.Failed(plan.CondPending)
		if !learned || st.Chat == nil || (there && !moved) {
			return false, fmt.Errorf("%w: %w", errState, failed) // going again would not help
		}
		q.Head = st.Head
		if st.Pending == nil {
			return false, nil
		}
		if err := s.countFailed(ctx, d, failed); err != nil {
			return false, err
		}
		s.cfg.Meter.CreationRetried()
		if err := pace.again(lead, ctx); err != nil {
			return false, err
		}
	}
}
