package delivery

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/delivery/departed"
	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/delivery/mailbox"
	"github.com/parley-chat/parley/server/delivery/ordered"
	"github.com/parley-chat/parley/server/view"
)

// Stream is one open stream. What may change is guarded by Hub.mu, except plan,
// which belongs to the one caller of Step.
type Stream struct {
	hub     *Hub
	id      string
	user    string
	session string
	opened  time.Time
	box     *mailbox.Mailbox
	plan    opening

	expires  time.Time
	token    string // of the last synchronisation completed
	attached ordered.List[*attachment]
	departed departed.Set    // chats that the stream was told its user has left
	opening  bool            // Step has not finished
	late     map[string]bool // chats to look at once it has
	dead     bool            // its mailbox was full
	dirty    bool            // marked while it was opening
	synced   time.Time       // when the last synchronisation completed was begun
	resync   *resync         // nil: none is due or under way
}

func newStream(h *Hub, p OpenParams, tok view.Token, now time.Time) *Stream {
	return &Stream{
		hub:      h,
		id:       h.cfg.Process + "." + h.cfg.NewID("str_"),
		user:     p.UserID,
		session:  p.SessionID,
		opened:   now,
		box:      mailbox.New(&h.cfg.Limits),
		plan:     newOpening(p, tok),
		expires:  p.ExpiresAt,
		departed: departed.Set{},
		opening:  true,
		late:     map[string]bool{},
	}
}

// ID is the stream's id, which names its process.
func (s *Stream) ID() string { return s.id }

func (s *Stream) hello() *frame.Frame {
	return frame.Hello(&deliveryv1.Hello{
		StreamId:          s.id,
		Generation:        s.hub.cfg.Generation,
		HeartbeatInterval: durationpb.New(s.hub.cfg.Heartbeat),
		Full:              s.plan.full,
		ExpiresAt:         timestamppb.New(s.expires),
	})
}

// Ready signals that Take has something.
func (s *Stream) Ready() <-chan struct{} { return s.box.Ready() }

// Take returns the next frames, at most max, and the position of the first. ended
// is true if nothing will follow them.
func (s *Stream) Take(max int) (first int64, frames []*frame.Frame, ended bool) {
	return s.box.Take(max)
}

// Heartbeat queues a heartbeat with the token of the last synchronisation that
// the stream completed; the token's time does not advance by itself.
func (s *Stream) Heartbeat() {
	s.hub.mu.Lock()
	token := s.token
	s.hub.mu.Unlock()
	s.box.Beat(frame.Heartbeat(token))
}

// Ack takes note that the client has all positions up to one. Errors:
// ErrPosition.
func (s *Stream) Ack(position int64) error {
	now := s.hub.cfg.Clock()
	delivered, err := s.box.Ack(position, now)
	if err == nil {
		s.hub.delivered(s.user, delivered, now)
	}
	return err
}
