// Package topic runs durable topics: the calls on topics, subscriptions and sessions.
//
// It is what all other code sees of durable topics. It owns permissions, the steps of a call and
// its row in the audit; it has the bindings and the sessions. Stored data lies in
// internal/storage, open topics in internal/serving, jobs and operators in internal/operations,
// and the state machine of a partition in internal/machine. Requests and answers are those of the
// contract; the caller has checked their limits. Refusals are those of package refusal.
//
// With many processes a SlotManager runs one Service for each slot that the process owns.
//
// Concurrency: a Service and its Sessions are safe for concurrent use. A topic's lock comes before
// every other lock, see storage.Topic.Changing and Reading.
package topic

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/registry"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/operations"
	"github.com/parley-chat/parley/server/topic/internal/push"
	"github.com/parley-chat/parley/server/topic/internal/schema"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// Config holds the dependencies of a Service. All fields are required unless they say otherwise.
type Config struct {
	Slot  storage.Slot // whose topics it has; the zero Slot: all
	Store store.Store  // with the schemas of topics, too
	Log   commitlog.Log
	// Events may be nil: then there are no topics of chats.
	Events serving.Events
	// Audit records that a call begins; the caller calls the returned function when the
	// call has ended. A call that cannot be recorded does not act.
	Audit  func(ctx context.Context, actor, call, request string) (func(code, result string), error)
	Logger *slog.Logger
	Clock  func() time.Time
	// Jobs is the name of the jobs' schedule, see operations.ScheduleOf; operations.StandardSchedule if empty.
	Jobs string
	// Resident is how many bytes of messages are kept in memory, over all topics.
	Resident int64
	// MaxBytes is how many bytes the messages of a topic may take that has no max_bytes, and the most
	// that others than operators may set; 0: unlimited.
	MaxBytes int64
	// Groups, if given, are shared with other services of the process.
	Groups *serving.GroupMetrics
	// Sessions, if given, are shared with other services of the process.
	Sessions *serving.PrincipalLimit
	// KnownIDs, if given, counts the ids of messages that the services of the process know.
	KnownIDs *atomic.Int64
	// Push, if given, sends messages to webhooks, for all services of the process.
	Push *push.Sender
	// Refused, if given, says whether a user has no access now: the account is suspended or deleted. Nothing is
	// sent to webhooks in such a user's name.
	Refused func(ctx context.Context, user string) (bool, error)
}

// DefaultMaxBytes is a MaxBytes for a process that keeps the messages itself.
const DefaultMaxBytes = 10 << 30

// ResidentBytes is a Resident for a process that may use so many bytes; 0: not known.
func ResidentBytes(memory int64) int64 {
	if memory <= 0 {
		return 256 << 20
	}
	return min(1<<30, memory/16)
}

// Service runs durable topics.
type Service struct {
	cfg       Config
	engine    *serving.Engine
	schemas   *schema.Schemas
	jobs      *operations.Jobs
	operators *operations.Admin
	pushes    *pushes

	mu       sync.Mutex
	sessions map[string]*Session // by id
	stopped  bool                // sessions that begin end at once
}

// New loads the catalogue, and takes the topics over from an earlier process. Removals
// that did not come to their end do.
func New(ctx context.Context, cfg Config) (*Service, error) {
	if _, ok := operations.ScheduleOf(cfg.Jobs, 0); !ok { // its jobs would run without a pause
		return nil, fmt.Errorf("topic: there is no schedule %q of jobs", cfg.Jobs)
	}
	c, err := storage.OpenCatalog(ctx, cfg.Store, cfg.Clock, cfg.Slot)
	if err != nil {
		return nil, err
	}
	schemas := schema.New(registry.New(cfg.Store), cfg.Slot.Of)
	cfg.Store = c.Store()
	if cfg.Groups == nil {
		cfg.Groups = serving.NewGroupMetrics()
	}
	if cfg.Sessions == nil {
		cfg.Sessions = serving.NewSessions()
	}
	s := &Service{cfg: cfg, schemas: schemas, sessions: map[string]*Session{}, engine: serving.New(serving.Config{
		Catalog: c, Log: cfg.Log, Events: cfg.Events, Clock: cfg.Clock, Logger: cfg.Logger, Resident: cfg.Resident,
		MaxBytes: cfg.MaxBytes,
		Counters: &serving.Counters{}, Groups: cfg.Groups, Known: cfg.KnownIDs,
	})}
	s.jobs = operations.NewJobs(operations.JobsConfig{
		Engine: s.engine, Audit: cfg.Audit, Schedule: cfg.Jobs, EndSilent: s.endSilent,
	})
	s.operators = operations.NewAdmin(s.jobs)
	s.pushes = newPushes(s)
	for _, t := range c.Topics("", c.Count(), func(t *storage.Topic) bool { return t.View().Deleting }) {
		if err := s.engine.FinishRemoval(ctx, t); err != nil {
			return nil, err
		}
	}
	return s, nil
}
