package chat

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/plan"
)

// Send stores a message. Errors: ErrInvalidArgument, ErrNotAMember,
// ErrKeyReused, ErrBusy, and the store's; after store.ErrAmbiguous or the context's error
// the message may be stored, which a repetition with the same ClientMessageID, that of
// the *OpenError, finds out.
func (s *Service) Send(ctx context.Context, r Send) (Sent, error) {
	fresh := r.ClientMessageID == ""
	if fresh {
		r.ClientMessageID = uuid.NewString()
	}
	m, err := r.Message()
	if err != nil {
		return Sent{}, err
	}
	m.Fresh = fresh
	if m.SeenSequence > 0 {
		_, err := s.MarkRead(ctx, MarkRead{Caller: m.Caller, ChatID: m.ChatID, Sequence: m.SeenSequence})
		if err != nil && !errors.Is(err, ErrNotAMember) { // of former members the send decides: it may be a repetition
			return Sent{}, open("client_message_id", m.ClientMessageID, err)
		}
	}
	if err := s.begin(m.Caller, m.ChatID); err != nil {
		return Sent{}, err
	}
	defer s.admission.End(m.Caller, m.ChatID)
	sent, allowed, err := s.mayEnqueue(ctx, m)
	if allowed {
		if stored, ok := s.forward(ctx, m); ok {
			return stored, nil
		}
		sent, err = s.queues.Submit(ctx, m.ChatID, &queuedCommand{Caller: m.Caller, Send: m})
	}
	if err != nil {
		return Sent{}, open("client_message_id", m.ClientMessageID, err)
	}
	return sent, nil
}

// forward stores a message through the process that its chat prefers, while others write to the chat.
func (s *Service) forward(ctx context.Context, m *command.Message) (Sent, bool) {
	if s.cfg.Forward == nil || m.Forwarded || !s.queues.Contended(m.ChatID, s.cfg.Clock()) {
		return Sent{}, false
	}
	sent, ok := s.cfg.Forward(ctx, m.Send)
	m.Fresh = false // whether or not the other process committed it
	return sent, ok
}

// executeSends stores the messages of a group in one plan. Those whose own conditions
// fail get their outcome, and the others share another plan.
func (s *Service) executeSends(
	callerCtx, ctx context.Context, q *queuedChat, group []*queuedCommand,
) ([]plan.Outcome, error) {
	sends := newSendGroup(group)
	if err := s.ensureHead(ctx, q); err != nil {
		return nil, err
	}
	if s.commits.Yield(callerCtx, q.Consecutive, q.LastEnd, q.LastDuration) {
		q.Consecutive = 0
	}
	for backoff := s.commits.Backoff(); len(sends.open) > 0; {
		began := s.cfg.Clock()
		p, err := s.planner.Sends(q.Head, sends.open, s.timestamp(q.Head.ChangedAt))
		if err != nil {
			return nil, err
		}
		sends.planned()
		err = s.commit(callerCtx, ctx, q, p, nil)
		if err == nil {
			q.LastEnd = s.cfg.Clock()
			q.LastDuration = q.LastEnd.Sub(began)
			q.Consecutive++
			sends.stored(p.Sent)
			break
		}
		q.Consecutive = 0
		if failed := conditionError(err); failed != nil {
			var outcomes []plan.Outcome
			outcomes, q.Head, err = p.Conflicts(failed, sends.open)
			if q.Head.Version > p.Base.Version {
				q.Lost(s.cfg.Clock())
			}
			s.suspectSenders(sends.open, outcomes)
			sends.decide(outcomes)
			sends.fromRows = sends.fromRows || err != nil
			if err == nil {
				if len(sends.open) == 0 {
					break
				}
				err = backoff.Wait(callerCtx, ctx)
			}
		}
		if err != nil {
			sends.fail(err, callerCtx.Err() != nil && errors.Is(err, callerCtx.Err()))
			break
		}
	}
	if sends.fromRows {
		// Outcomes that were decided already come from rows that were read.
		return sends.outcomes, s.commits.Durable(ctx, nil)
	}
	return sends.outcomes, nil
}

// sendGroup is a group of sends on its way to outcomes.
type sendGroup struct {
	outcomes []plan.Outcome     // of the whole group; Retry while there is none
	open     []*command.Message // those without an outcome, in order
	fromRows bool               // an outcome comes from rows that were read
}

func newSendGroup(group []*queuedCommand) *sendGroup {
	g := &sendGroup{outcomes: make([]plan.Outcome, len(group)), open: make([]*command.Message, len(group))}
	for i, c := range group {
		g.outcomes[i].Retry, g.open[i] = true, c.Send
	}
	return g
}

// planned records that the ids of the open messages are in a plan. Regardless of its
// outcome, another plan checks whether they were recorded.
func (g *sendGroup) planned() {
	for _, m := range g.open {
		m.Fresh = false
	}
}

// stored gives the open messages what their plan made of them.
func (g *sendGroup) stored(sent []Sent) {
	n := 0
	for i := range g.outcomes {
		if g.outcomes[i].Retry {
			g.outcomes[i] = plan.Outcome{Sent: sent[n]}
			n++
		}
	}
}

// decide gives the open messages their outcomes; those to retry stay open.
func (g *sendGroup) decide(outcomes []plan.Outcome) {
	n := 0
	open := make([]*command.Message, 0, len(g.open))
	for i := range g.outcomes {
		if !g.outcomes[i].Retry {
			continue
		}
		if g.outcomes[i] = outcomes[n]; outcomes[n].Retry {
			open = append(open, g.open[n])
		} else {
			g.fromRows = true
		}
		n++
	}
	g.open = open
}

// fail ends the open messages with an error. If the leader left it is only the leader's
// own: the others return to the queue.
func (g *sendGroup) fail(err error, leaderLeft bool) {
	for i := range g.outcomes {
		if g.outcomes[i].Retry && (i == 0 || !leaderLeft) {
			g.outcomes[i] = plan.Outcome{Err: err}
		}
	}
}

// suspectSenders takes over from a plan that failed whose messages it failed for. In a
// plan of many, these made all others wait.
func (s *Service) suspectSenders(sends []*command.Message, outcomes []plan.Outcome) {
	for i, m := range sends {
		switch {
		case outcomes[i].Retry:
		case len(sends) == 1:
			s.admission.Evict(m.Caller, m.ChatID)
		default:
			s.admission.Suspect(m.Caller, m.ChatID)
		}
	}
}
