package chat

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Send asks for a message to be stored.
type Send struct {
	Caller          string
	ChatID          string
	ClientMessageID string // UUID; empty: the service makes one
	Content         string
	ContentType     int64 // number of the API's enum
	Cause           event.Cause
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

// Send stores a message. Errors: ErrInvalidArgument, ErrNotAMember,
// ErrKeyReused, and the store's; after store.ErrAmbiguous the message may be
// stored, which a repetition with the same ClientMessageID finds out.
func (s *Service) Send(ctx context.Context, r Send) (Sent, error) {
	if len(r.Content) == 0 || len(r.Content) > MaxContent {
		return Sent{}, fmt.Errorf("%w: content must have 1 to %d bytes", ErrInvalidArgument, MaxContent)
	}
	if r.ClientMessageID == "" {
		r.ClientMessageID = newRequestID()
	}
	c := &sendCommand{
		Send:  r,
		scope: table.Scope("send", r.Caller, r.ChatID, r.ClientMessageID),
		hash:  r.hash(),
	}
	err := s.submit(ctx, r.ChatID, &command{send: c})
	if err != nil {
		return Sent{}, err
	}
	return c.sent, nil
}

func (r *Send) hash() []byte {
	h := sha256.New()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(r.ContentType))
	h.Write(n[:])
	h.Write([]byte(r.Content))
	return h.Sum(nil)
}

type sendCommand struct {
	Send
	scope string
	hash  []byte
	sent  Sent
}

// group counts what a plan of several sends holds.
type group struct {
	scopes  []string
	senders []string
	bytes   int
}

// perSend is about what a send stores besides its content, in bytes.
const perSend = 2 << 10

func newGroup(first *sendCommand) *group {
	g := &group{}
	g.admit(first)
	return g
}

// admit takes a send into the group if it fits: 3 rows a message, an update per
// sender, head and outbox row make up at most 100 writes and 4 MB; a request id
// stands in a plan once, its repetition goes into the next, where it finds the
// row of the first.
func (g *group) admit(c *sendCommand) bool {
	n, bytes := len(g.scopes)+1, g.bytes+perSend+2*len(c.Content)
	senders := len(g.senders)
	known := false
	for _, u := range g.senders {
		known = known || u == c.Caller
	}
	if !known {
		senders++
	}
	if n > maxGroup || 3*n+senders+2 > store.MaxPlanWrites || bytes > store.MaxPlanBytes {
		return false
	}
	for _, s := range g.scopes {
		if s == c.scope {
			return false
		}
	}
	g.scopes, g.bytes = append(g.scopes, c.scope), bytes
	if !known {
		g.senders = append(g.senders, c.Caller)
	}
	return true
}

// runSends stores the messages of a group in one plan. It drops the sends whose
// own conditions failed and goes again with the others.
func (s *Service) runSends(ctx context.Context, chatID string, batch []*command) {
	left := batch[:0:0]
	for _, c := range batch {
		if err := c.ctx.Err(); err != nil {
			c.finish(err)
			continue
		}
		left = append(left, c)
	}
	head, err := s.head(ctx, chatID)
	for attempt := 0; len(left) > 0; attempt++ {
		if err != nil {
			finishAll(left, err)
			return
		}
		if attempt > 3 { // another process is at the same chat: let it through
			if err = s.cfg.Sleep(ctx, time.Duration(attempt)*time.Millisecond); err != nil {
				continue
			}
		}
		d, err2 := s.draftSends(head, left)
		if err2 != nil {
			finishAll(left, err2)
			return
		}
		txErr := s.transact(ctx, d.plan())
		failed := conditionError(txErr)
		if txErr == nil || (failed != nil && oursSent(failed, left)) {
			s.committed(d)
			finishAll(left, nil)
			return
		}
		s.forget(chatID)
		if failed == nil {
			finishAll(left, txErr)
			return
		}
		left = dropFailed(failed, left)
		if f, ok := failed.Failed(condHead); ok {
			if f.Current == nil {
				err = ErrNotAMember
				continue
			}
			head = table.HeadFrom(chatID, f.Current)
		}
	}
}

func finishAll(commands []*command, err error) {
	for _, c := range commands {
		c.finish(err)
	}
}

// draftSends makes the plan of a group of sends (design: a send evaluates three
// items, the sender's row, the head and the request's row; message, event and
// outbox row are covered by the comparison of the head).
func (s *Service) draftSends(head table.Head, sends []*command) (*draft, error) {
	d := s.newDraft(head, event.Cause{})
	d.writes = make([]store.Write, 0, 4*len(sends)+2)
	d.events = make([]event.Event, 0, len(sends))
	for i, c := range sends {
		r := c.send
		d.cause = r.Cause
		d.cause.Actor = r.Caller
		if d.cause.Causation == "" {
			d.cause.Causation = r.ClientMessageID
		}
		d.head.Sequence++
		md := d.next(event.TypeMessagePersisted)
		m := table.Message{
			ChatID: head.ChatID, Sequence: d.head.Sequence, MessageID: s.cfg.NewID("msg_"), SenderID: r.Caller,
			Content: r.Content, ContentType: r.ContentType, ClientMessageID: r.ClientMessageID,
			CreatedAt: d.at, Version: d.head.Version,
		}
		r.sent = Sent{MessageID: m.MessageID, ClientMessageID: r.ClientMessageID, Sequence: m.Sequence, Version: m.Version, CreatedAt: d.at}
		row := table.Request{
			Scope: r.scope, Hash: r.hash, ChatID: head.ChatID, MessageID: m.MessageID, Sequence: m.Sequence, Version: m.Version,
			CreatedAt: d.at, ExpiresAt: d.at/1000 + int64(table.SendRetention/time.Second),
		}
		d.putIf(table.RequestKey(r.scope), row.Item(), store.Absent(), condRequest+strconv.Itoa(i))
		d.put(table.MessageKey(m.ChatID, m.Sequence), m.Item())
		err := d.record(&eventv1.MessagePersisted{
			Metadata: md, MessageId: m.MessageID, ChatId: m.ChatID, Sequence: m.Sequence, SenderId: m.SenderID,
			Content: m.Content, ContentType: eventv1.ContentType(m.ContentType), ClientMessageId: m.ClientMessageID, CreatedAt: d.time(),
		})
		if err != nil {
			return nil, err
		}
	}
	last := sends[len(sends)-1].send
	d.head.LastSender, d.head.LastPreview = last.Caller, table.Preview(last.Content)
	// The last message of each sender decides how far the sender has read; one
	// update per sender.
	done := make([]string, 0, len(sends))
	for i := len(sends) - 1; i >= 0; i-- {
		r := sends[i].send
		if contains(done, r.Caller) {
			continue
		}
		done = append(done, r.Caller)
		d.writes = append(d.writes, store.Write{
			Op: store.OpUpdate, Key: table.UserChatKey(r.Caller, head.ChatID),
			Update: store.Update{Set: []store.Attr{
				{Name: table.AttrReadSequence, Value: store.Int(r.sent.Sequence)},
				{Name: table.AttrChangedAt, Value: store.Int(d.at)},
			}},
			Cond: isMember(), Name: condUser + r.Caller,
		})
	}
	return d, nil
}

// isMember is the condition on a user's row that makes the user a member.
func isMember() store.Condition { return store.Exists().Without(table.AttrLeftVersion) }

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// oursSent reports whether a plan failed only because it had been committed
// before: a request's row holds the message of this very plan.
func oursSent(failed *store.ConditionError, sends []*command) bool {
	f, ok := failed.Failed(condRequest + "0")
	return ok && table.RequestFrom("", f.Current).MessageID == sends[0].send.sent.MessageID
}

// dropFailed answers the sends whose own conditions failed, idempotency first,
// and returns the others.
func dropFailed(failed *store.ConditionError, sends []*command) []*command {
	left := sends[:0:0]
	for i, c := range sends {
		r := c.send
		if f, ok := failed.Failed(condRequest + strconv.Itoa(i)); ok {
			row := table.RequestFrom(r.scope, f.Current)
			if !bytes.Equal(row.Hash, r.hash) {
				c.finish(ErrKeyReused)
				continue
			}
			r.sent = Sent{
				MessageID: row.MessageID, ClientMessageID: r.ClientMessageID,
				Sequence: row.Sequence, Version: row.Version, CreatedAt: row.CreatedAt, Replayed: true,
			}
			c.finish(nil)
			continue
		}
		if _, ok := failed.Failed(condUser + r.Caller); ok {
			c.finish(ErrNotAMember)
			continue
		}
		left = append(left, c)
	}
	return left
}
