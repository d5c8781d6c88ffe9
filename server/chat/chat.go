// Package chat carries out the commands of chats: creation, membership, sending,
// settings and read positions.
//
// A command goes top down through the package. Its own file (send.go, change.go, create.go,
// member.go, read.go, count.go) admits it (access.go), makes a plan of it and runs the plan.
// Plans that change the chat as a whole run in the chat's queue (queues.go, execute.go).
//
// The parts have packages of their own: command has the requests of callers, admit the admission
// to a queue, plan the rules and plans as pure functions, commit the outcome of a plan, timestamp
// the times. Permissions to read (package view), delivery and transport are elsewhere.
//
// Nothing is answered before it is durable: success follows the store's commit, and an error or a
// repeated answer waits until the rows from which it was read are durable.
//
// # Concurrency
//
// A Service is safe for use by many goroutines and starts none: commands of one
// chat pass one queue, led by one of the callers on its own goroutine (see
// queues), and read positions are committed in groups in the same way (package
// groupcommit). No mutex is held across a call of the store or a hook. The mutexes, one per
// shard of the queues and of the admission, the groups', and the clock's, are never held together.
package chat

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/parley-chat/parley/server/chat/admit"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/chat/groupcommit"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/chat/timestamp"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// The requests of callers and their results.
//
//nolint:revive // the names are explained where they come from
type (
	Send           = command.Send
	Sent           = command.Sent
	CreateDirect   = command.CreateDirect
	CreateGroup    = command.CreateGroup
	Operation      = command.Operation
	MemberChange   = command.MemberChange
	ChatChange     = command.ChatChange
	MemberSettings = command.MemberSettings
	MarkRead       = command.MarkRead
	Refusal        = command.Refusal      // one of the errors below, with the rule that it comes from
	TooManyChats   = command.TooManyChats // an ErrTooManyChats that says whose chats are too many
)

// The operations on a membership.
const (
	OpAdd    = command.OpAdd
	OpRemove = command.OpRemove
	OpLeave  = command.OpLeave
	OpRole   = command.OpRole
)

// PlanAge is how long a command is tried.
const PlanAge = commit.PlanAge

// Errors that commands end with. Errors of the store come through, wrapped.
var (
	ErrNotAMember       = command.ErrNotAMember // or no such chat
	ErrForbidden        = command.ErrForbidden
	ErrChatFull         = command.ErrChatFull
	ErrInvalidOperation = command.ErrInvalidOperation
	ErrAlreadyMember    = command.ErrAlreadyMember
	ErrMemberNotFound   = command.ErrMemberNotFound
	ErrUserNotFound     = command.ErrUserNotFound
	ErrKeyReused        = command.ErrKeyReused
	ErrInvalidArgument  = command.ErrInvalidArgument
	ErrVersionMismatch  = command.ErrVersionMismatch
	ErrTooManyChats     = command.ErrTooManyChats // a *TooManyChats
	// ErrBusy is the answer to a user who has too many requests under way.
	ErrBusy = admit.ErrBusy
	// ErrPanic is what the callers of a command that panicked get.
	ErrPanic = errors.New("chat: command panicked")
	errState = errors.New("chat: rows of the chat contradict each other")
)

// Commit is what one plan added to a chat's change log.
type Commit struct {
	ChatID string
	Head   table.Head    // after the plan
	Events []event.Event // in consecutive versions that end with the head's
	// Payloads are the encoded Events, one for each, as the store has them: a caller that
	// forwards events need not encode them again. They must not be changed.
	Payloads [][]byte
	Outbox   store.Row // the row that announces the events to the relay
}

// Config sets up a Service. Store, Clock, Generation and Producer are required.
type Config struct {
	Store      store.Store
	Clock      func() time.Time
	Stamps     *timestamp.Clock // the process's, over Store and Clock; by default one of its own
	Generation string           // of the store
	Producer   string           // id of this process
	// Shared says that other processes write to the store, too: a chat with much to do
	// here leaves room for them now and then.
	Shared bool

	// Forward, if given, stores a message through the process that a chat prefers while
	// several write to it; that one calls Accept. It reports false if that is this process,
	// or if there was no answer: then the message is stored here, and the same
	// ClientMessageID makes it one.
	Forward func(ctx context.Context, m Send) (Sent, bool)

	// Committed is called for each plan that changed a chat and is known here to be
	// committed: once, in version order, once it is durable, before the callers
	// get their answer. It must be quick, the chat waits for it.
	Committed func(Commit)
	// Receipt is called for each user's row that MarkRead or SetMemberSettings changed, with
	// the head that it was measured by. In a direct chat MarkRead changes the row of the
	// other person as well.
	Receipt func(row table.UserChat, head table.Head)
	// NoReadReceipts hides from the members of a direct chat how far the other person has
	// read. It is the same in all processes of a store.
	NoReadReceipts bool
	// Meter counts what commands did.
	Meter Meter
	// NewID makes an id with a prefix; by default a ULID.
	NewID func(prefix string) string
	// Sleep waits between attempts; by default in real time.
	Sleep func(ctx context.Context, d time.Duration) error
	// Members is how many members a group can have, at most plan.MaxMembers; 0 stands for plan.Members.
	Members int
	// Chats is the number of chats that a user may be a member of; by default
	// plan.MaxChats. Chats that were left do not count.
	Chats int
	// Chunk is the number of members that one plan of a group's creation adds; by
	// default, and at most, plan.MaxChunk.
	Chunk int
	// Heads is the number of chats whose heads are cached; by default 65,536.
	Heads int
	// Queue is the number of commands that may wait for one chat; more are refused
	// with store.ErrThrottled. By default 4,096.
	Queue int
	// PerChat and PerCaller are the numbers of requests that a user may have under way
	// for one chat, and in all; more are refused with ErrBusy. By default 128 and 512.
	PerChat, PerCaller int
}

func (c *Config) setDefaults() {
	if c.Committed == nil {
		c.Committed = func(Commit) {}
	}
	if c.Receipt == nil {
		c.Receipt = func(table.UserChat, table.Head) {}
	}
	if c.NewID == nil {
		c.NewID = NewID
	}
	if c.Sleep == nil {
		c.Sleep = wait.For
	}
	c.Meter.setDefaults()
	c.Chunk = min(cmp.Or(max(0, c.Chunk), plan.MaxChunk), plan.MaxChunk)
	c.Heads = cmp.Or(max(0, c.Heads), 1<<16)
	c.Queue = cmp.Or(max(0, c.Queue), 1<<12)
	c.PerChat = cmp.Or(max(0, c.PerChat), 128)
	c.PerCaller = cmp.Or(max(0, c.PerCaller), 512)
}

// Service carries commands out.
type Service struct {
	cfg       Config
	planner   plan.Planner
	queues    *queues
	admission *admit.Admission
	clock     *timestamp.Clock
	commits   *commit.Committer
	people    peopleRows
	reads     *groupcommit.Lanes[*read]
}

// New makes a Service. It reads the store's last timestamp.
func New(ctx context.Context, cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Clock == nil || cfg.Generation == "" || cfg.Producer == "" {
		return nil, errors.New("chat: store, clock, generation and producer are required")
	}
	cfg.setDefaults()
	s := &Service{
		cfg: cfg,
		planner: plan.Planner{Origin: event.Origin{Generation: cfg.Generation, Producer: cfg.Producer}, NewID: cfg.NewID,
			Members: cfg.Members, Chats: cfg.Chats},
		admission: admit.New(admit.Config{Clock: cfg.Clock, PerChat: cfg.PerChat, PerCaller: cfg.PerCaller,
			Members: cfg.Heads}),
	}
	s.commits = commit.New(commit.Config{
		Store: cfg.Store, Clock: cfg.Clock, Sleep: cfg.Sleep, Shared: cfg.Shared, Committed: s.committed,
		CountChats: func(ctx context.Context, users []string) error { return s.people.Count(ctx, users) },
	})
	s.people = peopleRows{Store: s.commits}
	s.queues = newQueues(queueConfig{Execute: s.execute, Waiting: cfg.Queue, Heads: cfg.Heads})
	s.reads = newReads(s)
	s.clock = cmp.Or(cfg.Stamps, timestamp.New(cfg.Store, cfg.Clock))
	return s, s.clock.Load(ctx)
}

// committed caches from a plan which users are members now, and passes the commit on.
func (s *Service) committed(p *plan.Plan) {
	s.cacheMembers(p)
	s.cfg.Committed(Commit{ChatID: p.Head.ChatID, Head: p.Head, Events: p.Events, Payloads: p.Payloads, Outbox: p.Outbox})
}

// timestamp returns the time of a change that must not be before floor.
func (s *Service) timestamp(floor int64) int64 { return s.clock.Next(floor) }

// NewID makes a prefixed ULID.
func NewID(prefix string) string {
	var b [64]byte
	id := ulid.MustNew(ulid.Now(), rand.Reader)
	n := copy(b[:len(b)-ulid.EncodedSize], prefix)
	_ = id.MarshalTextTo(b[n : n+ulid.EncodedSize]) // fails only for another size
	return string(b[:n+ulid.EncodedSize])
}

// EnsureUser writes the row of a user if there is none. It is safe to repeat.
func (s *Service) EnsureUser(ctx context.Context, userID string) error {
	if err := command.CheckUser(userID); err != nil {
		return err
	}
	return s.people.Ensure(ctx, userID, s.cfg.Clock().UnixMilli())
}
