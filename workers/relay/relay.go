// Package relay publishes committed events to Kafka, or to the log in the store: in order per
// chat, and each at least once, even after a crash.
//
// It owns the publication and the deletion of outbox rows. A row is deleted only when its
// records are durable. Rows that remain after a crash are published again, so a reader of Kafka
// may see an event twice, but never a later one first. The log in the store deletes the row in the
// commit that appends the records (Config.Deletes), so each event of a chat is there once. The
// relay does not own events (package
// event), their commit (package chat), what a row must look like (package store/outbox) or
// the settings of producers (package kafka).
//
// # How
//
// A nudge is a hint that carries what was just committed, and may be lost. The relay
// publishes it without reading anything if it follows the last version that this relay
// published of the chat. Otherwise, and for a chat that is not cached, the relay queries
// the outbox. A sweep of all shards finds what nudges missed. A cycle publishes whole plans
// in Kafka transactions.
//
// A relay publishes the events of chats, or other streams of rows whose records its owner
// makes (Config.Load): everything but the records is the same for both.
//
// A row that cannot be published, because it or its events cannot be read, is quarantined:
// the reason is recorded on the row and logged, its chat waits, and other chats do not. A
// partition that refuses records is left out for a while together with its chats; other
// chats are published. The file of each part says how: inbox.go (nudges), load.go (rows to
// plans), publish.go (plans to publications), sweep.go, outage.go (partitions that refuse),
// aside.go (records of streams for such partitions), route.go (migrations of topics), deletion.go,
// monitor.go (metrics while a call hangs).
//
// # Concurrency
//
// Nudge and Stats are safe for concurrent use and never wait. Everything else belongs to the one
// goroutine that calls Run (or, in tests, Cycle).
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
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Config sets a Relay up. Zero durations and sizes take the defaults.
type Config struct {
	Store store.Store
	// Generation is that of the store's history in which events are published. Records say so.
	Generation string
	Serde      *event.Serde
	// Load, if given, makes the records that rows of a stream announce, in place of the events
	// of chats: a list for each of the rows, which are consecutive. An error that wraps
	// ErrPoison says that the row behind those of the lists can never be published. Such
	// streams are announced by Wake, go to no topic that is migrated, and need no Serde. Their
	// records are in order within a partition, not between partitions.
	Load func(ctx context.Context, rows []table.Outbox) ([][]*kafka.Record, error)
	// Publish publishes the records of all publications, in their order, or none of them. A
	// *kafka.PartitionError says that it was none. After another error the outcome is unknown.
	Publish func(ctx context.Context, list []eventlog.Publication) error
	// Deletes says that Publish deletes the rows of the publications in the commit that makes
	// their records durable. A published row then needs neither Flush nor a deletion, and a
	// crash leaves either the row or its records.
	Deletes bool
	// Flush returns when everything that was published is durable. May be nil where an
	// acknowledgement means that. Not called with Deletes.
	Flush func(ctx context.Context) error
	// Failed is called with the type of each event whose transaction failed, or has not
	// succeeded for 10 s, from any goroutine. The event stays in the outbox and is published
	// again. May be nil.
	Failed func(eventType string)
	// Created is called for each chat whose creation was published, with the time since its
	// commit; after a crash perhaps twice. May be nil.
	Created func(e *eventv1.ChatCreated, took time.Duration)
	// Topics reads which topics events go to, and which of them are frozen. The read must be
	// strongly consistent. Nil: events go to the declared topics.
	Topics func(ctx context.Context) (versions.State, error)
	// Renew fences all earlier producers with this relay's transactional id, and then confirms
	// that this process still holds the slot. No transaction that began earlier can commit
	// afterwards. It is called once for each new state of Topics. May be nil.
	Renew func(ctx context.Context) error
	// Report records that this relay publishes by a state. While it fails, the topic that is
	// migrated waits; other topics do not. May be nil.
	Report func(ctx context.Context, revision int64) error
	Clock  func() time.Time
	Logger *slog.Logger
	// Shards of the outbox that this relay publishes; nil: all of chats. No other relay may publish
	// them at the same time: package slot assigns them.
	Shards []int

	Sweep      time.Duration // 2 s
	FlushEvery time.Duration // least time between two calls of Flush; 1 s
	// FlushWithin is how long fewer than 500 published rows may wait for Flush, and then for
	// their deletion; FlushEvery. After a crash they are published again.
	FlushWithin time.Duration
	// Awaited reports whether a consumer waits for events; nil: always. While none does,
	// they are collected for up to a second.
	Awaited   func() bool
	MaxBatch  int // records of one transaction; 2,000
	MaxNudges int // events in memory; more are read from the outbox; 8,192
	// MaxAside bounds the rows of streams that are published in part, of which each takes about
	// 400 bytes of memory. Beyond it a row waits as a whole while one of its partitions refuses records; 131,072.
	MaxAside int
}

func (c Config) withDefaults() (Config, error) {
	if c.Store == nil || c.Serde == nil && c.Load == nil || c.Publish == nil || c.Clock == nil || c.Logger == nil {
		return c, errors.New("relay: store, serde or load, publish, clock and logger are required")
	}
	if c.Awaited == nil {
		c.Awaited = func() bool { return true }
	}
	if c.Flush == nil {
		c.Flush = func(context.Context) error { return nil }
	}
	c.Sweep = cmp.Or(c.Sweep, 2*time.Second)
	c.FlushEvery = cmp.Or(c.FlushEvery, time.Second)
	c.FlushWithin = max(c.FlushEvery, c.FlushWithin)
	c.MaxBatch = cmp.Or(c.MaxBatch, 2000)
	c.MaxNudges = cmp.Or(c.MaxNudges, 8192)
	c.MaxAside = cmp.Or(c.MaxAside, 1<<17)
	return c, nil
}

// maxChats bounds the cached versions, of which a miss costs a query, and the chats with
// nudges in the inbox.
const maxChats = 1 << 16

// Relay publishes the events of one store.
type Relay struct {
	cfg      Config
	inbox    *inbox
	assigned [event.AllShards]bool

	lastPublished map[string]int64        // last version published, by chat
	blocked       map[string]error        // chats whose next row cannot be published, until the next sweep
	quarantined   map[store.Key]bool      // rows that cannot be published, since the last sweep began
	logged        map[store.Key]time.Time // when they were last logged
	pendingDelete []store.Key             // rows published and not deleted, oldest first
	isPending     map[store.Key]bool
	deleting      *deletion // in the background, or nil
	monitor       monitor
	outages       map[kafka.Partition]outage // partitions that refuse records
	deferred      map[string]bool            // chats that wait for a partition or topic until the next pass
	aside         map[store.Key]*rest        // rows of streams that are published in part
	held          map[lane]bool              // whose records wait until the next pass
	sweeps        int64                      // that began
	route         route
	lastSweep     time.Time
	lastDelete    time.Time
	restUntil     time.Time // until then nudges are collected

	published, failures, poisoned, dropped atomic.Int64
	unavailable                            atomic.Int64
	backlog                                atomic.Int64
	// unix ms: of the rows that the last sweep could not publish; 0: none
	oldest atomic.Int64
	// unix ms: of the nudges that are being published, or could not be; 0: none
	inFlightSince atomic.Int64
	lastProgress  atomic.Int64                     // unix ms: when a cycle or a transaction last succeeded
	waitingSince  atomic.Pointer[map[string]int64] // unix ms by topic: of the oldest record that is set aside
}

// New makes a Relay. It does nothing before Run.
func New(cfg Config) (*Relay, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &Relay{
		cfg:           cfg,
		inbox:         newInbox(cfg.MaxNudges, cfg.MaxBatch),
		lastPublished: map[string]int64{},
		blocked:       map[string]error{},
		quarantined:   map[store.Key]bool{},
		logged:        map[store.Key]time.Time{},
		isPending:     map[store.Key]bool{},
		outages:       map[kafka.Partition]outage{},
		deferred:      map[string]bool{},
		aside:         map[store.Key]*rest{},
		held:          map[lane]bool{},
	}
	for shard := range event.Shards {
		r.assigned[shard] = cfg.Shards == nil
	}
	for _, shard := range cfg.Shards {
		if shard < 0 || shard >= event.AllShards {
			return nil, fmt.Errorf("relay: there is no shard %d", shard)
		}
		r.assigned[shard] = true
	}
	r.recordProgress()
	return r, nil
}

// recordProgress records that a cycle or a transaction succeeded.
func (r *Relay) recordProgress() { r.lastProgress.Store(r.cfg.Clock().UnixMilli()) }

// Stats are the counters and the state of a relay.
type Stats struct {
	Published int64         // records
	Failures  int64         // cycles that failed, and attempts to publish for each 10 s without success
	Poisoned  int64         // rows in quarantine: they cannot be published
	Dropped   int64         // nudges that did not fit into the inbox; a sweep follows
	Backlog   int64         // rows in the outbox at the last sweep, or at the last count if no sweep ends
	Oldest    time.Duration // age of the oldest row that is not published
	// Unavailable is the number of partitions that refused records at the last attempt.
	Unavailable int64
	Stalled     time.Duration // since a cycle or a transaction last succeeded
}

// Stats returns the counters.
func (r *Relay) Stats() Stats {
	s := Stats{
		Published: r.published.Load(), Failures: r.failures.Load(), Poisoned: r.poisoned.Load(), Dropped: r.dropped.Load(),
		Backlog:     r.backlog.Load(),
		Unavailable: r.unavailable.Load(),
	}
	for _, at := range []int64{r.oldest.Load(), r.inFlightSince.Load()} {
		if at > 0 {
			s.Oldest = max(s.Oldest, r.cfg.Clock().Sub(time.UnixMilli(at)))
		}
	}
	if at := r.inbox.oldest(); !at.IsZero() {
		s.Oldest = max(s.Oldest, r.cfg.Clock().Sub(at))
	}
	s.Stalled = max(0, r.cfg.Clock().Sub(time.UnixMilli(r.lastProgress.Load())))
	return s
}

// Nudge is a hint that a plan was committed. It never waits, and ignores chats of shards
// that are not assigned to this relay.
func (r *Relay) Nudge(c chat.Commit) {
	if r.assigned[event.Shard(c.ChatID)] && !r.inbox.add(c, r.cfg.Clock()) {
		r.dropped.Add(1)
	}
}

// Wake is a hint that a stream has new rows in the outbox, which are read from there. Like
// Nudge it never waits, and ignores what is not assigned to this relay.
func (r *Relay) Wake(stream string) {
	if r.assigned[event.Shard(stream)] && !r.inbox.wakeUp(stream, r.cfg.Clock()) {
		r.dropped.Add(1)
	}
}

// Waits after a failed cycle.
const (
	firstWait = 100 * time.Millisecond
	maxWait   = 5 * time.Second
)

// Run publishes until ctx ends, and then deletes what can be deleted. It returns earlier
// only if another relay has fenced it.
func (r *Relay) Run(ctx context.Context) error {
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var monitor sync.WaitGroup
	monitor.Go(func() { r.watch(background) })
	defer func() { // no goroutine outlives Run
		cancel()
		_ = r.finishDeletion()
		monitor.Wait()
	}()
	backoff := firstWait
	for ctx.Err() == nil {
		err := r.pass(ctx)
		if !errors.Is(err, kafka.ErrFenced) { // deletions free space, also while nothing can be published
			err = cmp.Or(err, r.startDeletion(background))
		}
		switch {
		case errors.Is(err, kafka.ErrFenced):
			return err
		case err != nil && ctx.Err() == nil:
			if !errors.As(err, new(countedError)) {
				r.failures.Add(1)
			}
			r.cfg.Logger.Warn("relay: cycle failed; retrying", "error", err)
			_ = wait.For(ctx, backoff)
			backoff = min(2*backoff, maxWait)
			r.lastSweep = time.Time{} // nudges may have been lost with the cycle
			continue
		}
		backoff = firstWait
		r.recordProgress()
		r.idle(ctx)
	}
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer stop()
	context.AfterFunc(end, cancel)
	if err := errors.Join(r.finishDeletion(), r.deletePublished(end, true)); err != nil {
		r.cfg.Logger.Warn("relay: published rows remain until the next start", "error", err)
	}
	return ctx.Err()
}

// Rests between transactions. A transaction of one record costs about as much as one of a
// hundred, so the relay collects records: while chats are quiet for as long as half of the
// events may wait, under load for twice as long as the last transaction took. A nudge that
// comes after the rest is published at once.
const (
	quietRest   = 50 * time.Millisecond
	minRest     = 40 * time.Millisecond
	maxRest     = 100 * time.Millisecond
	quietEvents = 4 // a transaction with at most as many is one of quiet chats
	// unawaitedRest is the rest while no consumer waits for events. A transaction costs a
	// server about as much as a lone send costs without a transaction.
	unawaitedRest = time.Second
)

// rest returns how long after the start of a transaction the next one may begin.
func (c *Config) rest(events int, took time.Duration) time.Duration {
	if !c.Awaited() {
		return unawaitedRest
	}
	least := minRest
	if events <= quietEvents {
		least = quietRest
	}
	return min(max(2*took, least), maxRest)
}

// idle waits until there is something to do.
func (r *Relay) idle(ctx context.Context) {
	t := time.NewTimer(r.untilNext())
	defer t.Stop()
	for {
		var deleted chan struct{}
		if r.deleting != nil {
			deleted = r.deleting.done
		}
		select {
		case <-ctx.Done():
			return
		case <-deleted:
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

// untilNext returns the time until there is something to do, unless a nudge comes earlier.
func (r *Relay) untilNext() time.Duration {
	now := r.cfg.Clock()
	d := min(r.lastSweep.Add(r.cfg.Sweep).Sub(now), r.route.due(r.cfg).Sub(now))
	if len(r.pendingDelete) > 0 && r.deleting == nil {
		d = min(d, r.deletionAt().Sub(now))
	}
	d = max(d, time.Millisecond)
	switch chats, full := r.inbox.state(); {
	case full:
		return 0
	case chats > 0:
		return min(d, time.Until(r.restUntil))
	}
	return d
}

// Cycle sweeps if a sweep is due, publishes nudges, and deletes rows whose records are
// durable.
func (r *Relay) Cycle(ctx context.Context) error {
	if err := r.pass(ctx); err != nil {
		return err
	}
	if err := r.deletePublished(ctx, false); err != nil {
		return err
	}
	r.recordProgress()
	return nil
}

// pass is a Cycle without deletions.
func (r *Relay) pass(ctx context.Context) error {
	if err := r.refreshTopics(ctx); err != nil {
		return err
	}
	overflowed := r.inbox.resetOverflow()
	if now := r.cfg.Clock(); overflowed || now.Sub(r.lastSweep) >= r.cfg.Sweep {
		// The first sweep publishes all shards completely, before any nudge.
		if err := r.sweep(ctx); err != nil {
			return err
		}
		r.lastSweep = now
	}
	list := r.inbox.dequeue(r.cfg.MaxBatch)
	if len(list) == 0 {
		return nil
	}
	began, events := time.Now(), 0
	for _, w := range list {
		events += w.events()
	}
	err := r.publishNudges(ctx, list)
	r.restUntil = began.Add(r.cfg.rest(events, time.Since(began)))
	return err
}
