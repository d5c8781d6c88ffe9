package consume

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/kafka"
)

// share is a partition's part of a round, and what became of it.
type share struct {
	part    kafka.Partition
	batch   kafka.Batch
	ahead   map[int64]bool
	done    []bool // by record
	next    int    // index of the first record that was not begun alone
	stopped bool   // nothing more is begun
	apart   bool   // records come one by one: together they took too long before
	cut     atomic.Bool
	fatal   error
}

// unit is what is worked on by one goroutine: records of one key, in order.
type unit struct {
	sh    *share
	at    []int // indexes in the share
	tired bool  // retries were of no use
	fatal error
}

// work handles a round and commits what is finished.
func (e *Engine) work(ctx context.Context, s *kafka.Session, shares []*share) error {
	if len(shares) == 0 {
		return nil
	}
	round, cancel := context.WithTimeoutCause(ctx, 2*e.cfg.Round, errRound)
	defer cancel()
	var full atomic.Bool
	defer time.AfterFunc(e.cfg.Round, func() { full.Store(true) }).Stop()
	for _, sh := range shares {
		e.measure(sh) // or a handler that hangs would be no lag
	}
	if err := e.begin(round, shares); err != nil {
		e.cfg.Logger.Warn("consume: partitions cannot be begun", "group", e.cfg.Group, "error", err)
	}
	for _, sh := range shares {
		e.workAlone(round, sh, &full)
	}
	e.workTogether(round, shares, &full)
	return e.finish(ctx, s, shares)
}

// errRound is why the context of a handler ends whose call takes too long.
var errRound = errors.New("consume: the time of the round is over")

// ending reports whether the process is about to end, rather than the round.
func ending(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), errRound)
}

// units divides what is left of a round by keys; the longest of them, which are
// worked on longest, come first.
func (e *Engine) units(shares []*share) (list []*unit) {
	for _, sh := range shares {
		if sh.stopped {
			continue
		}
		byKey := map[string]*unit{}
		for i := sh.next; i < len(sh.done); i++ {
			if sh.done[i] {
				continue
			}
			key := sh.batch.Records[i].Key
			u := byKey[string(key)]
			if u == nil {
				u = &unit{sh: sh}
				byKey[string(key)] = u
				list = append(list, u)
			}
			u.at = append(u.at, i)
		}
	}
	slices.SortStableFunc(list, func(a, b *unit) int { return cmp.Compare(len(b.at), len(a.at)) })
	return list
}

// workTogether handles the records that others may be worked on with. Nothing more is
// begun once stop is set.
func (e *Engine) workTogether(ctx context.Context, shares []*share, stop *atomic.Bool) {
	alone.RLock()
	defer alone.RUnlock()
	list := e.units(shares)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(e.cfg.Parallel, len(list)) {
		wg.Go(func() {
			for ctx.Err() == nil && !stop.Load() {
				i := int(next.Add(1)) - 1
				if i >= len(list) {
					return
				}
				if e.cfg.Batch != nil {
					e.workBatch(ctx, list[i], stop)
				} else {
					e.workRecords(ctx, list[i], stop)
				}
			}
		})
	}
	wg.Wait()
	for _, u := range list {
		if u.fatal != nil {
			u.sh.fatal = u.fatal
		}
	}
}

// workRecords handles the records of a unit one by one.
func (e *Engine) workRecords(ctx context.Context, u *unit, stop *atomic.Bool) {
	for i := 0; i < len(u.at) && ctx.Err() == nil && !stop.Load(); i++ {
		if _, ok := e.single(ctx, u, i, stop); !ok {
			return // the key's later records wait with it
		}
	}
}

// single handles the i-th record of a unit by itself; ok says that it is finished.
func (e *Engine) single(ctx context.Context, u *unit, i int, stop *atomic.Bool) (what outcome, ok bool) {
	r := u.sh.batch.Records[u.at[i]]
	what, err := e.record(ctx, r, u.waits())
	switch {
	case err == nil:
		u.sh.done[u.at[i]] = true
		u.tired = u.tired || what == skipped
		return what, true
	case classOf(err) == Fatal:
		u.fatal = err
		stop.Store(true)
	default:
		e.waits(r, err)
	}
	return 0, false
}

// finish commits what a round has finished and lets partitions wait.
func (e *Engine) finish(ctx context.Context, s *kafka.Session, shares []*share) error {
	commit := map[kafka.Partition]int64{}
	var fatal error
	for _, sh := range shares {
		e.measure(sh)
		next, wait := sh.result()
		if next > sh.batch.Records[0].Offset {
			commit[sh.part] = next
		}
		if wait {
			e.hold(s, sh, next)
			e.stocks[sh.part].apart = sh.apart || sh.cut.Load()
		} else {
			e.passed(s, sh.part)
		}
		if sh.fatal != nil {
			fatal = sh.fatal
		}
	}
	switch err := s.Commit(ctx, commit); {
	case errors.Is(err, kafka.ErrNotMember) && fatal == nil:
		return err
	case err != nil:
		// What was not committed comes again after the next start, or is covered by the
		// next commit: consumers drop what they have seen.
		e.cfg.Logger.Warn("consume: commit", "group", e.cfg.Group, "error", err)
	case len(commit) > 0:
		e.commits.Add(1)
	}
	return fatal
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
