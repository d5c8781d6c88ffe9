// Package backend opens the backends of a process: the store, the event log, and the table
// of which server has whose streams. It is the only place that knows the modes; to
// everything else embedded and distributed are alike.
//
// Concurrency: a Backend is safe for concurrent use.
package backend

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/backend/clock"
	"github.com/parley-chat/parley/server/backup"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/eventlog/session"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/acl"
	"github.com/parley-chat/parley/server/kafka/dial"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/view"
)

// How long a backend may take to answer at the start: one that is required, and one that the
// process can work without.
const (
	openTime      = 30 * time.Second
	shortOpenTime = 3 * time.Second
)

// Backend is what is open.
type Backend struct {
	Store      store.Store
	Generation string        // the present one of History
	History    store.History // what the store has
	// Logs has the logs of durable topics; nil where this process has none.
	Logs commitlog.Log
	// Routing is the table of which server has whose streams; nil where there is only this
	// process.
	Routing *routing.Redis

	embedded *embedded.Store
	dynamo   *dynamo.Store
	events   *events
	cluster  kafka.Cluster

	log        *slog.Logger
	clock      *clock.Watch  // nil where the store has a clock of its own
	identity   identity      // of a data directory
	snapshot   chan struct{} // full while there is one
	replaced   atomic.Pointer[error]
	watchEvery time.Duration
	seen       seenLine // of DynamoDB
}

// Open opens everything. Errors fit into one line.
func Open(cfg Config) (*Backend, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Distributed != nil {
		return openDistributed(cfg)
	}
	dir, err := filepath.Abs(cfg.Embedded.DataDir)
	if err != nil {
		return nil, err
	}
	if err := backup.CheckUnfinished(dir); err != nil {
		return nil, err
	}
	if err := makePrivate(dir); err != nil {
		return nil, err
	}
	cfg.opening("the store in %s", dir)
	e := &Backend{snapshot: make(chan struct{}, 1)}
	e.initWatch(cfg)
	st, err := embedded.Open(embedded.Options{
		Dir: cfg.Embedded.DataDir, Logger: cfg.Logger, Fatal: cfg.Fatal, AcceptLoss: cfg.Embedded.AcceptLoss,
		Reserve:  cfg.Embedded.DiskReserve,
		ClockSet: func() bool { return e.clock.Skew().Abs() > MaxSkew },
	})
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(filepath.Join(dir, backup.Snapshots)); err != nil { // of a process that was killed
		return nil, errors.Join(err, st.Close())
	}
	e.Store, e.History, e.Generation, e.embedded = st, st, st.Generation(), st
	logs := commitlog.NewLocal(records.Of(st), time.Now)
	e.Logs = logs
	if e.events, err = openEvents(context.Background(), cfg, st, logs); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	if e.identity, err = identify(dir); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func openDistributed(cfg Config) (_ *Backend, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), openTime)
	defer cancel()
	e, d := &Backend{cluster: cfg.Distributed.Kafka}, cfg.Distributed
	defer func() {
		if err != nil {
			_ = e.Close()
		}
	}()
	cfg.opening("the tables %s* at %s", d.Tables.Prefix, d.Tables.addr())
	if e.dynamo, err = dynamo.Open(ctx, dynamo.Options{Wire: d.Tables.wire(), Prefix: d.Tables.Prefix}); err != nil {
		return nil, d.Tables.Explain(err)
	}
	e.Store, e.History, e.Generation = e.dynamo, e.dynamo.History(), e.dynamo.Generation()
	e.seen.every = heartbeatEvery
	e.seen.set(e.dynamo.Opened())
	e.initWatch(cfg)
	if d.Redis.URL != "" {
		if e.Routing, err = routing.OpenRedis(d.Redis); err != nil {
			return nil, err
		}
		cfg.opening("Redis at %s", e.Routing.Addr())
		if err := e.checkRouting(cfg); err != nil {
			return nil, err
		}
		if err := e.checkSeen(ctx); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// checkRouting refuses a Redis that does not let this process do what it must, and, where
// the process cannot work without, one that does not answer.
func (e *Backend) checkRouting(cfg Config) error {
	limit := openTime
	if cfg.Distributed.RedisMayWait {
		limit = shortOpenTime
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := e.Routing.Check(ctx)
	if cfg.Distributed.RedisMayWait && errors.Is(err, routing.ErrUnavailable) {
		if cfg.Logger != nil {
			cfg.Logger.Warn("Redis is away; continuing without it", "error", err)
		}
		return nil
	}
	return err
}

// withAdmin calls f with a connection to the cluster that is closed afterwards. The
// event log in the store needs no administration: there f is not called.
func (e *Backend) withAdmin(ctx context.Context, f func(context.Context, *kafka.Admin) error) error {
	if e.events != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	a, err := dial.Connect(ctx, e.cluster, openTime)
	if err != nil {
		return err
	}
	defer a.Close()
	return f(ctx, a)
}

// CheckTopics refuses a cluster that cannot be reached, on which this process lacks what
// its roles need, or whose topics are not as declared: nothing may be published before
// that is put right. The event log in the store makes its topics itself.
func (e *Backend) CheckTopics(ctx context.Context, roles ...acl.Role) error {
	return e.withAdmin(ctx, func(ctx context.Context, a *kafka.Admin) error {
		if err := acl.Check(ctx, a.Client(), e.cluster.User, roles...); err != nil {
			return err
		}
		s, err := versions.Load(ctx, e.Store)
		if err != nil {
			return err
		}
		a.Use(s.Required())
		return a.Check(ctx)
	})
}

// CheckPublish refuses topics that relays may not publish to, before anything depends on
// it.
func (e *Backend) CheckPublish(ctx context.Context, topics []kafka.Topic) error {
	return e.withAdmin(ctx, func(ctx context.Context, a *kafka.Admin) error {
		return acl.CheckTopics(ctx, a.Client(), acl.Relay, topics)
	})
}

// AddTopic makes a topic like another one, which may exist already with the same
// partitions.
func (e *Backend) AddTopic(ctx context.Context, t kafka.Topic, like string) error {
	if e.events != nil {
		return e.events.Add(ctx, t)
	}
	return e.withAdmin(ctx, func(ctx context.Context, a *kafka.Admin) error { return acl.Explain(a.Create(ctx, t, like)) })
}

// KafkaAddr is where the event log speaks Kafka; several addresses have commas between
// them.
func (e *Backend) KafkaAddr() string {
	if e.events == nil {
		return e.cluster.Addr()
	}
	return e.events.port.Addr()
}

// KafkaOptions are what clients of the event log need to be let in.
func (e *Backend) KafkaOptions() []kafka.Option {
	if e.events == nil {
		return e.cluster.Options()
	}
	return e.events.port.Options()
}

// Embedded reports whether the event log lies in the store of this process: then Publish and Join take the place of
// clients of Kafka that publish and consume.
func (e *Backend) Embedded() bool { return e.events != nil }

// Publish publishes in the event log of an embedded store; see eventlog.Log.
func (e *Backend) Publish(ctx context.Context, list []eventlog.Publication) error {
	return e.events.Publish(ctx, list)
}

// Join makes a session of one of Parley's groups on the event log of an embedded store.
func (e *Backend) Join(cfg kafka.SessionConfig) *Session {
	return &Session{session.Join(e.events.Log, e.events.port, cfg), e.events.port.Joined(cfg.Group, cfg.Topics)}
}

// Session is a session on the event log in the store.
type Session struct {
	*session.Session
	left func()
}

// Close leaves the group.
func (s *Session) Close() {
	s.Session.Close()
	s.left()
}

// LogWatched reports whether another program may be reading the log just now. For a cluster
// this is unknown, so it counts as watched.
func (e *Backend) LogWatched() bool { return e.events == nil || e.events.port.Watched() }

// Crowded reports whether the disk of an embedded engine is so full that what can wait
// must.
func (e *Backend) Crowded() bool { return e.embedded != nil && e.embedded.Crowded() }

// LogBytes is the size of the embedded log.
func (e *Backend) LogBytes() int64 {
	if e.events == nil {
		return 0
	}
	return e.events.Bytes()
}

// MaxSkew is by how much a process's clock may differ from the store's before it accepts
// no requests. The overlap of tokens allows for it (view.Overlap).
const MaxSkew = view.MaxSkew

// ErrSkew says that this machine's clock is too far from the store's, or was set by as
// much where the store is in this process.
var ErrSkew = errors.New("backend: the clock differs from the store's by more than 20 s")

// Ready reports whether the process can do its work: the store is the one that was opened, its
// disk answers and no sync has failed, and the clock is near the store's. It returns within a
// second, even if the disk hangs. Errors: ErrReplaced, ErrSkew, *DiskError and those of the store.
func (e *Backend) Ready(ctx context.Context) error {
	if err := e.replaced.Load(); err != nil {
		return *err
	}
	if e.skew().Abs() > MaxSkew {
		return ErrSkew
	}
	if e.embedded != nil {
		return e.diskReady(ctx)
	}
	return e.Store.Durable(ctx)
}

// Damaged reports whether the process has met a damaged file of its store. The rest of the data is
// served. It is always false if the store is elsewhere.
func (e *Backend) Damaged() bool { return e.embedded != nil && e.embedded.Damaged() }

// Close closes everything, in reverse order.
func (e *Backend) Close() error {
	var errs []error
	if e.Routing != nil {
		errs = append(errs, e.Routing.Close())
	}
	if e.events != nil {
		e.events.port.Close()
	}
	if e.Store != nil {
		errs = append(errs, e.Store.Close())
	}
	return errors.Join(errs...)
}
