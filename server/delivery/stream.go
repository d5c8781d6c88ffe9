package delivery

import (
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/view"
)

// Stream is one open stream. Fields up to mu belong to the hub and are guarded
// by Hub.mu.
type Stream struct {
	hub     *Hub
	id      string
	user    string
	session string
	opened  time.Time

	expires  time.Time
	attached map[string]*attachment
	opening  bool            // Step has not finished
	late     map[string]bool // chats to look at once it has
	dead     bool            // its queue overflowed

	plan opening // of Step, used by one caller

	mu      sync.Mutex
	ready   chan struct{} // signals frames or the end; capacity 1
	queue   []*Frame
	bytes   int // size of queue
	sent    int64
	ended   bool // no frame can follow those in queue
	token   string
	unacked []sentFrame // since the last Ack, oldest first
	size    int         // of unacked
	leased  bool        // the client has acknowledged once
	acked   int64
	ackedAt time.Time
}

// sentFrame is what a stream remembers of a frame until it is acknowledged.
type sentFrame struct {
	position int64
	size     int
	chatID   string
	sequence int64
}

// maxRemembered bounds unacked for streams that never acknowledge.
const maxRemembered = 4096

func newStream(h *Hub, p OpenParams, tok view.Token, now time.Time) *Stream {
	s := &Stream{
		hub:      h,
		id:       h.cfg.Process + "." + h.cfg.NewID("str_"),
		user:     p.UserID,
		session:  p.SessionID,
		opened:   now,
		expires:  p.ExpiresAt,
		attached: map[string]*attachment{},
		opening:  true,
		late:     map[string]bool{},
		ready:    make(chan struct{}, 1),
		ackedAt:  now,
	}
	s.plan = newOpening(p, tok)
	return s
}

// ID is the stream's id, which names its process.
func (s *Stream) ID() string { return s.id }

func (s *Stream) hello() *Frame {
	return newFrame(&deliveryv1.Frame{Body: &deliveryv1.Frame_Hello{Hello: &deliveryv1.Hello{
		StreamId:          s.id,
		Generation:        s.hub.cfg.Generation,
		HeartbeatInterval: durationpb.New(s.hub.cfg.Heartbeat),
		Full:              s.plan.full,
		ExpiresAt:         timestamppb.New(s.expires),
	}}}, 0)
}

// push queues a frame and reports whether the stream took it. It marks the
// stream dead if the queue is full. Callers hold Hub.mu.
func (s *Stream) push(f *Frame) bool {
	if s.dead {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	if len(s.queue) >= s.hub.cfg.MaxQueue || s.bytes+f.size > s.hub.cfg.MaxQueueBytes {
		s.dead = true
		return false
	}
	s.append(f)
	return true
}

func (s *Stream) append(f *Frame) {
	s.queue = append(s.queue, f)
	s.bytes += f.size
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// finish queues the end frame, after which nothing is queued any more. Callers
// hold Hub.mu.
func (s *Stream) finish(code deliveryv1.EndCode, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.append(newFrame(&deliveryv1.Frame{Body: &deliveryv1.Frame_End{End: &deliveryv1.End{
		Code: code, ReconnectAfter: durationpb.New(after), Token: s.token,
	}}}, 0))
	s.ended = true
}

// Ready signals that Take has something, or that the stream has ended.
func (s *Stream) Ready() <-chan struct{} { return s.ready }

// Take returns the next frames, at most max, and the position of the first. ended
// is true if nothing will follow them.
func (s *Stream) Take(max int) (first int64, frames []*Frame, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(max, len(s.queue))
	first = s.sent + 1
	frames = s.queue[:n:n]
	s.queue = s.queue[n:]
	if len(s.queue) == 0 {
		s.queue = nil
	}
	for _, f := range frames {
		s.sent++
		s.bytes -= f.size
		s.remember(f)
	}
	if len(s.queue) > 0 {
		select {
		case s.ready <- struct{}{}:
		default:
		}
	}
	return first, frames, s.ended && len(s.queue) == 0
}

func (s *Stream) remember(f *Frame) {
	if len(s.unacked) >= maxRemembered && !s.leased {
		s.size -= s.unacked[0].size
		s.unacked = s.unacked[1:]
	}
	s.unacked = append(s.unacked, sentFrame{position: s.sent, size: f.size, chatID: f.pb.GetChatId(), sequence: f.sequence})
	s.size += f.size
}

// Heartbeat queues a heartbeat with the token of the last synchronisation that
// the stream completed; the token's time does not advance by itself.
func (s *Stream) Heartbeat() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.append(heartbeat(s.token))
	}
}

func heartbeat(token string) *Frame {
	return newFrame(&deliveryv1.Frame{Body: &deliveryv1.Frame_Heartbeat{Heartbeat: &deliveryv1.Heartbeat{Token: token}}}, 0)
}

// Ack takes note that the client has all positions up to one. Errors:
// ErrPosition.
func (s *Stream) Ack(position int64) error {
	now := s.hub.cfg.Clock()
	delivered := map[string]int64{}
	s.mu.Lock()
	if position > s.sent {
		s.mu.Unlock()
		return ErrPosition
	}
	if position < s.acked {
		s.mu.Unlock()
		return nil
	}
	s.leased, s.acked, s.ackedAt = true, position, now
	n := 0
	for ; n < len(s.unacked) && s.unacked[n].position <= position; n++ {
		f := s.unacked[n]
		s.size -= f.size
		if f.sequence > 0 {
			delivered[f.chatID] = f.sequence
		}
	}
	s.unacked = s.unacked[n:]
	s.mu.Unlock()
	s.hub.delivered(s.user, delivered, now)
	return nil
}

// overdue reports whether a client that acknowledges has left too much
// unacknowledged, or anything for too long.
func (s *Stream) overdue(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.leased || len(s.unacked) == 0 {
		return false
	}
	c := &s.hub.cfg
	return len(s.unacked) > c.MaxUnacked || s.size > c.MaxUnackedSize || now.Sub(s.ackedAt) > c.AckLease
}
