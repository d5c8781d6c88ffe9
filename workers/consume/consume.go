// Package consume is the one consumer engine: it reads topics as a member of a
// group, hands records to a handler, and decides by the class of a failure what
// becomes of a record.
//
// It owns commits, order, retries, attempts and the writing of dead letters; it
// does not own what a record means (a handler's business) or how Kafka is spoken
// to (package kafka).
//
// # Rules
//
// What was fetched is worked on in rounds of at most kafka.MaxPoll records, in which
// all partitions that have some get a turn. In a round records of different keys are
// worked on in parallel, whatever their partition; records of one key and partition
// stay in order. After a round the contiguous prefix of finished records is committed,
// partition by partition. A partition whose record must wait is held and goes on from
// that record; the others go on meanwhile. Rebalances wait for the end of a round;
// what was fetched of a partition that went away is dropped.
//
//	permanent      dead letter, commit
//	downstream     a few quick retries, skip, commit
//	authoritative  hold the partition, again later
//	fatal          the engine ends; its owner starts it anew
//	unknown        counted durably; a dead letter after three
//	ignored        counted, commit
//
// A panic is unknown. A record that ends the process is found by working on those
// that may have done it one by one; see blame.go. A handler may take the records of a
// key all at once; what is held against a record is what happened when it was alone
// (see BatchHandler).
//
// Concurrency: an Engine is run by one goroutine; handlers are called from many.
package consume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// Config sets an Engine up. Zero numbers take the defaults.
type Config struct {
	Addr     string
	Kafka    []kafka.Option
	Group    string
	Consumer string // id of this process
	Topics   []string
	// Follow returns the topics as they are now, in place of Topics: when they change, the
	// Engine joins its group again. May be nil.
	Follow func() []string
	// Handle works on records one by one, Batch on those of a key together. An Engine
	// has one of the two.
	Handle Handler
	Batch  BatchHandler
	Dead   func(ctx context.Context, d Dead) error // writes a dead letter, durably
	Store  store.Store                             // keeps attempts
	Clock  func() time.Time
	Logger *slog.Logger
	// Parallel is the number of calls of the handler at a time, over all partitions; 16.
	Parallel int
	// Expiry is how long a member that is not heard of keeps its partitions; 30 s (K-096).
	Expiry time.Duration
	// MinFetch is how many bytes there must be before records are taken, or 200 ms pass; 0:
	// any. More of them are handled, and committed, at a time, for less of the processor.
	MinFetch int32
	// Round is the time after which a round begins nothing more; 60 s. Calls of the
	// handler are cut after twice that time. A round and its commit must end before the
	// group's other members give this one up, which they do after 300 s.
	Round time.Duration
}

const (
	defaultParallel = 16
	defaultRound    = 60 * time.Second
)

// Engine consumes.
type Engine struct {
	cfg Config

	mu    sync.Mutex
	fresh map[kafka.Partition]bool // assigned, no record has come yet
	open  map[kafka.Partition]bool // ours in the store
	gone  map[kafka.Partition]bool // taken away since the last round
	lags  map[kafka.Partition]lag
	dealt time.Time // when the last rebalance that was counted began
	// fetchedTo is up to where a partition was fetched, beyond what Kafka has there.
	fetchedTo map[kafka.Partition]int64
	beyond    map[kafka.Partition]unread

	// By Run only.
	stocks map[kafka.Partition]*stock
	last   kafka.Partition // had the last turn
	trial  map[kafka.Partition]*trial
	ahead  map[kafka.Partition]map[int64]bool // finished, but behind a record that waits

	handled, calls, skipped, ignored, dead, unwritten, holds, commits, rebalances atomic.Int64
	moved                                                                         atomic.Int64 // unix ms, see Stats.Stalled
}

// Stats counts what an Engine did, and how far it is behind in its partitions.
type Stats struct {
	Handled, Skipped, Ignored, Dead, Held, Commits int64

	Calls     int64 // of the handler
	Unwritten int64 // times that a dead letter could not be written
	// Rebalances counts how often partitions were dealt out anew. Assignments within
	// rebalanceSpan are one: members hand partitions over in several steps.
	Rebalances int64

	Lag    int64         // records
	Oldest time.Duration // age of the oldest of them, about
	// OldestOf is the same by topic; a topic without a record that waits is not there.
	OldestOf map[string]time.Duration

	// Stalled is the time since a record was finished, or a poll went well while no
	// partition waited.
	Stalled time.Duration
}

// Stats returns the counters; it may be called by anybody.
func (e *Engine) Stats() Stats {
	s := Stats{
		Handled: e.handled.Load(), Skipped: e.skipped.Load(), Dead: e.dead.Load(), Held: e.holds.Load(), Commits: e.commits.Load(),
		Ignored: e.ignored.Load(), Calls: e.calls.Load(), Rebalances: e.rebalances.Load(),
		Unwritten: e.unwritten.Load(), OldestOf: map[string]time.Duration{},
	}
	now := e.cfg.Clock()
	s.Stalled = max(0, now.Sub(time.UnixMilli(e.moved.Load())))
	e.mu.Lock()
	defer e.mu.Unlock()
	for p, l := range e.lags {
		if l.records > 0 {
			s.waits(p, l.records, now.Sub(l.oldest))
		}
	}
	for p, u := range e.beyond {
		if age := now.Sub(u.since); age >= unreadAfter {
			s.waits(p, u.records, age)
		}
	}
	return s
}

// waits adds records of a partition that are not handled, the oldest of them of an age.
func (s *Stats) waits(p kafka.Partition, records int64, age time.Duration) {
	s.Lag += records
	s.Oldest = max(s.Oldest, age)
	s.OldestOf[p.Topic] = max(s.OldestOf[p.Topic], age)
}

// New makes an Engine.
func New(cfg Config) (*Engine, error) {
	if cfg.Addr == "" || cfg.Group == "" || len(cfg.Topics) == 0 && cfg.Follow == nil || (cfg.Handle == nil) == (cfg.Batch == nil) || cfg.Dead == nil || cfg.Store == nil ||
		cfg.Clock == nil || cfg.Logger == nil {
		return nil, errors.New("consume: incomplete configuration")
	}
	if cfg.Parallel <= 0 {
		cfg.Parallel = defaultParallel
	}
	if cfg.Round <= 0 {
		cfg.Round = defaultRound
	}
	e := &Engine{
		cfg:   cfg,
		fresh: map[kafka.Partition]bool{}, open: map[kafka.Partition]bool{}, gone: map[kafka.Partition]bool{}, lags: map[kafka.Partition]lag{},
		fetchedTo: map[kafka.Partition]int64{}, beyond: map[kafka.Partition]unread{},
		stocks: map[kafka.Partition]*stock{}, trial: map[kafka.Partition]*trial{}, ahead: map[kafka.Partition]map[int64]bool{},
	}
	e.moved.Store(cfg.Clock().UnixMilli())
	return e, nil
}

// finished is how many records the engine is done with.
func (e *Engine) finished() int64 {
	return e.handled.Load() + e.skipped.Load() + e.ignored.Load() + e.dead.Load()
}

// waiting reports whether a partition has a record that could not be finished yet.
func (e *Engine) waiting() bool {
	for _, st := range e.stocks {
		if st.wait > 0 {
			return true
		}
	}
	return false
}

// Run consumes until ctx ends, or a handler fails fatally.
func (e *Engine) Run(ctx context.Context) error {
	for {
		err := e.member(ctx)
		if !(errors.Is(err, kafka.ErrNotMember) || errors.Is(err, errRejoin)) || ctx.Err() != nil {
			return err
		}
		e.cfg.Logger.Warn("consume: joins the group again", "group", e.cfg.Group, "error", err)
	}
}

// member consumes as one member of the group.
func (e *Engine) member(ctx context.Context) error {
	topics := e.topics()
	s, err := kafka.NewSession(kafka.SessionConfig{
		Options: e.cfg.Kafka, Addr: e.cfg.Addr, Group: e.cfg.Group, Topics: topics, Expiry: e.cfg.Expiry, MinFetch: e.cfg.MinFetch, Assigned: e.assigned, Gone: e.lose,
	})
	if err != nil {
		return err
	}
	watched, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { e.watch(watched, s, topics) })
	defer func() {
		stop()
		watching.Wait()
		s.Close()
		e.leave()
	}()
	var wait backoff
	var replaced int      // polls that met a topic that was replaced
	var lastMet time.Time // when the last of them did
	for ctx.Err() == nil {
		e.release(s)
		batch, polled := e.poll(ctx, s)
		if polled != nil && ctx.Err() == nil {
			e.cfg.Logger.Warn("consume: will be repeated", "group", e.cfg.Group, "error", polled)
		}
		e.forget(s)
		e.add(batch)
		before := e.finished()
		err := e.work(ctx, s, e.take())
		if e.finished() > before || polled == nil && !e.waiting() {
			e.moved.Store(e.cfg.Clock().UnixMilli())
		}
		if errors.Is(err, kafka.ErrNotMember) {
			e.disown()
		}
		s.Done()
		if now := e.cfg.Clock(); errors.Is(polled, kafka.ErrTopicReplaced) {
			if now.Sub(lastMet) > time.Minute {
				replaced = 0
			}
			replaced, lastMet = replaced+1, now
		}
		switch {
		case err != nil:
			return err
		case !slices.Equal(topics, e.topics()):
			return fmt.Errorf("%w: other topics are read from now on", errRejoin)
		case polled == nil:
			wait = backoff{}
		case errors.Is(polled, kafka.ErrTopicReplaced) && replaced > maxReplaced:
			return fmt.Errorf("%w: %w", errRejoin, polled)
		case len(batch) == 0:
			wait.sleep(ctx) // whatever answers at once with an error is not asked at once again
		}
	}
	return ctx.Err()
}

// followEvery is how long at most a poll waits where the topics may change.
const followEvery = time.Second

// topics are those that the engine reads now.
func (e *Engine) topics() []string {
	if e.cfg.Follow == nil {
		return e.cfg.Topics
	}
	return e.cfg.Follow()
}

// errRejoin says that another session of the group has to be made.
var errRejoin = errors.New("consume: the session cannot go on")

// maxReplaced is how many polls, less than a minute apart, may say that a topic is not the
// one that the session has met, before another session is made. The first may be a broker
// that has not heard of a topic yet. Polls between them may bring records of other topics.
const maxReplaced = 3

// Waits between polls that fail.
const (
	firstPollWait = 100 * time.Millisecond
	maxPollWait   = 2 * time.Second
)

// backoff is the wait between polls that fail one after the other.
type backoff struct{ failures int }

func (b *backoff) sleep(ctx context.Context) {
	sleep(ctx, min(firstPollWait<<min(b.failures, 16), maxPollWait))
	b.failures++
}

// poll takes over what was fetched, and waits for it only if there is no work.
// Rebalances wait from here on.
func (e *Engine) poll(ctx context.Context, s *kafka.Session) (map[kafka.Partition]kafka.Batch, error) {
	switch ready := e.ready(); {
	case ready >= maxReady:
		s.Block()
		return nil, nil
	case ready > 0:
		return s.Fetched()
	}
	wait, cancel := context.WithTimeout(ctx, e.nextRelease())
	defer cancel()
	batch, err := s.Poll(wait)
	e.caughtUp(batch)
	return batch, err
}

// rebalanceSpan is how long after an assignment others belong to the same rebalance.
// Cooperative members need two generations for one change of their number, and a process
// that is restarted leaves and joins.
const rebalanceSpan = 30 * time.Second

func (e *Engine) assigned(parts []kafka.Partition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := e.cfg.Clock(); e.dealt.IsZero() || now.Sub(e.dealt) >= rebalanceSpan {
		e.dealt = now // the first of a series: one that does not end is counted again and again
		e.rebalances.Add(1)
	}
	for _, p := range parts {
		e.fresh[p] = true
	}
}

func (e *Engine) lose(parts []kafka.Partition, lost bool) {
	e.mu.Lock()
	var ours []kafka.Partition
	for _, p := range parts {
		if e.open[p] && !lost {
			ours = append(ours, p)
		}
		delete(e.fresh, p)
		delete(e.open, p)
		delete(e.lags, p)
		delete(e.fetchedTo, p)
		delete(e.beyond, p)
		e.gone[p] = true
	}
	e.mu.Unlock()
	e.giveBack(ours)
}

// disown notes that all partitions may be others' by now.
func (e *Engine) disown() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.open)
}

// leave drops all that is known of partitions.
func (e *Engine) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.fresh)
	clear(e.open)
	clear(e.gone)
	clear(e.lags)
	clear(e.fetchedTo)
	clear(e.beyond)
	clear(e.stocks)
	clear(e.trial)
	clear(e.ahead)
}

// forget drops what is known of partitions that were taken away: they may be ours
// again by now, and then begin where their next owner left off.
func (e *Engine) forget(s *kafka.Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for p := range e.gone {
		if st := e.stocks[p]; st != nil && st.paused {
			s.Hold(p, false) // or it would never be fetched again
		}
		delete(e.stocks, p)
		delete(e.trial, p)
		delete(e.ahead, p)
	}
	clear(e.gone)
}
