package delivery

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/view"
)

// Stream is one open stream. Hub.mu guards the mutable fields, except catchUp, which
// belongs to the one caller of Step.
type Stream struct {
	hub     *Hub
	id      string
	owner   auth.Principal // that opened it
	opened  time.Time
	queue   *sendQueue
	catchUp catchUp

	expires       time.Time
	token         string // of the last synchronisation completed
	subscriptions sortedList[*subscription]
	departed      departureSet    // chats that the stream was sent its user has left
	catchingUp    bool            // Step has not finished
	pendingChats  map[string]bool // chats to reconcile with once it has
	overflowed    bool            // its queue was full
	pushed        bool            // it stands in Hub.pushed
	needsResync   bool            // invalidated while it was catching up
	synced        time.Time       // when the last synchronisation completed was begun
	resync        *resync         // nil: none is due or under way
}

func newStream(h *Hub, p OpenParams, tok view.Token, now time.Time) *Stream {
	return &Stream{
		hub:          h,
		id:           h.cfg.Process + "." + h.cfg.NewID("str_"),
		owner:        p.Principal,
		opened:       now,
		queue:        newSendQueue(&h.cfg.Limits),
		catchUp:      catchUp{catchUpPlan: planCatchUp(p.Token != "", tok, p.Known)},
		expires:      p.Principal.ExpiresAt,
		departed:     departureSet{},
		catchingUp:   true,
		pendingChats: map[string]bool{},
	}
}

// ID is the stream's id, which names its process.
func (s *Stream) ID() string { return s.id }

func (s *Stream) hello() *frame.Frame {
	return frame.Hello(&deliveryv1.Hello{
		StreamId:          s.id,
		Generation:        s.hub.cfg.History.Generation(),
		HeartbeatInterval: durationpb.New(s.hub.cfg.Heartbeat),
		Full:              s.catchUp.Full,
		ExpiresAt:         timestamppb.New(s.expires),
		ExpiresIn:         durationpb.New(max(s.expires.Sub(s.opened), 0)),
	})
}

// Ready signals that Take has something.
func (s *Stream) Ready() <-chan struct{} { return s.queue.Ready() }

// Take dequeues the next frames, at most max, and returns the position of the first.
// ended is true if nothing will follow them. The slice is valid until the next call.
func (s *Stream) Take(max int) (first int64, frames []*frame.Frame, ended bool) {
	return s.queue.Take(max)
}

// Heartbeat queues a heartbeat with the token of the last synchronisation that
// the stream completed; the token's time does not advance by itself.
func (s *Stream) Heartbeat() {
	s.hub.mu.Lock()
	defer s.hub.unlock()
	s.queue.Heartbeat(frame.Heartbeat(s.token)) // under the lock: an older token never follows a newer one
}

// Ack records that the client has all positions up to one. Errors: ErrPosition.
func (s *Stream) Ack(position int64) error {
	now := s.hub.cfg.Clock()
	delivered, err := s.queue.Ack(position, now)
	if err == nil {
		s.hub.delivered(s.owner.UserID, delivered, now)
	}
	return err
}
