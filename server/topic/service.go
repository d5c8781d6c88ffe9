// Package topic runs durable topics: the calls on topics, subscriptions and sessions.
//
// It is what all other code sees of durable topics. It decides who may do what, what a call is
// made of and its row in the audit; it has the bindings and the sessions. What is stored lies in
// internal/storage, open topics in internal/serving, jobs and operators in internal/operations,
// and the state machine of a partition in internal/machine. Requests and answers are those of the
// contract; the caller has checked their limits. Refusals are those of package refusal.
//
// With many processes a SlotManager runs one Service for each slot that the process owns.
//
// Concurrency: a Service and its Sessions may be used by many goroutines. A topic's lock
// is held for writing while a subscription or the settings change, and for reading while
// messages get their positions, are removed, or a member attaches: what a publish finds holds
// when its messages come into the log. It is taken before every other lock.
package topic

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/operations"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// Config is what a Service stands on. All fields are required but what says otherwise.
type Config struct {
	Slot  storage.Slot // whose topics it has; the zero Slot: all
	Store store.Store
	Log   commitlog.Log
	// Events may be nil: then there are no topics of chats.
	Events serving.Events
	// Audit records that a call begins; what it returns is called when it has ended. A call
	// that cannot be recorded does not act.
	Audit  func(ctx context.Context, actor, call, request string) (func(code, result string), error)
	Logger *slog.Logger
	Clock  func() time.Time
	// Jobs is the name of the jobs' schedule, see jobs.ScheduleOf; jobs.Standard if empty.
	Jobs string
	// Resident is how many bytes of messages are kept in memory, over all topics.
	Resident int64
	// Counters, if given, are shared with other services of the process.
	Counters *serving.Counters
}

// ResidentBytes is a Resident for a process that may use so many bytes; 0: not known.
func ResidentBytes(memory int64) int64 {
	if memory <= 0 {
		return 256 << 20
	}
	return min(1<<30, memory/16)
}

// Service runs durable topics.
type Service struct {
	cfg           Config
	catalog       *storage.Catalog
	flusher       *serving.Flusher
	memory        *serving.Memory
	sources       *serving.Sources
	topics        *serving.TopicCache
	publisher     *serving.Publisher
	subscriptions *serving.SubscriptionManager
	jobs          *operations.Jobs
	backfills     *serving.Backfills
	counters      *serving.Counters

	mu        sync.Mutex
	operators *operations.Admin

	sessions map[string]*Session // by id
	stopped  bool                // sessions that begin end at once
}

// New loads the catalogue, and takes the topics over from an earlier process. Removals
// that did not come to their end do.
func New(ctx context.Context, cfg Config) (*Service, error) {
	c, err := storage.OpenCatalog(ctx, cfg.Store, cfg.Clock, cfg.Slot)
	if err != nil {
		return nil, err
	}
	cfg.Store = c.Store()
	if cfg.Counters == nil {
		cfg.Counters = &serving.Counters{}
	}
	s := &Service{
		cfg: cfg, catalog: c, flusher: serving.NewFlusher(cfg.Store, c.Epoch(), cfg.Clock, cfg.Logger),
		memory: serving.NewMemory(cfg.Resident), sources: &serving.Sources{Log: cfg.Log, Events: cfg.Events, Logger: cfg.Logger},
		counters: cfg.Counters, sessions: map[string]*Session{},
	}
	s.flusher.Show(cfg.Log)
	s.compose()
	for _, t := range c.Topics("", c.Count(), func(t *storage.Topic) bool { return t.View().Deleting }) {
		if err := s.remove(ctx, t); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// compose makes what calls each other.
func (s *Service) compose() {
	cfg, start, begin := s.cfg, s.cfg.Clock(), time.Now()
	s.topics = serving.NewTopicCache(serving.TopicCacheConfig{
		Store: cfg.Store, Sources: s.sources, Flusher: s.flusher, Memory: s.memory, Logger: cfg.Logger, Clock: cfg.Clock,
		Steady: func() time.Time { return start.Add(time.Since(begin)) },
		Queue:  func(ctx context.Context, l *serving.OpenTopic) error { return s.subscriptions.BeginQueue(ctx, l) },
		Letters: func(t *storage.Topic, g *serving.Group, part int, letters []machine.Undeliverable) {
			s.jobs.Undeliverable(t, g, part, letters)
		},
		Watch:  func() { s.jobs.Watch() },
		Opened: func(l *serving.OpenTopic, sub *storage.Subscription) error { return s.backfills.Resume(l, sub) },
	})
	s.jobs = operations.NewJobs(operations.JobsConfig{
		Store: cfg.Store, Log: cfg.Log, Catalog: s.catalog, Clock: cfg.Clock, Logger: cfg.Logger, Audit: cfg.Audit,
		Counters: s.counters, Schedule: cfg.Jobs, Stored: s.stored,
		Open: s.topics.Open, Hold: s.topics.Hold, Opened: s.topics.Opened, All: s.topics.All,
		Reader: s.sources.Reader, Follow: s.sources.Follow,
		Expire: func(ctx context.Context, l *serving.OpenTopic, name string) error {
			_, err := s.subscriptions.Transition(ctx, l, name, storage.Expire, "heartbeat timeout")
			return err
		},
		Revive: func(ctx context.Context, l *serving.OpenTopic, name string) error {
			_, err := s.subscriptions.Transition(ctx, l, name, storage.Heartbeat, "members")
			return err
		},
		Finish: s.finish, EndSilent: s.endSilent, Append: s.appendLetters, Graveyard: s.graveyard,
	})
	s.subscriptions = serving.NewSubscriptionManager(serving.SubscriptionsConfig{
		Store: cfg.Store, Catalog: s.catalog, Topics: s.topics, Sources: s.sources, Flusher: s.flusher,
		Counters: s.counters, Clock: cfg.Clock, Logger: cfg.Logger, Watch: s.jobs.Watch,
	})
	s.backfills = serving.NewBackfills(serving.BackfillsConfig{
		Catalog: s.catalog, Flusher: s.flusher, Clock: cfg.Clock, Logger: cfg.Logger, Resolve: s.subscriptions.Resolve,
	})
	s.publisher = &serving.Publisher{Log: cfg.Log, Counters: s.counters, Durable: s.backfills.Published}
	s.operators = s.newAdmin()
}
