// Package chat carries out the commands of chats: creation, membership, sending
// and reading marks.
//
// It owns the queue of each chat, which shares plans among concurrent sends; the
// heads it used last, from which plans are made without reading; the retries and
// the settling of unknown outcomes; the stamps; and the one hook that tells of
// commits. The rules and the plans themselves are pure functions in package plan.
// What a user may see (package view), delivery and transport are elsewhere.
//
// Nothing is answered before it is durable: success follows the store's commit,
// and what an error or a repeated answer was read from is waited for.
//
// # Concurrency
//
// A Service is safe for use by many goroutines and starts none: commands of one
// chat pass one queue, led by one of the callers on its own goroutine (see
// queue.go). No mutex is held across a call of the store or a hook. The mutexes,
// one per shard of the queues, the door's and the clock's, are never held together.
package chat

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/parley-chat/parley/server/chat/admit"
	"github.com/parley-chat/parley/server/chat/people"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/chat/queue"
	"github.com/parley-chat/parley/server/chat/stamp"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Errors that commands end with. Errors of the store come through, wrapped.
var (
	ErrNotAMember       = plan.ErrNotAMember // or no such chat
	ErrForbidden        = plan.ErrForbidden
	ErrChatFull         = plan.ErrChatFull
	ErrInvalidOperation = plan.ErrInvalidOperation
	ErrAlreadyMember    = plan.ErrAlreadyMember
	ErrMemberNotFound   = plan.ErrMemberNotFound
	ErrUserNotFound     = plan.ErrUserNotFound
	ErrKeyReused        = plan.ErrKeyReused
	ErrInvalidArgument  = plan.ErrInvalidArgument
	ErrVersionMismatch  = plan.ErrVersionMismatch
	ErrTooManyChats     = plan.ErrTooManyChats // a *TooManyChats
	// ErrPanic is what the callers of a command that panicked get.
	ErrPanic = errors.New("chat: command panicked")
	errState = errors.New("chat: rows of the chat contradict each other")
)

// Refusal is a rule's refusal, one of the errors above that tells which rule it was.
type Refusal = plan.Refusal

// TooManyChats says whose chats are too many.
type TooManyChats = plan.TooManyChats

// Commit is what one plan added to a chat's change log.
type Commit struct {
	ChatID string
	Head   table.Head    // after the plan
	Events []event.Event // in consecutive versions that end with the head's
	Outbox store.Row     // the row that announces them to the relay
}

// Config sets up a Service. Store, Clock, Generation and Producer are required.
type Config struct {
	Store      store.Store
	Clock      func() time.Time
	Generation string // of the store
	Producer   string // id of this process
	// Shared says that other processes write to the store, too: a chat with much to do
	// here leaves room for them now and then.
	Shared bool

	// Committed is told of each plan that changed a chat and is known here to be
	// committed: once, in version order, once it is durable, before the callers
	// get their answer. It must be quick, the chat waits for it.
	Committed func(Commit)
	// Receipt is told of each user's row that MarkRead or SetOwn changed, with the
	// head that it was measured by.
	Receipt func(row table.UserChat, head table.Head)
	// Meter is told what commands did.
	Meter Meter
	// NewID makes an id with a prefix; by default a ULID.
	NewID func(prefix string) string
	// Sleep waits between attempts; by default in real time.
	Sleep func(ctx context.Context, d time.Duration) error
	// Members is the size of a group; by default, and at most, plan.MaxMembers.
	Members int
	// Chats is the number of chats that a user may be a member of; by default
	// plan.MaxChats. Chats that were left do not count.
	Chats int
	// Chunk is the number of members that one plan of a group's creation adds; by
	// default, and at most, plan.MaxChunk.
	Chunk int
	// Heads is the number of chats whose heads are remembered; by default 65,536.
	Heads int
	// Queue is the number of commands that may wait for one chat; more are refused
	// with store.ErrThrottled. By default 4,096.
	Queue int
	// PerChat and PerCaller are the numbers of requests that a user may have under way
	// for one chat, and in all; more are refused with ErrBusy. By default 128 and 512.
	PerChat, PerCaller int
}

// Service carries commands out.
type Service struct {
	cfg    Config
	maker  plan.Maker
	queues *queue.Queues
	door   *admit.Door
	clock  *stamp.Clock
	people people.Rows
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
	cfg.Meter.complete()
	if cfg.NewID == nil {
		cfg.NewID = NewID
	}
	if cfg.Sleep == nil {
		cfg.Sleep = sleep
	}
	if cfg.Chunk <= 0 || cfg.Chunk > plan.MaxChunk {
		cfg.Chunk = plan.MaxChunk
	}
	if cfg.Heads <= 0 {
		cfg.Heads = 1 << 16
	}
	if cfg.Queue <= 0 {
		cfg.Queue = 1 << 12
	}
	if cfg.PerChat <= 0 {
		cfg.PerChat = 128
	}
	if cfg.PerCaller <= 0 {
		cfg.PerCaller = 512
	}
	s := &Service{cfg: cfg}
	s.door = admit.New(admit.Config{Clock: cfg.Clock, PerChat: cfg.PerChat, PerCaller: cfg.PerCaller, Proven: cfg.Heads})
	s.maker = plan.Maker{Origin: event.Origin{Generation: cfg.Generation, Producer: cfg.Producer}, NewID: cfg.NewID, Members: cfg.Members, Chats: cfg.Chats}
	s.people = people.Rows{Store: cfg.Store, Write: s.repeat, Durable: s.durable}
	s.queues = queue.New(queue.Config{Carry: s.runGroup, Waiting: cfg.Queue, Heads: cfg.Heads})
	var err error
	s.clock, err = stamp.Load(ctx, cfg.Store, cfg.Clock)
	return s, err
}

// stamp returns the time of a change that must not be before floor.
func (s *Service) stamp(floor int64) int64 { return s.clock.Next(floor) }

// NewID makes a prefixed ULID.
func NewID(prefix string) string {
	var b [64]byte
	id := ulid.MustNew(ulid.Now(), rand.Reader)
	n := copy(b[:len(b)-ulid.EncodedSize], prefix)
	_ = id.MarshalTextTo(b[n : n+ulid.EncodedSize]) // fails only for another size
	return string(b[:n+ulid.EncodedSize])
}

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

// get reads one item, consistently.
func (s *Service) get(ctx context.Context, key store.Key) (store.Item, error) {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	it, err := s.cfg.Store.Get(call, key, store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", key.Table, err)
	}
	return it, nil
}

// batchGet reads items, consistently.
func (s *Service) batchGet(ctx context.Context, keys []store.Key) ([]store.Item, error) {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	items, err := s.cfg.Store.BatchGet(call, keys, store.Strong)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", keys[0].Table, err)
	}
	return items, nil
}

// durable waits until what was read is on disk, and returns answer then: what an
// answer saw must not disappear in a crash.
func (s *Service) durable(ctx context.Context, answer error) error {
	call, cancel := context.WithTimeout(ctx, store.CallTimeout)
	defer cancel()
	if err := s.cfg.Store.Durable(call); err != nil {
		return fmt.Errorf("wait for the disk: %w", err)
	}
	return answer
}

// EnsureUser writes the row of a user if there is none. It is safe to repeat.
func (s *Service) EnsureUser(ctx context.Context, userID string) error {
	if err := plan.CheckUser(userID); err != nil {
		return err
	}
	return s.people.Ensure(ctx, userID, s.cfg.Clock().UnixMilli())
}

// countFailed counts the chats of users whose rows turned out not to hold the number,
// so that the next plan can go by it.
func (s *Service) countFailed(ctx context.Context, d *plan.Draft, failed *store.ConditionError) error {
	uncounted, _ := d.ChatsFailed(failed)
	return s.people.Count(ctx, uncounted)
}
