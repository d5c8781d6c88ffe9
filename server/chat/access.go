package chat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// A caller's permission is checked before the queue of a chat, which its members share, and
// again by the conditions of the plan, which decide.
//
// Sends read nothing for it as long as the sender is cached as a member (package admit). A
// sender that is not cached or is suspect is looked up first, and so is every user that
// changes something. A refusal takes the same calls of the store whether the chat does not
// exist, is one of others, or was left: its duration must not give that away.

// begin counts a request of a user; admission.End must follow, unless it is refused.
func (s *Service) begin(user, chatID string) error {
	if err := s.admission.Begin(user, chatID); err != nil {
		return fmt.Errorf("%w: %d for one chat, %d in all", err, s.cfg.PerChat, s.cfg.PerCaller)
	}
	return nil
}

// A request that is refused, or answered, before the queue takes as long as this at
// least, and so many of a user go at a time (package admit): a program that asks again and
// again takes no time away from others.
const slowdown = 5 * time.Millisecond

// lookUp reads what decides whether a user's request may enter the queue, and reports it.
func (s *Service) lookUp(
	ctx context.Context, user string, read func() (allowed bool, err error),
) (allowed bool, err error) {
	if err := s.admission.AcquireLookup(ctx, user); err != nil {
		return false, err
	}
	defer s.admission.ReleaseLookup(user)
	allowed, err = read()
	if !allowed {
		_ = s.cfg.Sleep(ctx, slowdown) // the answer is known, even if the context has ended
	}
	return allowed, err
}

// mayEnqueue decides whether a send may enter the queue: yes for a member, unless it is
// the repetition of an earlier one, which is answered here.
func (s *Service) mayEnqueue(ctx context.Context, m *command.Message) (sent Sent, allowed bool, err error) {
	if s.admission.Cached(m.Caller, m.ChatID) {
		return Sent{}, true, nil
	}
	return s.lookUpSender(ctx, m)
}

func (s *Service) lookUpSender(ctx context.Context, m *command.Message) (sent Sent, allowed bool, err error) {
	allowed, err = s.lookUp(ctx, m.Caller, func() (allowed bool, err error) {
		sent, allowed, err = s.isSender(ctx, m)
		return allowed, err
	})
	return sent, allowed, err
}

func (s *Service) isSender(ctx context.Context, m *command.Message) (sent Sent, allowed bool, err error) {
	if s.admission.Cached(m.Caller, m.ChatID) { // by now, while others of the same user were looked up
		return Sent{}, true, nil
	}
	key := table.RequestKey(m.Idempotency.Key)
	items, err := s.commits.BatchGet(ctx, []store.Key{table.UserChatKey(m.Caller, m.ChatID), key})
	if err != nil {
		return Sent{}, false, err
	}
	if items[1] == nil {
		refusal := ErrNotAMember
		if items[0] != nil && !table.UserChatFrom(m.Caller, m.ChatID, items[0]).Left() {
			if refusal = plan.Barred(items[0]); refusal == nil {
				s.admission.Cache(m.Caller, m.ChatID)
				return Sent{}, true, nil
			}
		}
		// Perhaps it was stored after the request's row was read, and the sender has left
		// since: now that there is no membership it is either there or never will be.
		if items[1], err = s.commits.Get(ctx, key); err != nil {
			return Sent{}, false, err
		}
		if items[1] == nil {
			return Sent{}, false, s.commits.Durable(ctx, refusal)
		}
	}
	sent, err = m.Replay(items[1])
	return sent, false, s.commits.Durable(ctx, err)
}

// cacheMembers caches from a committed plan which users are members now, and which are not.
func (s *Service) cacheMembers(p *plan.Plan) {
	for user, member := range p.MemberChanges() {
		if member {
			s.admission.Cache(user, p.Head.ChatID)
		} else {
			s.admission.Evict(user, p.Head.ChatID)
		}
	}
}

// readState reads what a change is decided on, and decides. It returns the result of an
// earlier request with the same id instead, if there is one, and what was read.
//
// The rows are read one by one, so they may be of different moments, in which a user who
// moves from pending to member is nowhere. So rows that were read may refuse a command only
// if the head is still the one known before the reads: then nothing of the chat changed,
// and the rows are of one moment.
func (s *Service) readState(ctx context.Context, c command.Change) (*table.Request, *plan.State, error) {
	head := s.queues.Head(c.ChatID)
	for backoff := s.commits.Backoff(); ; {
		items, err := s.commits.BatchGet(ctx, plan.Keys(c))
		if err != nil {
			return nil, nil, err
		}
		st, done, err := plan.ReadState(c, head, items)
		if err != nil || done != nil {
			return done, st, s.commits.Durable(ctx, err)
		}
		if st.Caller == nil {
			// One row decides, and it takes the same reads whether the chat exists or not.
			// But perhaps the caller left with this very request, or after it, and
			// its row was read before: now it can be carried out no more, so it is either
			// there or never will be.
			if done, err = s.commits.Replay(ctx, c.Idempotency); err == nil && done == nil {
				err = s.commits.Durable(ctx, ErrNotAMember)
			}
			return done, st, err
		}
		if c.Op == OpAdd && !c.Invited {
			if err := s.readTarget(ctx, c, st); err != nil {
				return nil, nil, err
			}
		}
		cached := head.Version > 0
		if !cached {
			if head, err = s.commits.Head(ctx, c.ChatID); err != nil {
				return nil, nil, err
			}
			st.Head = head
		}
		refusal := s.planner.Allows(st, c)
		if refusal == nil {
			return nil, st, nil
		}
		if cached {
			if head, err = s.commits.Head(ctx, c.ChatID); err != nil {
				return nil, nil, err
			}
			if head.Version == st.Head.Version {
				return nil, nil, s.commits.Durable(ctx, refusal)
			}
		}
		if err := backoff.Wait(ctx, ctx); err != nil {
			return nil, nil, err
		}
	}
}

// readTarget reads the access settings of a user that is to be added to a group, if the
// user's own row says that there is something to read.
func (s *Service) readTarget(ctx context.Context, c command.Change, st *plan.State) (err error) {
	if st.TargetAccess.WhoAdds == rows.SharedChat {
		if st.Shares, err = s.people.Share(ctx, c.Caller, c.UserID); err != nil {
			return err
		}
	}
	if st.TargetAccess.HasBlocked {
		var pending []string
		if st.Pending != nil {
			pending = st.Pending.Members
		}
		st.Meets, err = s.people.Meets(ctx, c.Caller, c.UserID, c.ChatID, pending)
	}
	return err
}

// OpenError is an error after which a command may have been carried out, or be carried
// out yet. Repeating it with the key finds out, and does it once in any case.
type OpenError struct {
	Field string // of the request: "client_message_id" or "request_id"
	Key   string // also if the service made it
	Err   error
}

// Error implements error.
func (e *OpenError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the key.
func (e *OpenError) Unwrap() error { return e.Err }

// open adds the key of a command to an error that leaves its outcome open.
func open(field, key string, err error) error {
	if key == "" || (!errors.Is(err, store.ErrAmbiguous) && !errors.Is(err, context.Canceled) &&
		!errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	return &OpenError{Field: field, Key: key, Err: err}
}
