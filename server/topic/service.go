// Package topic runs durable topics: the calls on topics, subscriptions and sessions.
//
// It owns who may do what, what a call is made of and its row in the audit, the bindings and
// the sessions. It puts together the topics in use (package workingset), the way of messages
// into the log (publish), what a change of a subscription is (subscription) and what runs by
// itself (jobs). Requests and answers are those of the contract, whose limits the caller
// has checked; refusals are those of package refusal. It is one package because each call is
// a few lines over the same parts, under one lock per topic.
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
	"github.com/parley-chat/parley/server/topic/backfill"
	"github.com/parley-chat/parley/server/topic/catalog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/jobs"
	"github.com/parley-chat/parley/server/topic/lifecycle"
	"github.com/parley-chat/parley/server/topic/live"
	"github.com/parley-chat/parley/server/topic/operate"
	"github.com/parley-chat/parley/server/topic/owner"
	"github.com/parley-chat/parley/server/topic/publish"
	"github.com/parley-chat/parley/server/topic/session"
	"github.com/parley-chat/parley/server/topic/source"
	"github.com/parley-chat/parley/server/topic/subscription"
	"github.com/parley-chat/parley/server/topic/workingset"
)

// Config is what a Service stands on. All fields are required but what says otherwise.
type Config struct {
	Slot  catalog.Slot // whose topics it has; the zero Slot: all
	Store store.Store
	Log   commitlog.Log
	// Events may be nil: then there are no topics of chats.
	Events source.Events
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
	Counters *live.Counters
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
	catalog       *catalog.Catalog
	flusher       *owner.Flusher
	memory        *owner.Memory
	sources       *source.Sources
	topics        *workingset.Set
	publisher     *publish.Publisher
	subscriptions *subscription.Manager
	jobs          *jobs.Jobs
	backfills     *backfill.Runner
	counters      *live.Counters

	mu        sync.Mutex
	operators *operate.Admin

	sessions map[string]*Session // by id
	stopped  bool                // sessions that begin end at once
}

// New loads the catalogue, and takes the topics over from an earlier process. Removals
// that did not come to their end do.
func New(ctx context.Context, cfg Config) (*Service, error) {
	c, err := catalog.Open(ctx, cfg.Store, cfg.Clock, cfg.Slot)
	if err != nil {
		return nil, err
	}
	cfg.Store = c.Store()
	if cfg.Counters == nil {
		cfg.Counters = &live.Counters{}
	}
	s := &Service{
		cfg: cfg, catalog: c, flusher: owner.NewFlusher(cfg.Store, c.Epoch(), cfg.Clock, cfg.Logger),
		memory: owner.NewMemory(cfg.Resident), sources: &source.Sources{Log: cfg.Log, Events: cfg.Events, Logger: cfg.Logger},
		counters: cfg.Counters, sessions: map[string]*Session{},
	}
	s.flusher.Show(cfg.Log)
	s.compose()
	for _, t := range c.Topics("", c.Count(), func(t *catalog.Topic) bool { return t.View().Deleting }) {
		if err := s.remove(ctx, t); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// compose makes what calls each other.
func (s *Service) compose() {
	cfg, start, begin := s.cfg, s.cfg.Clock(), time.Now()
	s.topics = workingset.New(workingset.Config{
		Store: cfg.Store, Sources: s.sources, Flusher: s.flusher, Memory: s.memory, Logger: cfg.Logger, Clock: cfg.Clock,
		Steady: func() time.Time { return start.Add(time.Since(begin)) },
		Queue:  func(ctx context.Context, l *live.Topic) error { return s.subscriptions.BeginQueue(ctx, l) },
		Letters: func(t *catalog.Topic, g *session.Group, part int, letters []machine.Undeliverable) {
			s.jobs.Letters(t, g, part, letters)
		},
		Watch:  func() { s.jobs.Watch() },
		Opened: func(l *live.Topic, sub *catalog.Subscription) error { return s.backfills.Resume(l, sub) },
	})
	s.jobs = jobs.New(jobs.Config{
		Store: cfg.Store, Log: cfg.Log, Catalog: s.catalog, Clock: cfg.Clock, Logger: cfg.Logger, Audit: cfg.Audit,
		Counters: s.counters, Schedule: cfg.Jobs, Stored: s.stored,
		Open: s.topics.Open, Hold: s.topics.Hold, Opened: s.topics.Opened, All: s.topics.All,
		Reader: s.sources.Reader, Follow: s.sources.Follow,
		Expire: func(ctx context.Context, l *live.Topic, name string) error {
			_, err := s.subscriptions.Transition(ctx, l, name, lifecycle.Expire, "heartbeat timeout")
			return err
		},
		Revive: func(ctx context.Context, l *live.Topic, name string) error {
			_, err := s.subscriptions.Transition(ctx, l, name, lifecycle.Beat, "members")
			return err
		},
		Finish: s.finish, EndSilent: s.endSilent, Append: s.appendLetters, Graveyard: s.graveyard,
	})
	s.subscriptions = subscription.New(subscription.Config{
		Store: cfg.Store, Catalog: s.catalog, Topics: s.topics, Sources: s.sources, Flusher: s.flusher,
		Counters: s.counters, Clock: cfg.Clock, Logger: cfg.Logger, Watch: s.jobs.Watch,
	})
	s.backfills = backfill.New(backfill.Config{
		Catalog: s.catalog, Flusher: s.flusher, Clock: cfg.Clock, Logger: cfg.Logger, Resolve: s.subscriptions.Resolve,
	})
	s.publisher = &publish.Publisher{Log: cfg.Log, Counters: s.counters, Durable: s.backfills.Published}
	s.operators = s.newAdmin()
}
