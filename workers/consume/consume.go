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
// must wait is held and goes on from that record; the others go on meanwhile.
//
//	permanent      dead letter, commit
//	downstream     a few quick retries, skip, commit
//	authoritative  hold the partition, again later
//	fatal          the engine ends; its owner starts it anew
//	unknown        counted durably; a dead letter after three
//
// A panic is unknown. A record that ends the process is found by working on those
// that may have done it one by one; see blame.go.
//
// Concurrency: an Engine is run by one goroutine; handlers are called from many.
package consume

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// Handler works on a record.
type Handler func(ctx context.Context, r *kafka.Record) error

// Config sets an Engine up. Zero numbers take the defaults.
type Config struct {
	Addr     string
	Kafka    []kafka.Option
	Group    string
	Consumer string // id of this process
	Topics   []string
	Handle   Handler
	Dead     func(ctx context.Context, d Dead) error // writes a dead letter, durably
	Store    store.Store                             // keeps attempts
	Clock    func() time.Time
	Logger   *slog.Logger
	Lanes    int // of a partition; 1
	// Gate is shared by the engines of a process, so that what must be worked on alone
	// is alone in the process; nil for an engine that has the process to itself.
	Gate *sync.RWMutex
}

// Engine consumes.
type Engine struct {
	cfg  Config
	seed maphash.Seed

	mu    sync.Mutex
	fresh map[kafka.Partition]bool // assigned, no record has come yet
	open  map[kafka.Partition]bool // ours in the store
	gone  map[kafka.Partition]bool // since the last poll
	lags  map[kafka.Partition]lag

	// By Run only, and by the goroutine of a partition while it is worked on.
	held  map[kafka.Partition]*hold
	kept  int // bytes
	trial map[kafka.Partition]*trial
	ahead map[kafka.Partition]map[int64]bool // finished, but behind a record that waits

	handled, skipped, dead, holds, commits atomic.Int64
}

// lag is how far a partition is behind.
type lag struct {
	records int64
	oldest  time.Time // when the next record was published, as far as is known
}

// Stats counts what an Engine did, and how far it is behind in its partitions.
type Stats struct {
	Handled, Skipped, Dead, Held, Commits int64

	Lag    int64         // records
	Oldest time.Duration // age of the oldest of them, about
}

// Stats returns the counters; it may be called by anybody.
func (e *Engine) Stats() Stats {
	s := Stats{Handled: e.handled.Load(), Skipped: e.skipped.Load(), Dead: e.dead.Load(), Held: e.holds.Load(), Commits: e.commits.Load()}
	now := e.cfg.Clock()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.lags {
		if l.records > 0 {
			s.Lag += l.records
			s.Oldest = max(s.Oldest, now.Sub(l.oldest))
		}
	}
	return s
}

// New makes an Engine.
func New(cfg Config) (*Engine, error) {
	if cfg.Addr == "" || cfg.Group == "" || len(cfg.Topics) == 0 || cfg.Handle == nil || cfg.Dead == nil || cfg.Store == nil || cfg.Clock == nil || cfg.Logger == nil {
		return nil, errors.New("consume: incomplete configuration")
	}
	cfg.Lanes = max(cfg.Lanes, 1)
	if cfg.Gate == nil {
		cfg.Gate = new(sync.RWMutex)
	}
	return &Engine{
		cfg: cfg, seed: maphash.MakeSeed(),
		fresh: map[kafka.Partition]bool{}, open: map[kafka.Partition]bool{}, gone: map[kafka.Partition]bool{}, lags: map[kafka.Partition]lag{},
		held: map[kafka.Partition]*hold{}, trial: map[kafka.Partition]*trial{}, ahead: map[kafka.Partition]map[int64]bool{},
	}, nil
}

// Run consumes until ctx ends, or a handler fails fatally.
func (e *Engine) Run(ctx context.Context) error {
	s, err := kafka.NewSession(kafka.SessionConfig{
		Options: e.cfg.Kafka, Addr: e.cfg.Addr, Group: e.cfg.Group, Topics: e.cfg.Topics, Assigned: e.assigned, Gone: e.lose,
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
		err = e.work(ctx, s, e.join(batch))
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
		e.gone[p] = true
	}
	e.mu.Unlock()
	e.giveBack(ours)
}

// idlePoll bounds a poll while nothing is held; a poll that brought nothing says
// that nothing is behind.
const idlePoll = 5 * time.Second

func (e *Engine) nextRelease() time.Duration {
	d, now := idlePoll, e.cfg.Clock()
	for _, h := range e.held {
		switch {
		case h.active:
			d = min(d, h.until.Sub(now))
		case len(h.kept.Records) > 0: // there is work already
			d = 0
		}
	}
	return max(d, time.Millisecond)
}

// share is a partition's part of a batch, and what became of it.
type share struct {
	part    kafka.Partition
	batch   kafka.Batch
	ahead   map[int64]bool
	done    []bool // by record
	next    int    // index of the first record that was not begun
	stopped bool   // nothing more is begun
	more    bool   // may have come, had the poll brought more
	fatal   error
}

// work handles a batch and commits what is finished.
func (e *Engine) work(ctx context.Context, s *kafka.Session, batch map[kafka.Partition]kafka.Batch) error {
	shares := make([]*share, 0, len(batch))
	polled := 0
	for _, b := range batch {
		polled += len(b.Records)
	}
	if polled < kafka.MaxPoll {
		e.caughtUp(batch)
	}
	if len(batch) == 0 {
		return nil
	}
	for part, b := range batch {
		if e.ahead[part] == nil {
			e.ahead[part] = map[int64]bool{}
		}
		sh := &share{part: part, batch: b, ahead: e.ahead[part], done: make([]bool, len(b.Records)), more: polled >= kafka.MaxPoll}
		for i, r := range b.Records {
			sh.done[i] = sh.ahead[r.Offset]
		}
		shares = append(shares, sh)
	}
	if err := e.begin(ctx, shares); err != nil {
		e.cfg.Logger.Warn("consume: partitions cannot be begun", "group", e.cfg.Group, "error", err)
	}
	for _, sh := range shares {
		e.workAlone(ctx, sh)
	}
	e.cfg.Gate.RLock()
	var wg sync.WaitGroup
	for _, sh := range shares {
		wg.Go(func() { e.workShare(ctx, sh) })
	}
	wg.Wait()
	e.cfg.Gate.RUnlock()
	return e.finish(ctx, s, shares)
}

// finish commits what a batch has finished and lets partitions wait.
func (e *Engine) finish(ctx context.Context, s *kafka.Session, shares []*share) error {
	commit := map[kafka.Partition]int64{}
	var fatal error
	for _, sh := range shares {
		next, wait := sh.result()
		if next > sh.batch.Records[0].Offset {
			commit[sh.part] = next
		}
		switch h := e.held[sh.part]; {
		case wait:
			e.hold(s, sh, next)
		case h != nil:
			if len(h.kept.Records) > 0 {
				s.Hold(sh.part, false)
			}
			e.forget(sh.part)
		}
		if sh.fatal != nil {
			fatal = sh.fatal
		}
	}
	if err := s.Commit(ctx, commit); err != nil {
		// What was not committed comes again after the next start, or is covered by the
		// next commit: consumers drop what they have seen.
		e.cfg.Logger.Warn("consume: commit", "group", e.cfg.Group, "error", err)
	} else if len(commit) > 0 {
		e.commits.Add(1)
	}
	return fatal
}

// workShare handles the records of a partition that others may be worked on with,
// in lanes.
func (e *Engine) workShare(ctx context.Context, sh *share) {
	var stop atomic.Bool
	var mu sync.Mutex
	lane := func(n int) {
		for i := sh.next; i < len(sh.done); i++ {
			r := sh.batch.Records[i]
			if e.cfg.Lanes > 1 && int(maphash.Bytes(e.seed, r.Key)%uint64(e.cfg.Lanes)) != n {
				continue
			}
			if ctx.Err() != nil || stop.Load() {
				return
			}
			if sh.done[i] {
				continue
			}
			switch err := e.record(ctx, r); {
			case err == nil:
				sh.done[i] = true
			case classOf(err) == Fatal:
				stop.Store(true)
				mu.Lock()
				sh.fatal = err
				mu.Unlock()
				return
			default:
				e.waits(r, err)
				return // the key's later records wait with it
			}
		}
	}
	switch {
	case sh.stopped:
	case e.cfg.Lanes == 1:
		lane(0)
	default:
		var wg sync.WaitGroup
		for n := range e.cfg.Lanes {
			wg.Go(func() { lane(n) })
		}
		wg.Wait()
	}
	e.measure(sh)
}

func (e *Engine) waits(r *kafka.Record, err error) {
	e.cfg.Logger.Warn("consume: a partition waits", "group", e.cfg.Group, "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "error", err)
}

// result returns the offset up to which all is finished, and whether the record
// there must wait. What is finished beyond it is remembered.
func (sh *share) result() (next int64, wait bool) {
	records := sh.batch.Records
	next = records[0].Offset
	for i, ok := range sh.done {
		switch {
		case wait && ok:
			sh.ahead[records[i].Offset] = true
		case wait:
		case !ok:
			next, wait = records[i].Offset, true
		default:
			next = records[i].Offset + 1
		}
	}
	for offset := range sh.ahead {
		if offset < next {
			delete(sh.ahead, offset)
		}
	}
	return next, wait
}

// caughtUp notes that a poll brought all that there was: partitions that it brought
// nothing of are not behind, unless they wait.
func (e *Engine) caughtUp(batch map[kafka.Partition]kafka.Batch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for part := range e.lags {
		h := e.held[part]
		if _, came := batch[part]; !came && (h == nil || !h.active) {
			delete(e.lags, part)
		}
	}
}

// measure notes how far a partition is behind.
func (e *Engine) measure(sh *share) {
	i := 0
	for i < len(sh.done)-1 && sh.done[i] {
		i++
	}
	r := sh.batch.Records[i]
	l := lag{records: sh.batch.End - r.Offset, oldest: r.Timestamp}
	switch {
	case !sh.done[i]:
	case sh.more:
		l.records--
	default: // what is left are ends of transactions, or it is about to come
		l.records = 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.open[sh.part] {
		e.lags[sh.part] = l
	}
}

// Waits between the retries of a downstream failure.
var downstreamWaits = []time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}

// maxAttempts is how often a record with an unknown failure is tried (K-127).
const maxAttempts = 3

// record handles one record, and returns nil if it is finished: handled, skipped,
// or a dead letter.
func (e *Engine) record(ctx context.Context, r *kafka.Record) error {
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
	if err == nil {
		e.handled.Add(1)
		return nil
	}
	class := classOf(err)
	if ctx.Err() != nil {
		return err // the process is ending: the record will come again
	}
	switch class {
	case Permanent:
		return e.bury(ctx, r, 1, Reason(err))
	case Downstream:
		e.skipped.Add(1)
		return nil
	case Unknown, Fatal:
		attempts, failed := e.count(ctx, r)
		switch {
		case failed == nil && attempts >= maxAttempts:
			return e.bury(ctx, r, attempts, Reason(err))
		case failed != nil && class == Unknown:
			return Fail(Authoritative, "count attempts", failed)
		}
	}
	return err
}

// call calls the handler, and tells of a panic.
func (e *Engine) call(ctx context.Context, r *kafka.Record) error {
	err := Call(ctx, e.cfg.Handle, r)
	var p *panicked
	if errors.As(err, &p) {
		e.cfg.Logger.Error("consume: handler panicked", "group", e.cfg.Group, "topic", r.Topic, "partition", r.Partition, "offset", r.Offset, "panic", p.value, "stack", string(p.stack))
	}
	return err
}
