// Package consume is the consumer engine: it reads topics as a member of a group, passes
// records to a handler, and decides by the class of a failure what happens to a record.
//
// It owns commits, order, retries, and when a dead letter is written. It does not own what a record means (the
// handler), where records come from (a Session: package kafka, or package eventlog/session), which record crashed a
// process (package crashlog), or the form of a dead letter (package encoding).
//
// # Rules
//
// The engine works in rounds of at most kafka.MaxPoll records, in which every partition with records gets a turn.
// Within a round, records of different keys are worked on in parallel, regardless of their partition; records of one
// key and partition stay in order. After a round the engine commits the contiguous prefix of finished records of each
// partition. A partition whose record must wait is paused, and resumes at that record; the others continue meanwhile.
// Rebalances wait for the end of a round. Records that were fetched of a partition are dropped when it is revoked.
//
// permanent      dead letter, commit
// downstream     a few quick retries, skip, commit
// authoritative  pause the partition, retry later
// fatal          the engine ends; its owner starts it again
// unknown        counted durably; a dead letter after three attempts
// ignored        counted, commit
//
// Errors of other packages have their class from one table (see ClassOf). A panic is unknown.
// A record that crashes the process is found by working on the suspects one by one (package
// crashlog). A handler may take the records of a key all at once; only what happens while a
// record is alone counts against it (see BatchHandler).
//
// # Modes
//
// For a handler of records, or of batches, each record stands for itself: one that is dead
// or skipped stops no other. A handler of aggregates returns what records of a key change
// in the store, and the engine commits it in one transaction for each key. Nothing is
// skipped, and once a record of a key has a dead letter, the key is parked (package
// parked): its later records follow, in order, until an operator has all of them redriven
// or discarded. Other keys continue. The number of parked records is bounded; beyond that
// the partition waits.
//
// Concurrency: an Engine is run by one goroutine; handlers are called from many.
package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/consume/parked"
)

// Config sets an Engine up. Zero numbers take the defaults.
type Config struct {
	// Join makes a session of the group; nil: kafka.NewSession, of the brokers at Addr.
	Join     func(kafka.SessionConfig) (Session, error)
	Addr     string
	Kafka    []kafka.Option
	Group    string
	Consumer string // id of this process
	// Instance, if given, is the name of this process as a static member of the group.
	Instance string
	Topics   []string
	// Follow, if given, returns the current topics, in place of Topics: when they change,
	// the Engine joins its group again.
	Follow func() []string
	// The mode: Handle works on records one by one, Batch on those of a key together,
	// Aggregate on those of a key with one transaction, and records after one that has a
	// dead letter are parked behind it. An Engine has one of the three.
	Handle    Handler
	Batch     BatchHandler
	Aggregate AggregateHandler
	// Types are the types of events that the handler takes; none: all. Records of Parley's
	// other types, as their header says, are ignored unread.
	Types []string
	// Parked bounds what is parked, of each partition; for Aggregate only.
	Parked parked.Bounds
	// WriteDeadLetter writes a dead letter, durably.
	WriteDeadLetter func(ctx context.Context, d DeadLetter) error
	Store           store.Store // keeps attempts
	Clock           func() time.Time
	Logger          *slog.Logger
	// Isolation is shared by all Engines of a process; nil: there is no other.
	Isolation *Isolation
	// Parallel is the number of calls of the handler at a time, over all partitions; 16.
	Parallel int
	// Expiry is how long a silent member keeps its partitions; 30 s.
	Expiry time.Duration
	// MinFetch is how many bytes there must be before records are fetched, or MaxWait passes;
	// 0: any. With more, a round handles and commits more records, and costs less processor
	// time for each.
	MinFetch int32
	// MaxWait bounds the wait for MinFetch; 200 ms. A partition that has backed off is fetched
	// again only once the fetch under way is answered, and then waits for its own: its retry
	// may be later by twice as much.
	MaxWait time.Duration
	// Round is the time after which a round starts nothing more; 60 s. Calls of the handler
	// are canceled after twice that time. A round and its commit must end before the
	// group expels this member, 300 s after a rebalance started.
	Round time.Duration
}

const (
	defaultParallel = 16
	defaultRound    = 60 * time.Second
)

// Engine consumes.
type Engine struct {
	cfg     Config
	crashes *crashLog
	parking *parking // nil unless the handler is one of aggregates
	counters

	mu            sync.Mutex
	partitions    map[kafka.Partition]*partition
	revoked       []*partition // since the last round
	lastRebalance time.Time    // when the last rebalance that was counted began

	// Used by Run alone.
	lastTurn kafka.Partition // had the last turn
}

// New makes an Engine.
func New(cfg Config) (*Engine, error) {
	if cfg.Addr == "" && cfg.Join == nil || cfg.Group == "" || len(cfg.Topics) == 0 && cfg.Follow == nil ||
		!cfg.oneMode() ||
		cfg.WriteDeadLetter == nil || cfg.Store == nil || cfg.Clock == nil || cfg.Logger == nil {
		return nil, errors.New("consume: incomplete configuration")
	}
	cfg.Parallel = cmp.Or(max(cfg.Parallel, 0), defaultParallel)
	cfg.Round = cmp.Or(max(cfg.Round, 0), defaultRound)
	cfg.Isolation = cmp.Or(cfg.Isolation, &Isolation{})
	if cfg.Join == nil {
		cfg.Join = joinKafka
	}
	e := &Engine{
		cfg: cfg, partitions: map[kafka.Partition]*partition{},
		// Its few rows are written on a full disk, too: without them the group reads nothing, so
		// nothing of the log can be trimmed.
		crashes: &crashLog{Store: store.Freeing(cfg.Store), Clock: cfg.Clock, Logger: cfg.Logger, Group: cfg.Group,
			Consumer: cfg.Consumer},
	}
	if cfg.Aggregate != nil {
		e.cfg.Batch = cfg.Aggregate.Batch(cfg.Store)
		e.parking = &parking{
			log:    parked.Log{Store: cfg.Store, Clock: cfg.Clock, Group: cfg.Group, Consumer: cfg.Consumer},
			bounds: cfg.Parked.WithDefaults(), keys: map[string]map[string]table.Parked{},
		}
	}
	e.lastProgress.Store(cfg.Clock().UnixMilli())
	return e, nil
}

// oneMode reports whether there is exactly one handler.
func (c *Config) oneMode() bool {
	n := 0
	for _, has := range []bool{c.Handle != nil, c.Batch != nil, c.Aggregate != nil} {
		if has {
			n++
		}
	}
	return n == 1
}

// Run consumes until ctx ends, or a handler fails fatally.
func (e *Engine) Run(ctx context.Context, ready func()) error {
	ready()
	for {
		err := e.runMember(ctx)
		switch {
		case ctx.Err() != nil:
			if err != nil && !errors.Is(err, context.Canceled) {
				e.cfg.Logger.Warn("consume: stopped with an error", "group", e.cfg.Group, "error", err)
			}
			return nil
		case !errors.Is(err, kafka.ErrNotMember) && !errors.Is(err, errRejoin):
			return err
		}
		e.cfg.Logger.Warn("consume: joins the group again", "group", e.cfg.Group, "error", err)
	}
}

// errRejoin says that the engine must make another session of its group.
var errRejoin = errors.New("consume: the session cannot continue")

// runMember consumes as one member of the group.
func (e *Engine) runMember(ctx context.Context) error {
	topics := e.topics()
	s, err := e.cfg.Join(kafka.SessionConfig{
		Options: e.cfg.Kafka, Addr: e.cfg.Addr, Group: e.cfg.Group, Topics: topics, Expiry: e.cfg.Expiry,
		Instance: e.cfg.Instance, MinFetch: e.cfg.MinFetch, MaxWait: e.cfg.MaxWait,
		Assigned: e.onAssigned, Gone: e.onRevoked,
	})
	if err != nil {
		return err
	}
	watched, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { e.watchEnds(watched, s, topics) })
	defer func() {
		stop()
		watching.Wait()
		s.Close()
		e.reset()
	}()
	var polls pollErrors
	for ctx.Err() == nil {
		batches, polled, err := e.step(ctx, s)
		if err != nil {
			return err
		}
		if !slices.Equal(topics, e.topics()) {
			return fmt.Errorf("%w: the topics have changed", errRejoin)
		}
		if err := polls.add(ctx, e.cfg.Clock(), polled, len(batches) > 0); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// step polls once and works on one round. polled is the error of the poll, err one that
// ends the session.
func (e *Engine) step(
	ctx context.Context, s Session,
) (batches map[kafka.Partition]kafka.Batch, polled, err error) {
	e.resumeDue(s)
	batches, polled = e.poll(ctx, s)
	if polled != nil && ctx.Err() == nil {
		e.cfg.Logger.Warn("consume: a poll failed and is retried", "group", e.cfg.Group, "error", polled)
	}
	e.dropRevoked(s)
	if polled == nil {
		e.onPolled()
	}
	e.add(batches)
	before := e.finished()
	err = e.work(ctx, s, e.takeRound())
	if e.finished() > before || polled == nil && !e.waiting() {
		e.lastProgress.Store(e.cfg.Clock().UnixMilli())
	}
	if errors.Is(err, kafka.ErrNotMember) {
		e.markLost()
	}
	s.Done()
	return batches, polled, err
}

// poll takes what was fetched, and waits for it only if there is no work. From here on
// rebalances wait.
func (e *Engine) poll(ctx context.Context, s Poller) (map[kafka.Partition]kafka.Batch, error) {
	switch ready := e.ready(); {
	case ready >= maxReady:
		s.Block()
		return nil, nil
	case ready > 0:
		return s.Fetched()
	}
	wait, cancel := context.WithTimeout(ctx, e.untilRetry())
	defer cancel()
	batches, err := s.Poll(wait)
	e.onCaughtUp(batches)
	return batches, err
}

// followEvery bounds a poll where the topics may change.
const followEvery = time.Second

// topics are those that the engine reads now.
func (e *Engine) topics() []string {
	if e.cfg.Follow == nil {
		return e.cfg.Topics
	}
	return e.cfg.Follow()
}

// maxReplaced is how many polls, less than a minute apart, may say that a topic was
// replaced before the engine makes another session. The first may come from a broker that
// does not know the topic yet. Polls between them may bring records of other topics.
const maxReplaced = 3

// Waits between polls that fail.
const (
	firstPollWait = 100 * time.Millisecond
	maxPollWait   = 2 * time.Second
)

// pollErrors decides what to do about polls that fail.
type pollErrors struct {
	failures     int // one after the other, without records
	replaced     int // polls that found a topic replaced
	lastReplaced time.Time
}

// add takes the result of a poll. It waits before the next one if there is nothing to work
// on, so that an error that comes at once is not asked for in a loop. An error ends the
// session.
func (p *pollErrors) add(ctx context.Context, now time.Time, failure error, records bool) error {
	if errors.Is(failure, kafka.ErrTopicReplaced) {
		if now.Sub(p.lastReplaced) > time.Minute {
			p.replaced = 0
		}
		p.replaced, p.lastReplaced = p.replaced+1, now
		if p.replaced > maxReplaced {
			return fmt.Errorf("%w: %w", errRejoin, failure)
		}
	}
	switch {
	case failure == nil:
		p.failures = 0
	case !records:
		_ = wait.For(ctx, wait.Doubled(firstPollWait, maxPollWait, p.failures))
		p.failures++
	}
	return nil
}
