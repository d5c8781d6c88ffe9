package chat

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
)

// command is one caller's wish on its way through a chat's queue: a send, or
// anything else that must have the chat for itself.
type command struct {
	ctx  context.Context
	send *sendCommand
	run  func(ctx context.Context) error
	err  error
	done chan struct{}
}

func (c *command) finish(err error) {
	c.err = err
	close(c.done)
}

// queue holds the commands of one chat that have not begun. Whoever finds no
// leader becomes it: it runs what has gathered, plan after plan, until its own
// command is done, and then hands the rest to a goroutine. So a caller alone
// works on its own goroutine, nobody waits for company, and no goroutine exists
// for a chat that nobody uses. A queue is in the map while it has a leader.
type queue struct {
	pending []*command
}

type queues struct {
	mu     sync.Mutex
	byChat map[string]*queue
}

// submit queues a command and returns when it is done. If ctx ends first, the
// command may still be carried out.
func (s *Service) submit(ctx context.Context, chatID string, c *command) error {
	c.ctx, c.done = ctx, make(chan struct{})
	s.queues.mu.Lock()
	q := s.queues.byChat[chatID]
	leader := q == nil
	if leader {
		q = &queue{}
		s.queues.byChat[chatID] = q
	}
	q.pending = append(q.pending, c)
	s.queues.mu.Unlock()
	if leader {
		s.lead(chatID, q, c)
		return c.err
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lead runs the queue's commands until own is done (nil: until there are none)
// and passes the lead on if more are waiting.
func (s *Service) lead(chatID string, q *queue, own *command) {
	for {
		batch := s.take(chatID, q)
		if batch == nil {
			return
		}
		s.runBatch(chatID, batch)
		if own == nil {
			continue
		}
		select {
		case <-own.done:
		default:
			continue
		}
		s.queues.mu.Lock()
		more := len(q.pending) > 0
		if !more {
			delete(s.queues.byChat, chatID)
		}
		s.queues.mu.Unlock()
		if more {
			go s.lead(chatID, q, nil)
		}
		return
	}
}

// take returns the next commands that go together: one alone, or sends that can
// share a plan. With none left it gives up the lead and returns nil.
func (s *Service) take(chatID string, q *queue) []*command {
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	if len(q.pending) == 0 {
		delete(s.queues.byChat, chatID)
		return nil
	}
	n := 1
	if q.pending[0].send != nil {
		g := newGroup(q.pending[0].send)
		for n < len(q.pending) && q.pending[n].send != nil && g.admit(q.pending[n].send) {
			n++
		}
	}
	batch := q.pending[:n:n]
	q.pending = q.pending[n:]
	return batch
}

// runBatch carries commands out and finishes every one of them, whatever
// happens: a chat must never be stuck behind a command that panicked.
func (s *Service) runBatch(chatID string, batch []*command) {
	defer func() {
		if p := recover(); p != nil {
			err := fmt.Errorf("%w: %v\n%s", errPanic, p, debug.Stack())
			s.forget(chatID)
			for _, c := range batch {
				select {
				case <-c.done:
				default:
					c.finish(err)
				}
			}
		}
	}()
	// The commands of callers that went away must not fail those of others: the
	// store calls do not end with any caller's context.
	ctx := context.WithoutCancel(batch[0].ctx)
	s.keepClock(ctx)
	if batch[0].send != nil {
		s.runSends(ctx, chatID, batch)
		return
	}
	c := batch[0]
	if err := c.ctx.Err(); err != nil {
		c.finish(err)
		return
	}
	c.finish(c.run(ctx))
}
