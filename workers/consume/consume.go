// Package consume is the one consumer engine: it reads topics as a member of a
// group, hands each record to a handler, and decides by the class of a failure
// what becomes of the record.
//
// It owns commits, order, retries, attempts and the writing of dead letters; it
// does not own what a record means (a handler's business) or how Kafka is spoken
// to (package kafka).
//
// # Rules
//
// Partitions run in parallel, and in a partition records of different keys, in
// lanes; records of one key stay in order. What is committed is the contiguous
// prefix of finished records, after they are finished. A partition whose record
// must wait is rewound to it and held; the others go on.
//
//	permanent      dead letter, commit
//	downstream     a few quick retries, skip, commit
//	authoritative  hold the partition, rewind, again later
//	fatal          the engine ends; its owner starts it anew
//	unknown        counted durably; a dead letter after three
//
// A panic is unknown. A record that ends the process is found by a count that is
// written before the first records after a start are handled.
//
// Concurrency: an Engine is run by one goroutine; handlers are called from many.
package consume

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// Class says what to do about a failure.
type Class uint8

// The classes of failures.
const (
	Unknown       Class = iota
	Permanent           // the record will never be right
	Downstream          // somebody who is served is away; nothing is lost by skipping
	Authoritative       // the store or Kafka is away
	Fatal               // the engine must start anew
)

// String returns the class's name.
func (c Class) String() string {
	return [...]string{"unknown", "permanent", "downstream", "authoritative", "fatal"}[c]
}

// Failure is an error of a class. Reason must not hold any content of the record.
type Failure struct {
	Class  Class
	Reason string
	Err    error
}

// Error returns class and reason.
func (f *Failure) Error() string { return f.Class.String() + ": " + f.Reason }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Fail makes a Failure.
func Fail(c Class, reason string, err error) error {
	return &Failure{Class: c, Reason: reason, Err: err}
}

// Handler works on a record.
type Handler func(ctx context.Context, r *kafka.Record) error

// Config sets an Engine up. Zero numbers take the defaults.
type Config struct {
	Addr     string
	Group    string
	Consumer string // id of this process
	Topics   []string
	Handle   Handler
	Dead     func(ctx context.Context, d Dead) error // writes a dead letter, durably
	Store    store.Store                             // keeps attempts
	Clock    func() time.Time
	Logger   *slog.Logger
	Lanes    int // of a partition; 1
}

// Engine consumes.
type Engine struct {
	cfg  Config
	seed maphash.Seed

	mu    sync.Mutex
	fresh map[kafka.Partition]bool // assigned, nothing committed yet
	gone  map[kafka.Partition]bool // since the last poll

	// By Run only, and by the goroutine of a partition while it is worked on.
	held  map[kafka.Partition]*hold
	ahead map[kafka.Partition]map[int64]bool // finished, but behind a record that waits

	handled, skipped, dead, held2, commits atomic.Int64
}

// hold is a partition that waits.
type hold struct {
	offset int64 // of the record that waits
	until  time.Time
	wait   time.Duration
	active bool
}

// Stats counts what an Engine did.
type Stats struct{ Handled, Skipped, Dead, Held, Commits int64 }

// Stats returns the counters; it may be called by anybody.
func (e *Engine) Stats() Stats {
	return Stats{Handled: e.handled.Load(), Skipped: e.skipped.Load(), Dead: e.dead.Load(), Held: e.held2.Load(), Commits: e.commits.Load()}
}

// New makes an Engine.
func New(cfg Config) (*Engine, error) {
	if cfg.Addr == "" || cfg.Group == "" || len(cfg.Topics) == 0 || cfg.Handle == nil || cfg.Dead == nil || cfg.Store == nil || cfg.Clock == nil || cfg.Logger == nil {
		return nil, errors.New("consume: incomplete configuration")
	}
	cfg.Lanes = max(cfg.Lanes, 1)
	return &Engine{
		cfg: cfg, seed: maphash.MakeSeed(),
		fresh: map[kafka.Partition]bool{}, gone: map[kafka.Partition]bool{}, held: map[kafka.Partition]*hold{}, ahead: map[kafka.Partition]map[int64]bool{},
	}, nil
}

// Waits of a held partition.
const (
	firstHold = 50 * time.Millisecond
	maxHold   = 5 * time.Second
)

// Run consumes until ctx ends, or a handler fails fatally.
func (e *Engine) Run(ctx context.Context) error {
	s, err := kafka.NewSession(kafka.SessionConfig{
		Addr: e.cfg.Addr, Group: e.cfg.Group, Topics: e.cfg.Topics, Assigned: e.assigned, Gone: e.lose,
	})
	if err != nil {
		return err
	}
	defer s.Close()
	for ctx.Err() == nil {
		e.release(s)
		poll, cancel := context.WithTimeout(ctx, e.nextRelease())
		batch, err := s.Poll(poll)
		cancel()
		if err != nil && ctx.Err() == nil {
			e.cfg.Logger.Warn("consume: will be repeated", "group", e.cfg.Group, "error", err)
		}
		err = e.work(ctx, s, batch)
		s.Done()
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (e *Engine) assigned(parts []kafka.Partition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range parts {
		e.fresh[p] = true
		delete(e.gone, p)
	}
}

func (e *Engine) lose(parts []kafka.Partition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range parts {
		delete(e.fresh, p)
		e.gone[p] = true
	}
}

// idlePoll bounds a poll while nothing is held, so that the loop sees ctx.
const idlePoll = time.Minute

func (e *Engine) nextRelease() time.Duration {
	d, now := idlePoll, e.cfg.Clock()
	for _, h := range e.held {
		if h.active {
			d = min(d, h.until.Sub(now))
		}
	}
	return max(d, time.Millisecond)
}

// release lets held partitions go on whose time has come, and forgets those that
// are not ours any more.
func (e *Engine) release(s *kafka.Session) {
	now := e.cfg.Clock()
	e.mu.Lock()
	for p := range e.gone {
		delete(e.held, p)
		delete(e.ahead, p)
	}
	clear(e.gone)
	e.mu.Unlock()
	for p, h := range e.held {
		if h.active && !now.Before(h.until) {
			h.active = false
			s.Hold(p, false)
		}
	}
}

// result is what became of a partition's part of a batch.
type result struct {
	part  kafka.Partition
	next  int64 // first offset that is not finished
	first int64
	wait  bool // the record at next must wait
	err   error
}

// work handles a batch and commits what is finished.
func (e *Engine) work(ctx context.Context, s *kafka.Session, batch map[kafka.Partition][]*kafka.Record) error {
	results := make(chan result, len(batch))
	for part, records := range batch {
		ahead := e.ahead[part]
		if ahead == nil {
			ahead = map[int64]bool{}
			e.ahead[part] = ahead
		}
		go func() { results <- e.partition(ctx, part, records, ahead) }()
	}
	commit := map[kafka.Partition]int64{}
	var fatal error
	var waiting []result
	for range batch {
		r := <-results
		if r.next > r.first {
			commit[r.part] = r.next
		}
		if r.wait {
			waiting = append(waiting, r)
		} else {
			delete(e.held, r.part)
		}
		if r.err != nil {
			fatal = r.err
		}
	}
	if err := s.Commit(ctx, commit); err != nil {
		// What was not committed comes again after the next start, or is covered by the
		// next commit: consumers drop what they have seen.
		e.cfg.Logger.Warn("consume: commit", "group", e.cfg.Group, "error", err)
	} else if len(commit) > 0 {
		e.commits.Add(1)
		e.mu.Lock()
		for p := range commit {
			delete(e.fresh, p)
		}
		e.mu.Unlock()
	}
	for _, r := range waiting {
		h := e.held[r.part]
		if h == nil || h.offset != r.next { // the first time for this record
			h = &hold{offset: r.next, wait: firstHold}
			e.held[r.part] = h
		}
		h.until, h.active = e.cfg.Clock().Add(h.wait), true
		h.wait = min(2*h.wait, maxHold)
		e.held2.Add(1)
		s.Rewind(r.part, r.next)
		s.Hold(r.part, true)
	}
	return fatal
}

// partition handles a partition's records in lanes. ahead holds what a batch before
// has finished beyond the record that it went back to.
func (e *Engine) partition(ctx context.Context, part kafka.Partition, records []*kafka.Record, ahead map[int64]bool) result {
	e.mu.Lock()
	fresh := e.fresh[part]
	e.mu.Unlock()
	lanes := e.cfg.Lanes
	if fresh { // one by one: a record that ends the process must be the one that counts
		lanes = 1
	}
	done := make([]bool, len(records))
	for i, r := range records {
		done[i] = ahead[r.Offset]
	}
	var stop atomic.Bool
	var mu sync.Mutex
	var fatal error
	lane := func(n int) {
		for i, r := range records {
			if lanes > 1 && int(maphash.Bytes(e.seed, r.Key)%uint64(lanes)) != n {
				continue
			}
			if ctx.Err() != nil || stop.Load() {
				return
			}
			if done[i] {
				continue
			}
			switch err := e.record(ctx, r, fresh); {
			case err == nil:
				done[i] = true
			case classOf(err) == Fatal:
				stop.Store(true)
				mu.Lock()
				fatal = err
				mu.Unlock()
				return
			default:
				e.cfg.Logger.Warn("consume: a partition waits", "group", e.cfg.Group, "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "error", err)
				return // the key's later records wait with it
			}
		}
	}
	if lanes == 1 {
		lane(0)
	} else {
		var wg sync.WaitGroup
		for n := range lanes {
			wg.Go(func() { lane(n) })
		}
		wg.Wait()
	}
	res := result{part: part, first: records[0].Offset, next: records[0].Offset, err: fatal}
	for i, ok := range done {
		switch {
		case res.wait && ok:
			ahead[records[i].Offset] = true
		case res.wait:
		case !ok:
			res.next, res.wait = records[i].Offset, true
		default:
			res.next = records[i].Offset + 1
		}
	}
	for offset := range ahead {
		if offset < res.next {
			delete(ahead, offset)
		}
	}
	return res
}

// Waits between the retries of a downstream failure.
var downstreamWaits = []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}

// maxAttempts is how often a record with an unknown failure is tried (K-127).
const maxAttempts = 3

// record handles one record, and returns nil if it is finished: handled, skipped,
// or a dead letter.
func (e *Engine) record(ctx context.Context, r *kafka.Record, fresh bool) error {
	attempts := 1
	if fresh {
		var err error
		if attempts, err = e.count(ctx, r); err != nil {
			return Fail(Authoritative, "count attempts", err)
		}
		if attempts > maxAttempts {
			return e.bury(ctx, r, attempts-1, "unknown: the process ended while it worked on the record")
		}
	}
	err := e.call(ctx, r)
	for n := 0; classOf(err) == Downstream && n < len(downstreamWaits) && ctx.Err() == nil; n++ {
		t := time.NewTimer(downstreamWaits[n])
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
		err = e.call(ctx, r)
	}
	if err != nil && ctx.Err() != nil {
		return err // the process is ending: the record will come again
	}
	switch classOf(err) {
	case Permanent:
		return e.bury(ctx, r, attempts, reasonOf(err))
	case Downstream:
		e.skipped.Add(1)
		return nil
	case Unknown:
		if err == nil {
			e.handled.Add(1)
			return nil
		}
		if !fresh {
			var counted error
			if attempts, counted = e.count(ctx, r); counted != nil {
				return Fail(Authoritative, "count attempts", counted)
			}
		}
		if attempts >= maxAttempts {
			return e.bury(ctx, r, attempts, reasonOf(err))
		}
		return err
	case Authoritative:
		if fresh { // the attempt says nothing about the record
			if counted := e.add(ctx, r, -1); counted != nil {
				return Fail(Authoritative, "count attempts", counted)
			}
		}
		return err
	default:
		return err
	}
}

// call calls the handler and turns a panic into an unknown failure.
func (e *Engine) call(ctx context.Context, r *kafka.Record) (err error) {
	defer func() {
		if p := recover(); p != nil {
			e.cfg.Logger.Error("consume: handler panicked", "group", e.cfg.Group, "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "panic", p, "stack", string(debug.Stack()))
			err = Fail(Unknown, "the handler panicked", nil)
		}
	}()
	return e.cfg.Handle(ctx, r)
}

func classOf(err error) Class {
	var f *Failure
	if errors.As(err, &f) {
		return f.Class
	}
	return Unknown
}

// reasonOf is what of an error may stand in a dead letter: class and reason, never
// the text of an error that nobody has looked at.
func reasonOf(err error) string {
	var f *Failure
	if errors.As(err, &f) {
		return f.Error()
	}
	return fmt.Sprintf("unknown: %T", err)
}
