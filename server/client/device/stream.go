package device

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
)

// stream is the state of the one stream of a device.
type stream struct {
	id         int64            // of the Subscribe call; 0 without a stream
	asked      string           // the history that it said
	streamID   string           // from hello; empty before it
	generation string           // from hello, if the server compares histories
	known      map[string]int64 // newest version of the chats that were named, then
	listing    bool             // the head frames until the first token list all chats
	listFrom   int64            // tick of the call
	complete   bool             // a token came: everything missed was sent
	end        *deliveryv1.End

	position, acked int64
	ackCall         int64
	ackAt, markAt   time.Time // of the next Ack for frames, and for read marks
	marksApart      bool      // this server takes no marks with Acks
	extendCall      int64
	extendAt        time.Time
	heard           time.Time

	connectAt time.Time // of the next stream
	tries     int       // streams since the last one that was complete
}

// planStream opens the stream, and keeps it.
func (m *Machine) planStream(now time.Time) {
	s := &m.stream
	if s.id != 0 && now.Sub(s.heard) >= m.silence() {
		m.closeStream(now)
	}
	if s.id == 0 {
		if !m.sync.need && !now.Before(s.connectAt) {
			m.subscribe(now)
		}
		return
	}
	if s.streamID == "" {
		return
	}
	m.planAck(now)
	if !s.extendAt.IsZero() && s.extendCall == 0 && !now.Before(s.extendAt) {
		s.extendCall = m.call(Extend, &deliveryv1.ExtendRequest{StreamId: s.streamID}, pendingCall{})
	}
}

func (m *Machine) closeStream(now time.Time) {
	m.lastCall++
	m.out = append(m.out, Call{ID: m.lastCall, Kind: CloseStream, Stream: m.stream.id})
	m.retry(now, m.backoff(m.stream.tries))
}

func (m *Machine) subscribe(now time.Time) {
	s := &m.stream
	req := &deliveryv1.SubscribeRequest{Token: m.session.Token}
	s.known = map[string]int64{}
	var recent []*chat
	if req.Token != "" { // without it the stream lists all chats by their heads
		recent = m.mostRecent(maxKnown)
	}
	for _, c := range recent {
		s.known[c.ChatID] = c.Newest
		req.KnownChats = append(req.KnownChats, &deliveryv1.KnownChat{ChatId: c.ChatID, Version: c.Version})
	}
	s.asked = m.session.history()
	s.id, s.heard, s.listFrom = m.call(Subscribe, req, pendingCall{}), now, m.step
}

// mostRecent returns the loaded chats that changed last, at most n.
func (m *Machine) mostRecent(n int) []*chat {
	list := slices.DeleteFunc(m.sorted(), func(c *chat) bool { return !c.Loaded })
	if len(list) > n {
		slices.SortStableFunc(list, func(a, b *chat) int {
			return b.Head.GetChangedAt().AsTime().Compare(a.Head.GetChangedAt().AsTime())
		})
		list = list[:n]
		slices.SortFunc(list, func(a, b *chat) int { return strings.Compare(a.ChatID, b.ChatID) })
	}
	return list
}

// Frames applies what came on the stream that a Subscribe call opened.
func (m *Machine) Frames(call int64, res *deliveryv1.SubscribeResponse) {
	m.step++
	s := &m.stream
	if call != s.id || m.stopped {
		return
	}
	s.heard = m.cfg.Clock()
	if n := int64(len(res.GetFrames())); n > 0 {
		if res.GetFirstPosition() != s.position+1 {
			m.closeStream(s.heard)
			return
		}
		s.position += n
	}
	if !m.follows(res) {
		m.closeStream(s.heard)
		return
	}
	for _, f := range res.GetFrames() {
		m.frame(f)
	}
}

// follows takes what a response of the stream says of the store's history, before its frames, and
// reports whether they may be applied.
func (m *Machine) follows(res *deliveryv1.SubscribeResponse) bool {
	s := &m.stream
	var hello *deliveryv1.Hello
	if len(res.GetFrames()) > 0 {
		hello = res.GetFrames()[0].GetHello()
	}
	switch {
	case hello != nil && res.GetCommit() == 0:
		m.generation(hello.GetGeneration())
		return true
	case hello != nil:
		s.generation = hello.GetGeneration()
		return m.reach(s.asked, s.generation, res.GetCommit())
	case s.generation == "":
		return true
	}
	return m.reach("", s.generation, res.GetCommit()) // only in the generation that the device is in
}

func (m *Machine) frame(f *deliveryv1.Frame) {
	id := f.GetChatId()
	switch b := f.GetBody().(type) {
	case *deliveryv1.Frame_Hello:
		m.hello(b.Hello)
	case *deliveryv1.Frame_Heartbeat:
		m.heartbeat(b.Heartbeat.GetToken())
	case *deliveryv1.Frame_End:
		m.stream.end = b.End
		if t := b.End.GetToken(); t != "" && !m.sync.need {
			m.setToken(t)
		}
	case *deliveryv1.Frame_Reset_:
		m.reset(id, b.Reset_.GetVersion())
	case *deliveryv1.Frame_Head:
		if b.Head.GetOverview() != nil {
			m.overview(b.Head.GetOverview(), true)
		} else {
			m.member(id, b.Head.GetVersion(), true)
		}
	case *deliveryv1.Frame_MemberState:
		// It may come before the chat, which may have been read before it.
		if c := m.member(id, 0, false); c != nil {
			c.state(b.MemberState)
		} else if b.MemberState.GetRevision() > m.early[id].GetRevision() {
			m.early[id] = b.MemberState // perhaps of the membership that is about to be shown
		}
	case *deliveryv1.Frame_Message:
		m.change(f, body{message: b.Message})
	case *deliveryv1.Frame_Chat:
		m.change(f, body{chat: b.Chat})
	case *deliveryv1.Frame_MembershipChange:
		mc := b.MembershipChange
		switch own := mc.GetUserId() == m.cfg.UserID; {
		case !own || mc.GetKind() != messagev1.MembershipChange_KIND_REMOVED:
			m.change(f, body{membership: mc})
		case f.GetVersion() > 0:
			m.removed(id, f.GetVersion())
		default: // named in the subscription, but not a chat of the user then
			if c := m.chats[id]; c != nil {
				m.notAMember(c, m.stream.known[id])
			}
		}
	default: // of a newer release
		m.change(f, body{})
	}
}

func (m *Machine) change(f *deliveryv1.Frame, b body) {
	if f.GetVersion() == 0 || f.GetChatId() == "" {
		return
	}
	if c := m.member(f.GetChatId(), f.GetVersion(), true); c != nil {
		c.change(f.GetAfterVersion(), f.GetVersion(), b)
	}
}

func (m *Machine) hello(h *deliveryv1.Hello) {
	s := &m.stream
	s.streamID, s.listing = h.GetStreamId(), h.GetFull()
	m.poll.mute = 0
	m.expires(h)
}

// expiry is what hello and the answer to Extend say.
type expiry interface {
	GetExpiresAt() *timestamppb.Timestamp
	GetExpiresIn() *durationpb.Duration
}

// expires has the stream extended before its time is over, but not all the time: an earlier release says only when
// that is, by a clock that may differ.
func (m *Machine) expires(e expiry) {
	m.stream.extendAt = time.Time{}
	if e.GetExpiresAt() == nil {
		return
	}
	now := m.cfg.Clock()
	left := e.GetExpiresAt().AsTime().Sub(now)
	if e.GetExpiresIn() != nil {
		left = e.GetExpiresIn().AsDuration()
	}
	m.stream.extendAt = now.Add(max(left-m.cfg.ExtendBefore, lastBackoff))
}

func (m *Machine) heartbeat(token string) {
	if token == "" {
		return // the stream has not yet sent all that was missed
	}
	s := &m.stream
	if s.listing {
		s.listing = false
		m.dropUnlisted(s.listFrom)
	}
	if !s.complete {
		s.complete, s.tries = true, 0
		m.poll = polling{}
		m.events = append(m.events, Event{Connected: true})
	}
	if !m.sync.need {
		m.setToken(token)
	}
}

// dropUnlisted drops the chats that a full list, requested at a step, did not
// name. An answer that came since may be newer than the list or older: those
// chats are read again, which decides.
func (m *Machine) dropUnlisted(from int64) {
	for _, c := range m.sorted() {
		switch {
		case c.listed >= from:
		case c.seen < from:
			m.leave(c.ChatID, c.Newest+1)
		default:
			c.forgetState()
		}
	}
}

func (m *Machine) reset(chatID string, version int64) {
	if chatID == "" {
		m.dropVersions()
		m.resync()
		return
	}
	if c := m.member(chatID, version, true); c != nil {
		c.restart()
	}
}

// StreamEnded handles the end of a stream, after its last frames; why is nil
// for an end without an error.
func (m *Machine) StreamEnded(call int64, why *Failure) {
	m.step++
	s := &m.stream
	delete(m.calls, call)
	if call != s.id || m.stopped {
		return
	}
	if why == nil {
		why = &Failure{Code: connect.CodeUnavailable, Err: errors.New("device: the stream ended")}
	}
	now := m.cfg.Clock()
	end, tries, asked := s.end, s.tries, s.asked
	wait := max(end.GetReconnectAfter().AsDuration(), why.RetryAfter)
	if why.Reason != "" {
		s.heard = now // the server's refusal came through
	}
	m.retry(now, wait)
	later := func() { m.connectAfter(now, max(wait, m.backoff(tries))) }
	switch end.GetCode() {
	case deliveryv1.EndCode_END_CODE_DRAIN: // the server spreads its clients itself
		if tries > 0 {
			later()
		}
	case deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED:
		m.needRefresh = true
	case deliveryv1.EndCode_END_CODE_SESSION_REVOKED, deliveryv1.EndCode_END_CODE_REPLACED:
		why = &Failure{Code: why.Code, Reason: strings.TrimPrefix(end.GetCode().String(), "END_CODE_"),
			Err: fmt.Errorf("device: stream ended: %s", end.GetCode())}
		m.stop(why)
	case deliveryv1.EndCode_END_CODE_SLOW, deliveryv1.EndCode_END_CODE_RESYNC:
		later()
	default:
		later()
		if why.Reason == reasonInvalidToken {
			m.resync()
		}
		m.refused(asked, why)
		m.failed(why)
	}
}

// failed does what a failure of any call requires beyond a retry.
func (m *Machine) failed(why *Failure) {
	switch {
	case why.Reason == reasonSessionRevoked:
		m.stop(why)
	case why.Code == connect.CodeUnauthenticated:
		m.needRefresh = true
	}
}
