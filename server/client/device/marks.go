package device

import (
	"time"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// Read marks go with the stream's Acks, so that a user who reads messages as they come
// costs one call for many of both. Without a stream, and to servers that take none with
// Acks, each goes with a call of its own.

// mark is how far the user has read a chat, on its way to the server.
type mark struct {
	chat     *chat
	sequence int64
	newest   int64 // of the chat, when the call was made
}

// MarkRead says that the user has read a chat up to a sequence.
func (m *Machine) MarkRead(chatID string, sequence int64) {
	m.step++
	if c := m.chats[chatID]; c != nil && sequence > max(c.State.GetReadSequence(), c.ReadTo) {
		c.ReadTo = sequence
		c.changed()
	}
}

// unmarked reports whether the server still has to learn how far the user has read.
func (c *chat) unmarked() bool { return c.ReadTo > c.State.GetReadSequence() && c.readCall == 0 }

// takesMarks reports whether marks go with the stream's Acks.
func (s *stream) takesMarks() bool { return s.streamID != "" && !s.marksApart }

// planAck acknowledges what has come, and with it the marks that wait.
func (m *Machine) planAck(now time.Time) {
	s := &m.stream
	if s.ackCall != 0 {
		return
	}
	var marks []mark
	var reads []*deliveryv1.ReadMark
	for _, c := range m.pendingChats {
		if now.Before(s.markAt) || !s.takesMarks() || len(marks) == maxMarks {
			break
		}
		if m.chats[c.ChatID] == c && c.unmarked() && !now.Before(c.retryAt) {
			marks = append(marks, mark{c, c.ReadTo, c.Newest})
			reads = append(reads, &deliveryv1.ReadMark{ChatId: c.ChatID, Sequence: c.ReadTo})
		}
	}
	if len(marks) == 0 && (s.acked == s.position || now.Before(s.ackAt)) {
		return
	}
	s.acked, s.ackAt = s.position, now.Add(m.cfg.AckEvery)
	s.ackCall = m.call(Ack, &deliveryv1.AckRequest{StreamId: s.streamID, Position: s.position, ReadMarks: reads},
		pendingCall{marks: marks})
	for _, k := range marks {
		k.chat.readCall, s.markAt = s.ackCall, now.Add(m.cfg.MarkEvery)
	}
}

// planMark reports to the server how far the user has read. It returns false if an Ack will.
func (c *chat) planMark() (done bool) {
	if !c.unmarked() {
		return true
	}
	if c.m.stream.takesMarks() {
		return false
	}
	c.readCall = c.m.call(MarkRead, &messagev1.MarkReadRequest{ChatId: c.ChatID, Sequence: c.ReadTo},
		pendingCall{chat: c, marks: []mark{{c, c.ReadTo, c.Newest}}})
	return true
}

// acknowledged handles the end of an Ack.
func (m *Machine) acknowledged(call int64, p *pendingCall, res proto.Message, why *Failure) {
	r, _ := res.(*deliveryv1.AckResponse)
	outcomes := r.GetReadOutcomes()
	answered := why == nil && len(outcomes) == len(p.marks)
	apart := !answered && len(p.marks) > 0 && (why == nil || definite(why)) // no Ack will bring them
	if s := &m.stream; call == s.ackCall {
		// After a failure a later Ack covers what this one should have.
		s.ackCall, s.marksApart = 0, s.marksApart || apart
	}
	for i, k := range p.marks {
		c := k.chat
		if m.chats[c.ChatID] != c || c.readCall != call {
			continue // the chat was started over since
		}
		c.readCall = 0
		c.wake()
		switch {
		case apart:
		case !answered:
			c.pause(why)
		case outcomes[i].GetReason() == reasonNotAMember:
			m.notAMember(c, k.newest)
		default:
			c.decided(k, outcomes[i].GetState())
		}
	}
}

// decided handles the server's word on a mark: a state without which it was refused.
func (c *chat) decided(k mark, state *chatv1.MemberState) {
	if c.ReadTo <= k.sequence { // more was read meanwhile
		c.ReadTo = 0
	}
	if state != nil {
		c.tries, c.seen = 0, c.m.step
		c.state(state)
	}
	c.changed()
}
