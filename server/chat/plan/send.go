package plan

import (
	"strings"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// MaxSends is the number of messages that share a plan (3 rows each, a row per
// sender, head and outbox row: 98 writes at most).
const MaxSends = 24

// perSend is about what a send stores besides its content, in bytes, with the
// longest ids that the contracts allow.
const perSend = 4 << 10

// Capacity counts what fits into one plan of sends.
type Capacity struct {
	sends, bytes int
}

// Add counts a message in if it fits; the first always does.
func (c *Capacity) Add(m *command.Message) bool {
	bytes := c.bytes + perSend + 2*len(m.Content)
	if c.sends > 0 && (c.sends == MaxSends || bytes > store.MaxPlanBytes) {
		return false
	}
	c.sends, c.bytes = c.sends+1, bytes
	return true
}

// Sends makes the plan that stores messages, which do not repeat each other, in
// their order. The store evaluates three items for a send: the request's row, unless its
// id is fresh, the sender's own row, and the head. The write to the sender's row checks the
// membership and counts the sender's own messages, which are not unread for the sender; senders of
// several messages have one update. It does not mark anything as read: the sender may not have seen
// what others wrote meanwhile. The chats row is not touched.
func (p Planner) Sends(head table.Head, sends []*command.Message, at int64) (*Plan, error) {
	b := p.builder(head, at, event.Cause{}, 4*len(sends)+2, len(sends))
	b.Sent = b.oneSent[:0]
	if len(sends) > 1 {
		b.Sent = make([]command.Sent, 0, len(sends))
	}
	for _, m := range sends {
		b.send(m)
	}
	for i, m := range sends {
		count, last := messagesOf(sends, m.Caller)
		if i != last {
			continue
		}
		b.update(CondUser, people.MaySend(), table.UserChatKey(m.Caller, head.ChatID), store.Update{Set: []store.Attr{
			{Name: table.AttrOwnLast, Value: store.Int(b.Sent[i].Sequence)},
			{Name: table.AttrChangedAt, Value: store.Int(at)},
		}, Add: []store.Increment{{Name: table.AttrOwnCount, N: count}, {Name: table.AttrRevision, N: 1}}})
	}
	last := sends[len(sends)-1]
	b.Head.LastSequence, b.Head.LastSender, b.Head.LastPreview = b.Head.Sequence, last.Caller, table.Preview(last.Content)
	b.Head.LastAt = at
	for i, m := range sends {
		row := table.Message{
			ChatID: head.ChatID, Sequence: b.Sent[i].Sequence, MessageID: b.Sent[i].MessageID, SenderID: m.Caller,
			Content:     m.Content,
			ContentType: m.ContentType, ClientMessageID: m.ClientMessageID, CreatedAt: at, Version: b.Sent[i].Version,
			ServiceID: m.Cause.Service,
		}
		b.put(table.MessageKey(row.ChatID, row.Sequence), row.Item())
	}
	return b.finish()
}

// send adds the event and the request's row of a message.
func (b *builder) send(m *command.Message) {
	b.Head.Sequence++
	b.cause = m.Cause
	b.cause.Actor = m.Caller
	if b.cause.Causation == "" {
		b.cause.Causation = m.ClientMessageID
	}
	md := b.next(event.TypeMessagePersisted)
	sent := command.Sent{
		MessageID: messageID(md.GetEventId()), ClientMessageID: m.ClientMessageID,
		Sequence: b.Head.Sequence, Version: b.Head.Version, CreatedAt: b.At,
	}
	b.Sent = append(b.Sent, sent)
	b.Events = append(b.Events, &eventv1.MessagePersisted{
		Metadata: md, MessageId: sent.MessageID, ChatId: b.Head.ChatID,
		Sequence: sent.Sequence,
		SenderId: m.Caller, Content: m.Content, ContentType: eventv1.ContentType(m.ContentType),
		ClientMessageId: m.ClientMessageID, CreatedAt: b.time,
	})
	row := table.Request{
		Scope: m.Idempotency.Key, Hash: m.Idempotency.Hash, ChatID: b.Head.ChatID, MessageID: sent.MessageID,
		Sequence: sent.Sequence,
		Version:  sent.Version, CreatedAt: b.At, ExpiresAt: b.At/1000 + int64(table.SendRetention/time.Second),
	}
	b.writes = append(b.writes, store.Write{Op: store.OpPut, Key: table.RequestKey(row.Scope), Item: row.Item(),
		Cond: absent, Name: CondRequest, Fresh: m.Fresh})
}

// messageID is the id of the message of an event: the same number with another prefix, which
// the rows of both need not store twice in full.
func messageID(eventID string) string { return "msg_" + strings.TrimPrefix(eventID, eventPrefix) }

// messagesOf returns how many of the messages a sender has, and the index of the last of them.
func messagesOf(sends []*command.Message, sender string) (count int64, last int) {
	for i, m := range sends {
		if m.Caller == sender {
			count, last = count+1, i
		}
	}
	return count, last
}

// Outcome is what became of a message.
type Outcome struct {
	Sent  command.Sent // without Err
	Err   error
	Retry bool // nothing stood against the message itself: it belongs into another plan
}

// Conflicts decides on the messages of a plan of sends that failed: those whose own
// conditions failed have their outcome, idempotency first; the others are for another
// plan on the head that it returns, the present one if the head's condition failed. It
// fails with ErrNotAMember if there is no such chat.
func (p *Plan) Conflicts(
	failed *store.ConditionError, sends []*command.Message,
) (outcomes []Outcome, head table.Head, err error) {
	head = p.Base
	var requests [MaxSends]*store.Failure
	for i := range failed.Failures {
		f := &failed.Failures[i]
		switch f.Name {
		case CondRequest:
			requests[f.Index] = f // the rows of the requests come first in the plan
		case CondHead:
			if f.Current == nil {
				head, err = table.Head{}, command.ErrNotAMember
				continue
			}
			head = table.HeadFrom(head.ChatID, f.Current)
		}
	}
	outcomes = make([]Outcome, len(sends))
	for i, m := range sends {
		switch {
		case requests[i] != nil:
			outcomes[i].Sent, outcomes[i].Err = m.Replay(requests[i].Current)
		default:
			outcomes[i].Err = p.senderFailed(failed, m.Caller)
			outcomes[i].Retry = outcomes[i].Err == nil
		}
	}
	return outcomes, head, err
}

// senderFailed says why the condition on a sender's row failed; nil if it did not.
func (p *Plan) senderFailed(failed *store.ConditionError, sender string) error {
	for i := range failed.Failures {
		f := &failed.Failures[i]
		if f.Name != CondUser || p.writes[f.Index].Key.PK != sender {
			continue
		}
		if store.Evaluate(table.IsMember(), f.Current) {
			return Barred(f.Current)
		}
		return command.ErrNotAMember
	}
	return nil
}
