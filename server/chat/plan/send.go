package plan

import (
	"bytes"
	"strconv"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// MaxSends is the number of messages that share a plan (3 rows each, a row per
// sender, head and outbox row: 98 writes at most).
const MaxSends = 24

// perSend is about what a send stores besides its content, in bytes, with the
// longest ids that the contracts allow.
const perSend = 4 << 10

// Message is a send on its way into a plan.
type Message struct {
	Sender          string
	Content         string
	ContentType     int64 // number of the API's enum
	ClientMessageID string
	Cause           event.Cause

	Request // row by which a repetition is recognized
	Sent    Sent
	Err     error // why the message was dropped from its plan
}

// Sent says where a message stands.
type Sent struct {
	MessageID       string
	ClientMessageID string
	Sequence        int64
	Version         int64
	CreatedAt       int64 // unix ms
	Replayed        bool  // the answer to an earlier request with the same id
}

// NewMessage prepares a send.
func NewMessage(chatID, sender, clientID, content string, contentType int64, cause event.Cause) *Message {
	return &Message{
		Sender: sender, Content: content, ContentType: contentType, ClientMessageID: clientID, Cause: cause,
		Request: Request{
			Scope: table.Scope("send", sender, chatID, clientID),
			Hash:  Hash(strconv.FormatInt(contentType, 10), content),
		},
	}
}

// Repeats reports whether a message is the repetition of another by its ids.
func (m *Message) Repeats(other *Message) bool {
	return m.ClientMessageID == other.ClientMessageID && m.Scope == other.Scope
}

// Echo answers the repetition of a message that was stored.
func (m *Message) Echo(first *Message) {
	if !bytes.Equal(m.Hash, first.Hash) {
		m.Err = ErrKeyReused
		return
	}
	m.Sent = first.Sent
	m.Sent.Replayed = true
}

// Answer answers the repetition of a message that was stored before, by the row of its
// request. Errors: ErrKeyReused, which Err is then, too.
func (m *Message) Answer(it store.Item) error {
	var row *table.Request
	if row, m.Err = m.Replay(it); row != nil {
		m.Sent = Sent{
			MessageID: row.MessageID, ClientMessageID: m.ClientMessageID,
			Sequence: row.Sequence, Version: row.Version, CreatedAt: row.CreatedAt, Replayed: true,
		}
	}
	return m.Err
}

// Room counts what fits into one plan of sends.
type Room struct {
	sends, bytes int
}

// Admit takes a message in if it fits; the first always does.
func (r *Room) Admit(m *Message) bool {
	bytes := r.bytes + perSend + 2*len(m.Content)
	if r.sends > 0 && (r.sends == MaxSends || bytes > store.MaxPlanBytes) {
		return false
	}
	r.sends, r.bytes = r.sends+1, bytes
	return true
}

// Sends makes the plan that stores messages, which do not repeat each other, in
// their order. The store evaluates three items for a send: the request's row, the
// sender's own row, and the head. The sender's row is at once the check of the
// membership and the mark of what the sender has read; senders of several
// messages have one update. The chats row is not touched.
func (m Maker) Sends(head table.Head, sends []*Message, at int64) (*Draft, error) {
	d := m.draft(head, at, event.Cause{}, 4*len(sends)+2, len(sends))
	for _, r := range sends {
		d.Head.Sequence++
		r.Err = nil
		r.Sent = Sent{
			MessageID: m.NewID("msg_"), ClientMessageID: r.ClientMessageID,
			Sequence: d.Head.Sequence, Version: d.Head.Version + 1, CreatedAt: at,
		}
		d.cause = r.Cause
		d.cause.Actor = r.Sender
		if d.cause.Causation == "" {
			d.cause.Causation = r.ClientMessageID
		}
		d.Events = append(d.Events, &eventv1.MessagePersisted{
			Metadata: d.next(event.TypeMessagePersisted), MessageId: r.Sent.MessageID, ChatId: head.ChatID, Sequence: r.Sent.Sequence,
			SenderId: r.Sender, Content: r.Content, ContentType: eventv1.ContentType(r.ContentType),
			ClientMessageId: r.ClientMessageID, CreatedAt: d.time,
		})
		row := table.Request{
			Scope: r.Scope, Hash: r.Hash, ChatID: head.ChatID, MessageID: r.Sent.MessageID, Sequence: r.Sent.Sequence,
			Version: r.Sent.Version, CreatedAt: at, ExpiresAt: at/1000 + int64(table.SendRetention/time.Second),
		}
		d.putIf(CondRequest, absent, table.RequestKey(r.Scope), row.Item())
	}
	for i, r := range sends {
		if sendsAgain(sends[i+1:], r.Sender) {
			continue // the last message of a sender decides how far the sender has read
		}
		d.update(CondUser, table.IsMember(), table.UserChatKey(r.Sender, head.ChatID), store.Update{Set: []store.Attr{
			{Name: table.AttrReadSequence, Value: store.Int(r.Sent.Sequence)},
			{Name: table.AttrChangedAt, Value: store.Int(at)},
		}, Add: raised})
	}
	last := sends[len(sends)-1]
	d.Head.LastSequence, d.Head.LastSender, d.Head.LastPreview = last.Sent.Sequence, last.Sender, table.Preview(last.Content)
	d.Head.LastAt = at
	for _, r := range sends {
		row := table.Message{
			ChatID: head.ChatID, Sequence: r.Sent.Sequence, MessageID: r.Sent.MessageID, SenderID: r.Sender, Content: r.Content,
			ContentType: r.ContentType, ClientMessageID: r.ClientMessageID, CreatedAt: at, Version: r.Sent.Version,
		}
		d.put(table.MessageKey(row.ChatID, row.Sequence), row.Item())
	}
	return d, d.finish()
}

func sendsAgain(later []*Message, sender string) bool {
	for _, r := range later {
		if r.Sender == sender {
			return true
		}
	}
	return false
}

// Drop answers the messages whose own conditions failed, idempotency first, and
// returns the others, in order, for another plan on the head that it returns: the
// present one if the head's condition failed. The answered ones have Err set, or
// an earlier result in Sent. It fails with ErrNotAMember if there is no such chat.
func (d *Draft) Drop(failed *store.ConditionError, sends []*Message) (left []*Message, head table.Head, err error) {
	head = d.Base
	var requests [MaxSends]*store.Failure
	for i := range failed.Failures {
		f := &failed.Failures[i]
		switch f.Name {
		case CondRequest:
			requests[f.Index] = f // the rows of the requests come first in the plan
		case CondHead:
			if f.Current == nil {
				head, err = table.Head{}, ErrNotAMember
				continue
			}
			head = table.HeadFrom(head.ChatID, f.Current)
		}
	}
	for i, r := range sends {
		switch {
		case requests[i] != nil:
			_ = r.Answer(requests[i].Current) // it is in r.Err
		case d.refused(failed, r.Sender):
			r.Err = ErrNotAMember
		default:
			left = append(left, r)
		}
	}
	return left, head, err
}

// refused reports whether the condition on a sender's row failed.
func (d *Draft) refused(failed *store.ConditionError, sender string) bool {
	for i := range failed.Failures {
		if f := &failed.Failures[i]; f.Name == CondUser && d.writes[f.Index].Key.PK == sender {
			return true
		}
	}
	return false
}
