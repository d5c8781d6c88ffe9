// Package delivery brings what was committed to the open streams of members.
//
// A [Hub] holds the streams of one process. Whoever commits a change, or learns
// of one, calls [Hub.Deliver]; source, order and repetition of the calls do not
// matter. The hub gives each stream a chat's changes in version order, drops
// what is not newer, and on a hole waits a moment and then reads the missing
// events from the store, once for all its streams. Where it may have missed
// something and nobody knows what, [Hub.MarkDirty] has the streams synchronise
// anew. It owns positions and membership of streams, the bounded queues, acknowledgements and the end of
// streams; it does not own the transport (package api sends what [Stream.Take]
// returns), the reads (package view) or the contents of the store.
//
// # Concurrency
//
// Hub and Stream are state machines: they start no goroutine and read no clock
// but the one given. Everything that needs the store is a piece of [Work] that
// somebody asks for ([Hub.Work]) and performs ([Hub.Do]); [Hub.Run] does so with
// a few goroutines, a test steps it. All methods may be called from many
// goroutines. Lock order: Hub.mu, then that of a mailbox; neither is held across a call
// of Source or a hook of Config.
package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/delivery/due"
	"github.com/parley-chat/parley/server/delivery/frame"
	"github.com/parley-chat/parley/server/delivery/mailbox"
	"github.com/parley-chat/parley/server/delivery/watermark"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/view"
)

// Source is what the hub reads; *view.Reader is one. All reads are consistent.
type Source interface {
	// UserChats returns all chats of a user, those left included.
	UserChats(ctx context.Context, user string) ([]table.UserChat, error)
	// UserChatsOf returns the user's rows of some chats, nil where there is none.
	UserChatsOf(ctx context.Context, user string, chatIDs []string) ([]*table.UserChat, error)
	// Heads returns the heads of chats, nil where there is none.
	Heads(ctx context.Context, chatIDs []string) ([]*table.Head, error)
	// Events returns up to limit events that follow a version, without gaps.
	Events(ctx context.Context, chatID string, after int64, limit int) ([]event.Event, error)
	// MemberIDs returns the members of a chat and a membership version that the
	// list is not older than.
	MemberIDs(ctx context.Context, chatID string) (int64, []string, error)
	// Overviews returns what the user may see of chats: heads first, the user's
	// rows last. Chats that the last row forbids are left out.
	Overviews(ctx context.Context, user string, rows []table.UserChat) ([]*chatv1.ChatOverview, error)
	// Begin returns where the reads of a synchronisation begin.
	Begin(ctx context.Context) (view.Start, error)
	// NewToken makes a synchronisation token for reads that began there.
	NewToken(user string, from view.Start) string
	// Token checks a synchronisation token.
	Token(ctx context.Context, user, token string) (view.Token, error)
}

// Config sets up a Hub. Zero limits take the defaults.
type Config struct {
	Generation string                      // generation of the store; other generations are dropped
	Process    string                      // id of this process, the first part of stream ids
	Source     Source                      // consistent reads
	Durable    func(context.Context) error // waits until what was read is on stable storage
	Clock      func() time.Time            //
	NewID      func(prefix string) string  // makes stream ids
	Delivered  func(ctx context.Context, user, chatID string, sequence int64) error
	// Revoked, if given, says whether a session was ended. It is asked after a stream
	// was registered: Revoke finds what is open, and this what is being opened.
	Revoked func(session string) bool

	HoleWait       time.Duration // how long a missing change may still arrive by itself; 20 ms
	Heartbeat      time.Duration // interval announced in hello; 15 s
	Lifetime       time.Duration // a stream synchronises anew after this; 24 h
	WatermarkEvery time.Duration // least time between two delivered watermarks of a user and chat; 5 s
	Spread         time.Duration // over which streams synchronise anew after MarkDirty; 10 s
	MaxStreams     int           // of one user; the oldest gives way; 10
	MaxReplay      int           // changes of one known chat that a stream replays; 500
	MaxRecent      int           // changes of a chat kept for streams that are opening; 32
	// Limits bound each stream: 2,048 frames and 4 MiB waiting, 1,000 frames and
	// 1 MiB unacknowledged, 90 s of lease.
	Limits mailbox.Limits
}

func (c Config) withDefaults() (Config, error) {
	if c.Generation == "" || c.Source == nil || c.Clock == nil || c.NewID == nil {
		return c, errors.New("delivery: generation, source, clock and ids are required")
	}
	if c.Durable == nil {
		c.Durable = func(context.Context) error { return nil }
	}
	if c.Delivered == nil {
		c.Delivered = func(context.Context, string, string, int64) error { return nil }
	}
	if c.Revoked == nil {
		c.Revoked = func(string) bool { return false }
	}
	c.HoleWait = cmp.Or(c.HoleWait, 20*time.Millisecond)
	c.Heartbeat = cmp.Or(c.Heartbeat, 15*time.Second)
	c.Lifetime = cmp.Or(c.Lifetime, 24*time.Hour)
	c.WatermarkEvery = cmp.Or(c.WatermarkEvery, 5*time.Second)
	c.Spread = cmp.Or(c.Spread, 10*time.Second)
	c.MaxStreams = cmp.Or(c.MaxStreams, 10)
	c.MaxReplay = cmp.Or(c.MaxReplay, 500)
	c.MaxRecent = cmp.Or(c.MaxRecent, 32)
	c.Limits.Lease = cmp.Or(c.Limits.Lease, 90*time.Second)
	c.Limits.Frames = cmp.Or(c.Limits.Frames, 2048)
	c.Limits.Bytes = cmp.Or(c.Limits.Bytes, 4<<20)
	c.Limits.Unacked = cmp.Or(c.Limits.Unacked, 1000)
	c.Limits.UnackedBytes = cmp.Or(c.Limits.UnackedBytes, 1<<20)
	return c, nil
}

// Delivery says that a chat has changed.
type Delivery struct {
	Generation        string
	ChatID            string
	Version           int64    // of the last change
	MembershipVersion int64    // of the chat, with that change
	Targets           []string // users whose membership the changes began or ended
	// Events are the changes, in consecutive versions that end with Version. A
	// delivery without events only says that there are changes, any number of them.
	Events []event.Event
	// Payloads are the encoded Events, one for each, or none: a link that sends them on
	// need not encode them again.
	Payloads [][]byte
}

// Of makes the delivery of committed events of one chat, in version order; it
// must not be empty.
func Of(events []event.Event) Delivery {
	last := events[len(events)-1]
	md := last.GetMetadata()
	d := Delivery{
		Generation:        md.GetGeneration(),
		ChatID:            last.GetChatId(),
		Version:           md.GetVersion(),
		MembershipVersion: md.GetMembershipVersion(),
		Events:            events,
	}
	for _, e := range events {
		if target, effect := frame.EffectOf(e); effect != frame.None {
			d.Targets = append(d.Targets, target)
		}
	}
	return d
}

// Hub holds the open streams of one process.
type Hub struct {
	cfg  Config
	wake chan struct{} // signals that there may be work; capacity 1

	mu       sync.Mutex
	draining bool
	streams  map[string]*Stream
	users    map[string][]*Stream // oldest first
	chats    map[string]*chatState
	checked  map[string]int64 // chats without attachments: see chatState.checked
	checks   map[string]*check
	joins    map[join]*joinState
	marks    watermark.Set
	queue    due.Queue[Work]
	mark     uint64 // grows with every MarkDirty
	serial   uint64 // of the newest chatState
	stats    Stats
}

// maxChecked bounds Hub.checked; forgetting an entry costs one read.
const maxChecked = 1 << 16

// Stats counts what a hub did since it was made, and what it holds.
type Stats struct {
	Streams    int   // open now
	Chats      int   // with at least one stream now
	Opened     int64 // streams
	Frames     int64 // queued for streams
	HoleReads  int64 // reads of missing events
	Checks     int64 // reads of member lists
	Slow       int64 // streams ended as slow
	Foreign    int64 // deliveries of other generations
	Duplicates int64 // changes that were not newer
	Marks      int64 // times that something may have been lost
	Resyncs    int64 // synchronisations of streams because of that
}

// New makes a hub without streams.
func New(cfg Config) (*Hub, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Hub{
		cfg:     cfg,
		wake:    make(chan struct{}, 1),
		streams: map[string]*Stream{},
		users:   map[string][]*Stream{},
		chats:   map[string]*chatState{},
		checked: map[string]int64{},
		checks:  map[string]*check{},
		joins:   map[join]*joinState{},
		marks:   watermark.Set{},
	}, nil
}

// Generation is that of the store.
func (h *Hub) Generation() string { return h.cfg.Generation }

// Stats returns the counters.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.stats
	s.Streams, s.Chats = len(h.streams), len(h.chats)
	return s
}

// Deliver takes note of changes of a chat and queues them for the streams of
// its members. It does not wait for anything.
func (h *Hub) Deliver(d Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if d.Generation != h.cfg.Generation {
		h.stats.Foreign++
		return
	}
	if len(h.streams) == 0 {
		return
	}
	cs := h.chats[d.ChatID]
	if cs == nil {
		// No stream is attached, so there is no position to compare with: what is
		// to be done is found out by reading. A membership change concerns its
		// targets' streams, any other change those that should be attached and are
		// not, because an earlier change of the membership never came.
		for _, user := range d.Targets {
			h.joinUnattached(d.ChatID, user, d.Version)
		}
		if h.checked[d.ChatID] < d.MembershipVersion {
			h.requestCheck(d.ChatID, d.MembershipVersion)
		}
		return
	}
	for _, e := range d.Events {
		if !cs.Receive(e) {
			h.stats.Duplicates++
		}
	}
	cs.Wanted = max(cs.Wanted, d.Version)
	h.advance(cs)
	walked := !cs.Known || d.Version <= cs.Version
	if walked || len(d.Events) == 0 {
		// The changes were walked, now or before, or happened before the first
		// attachment: then a target's stream is not attached, or attached by a later
		// addition. Or they only wait in the buffer of a chat without a position, and
		// are gone with it if the stream that is opening ends. Of the changes of a
		// repair this may be true of the first ones only.
		for _, user := range d.Targets {
			h.joinUnattached(d.ChatID, user, d.Version)
		}
	}
	if walked && cs.checked < d.MembershipVersion {
		h.requestCheck(d.ChatID, d.MembershipVersion)
	}
}

// Receipt shows a user's own state in a chat to all the user's streams.
func (h *Hub) Receipt(user, chatID string, state *chatv1.MemberState) {
	f := frame.Receipt(chatID, state)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.users[user] {
		h.push(s, f)
	}
	h.dropDead(h.users[user])
}

// OpenParams describe a stream to open.
type OpenParams struct {
	UserID    string
	SessionID string
	ExpiresAt time.Time
	Token     string
	Known     []*deliveryv1.KnownChat
}

// Open registers a stream and queues its hello. The caller goes on with
// [Stream.Step] until the opening is done, and must call [Hub.Close] in the end.
// Errors: ErrDraining, ErrSessionRevoked, and those of Source.Token.
func (h *Hub) Open(ctx context.Context, p OpenParams) (*Stream, error) {
	s, err := h.register(ctx, p)
	if err == nil && h.cfg.Revoked(p.SessionID) {
		h.Close(s)
		return nil, ErrSessionRevoked
	}
	return s, err
}

func (h *Hub) register(ctx context.Context, p OpenParams) (*Stream, error) {
	now := h.cfg.Clock()
	tok := view.Token{Full: true}
	if p.Token != "" {
		var err error
		if tok, err = h.cfg.Source.Token(ctx, p.UserID, p.Token); err != nil {
			return nil, err
		}
	}
	s := newStream(h, p, tok, now)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		return nil, ErrDraining
	}
	if mine := h.users[p.UserID]; len(mine) >= h.cfg.MaxStreams {
		h.end(mine[0], deliveryv1.EndCode_END_CODE_REPLACED, 0)
	}
	h.streams[s.id] = s
	h.users[p.UserID] = append(h.users[p.UserID], s)
	h.stats.Opened++
	h.push(s, s.hello())
	return s, nil
}

// Close forgets a stream. Closing twice is harmless.
func (h *Hub) Close(s *Stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(s)
	s.box.Finish(nil)
}

// remove takes a stream out of all indexes. Callers hold mu.
func (h *Hub) remove(s *Stream) {
	if h.streams[s.id] != s {
		return
	}
	delete(h.streams, s.id)
	mine := h.users[s.user]
	for i, t := range mine {
		if t == s {
			// A copy, because callers may be walking the old slice.
			mine = append(append([]*Stream(nil), mine[:i]...), mine[i+1:]...)
			break
		}
	}
	if len(mine) == 0 {
		delete(h.users, s.user)
	} else {
		h.users[s.user] = mine
	}
	h.detachAll(s)
}

// Stream returns an open stream of a user by its id.
func (h *Hub) Stream(user, id string) (*Stream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.streams[id]
	if s == nil || s.user != user {
		return nil, ErrStreamGone
	}
	return s, nil
}

// Extend lets a stream live until a later time. Errors: ErrStreamGone,
// ErrNotYours.
func (h *Hub) Extend(user, session, id string, until time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.streams[id]
	switch {
	case s == nil || s.user != user: // nobody learns of others' streams
		return ErrStreamGone
	case s.session != session:
		return ErrNotYours
	}
	s.expires = until
	return nil
}

// Revoke ends the streams of a session.
func (h *Hub) Revoke(session string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.streams {
		if s.session == session {
			h.end(s, deliveryv1.EndCode_END_CODE_SESSION_REVOKED, 0)
		}
	}
}

// Drain ends all streams, each with another time to reconnect, spread over a
// period, and takes no new ones.
func (h *Hub) Drain(spread time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draining = true
	n, i := time.Duration(len(h.streams)), time.Duration(0)
	for _, s := range h.streams {
		h.end(s, deliveryv1.EndCode_END_CODE_DRAIN, spread*i/n)
		i++
	}
}

// Tick ends the streams whose time is over. It is to be called about once a
// second.
func (h *Hub) Tick() {
	now := h.cfg.Clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.streams {
		switch {
		case !now.Before(s.expires):
			h.end(s, deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED, 0)
		case now.Sub(s.opened) >= h.cfg.Lifetime:
			h.end(s, deliveryv1.EndCode_END_CODE_RESYNC, 0)
		case s.box.Overdue(now):
			h.stats.Slow++
			h.end(s, deliveryv1.EndCode_END_CODE_SLOW, 0)
		}
	}
}

// end queues the end frame as the stream's last and forgets the stream. Callers
// hold mu.
func (h *Hub) end(s *Stream, code deliveryv1.EndCode, after time.Duration) {
	s.box.Finish(frame.End(code, after, s.token))
	h.remove(s)
}

// push queues a frame for a stream. A stream whose mailbox is full is marked dead
// and must be dropped with dropDead once the caller's walk is over. Callers hold
// mu.
func (h *Hub) push(s *Stream, f *frame.Frame) {
	if s.dead {
		return
	}
	taken, full := s.box.Push(f)
	if s.dead = full; taken {
		h.stats.Frames++
	}
}

// dropDead ends the streams that push found too slow. Callers hold mu.
func (h *Hub) dropDead(streams []*Stream) {
	for _, s := range streams {
		if s.dead {
			h.stats.Slow++
			h.end(s, deliveryv1.EndCode_END_CODE_SLOW, 0)
		}
	}
}

// signal wakes whoever performs the hub's work.
func (h *Hub) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// String tells what a delivery is about, for logs.
func (d Delivery) String() string {
	return fmt.Sprintf("%s@%d (%d events)", d.ChatID, d.Version, len(d.Events))
}
