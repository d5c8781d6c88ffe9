package revocation

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"

	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table/people"
)

const (
	maxRows    = 50     // of one plan
	maxWaiting = 10_000 // revocations that are not written yet
)

// log writes the rows of this process, one plan after another, so that a row is stored when
// all before it are. Revocations that come meanwhile share the next plan.
type log struct {
	commits *commit.Committer
	written func(log string, last int64) // is called for what is stored

	mu      sync.Mutex
	waiting []entry
	writing bool

	head people.RevocationLog // how far the log goes; without an id there is none yet. Of the writing goroutine.
}

type entry struct {
	row  people.Revocation
	done chan error
}

// add stores a row. On an error it may be stored yet.
func (l *log) add(ctx context.Context, row people.Revocation) error {
	e := entry{row, make(chan error, 1)}
	l.mu.Lock()
	if len(l.waiting) >= maxWaiting {
		l.mu.Unlock()
		return fmt.Errorf("%w: %d revocations wait to be written", store.ErrThrottled, maxWaiting)
	}
	l.waiting = append(l.waiting, e)
	if !l.writing {
		l.writing = true
		go l.write(context.WithoutCancel(ctx)) // it is for all callers that wait, not only for this one
	}
	l.mu.Unlock()
	select {
	case err := <-e.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write stores what waits, until nothing does.
func (l *log) write(ctx context.Context) {
	for {
		l.mu.Lock()
		n := min(len(l.waiting), maxRows)
		entries := l.waiting[:n:n]
		if l.waiting = l.waiting[n:]; n == 0 {
			l.waiting, l.writing = nil, false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		err := l.store(ctx, entries)
		for _, e := range entries {
			e.done <- err
		}
	}
}

// store writes entries, as the next of the log.
//
// The log's head changes with them, from what it was: a plan whose answer was lost, and which
// comes late, writes nothing over what followed. Where it stays unknown whether a plan was
// carried out, nothing may follow it in its log, or a reader could have passed its numbers;
// another log is begun. A log is begun, too, when the rows of the last one have expired.
func (l *log) store(ctx context.Context, entries []entry) error {
	var err error
	for range 2 {
		if l.head.ID == "" {
			l.head.ID = rand.Text()
		}
		next, writes := l.plan(entries)
		if err = l.commits.Repeat(ctx, writes...); commit.ConditionError(err) != nil {
			// Perhaps an attempt wrote it whose answer was lost.
			var it store.Item
			it, err = l.commits.Get(ctx, next.Key())
			if err == nil && people.RevocationLogFrom(next.ID, it).Last != next.Last {
				l.head = people.RevocationLog{}
				err = fmt.Errorf("%w: the log of revocations is gone", store.ErrConflict)
				continue
			}
		}
		if err != nil {
			l.head = people.RevocationLog{}
			return err
		}
		l.head = next
		l.written(next.ID, next.Last)
		return nil
	}
	return err
}

// plan returns how far the log goes with entries, and the writes that bring it there.
func (l *log) plan(entries []entry) (people.RevocationLog, []store.Write) {
	next := l.head
	writes := make([]store.Write, 0, len(entries)+1)
	for _, e := range entries {
		next.Last++
		e.row.Log, e.row.Number = next.ID, next.Last
		next.ExpiresAt = max(next.ExpiresAt, e.row.ExpiresAt)
		writes = append(writes, store.Write{Op: store.OpPut, Key: e.row.Key(), Item: e.row.Item(), Frees: true})
	}
	return next, append(writes, store.Write{Op: store.OpPut, Key: next.Key(), Item: next.Item(),
		Cond: l.head.Unchanged(), Name: "log", Frees: true})
}
