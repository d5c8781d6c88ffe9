// Package relay brings committed events to Kafka: per chat in order, each at least
// once, whatever crashes.
//
// It owns the reading and the deletion of outbox rows. A row is deleted only when
// its records are on stable storage; what is left after a crash is published
// again, so a reader may see an event twice, but never a later one first. The
// relay does not own events (package event), their commit (package chat) or the
// settings of producers (package kafka).
//
// # How
//
// Nudges carry what was just committed, so that a cycle in order reads nothing. A
// nudge is published only if it follows the last version that this relay published
// of its chat; otherwise, and for a chat that it has no memory of, the relay
// queries the outbox for the chat. A sweep of all shards repairs what nudges
// missed. One cycle is one Kafka transaction of whole plans.
//
// A row that cannot be published, because it or its events cannot be read, is set
// aside: it keeps the reason, operators are told, its chat waits and no other does.
// A partition that takes nothing is left out for a while with its chats; the others go on.
//
// # Concurrency
//
// Nudge may be called by anybody and never waits. Everything else belongs to the
// one goroutine that calls Run (or, in tests, Cycle).
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
)

// Config sets a Relay up. Zero durations and sizes take the defaults.
type Config struct {
	Store store.Store
	Serde *event.Serde
	// Publish publishes records in one transaction.
	Publish func(ctx context.Context, records []*kafka.Record) error
	// Stable returns when all that was published is on stable storage; nil where
	// an acknowledgement says so.
	Flush func(ctx context.Context) error
	// Failed is called with the type of each event whose transaction failed, or has not
	// succeeded for 10 s, from any goroutine. The event stays in the outbox and is published
	// again. May be nil.
	Failed func(eventType string)
	// Created is called with each chat whose creation was published, and how long after it
	// was committed; after a crash perhaps twice. May be nil.
	Created func(e *eventv1.ChatCreated, took time.Duration)
	// Topics reads which topics events go to, and which of them have to wait; nil: always
	// the declared ones. It must see what was written before the call.
	Topics func(ctx context.Context) (versions.State, error)
	// Renew takes the transactional id over anew, and then confirms that the slot is still
	// this relay's: no transaction that was begun before can be committed afterwards. It is
	// called for each new state. May be nil.
	Renew func(ctx context.Context) error
	// Report says that this relay goes by a state from now on. While it fails, the topic that
	// is migrated waits, and no other. May be nil.
	Report func(ctx context.Context, revision int64) error
	Clock  func() time.Time
	Logger *slog.Logger
	// Shards of the outbox that this relay publishes; nil: all. No other relay may
	// publish them at the same time, which package slot takes care of.
	Shards []int

	Sweep      time.Duration // 2 s
	FlushEvery time.Duration // least time between two calls of Stable; 1 s
	MaxBatch   int           // records of one transaction; 2,000
	MaxNudges  int           // events waiting in memory; the outbox is asked for more; 8,192
}

func (c Config) withDefaults() (Config, error) {
	if c.Store == nil || c.Serde == nil || c.Publish == nil || c.Clock == nil || c.Logger == nil {
		return c, errors.New("relay: store, serde, publish, clock and logger are required")
	}
	if c.Flush == nil {
		c.Flush = func(context.Context) error { return nil }
	}
	if c.Sweep == 0 {
		c.Sweep = 2 * time.Second
	}
	if c.FlushEvery == 0 {
		c.FlushEvery = time.Second
	}
	if c.MaxBatch == 0 {
		c.MaxBatch = 2000
	}
	if c.MaxNudges == 0 {
		c.MaxNudges = 8192
	}
	return c, nil
}

// maxChats bounds the memory of the last versions, where forgetting one costs a query, and
// the chats that nudges wait of.
const maxChats = 1 << 16

// Relay publishes the events of one store.
type Relay struct {
	cfg   Config
	inbox *inbox
	mine  [event.Shards]bool

	last     map[string]int64        // last version published, by chat
	stopped  map[string]error        // chats whose next row cannot be published, until the next sweep
	aside    map[store.Key]bool      // rows that cannot be published, since the last sweep began
	noted    map[store.Key]time.Time // when they were last told of
	awaiting []store.Key             // rows published and not deleted, oldest first
	waits    map[store.Key]bool
	settling *settlement // under way beside, or nil
	monitor  monitor
	outages  map[kafka.Partition]outage // partitions that take nothing
	left     map[string]bool            // chats that wait for one, in this pass
	route    route
	swept    time.Time
	synced   time.Time
	rest     time.Time // before it, nudges wait for more of them

	published, failures, poisoned, dropped atomic.Int64
	unavailable                            atomic.Int64
	backlog                                atomic.Int64
	oldest                                 atomic.Int64 // unix ms: of the rows that the last sweep left; 0: of none
	taken                                  atomic.Int64 // unix ms: of the nudges that are being published, or failed to be; 0: of none
	moved                                  atomic.Int64 // unix ms: when a cycle or a transaction was last done
}

// New makes a Relay that has not swept yet.
func New(cfg Config) (*Relay, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Relay{
		cfg:     cfg,
		inbox:   newInbox(cfg.MaxNudges, cfg.MaxBatch),
		last:    map[string]int64{},
		stopped: map[string]error{},
		aside:   map[store.Key]bool{},
		noted:   map[store.Key]time.Time{},
		waits:   map[store.Key]bool{},
		outages: map[kafka.Partition]outage{},
		left:    map[string]bool{},
	}
	for shard := range event.Shards {
		r.mine[shard] = cfg.Shards == nil
	}
	for _, shard := range cfg.Shards {
		if shard < 0 || shard >= event.Shards {
			return nil, fmt.Errorf("relay: there is no shard %d", shard)
		}
		r.mine[shard] = true
	}
	r.moves()
	return r, nil
}

// moves notes that something was done.
func (r *Relay) moves() { r.moved.Store(r.cfg.Clock().UnixMilli()) }

// Stats tells how a relay is doing.
type Stats struct {
	Published int64         // records
	Failures  int64         // cycles that failed, and attempts to publish for each 10 s without success
	Poisoned  int64         // rows set aside: they cannot be published
	Dropped   int64         // nudges that found no room, after which there is a sweep
	Backlog   int64         // rows found by the last sweep
	Oldest    time.Duration // age of the oldest row that is known and not published
	// Unavailable counts the partitions that took nothing when they were last tried.
	Unavailable int64
	Stalled     time.Duration // since a cycle or a transaction was last done
}

// Stats returns the counters; it may be called by anybody.
func (r *Relay) Stats() Stats {
	s := Stats{
		Published: r.published.Load(), Failures: r.failures.Load(), Poisoned: r.poisoned.Load(), Dropped: r.dropped.Load(), Backlog: r.backlog.Load(),
		Unavailable: r.unavailable.Load(),
	}
	for _, at := range []int64{r.oldest.Load(), r.taken.Load()} {
		if at > 0 {
			s.Oldest = max(s.Oldest, r.cfg.Clock().Sub(time.UnixMilli(at)))
		}
	}
	if at := r.inbox.oldest(); !at.IsZero() {
		s.Oldest = max(s.Oldest, r.cfg.Clock().Sub(at))
	}
	s.Stalled = max(0, r.cfg.Clock().Sub(time.UnixMilli(r.moved.Load())))
	return s
}

// Nudge tells of a commit. It never waits. Chats of others' shards are left to others.
func (r *Relay) Nudge(c chat.Commit) {
	if r.mine[event.Shard(c.ChatID)] && !r.inbox.put(c, r.cfg.Clock()) {
		r.dropped.Add(1)
	}
}

// Waits after a failed cycle.
const (
	firstWait = 100 * time.Millisecond
	maxWait   = 5 * time.Second
)

// Run publishes until ctx ends, then deletes what can be deleted. It returns early
// only if another relay took over.
func (r *Relay) Run(ctx context.Context) error {
	beside, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var monitor sync.WaitGroup
	monitor.Go(func() { r.watch(beside) })
	defer func() { // nothing of it runs any more when it returns
		cancel()
		_ = r.finishSettling()
		monitor.Wait()
	}()
	wait := firstWait
	for ctx.Err() == nil {
		err := r.pass(ctx)
		if !errors.Is(err, kafka.ErrFenced) { // also while nothing can be published: a full disk needs the room
			err = cmp.Or(err, r.settleBeside(beside))
		}
		switch {
		case errors.Is(err, kafka.ErrFenced):
			return err
		case err != nil && ctx.Err() == nil:
			if !errors.As(err, new(countedError)) {
				r.failures.Add(1)
			}
			r.cfg.Logger.Warn("relay: will be repeated", "error", err)
			r.pause(ctx, wait)
			wait = min(2*wait, maxWait)
			r.swept = time.Time{} // nudges may have been lost with the cycle
			continue
		}
		wait = firstWait
		r.moves()
		r.idle(ctx)
	}
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer stop()
	context.AfterFunc(end, cancel)
	if err := errors.Join(r.finishSettling(), r.settle(end, true)); err != nil {
		r.cfg.Logger.Warn("relay: rows stay for the next start", "error", err)
	}
	return ctx.Err()
}

// Rests between transactions. A transaction costs about as much for one record as for a
// hundred, so under load the relay lets records gather: for twice as long as the last
// transaction took. Whoever comes after a rest is published at once.
const (
	minRest = 40 * time.Millisecond
	maxRest = 100 * time.Millisecond
)

// idle waits until there is something to do.
func (r *Relay) idle(ctx context.Context) {
	t := time.NewTimer(r.untilNext())
	defer t.Stop()
	for {
		var settled chan struct{}
		if r.settling != nil {
			settled = r.settling.done
		}
		select {
		case <-ctx.Done():
			return
		case <-settled:
			return
		case <-t.C:
			return
		case <-r.inbox.wake:
			d := r.untilNext()
			if d <= 0 {
				return
			}
			t.Reset(d)
		}
	}
}

// untilNext is how long there is nothing to do, unless a nudge comes.
func (r *Relay) untilNext() time.Duration {
	now := r.cfg.Clock()
	d := min(r.swept.Add(r.cfg.Sweep).Sub(now), r.route.due(r.cfg).Sub(now))
	if len(r.awaiting) > 0 && r.settling == nil {
		d = min(d, r.synced.Add(r.cfg.FlushEvery).Sub(now))
	}
	d = max(d, time.Millisecond)
	switch chats, full := r.inbox.state(); {
	case full:
		return 0
	case chats > 0:
		return min(d, time.Until(r.rest))
	}
	return d
}

func (r *Relay) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// Cycle publishes what nudges brought, sweeps if it is time, and deletes rows that
// are on stable storage.
func (r *Relay) Cycle(ctx context.Context) error {
	if err := r.pass(ctx); err != nil {
		return err
	}
	if err := r.settle(ctx, false); err != nil {
		return err
	}
	r.moves()
	return nil
}

// pass is a Cycle without deletions.
func (r *Relay) pass(ctx context.Context) error {
	if err := r.followTopics(ctx); err != nil {
		return err
	}
	lost := r.inbox.takeLost()
	if now := r.cfg.Clock(); lost || now.Sub(r.swept) >= r.cfg.Sweep {
		// First, when a relay begins: its shards whole, before it takes nudges.
		if err := r.sweep(ctx); err != nil {
			return err
		}
		r.swept = now
	}
	list := r.inbox.take(r.cfg.MaxBatch)
	if len(list) == 0 {
		return nil
	}
	began := time.Now()
	err := r.publishNudges(ctx, list)
	r.rest = began.Add(min(max(2*time.Since(began), minRest), maxRest))
	return err
}
