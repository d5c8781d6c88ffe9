package chat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/chat/admit"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// A caller's right is checked before the queue of a chat, which its members share, and
// again by the conditions of the plan, which decide.
//
// Sends read nothing for it as long as the sender is remembered as a member (package
// admit). Whoever is not, or is in doubt, is looked up first, and so are all who change
// something. A refusal takes the same calls of the store whether the chat does not
// exist, is one of others, or was left (L-146).

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
	if key == "" || (!errors.Is(err, store.ErrAmbiguous) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)) {
		return err
	}
	return &OpenError{Field: field, Key: key, Err: err}
}

// A request that is refused, or answered, before the queue takes as long as this at
// least, and so many of a user go at a time (package admit): a program that asks again and
// again takes no time away from others.
const slow = 5 * time.Millisecond

// look runs a look-up of a user's request; it reports whether the request may go on.
func (s *Service) look(ctx context.Context, user string, up func() (bool, error)) (bool, error) {
	if err := s.door.Look(ctx, user); err != nil {
		return false, err
	}
	defer s.door.Looked(user)
	may, err := up()
	if !may {
		_ = s.cfg.Sleep(ctx, slow) // the answer is known, whatever the context says
	}
	return may, err
}

// mayQueue decides whether a send goes to the queue: yes for a member, unless it is
// the repetition of an earlier one, which is answered here.
func (s *Service) mayQueue(ctx context.Context, chatID string, m *plan.Message) (bool, error) {
	if s.door.Proven(m.Sender, chatID) {
		return true, nil
	}
	return s.look(ctx, m.Sender, func() (bool, error) { return s.isSender(ctx, chatID, m) })
}

func (s *Service) isSender(ctx context.Context, chatID string, m *plan.Message) (bool, error) {
	if s.door.Proven(m.Sender, chatID) { // by now, while others of the same user were looked up
		return true, nil
	}
	items, err := s.batchGet(ctx, []store.Key{table.UserChatKey(m.Sender, chatID), table.RequestKey(m.Scope)})
	if err != nil {
		return false, err
	}
	if items[1] != nil {
		return false, s.durable(ctx, m.Answer(items[1]))
	}
	if items[0] != nil && !table.UserChatFrom(m.Sender, chatID, items[0]).Left() {
		s.door.Prove(m.Sender, chatID)
		return true, nil
	}
	// Perhaps it was stored after the request's row was read, and the sender has left
	// since: now that there is no membership it is either there or never will be.
	it, err := s.get(ctx, table.RequestKey(m.Scope))
	if err != nil {
		return false, err
	}
	if it == nil {
		return false, s.durable(ctx, ErrNotAMember)
	}
	return false, s.durable(ctx, m.Answer(it))
}

// remember takes over from a committed draft who is a member now, and who is not.
func (s *Service) remember(d *plan.Draft) {
	for user, in := range d.Members() {
		if in {
			s.door.Prove(user, d.Head.ChatID)
		} else {
			s.door.Forget(user, d.Head.ChatID)
		}
	}
}

// doubt takes over from a plan that failed whose messages it failed for. In a plan of
// many they had all others wait.
func (s *Service) doubt(chatID string, tried, left []*plan.Message) {
	for _, m := range tried {
		switch {
		case slices.Contains(left, m):
		case len(tried) == 1:
			s.door.Forget(m.Sender, chatID)
		default:
			s.door.Doubt(m.Sender, chatID)
		}
	}
}

// allowed reads what a change is decided on, and decides. It returns the result of an
// earlier request with the same id instead, if there is one, and what was read.
//
// The rows are read one by one, so they may be of different moments, in which a
// user who moves from pending to member is nowhere. What is refused by what was
// read is therefore refused only if the head is still the one known before the
// reads: then nothing of the chat changed, and the rows are of one moment.
func (s *Service) allowed(ctx context.Context, op plan.Operation, c plan.Change) (*table.Request, *plan.State, error) {
	head := s.queues.Known(c.ChatID)
	for pace := s.pacer(); ; {
		items, err := s.batchGet(ctx, c.Keys())
		if err != nil {
			return nil, nil, err
		}
		st, done, err := c.Read(head, items)
		if err != nil || done != nil {
			return done, st, s.durable(ctx, err)
		}
		if st.Caller == nil {
			// One row decides, and it takes the same reads whether the chat exists or not
			// (L-146). But perhaps the caller went with this very request, or after it, and
			// its row was read before: now it can be carried out no more, so it is either
			// there or never will be.
			if done, err = s.replay(ctx, c.Request); err == nil && done == nil {
				err = s.durable(ctx, ErrNotAMember)
			}
			return done, st, err
		}
		known := head.Version > 0
		if !known {
			if head, err = s.readHead(ctx, c.ChatID); err != nil {
				return nil, nil, err
			}
			st.Head = head
		}
		refusal := s.maker.Allows(op, st, c)
		if refusal == nil {
			return nil, st, nil
		}
		if known {
			if head, err = s.readHead(ctx, c.ChatID); err != nil {
				return nil, nil, err
			}
			if head.Version == st.Head.Version {
				return nil, nil, s.durable(ctx, refusal)
			}
		}
		if err := pace.again(ctx, ctx); err != nil {
			return nil, nil, err
		}
	}
}

// enter counts a request of a user; leave must follow, unless it is refused.
func (s *Service) enter(user, chatID string) error {
	if err := s.door.Enter(user, chatID); err != nil {
		return fmt.Errorf("%w: %d for one chat, %d in all", err, s.cfg.PerChat, s.cfg.PerCaller)
	}
	return nil
}

// ErrBusy is the answer to a user who has too many requests under way.
var ErrBusy = admit.ErrBusy
