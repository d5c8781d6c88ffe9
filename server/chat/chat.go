// Package chat holds the rules of chats: it turns commands into plans for the
// store and events, and carries them out.
//
// It owns creation, membership, sending and reading marks; the head of a chat as
// its one point of serialization; the queue that shares plans among concurrent
// sends; idempotency of requests; and the one hook that tells of commits. It does
// not own what a user may see (package view), the rows' layout (package table),
// delivery or transport.
//
// Plans are made by pure functions (plan*.go) from what was read or remembered;
// their conditions catch whatever was stale. All failed conditions of a plan come
// back at once and are taken in the order idempotency, membership, head.
//
// # Concurrency
//
// A Service is safe for use by many goroutines and starts none of its own while
// nobody waits: commands of one chat pass one queue, led by one of the callers
// (see queue). No mutex is held across a call of the store or a hook. Lock order:
// none, the mutexes of queues, heads and clock are never held together.
package chat

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Limits of chats.
const (
	MaxMembers   = 100      // of a group, those on their way in included
	MaxNameRunes = 128      // of a group's name
	MaxContent   = 16 << 10 // bytes of a message
	maxGroup     = 24       // sends that share a plan
	planAge      = 20 * time.Second
	maxHeads     = 1 << 16 // remembered heads
)

// Errors that commands end with. Errors of the store come through as they are.
var (
	ErrNotAMember       = errors.New("chat: not a member") // or no such chat
	ErrForbidden        = errors.New("chat: not allowed")
	ErrChatFull         = errors.New("chat: chat is full")
	ErrInvalidOperation = errors.New("chat: not possible in this chat")
	ErrAlreadyMember    = errors.New("chat: already a member")
	ErrMemberNotFound   = errors.New("chat: no such member")
	ErrUserNotFound     = errors.New("chat: no such user")
	ErrKeyReused        = errors.New("chat: request id used before with other content")
	ErrInvalidArgument  = errors.New("chat: invalid argument")
	errPanic            = errors.New("chat: command panicked")
)

// Commit is what one plan added to a chat's change log.
type Commit struct {
	ChatID string
	Head   table.Head    // after the plan
	Events []event.Event // in consecutive versions that end with the head's
	Outbox store.Row     // the row that announces them to the relay
}

// Config sets up a Service.
type Config struct {
	Store      store.Store
	Clock      func() time.Time
	Generation string // of the store
	Producer   string // id of this process

	// Committed is told of each plan that changed a chat, in version order, once
	// it is durable, before the callers get their answer. Optional.
	Committed func(Commit)
	// Receipt is told of each user's row that MarkRead changed. Optional.
	Receipt func(row table.UserChat, head table.Head)
	// NewID makes an id with a prefix; by default a ULID.
	NewID func(prefix string) string
	// Sleep waits between attempts; by default in real time.
	Sleep func(ctx context.Context, d time.Duration) error
	// Chunk is the number of members that one plan of a group's creation adds; by
	// default, and at most, 25.
	Chunk int
}

// Service carries commands out.
type Service struct {
	cfg    Config
	queues queues
	clock  clock

	mu    sync.Mutex
	heads map[string]table.Head // the last known head of chats used here
}

// New makes a Service. It reads the store's last stamp.
func New(ctx context.Context, cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Clock == nil || cfg.Generation == "" || cfg.Producer == "" {
		return nil, errors.New("chat: store, clock, generation and producer are required")
	}
	if cfg.Committed == nil {
		cfg.Committed = func(Commit) {}
	}
	if cfg.Receipt == nil {
		cfg.Receipt = func(table.UserChat, table.Head) {}
	}
	if cfg.NewID == nil {
		cfg.NewID = NewID
	}
	if cfg.Sleep == nil {
		cfg.Sleep = sleep
	}
	if cfg.Chunk <= 0 || cfg.Chunk > maxChunk {
		cfg.Chunk = maxChunk
	}
	s := &Service{cfg: cfg, heads: map[string]table.Head{}}
	s.queues.byChat = map[string]*queue{}
	return s, s.clock.load(ctx, cfg)
}

// NewID makes a prefixed ULID.
func NewID(prefix string) string {
	return prefix + ulid.MustNew(ulid.Now(), rand.Reader).String()
}

// newRequestID is used where the caller gave none, so that every send has a row
// by which an unknown outcome is found out.
func newRequestID() string { return uuid.NewString() }

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// head returns the last known head of a chat; it may be old.
func (s *Service) head(ctx context.Context, chatID string) (table.Head, error) {
	s.mu.Lock()
	h, ok := s.heads[chatID]
	s.mu.Unlock()
	if ok {
		return h, nil
	}
	return s.readHead(ctx, chatID)
}

// readHead returns the present head; ErrNotAMember if there is no such chat.
func (s *Service) readHead(ctx context.Context, chatID string) (table.Head, error) {
	it, err := s.cfg.Store.Get(ctx, table.HeadKey(chatID), store.Strong)
	if err != nil {
		return table.Head{}, fmt.Errorf("read head: %w", err)
	}
	if it == nil {
		return table.Head{}, ErrNotAMember
	}
	h := table.HeadFrom(chatID, it)
	s.remember(h)
	return h, nil
}

func (s *Service) remember(h table.Head) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.heads[h.ChatID]; ok {
		if old.Version > h.Version {
			return
		}
	} else if len(s.heads) >= maxHeads {
		n := maxHeads / 16
		for id := range s.heads { // some; forgetting costs one read
			delete(s.heads, id)
			if n--; n == 0 {
				break
			}
		}
	}
	s.heads[h.ChatID] = h
}

func (s *Service) forget(chatID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.heads, chatID)
}

// committed passes a commit on.
func (s *Service) committed(d *draft) {
	s.remember(d.head)
	s.cfg.Committed(Commit{ChatID: d.head.ChatID, Head: d.head, Events: d.events, Outbox: d.outboxRow()})
}

// EnsureUser writes the row of a user if there is none.
func (s *Service) EnsureUser(ctx context.Context, userID string) error {
	row := table.User{UserID: userID, CreatedAt: s.cfg.Clock().UnixMilli()}
	err := s.transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpPut, Key: table.UserKey(userID), Item: row.Item(), Cond: store.Absent(), Name: "user",
	}}})
	var failed *store.ConditionError
	if errors.As(err, &failed) {
		return nil
	}
	return err
}
