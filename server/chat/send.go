package chat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/chat/queue"
	"github.com/parley-chat/parley/server/event"
)

// Send asks for a message to be stored.
type Send struct {
	Caller          string
	ChatID          string
	ClientMessageID string // 1 to 64 letters, digits, "-" and "_"; empty: the service makes a UUID
	Content         string
	ContentType     int64 // number of the API's enum
	Cause           event.Cause
}

// Sent says where a message stands.
type Sent = plan.Sent

// Send stores a message. Errors: ErrInvalidArgument, ErrNotAMember,
// ErrKeyReused, ErrBusy, and the store's; after store.ErrAmbiguous or the context's error
// the message may be stored, which a repetition with the same ClientMessageID, that of
// the *OpenError, finds out.
func (s *Service) Send(ctx context.Context, r Send) (Sent, error) {
	if len(r.Content) == 0 || len(r.Content) > plan.MaxContent || !utf8.ValidString(r.Content) {
		return Sent{}, fmt.Errorf("%w: a message has 1 to %d bytes of UTF-8", ErrInvalidArgument, plan.MaxContent)
	}
	if r.ClientMessageID == "" {
		r.ClientMessageID = uuid.NewString()
	}
	if err := checkChat(r.ChatID); err != nil {
		return Sent{}, err
	}
	if err := checkKeys(r.Caller, r.ClientMessageID); err != nil {
		return Sent{}, err
	}
	if err := s.enter(r.Caller, r.ChatID); err != nil {
		return Sent{}, err
	}
	defer s.door.Leave(r.Caller, r.ChatID)
	m := plan.NewMessage(r.ChatID, r.Caller, r.ClientMessageID, r.Content, r.ContentType, r.Cause)
	may, err := s.mayQueue(ctx, r.ChatID, m)
	if may {
		err = s.queues.Submit(ctx, r.ChatID, &queue.Command{Caller: m.Sender, Send: m})
	}
	if err != nil {
		return Sent{}, open("client_message_id", r.ClientMessageID, err)
	}
	return m.Sent, nil
}

// checkKeys checks what becomes part of keys: "#" separates, so it must not occur.
func checkKeys(user, requestID string) error {
	if err := plan.CheckUser(user); err != nil {
		return err
	}
	if requestID != "" && !isID(requestID) {
		return fmt.Errorf("%w: a request id has at most 64 letters, digits, - and _", ErrInvalidArgument)
	}
	return nil
}

func checkChat(id string) error {
	if !isID(id) {
		return fmt.Errorf("%w: a chat id has 1 to 64 letters, digits, - and _", ErrInvalidArgument)
	}
	return nil
}

func isID(s string) bool {
	if len(s) == 0 || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}

// runSends stores the messages of a group in one plan. It drops those whose own
// conditions failed and goes again with the others. What it returns is described
// at runGroup.
func (s *Service) runSends(lead, ctx context.Context, q *queue.Chat, group []*queue.Command) (left []*queue.Command, err error) {
	sends := make([]*plan.Message, 0, plan.MaxSends)
	for _, c := range group {
		sends = append(sends, c.Send)
	}
	if err := s.knowHead(ctx, q); err != nil {
		return nil, err
	}
	s.giveWay(lead, q)
	dropped := false
	for pace := s.pacer(); len(sends) > 0; {
		began := s.cfg.Clock()
		d, err := s.maker.Sends(q.Head, sends, s.stamp(q.Head.ChangedAt))
		if err != nil {
			return nil, err
		}
		err = s.commit(lead, ctx, d)
		if err == nil {
			q.Head, q.Ended = d.Head, s.cfg.Clock()
			q.Took = q.Ended.Sub(began)
			q.Row++
			break
		}
		q.Row = 0
		if failed := conditionError(err); failed != nil {
			tried := sends
			sends, q.Head, err = d.Drop(failed, sends)
			dropped = dropped || err != nil || len(sends) < len(tried)
			s.doubt(q.ID, tried, sends)
			if err == nil {
				if len(sends) == 0 {
					break
				}
				err = pace.again(lead, ctx)
			}
		}
		if err != nil && lead.Err() != nil && errors.Is(err, lead.Err()) {
			left = giveBack(group, sends, err)
			break
		}
		if err != nil {
			for _, m := range sends {
				m.Err = err
			}
			break
		}
	}
	if dropped {
		// Commands that are already answered stand on rows that were read.
		err = s.durable(ctx, nil)
	}
	return left, err
}

// giveBack returns the commands whose messages are not stored, but for the
// leader's own, which ends with its context's error.
func giveBack(group []*queue.Command, sends []*plan.Message, err error) (left []*queue.Command) {
	for i, c := range group {
		switch {
		case !slices.Contains(sends, c.Send):
		case i == 0:
			c.Send.Err = err
		default:
			left = append(left, c)
		}
	}
	return left
}
