package device

import (
	"cmp"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// sending is the state of a chat's part of the outbox.
type sending struct {
	call  int64 // under way, 0 for none
	tries int
	at    time.Time
}

// Send queues a message and returns its client_message_id.
func (m *Machine) Send(chatID, content string) string {
	m.step++
	u := &OutboxEntry{ClientMessageID: m.cfg.NewID(), ChatID: chatID, Content: content, CreatedAt: m.cfg.Clock()}
	m.outbox = append(m.outbox, u)
	m.newEntries = append(m.newEntries, *u)
	return u.ClientMessageID
}

// planSends sends the oldest message of each chat.
func (m *Machine) planSends(now time.Time) {
	m.outbox = slices.DeleteFunc(m.outbox, func(u *OutboxEntry) bool {
		if f := m.sending[u.ChatID]; now.Sub(u.CreatedAt) < sendMemory-sendMargin || (f != nil && f.call != 0) {
			return false
		}
		m.giveUp(u, &Failure{Code: connect.CodeDeadlineExceeded, Reason: "TOO_OLD"})
		return true
	})
	var busy []string
	for _, u := range m.outbox {
		if slices.Contains(busy, u.ChatID) {
			continue
		}
		busy = append(busy, u.ChatID)
		f := m.sending[u.ChatID]
		if f == nil {
			f = &sending{}
			m.sending[u.ChatID] = f
		}
		if f.call == 0 && !now.Before(f.at) {
			f.call = m.call(SendMessage, &messagev1.SendMessageRequest{
				ChatId: u.ChatID, ClientMessageId: u.ClientMessageID, Content: u.Content,
				ContentType: messagev1.ContentType_CONTENT_TYPE_TEXT,
			}, pendingCall{entry: u})
		}
	}
}

func (m *Machine) giveUp(u *OutboxEntry, why *Failure) {
	m.done = append(m.done, u.ClientMessageID)
	m.events = append(m.events, Event{SendFailed: &SendFailed{Entry: *u, Why: why}})
}

// sent handles the answer to a send.
func (m *Machine) sent(call int64, p *pendingCall, res proto.Message, why *Failure) {
	u := p.entry
	f := m.sending[u.ChatID]
	if f == nil || f.call != call {
		return // of another generation: it is sent again
	}
	f.call = 0
	if why != nil && !definite(why) {
		m.failed(why)
		f.at = m.cfg.Clock().Add(max(why.RetryAfter, m.backoff(f.tries)))
		f.tries++
		return
	}
	delete(m.sending, u.ChatID)
	m.outbox = slices.DeleteFunc(m.outbox, func(v *OutboxEntry) bool { return v == u })
	r, ok := res.(*messagev1.SendMessageResponse)
	if why != nil || !ok {
		m.giveUp(u, cmp.Or(why, &Failure{Code: connect.CodeInternal}))
		if c := m.chats[u.ChatID]; c != nil && why != nil && why.Reason == reasonNotAMember {
			c.forgetState()
		}
		return
	}
	m.done = append(m.done, u.ClientMessageID)
	m.events = append(m.events, Event{Changed: u.ChatID}) // the message may be there already
	m.poll.hurry(m)
	behind := m.chats[u.ChatID] != nil && m.chats[u.ChatID].Newest < r.GetVersion()-1
	c := m.member(u.ChatID, r.GetVersion(), false)
	if c == nil {
		return
	}
	if behind && m.stream.complete {
		c.askAt = m.cfg.Clock().Add(ownGrace)
	}
	c.change(r.GetVersion()-1, r.GetVersion(), body{message: &messagev1.Message{
		MessageId: r.GetMessageId(), ChatId: u.ChatID, Sequence: r.GetSequence(), SenderId: m.cfg.UserID, Content: u.Content,
		ContentType: messagev1.ContentType_CONTENT_TYPE_TEXT, ClientMessageId: r.GetClientMessageId(),
		CreatedAt: r.GetCreatedAt(), Version: r.GetVersion(),
	}})
}

// definite reports whether repeating a call cannot help.
func definite(why *Failure) bool {
	switch why.Code {
	case connect.CodeInvalidArgument, connect.CodePermissionDenied, connect.CodeNotFound, connect.CodeAlreadyExists,
		connect.CodeFailedPrecondition, connect.CodeOutOfRange, connect.CodeUnimplemented:
		return true
	}
	return false
}
