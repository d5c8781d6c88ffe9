// Package delivery brings what was committed to the open streams of members.
//
// A [Hub] holds the streams of one process. Code that commits a change, or is notified of
// one, calls [Hub.Deliver]; source, order and repetition of the calls do not matter. The
// hub gives each stream a chat's changes in version order and drops what is not newer. On a
// gap it waits a moment and then reads the missing events from the store, once for all its
// streams. Where anything may have been missed, [Hub.InvalidateAll] has all streams
// synchronise again. The package owns positions and subscriptions of streams, the bounded
// queues, acknowledgements and the end of streams; it does not own the transport (package
// api sends what [Stream.Take] returns), the reads (package view) or the contents of the
// store.
//
// # The way of a change
//
// chat.go takes a delivery, puts the chat's changes in order and sends them to the subscriptions
// (subscription.go); gap.go reads what is missing. membership.go finds the streams that should be
// subscribed and are not. catchup.go brings a new stream to where the others are, resync.go an
// open one that may have missed something; both read with activate.go. streams.go opens and ends
// streams, stream.go is one.
//
// # Concurrency
//
// Hub and Stream are state machines: they start no goroutine and read no clock but the one
// given. Everything that needs the store is a piece of [Work] that a caller fetches
// ([Hub.Work]) and performs ([Hub.Do]); [Hub.Run] does so with a few goroutines, a test
// steps it. All methods may be called from many goroutines. Lock order: Hub.mu, then that
// of a queue; neither is held across a call of Source or a hook of Config. (Source.NewToken
// reads nothing and is called with it.)
package delivery

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
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
	Overviews(ctx context.Context, user string, chatIDs []string) ([]*chatv1.ChatOverview, error)
	Tokens
}

// Tokens are the synchronisation tokens of a Source.
type Tokens interface {
	// Begin returns where the reads of a synchronisation begin.
	Begin(ctx context.Context) (view.Start, error)
	// NewToken makes a synchronisation token for reads that began there.
	NewToken(user string, from view.Start) string
	// Token checks a synchronisation token.
	Token(ctx context.Context, user, token string) (view.Token, error)
}

// Config sets up a Hub. Zero limits take the defaults.
type Config struct {
	History   store.History               // the store's; changes of other generations are dropped
	Process   string                      // id of this process, the first part of stream ids
	Source    Source                      // consistent reads
	Durable   func(context.Context) error // waits until the rows that were read are on stable storage
	Clock     func() time.Time            //
	NewID     func(prefix string) string  // makes stream ids
	Delivered func(ctx context.Context, user, chatID string, sequence int64) error
	// Revoked, if given, reports whether the access of the user who opens a stream was
	// revoked, or the key of the access token ended. It is called after the stream was
	// registered: EndRevoked finds the open streams, and Revoked those that are being opened.
	Revoked func(auth.Principal) bool
	Logger  *slog.Logger // of Run; nil: nothing is logged

	GapWait        time.Duration // how long a missing change may still arrive by itself; 20 ms
	Heartbeat      time.Duration // interval announced in hello; 15 s
	Lifetime       time.Duration // a stream must be reopened after this; 24 h
	WatermarkEvery time.Duration // least time between two delivered watermarks of a user and chat; 5 s
	Spread         time.Duration // over which streams synchronise again after InvalidateAll; 10 s
	MaxStreams     int           // of one user; the oldest is replaced; 10
	MaxReplay      int           // changes of one known chat that a stream replays; 500
	MaxRecent      int           // changes of a chat kept for streams that catch up; 32
	// Limits bound each stream: 2,048 frames and 4 MiB waiting, 1,000 frames and
	// 1 MiB unacknowledged, 90 s of lease.
	Limits QueueLimits
}

func (c Config) withDefaults() (Config, error) {
	if c.History == nil || c.Source == nil || c.Clock == nil || c.NewID == nil {
		return c, errors.New("delivery: history, source, clock and ids are required")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Durable == nil {
		c.Durable = func(context.Context) error { return nil }
	}
	if c.Delivered == nil {
		c.Delivered = func(context.Context, string, string, int64) error { return nil }
	}
	if c.Revoked == nil {
		c.Revoked = func(auth.Principal) bool { return false }
	}
	c.GapWait = cmp.Or(c.GapWait, 20*time.Millisecond)
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

// Hub holds the open streams of one process.
type Hub struct {
	cfg  Config
	wake chan struct{} // signals that there may be work; capacity 1

	mu       sync.Mutex
	draining bool
	streams  map[string]*Stream
	users    map[string][]*Stream // oldest first
	pushed   []*Stream            // with frames that no goroutine was woken for: see unlock
	chats    map[string]*chatState
	verified map[string]int64 // of chats without subscriptions: see chatState.verified

	membershipSyncs map[string]*membershipSync // by chat
	reconciliations map[subscriptionKey]*reconciliation
	watermarks      watermarkSet
	work            workQueue[Work]

	serial uint64 // of the newest chatState
	stats  Stats
}

// Stats counts what a hub did since it was made, and what it holds.
type Stats struct {
	Streams         int   // open now
	Chats           int   // with at least one stream now
	Opened          int64 // streams
	Frames          int64 // queued for streams
	GapFills        int64 // reads of missing events
	MembershipReads int64 // reads of member lists
	Slow            int64 // streams ended as slow
	OtherGeneration int64 // deliveries of generations that are not part of the history
	Duplicates      int64 // changes that were not newer
	Invalidations   int64 // times that something may have been lost
	Resyncs         int64 // synchronisations of streams because of that
}

// New makes a hub without streams.
func New(cfg Config) (*Hub, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Hub{
		cfg:             cfg,
		wake:            make(chan struct{}, 1),
		streams:         map[string]*Stream{},
		users:           map[string][]*Stream{},
		chats:           map[string]*chatState{},
		verified:        map[string]int64{},
		membershipSyncs: map[string]*membershipSync{},
		reconciliations: map[subscriptionKey]*reconciliation{},
		watermarks:      watermarkSet{},
	}, nil
}

// History is the store's.
func (h *Hub) History() store.History { return h.cfg.History }

// Stats returns the counters.
func (h *Hub) Stats() Stats {
	h.mu.Lock()
	defer h.unlock()
	s := h.stats
	s.Streams, s.Chats = len(h.streams), len(h.chats)
	return s
}
