package relay

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/parley-chat/parley/server/store"
)

// A settlement deletes rows whose records are on stable storage. Syncing the log and
// deleting rows takes as long as the disk takes, so Run has it done beside publishing:
// otherwise everything committed meanwhile would wait for it.
type settlement struct {
	rows []store.Key // published before it began; what is published later is not promised
	gone []store.Key // of these, in any order
	err  error
	done chan struct{}
}

const (
	// maxAwaiting bounds the rows that are published and not deleted; with more of them
	// the relay waits for the disk, also in the midst of a sweep.
	maxAwaiting = 1 << 16
	// deleters is how many batches are deleted at a time: a commit of the embedded store
	// takes them all for the price of one.
	deleters = 8
)

// settlement makes one of all rows that are published by now.
func (r *Relay) settlement() *settlement {
	return &settlement{rows: r.awaiting[:len(r.awaiting):len(r.awaiting)], done: make(chan struct{})}
}

// run waits until the rows' records are on stable storage, and deletes the rows.
func (s *settlement) run(ctx context.Context, cfg Config) {
	defer close(s.done)
	if s.err = cfg.Flush(ctx); s.err != nil {
		return
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	turns := make(chan struct{}, deleters)
	for chunk := range slices.Chunk(s.rows, store.MaxBatchWrite) {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			writes := make([]store.Write, len(chunk))
			for i, k := range chunk {
				writes[i] = store.Write{Op: store.OpDelete, Key: k}
			}
			err := cfg.Store.BatchWrite(ctx, writes)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				s.err = errors.Join(s.err, err)
				return
			}
			s.gone = append(s.gone, chunk...)
		})
	}
	wg.Wait()
}

// settled takes note of a settlement that is done.
func (r *Relay) settled(s *settlement) error {
	r.synced = r.cfg.Clock()
	for _, k := range s.gone {
		delete(r.waits, k)
	}
	var left []store.Key // with an error some rows are still there
	for _, k := range r.awaiting {
		if r.waits[k] {
			left = append(left, k)
		}
	}
	r.awaiting = left
	return s.err
}

// due reports whether it is time for the next settlement.
func (r *Relay) due() bool {
	return len(r.awaiting) > 0 && r.cfg.Clock().Sub(r.synced) >= r.cfg.FlushEvery
}

// settle deletes published rows once their records are on stable storage, not more often
// than SyncEvery unless it must be now.
func (r *Relay) settle(ctx context.Context, now bool) error {
	if len(r.awaiting) == 0 || !now && !r.due() {
		return nil
	}
	s := r.settlement()
	s.run(ctx, r.cfg)
	return r.settled(s)
}

// settleBeside does what settle does, beside what follows. It tells of an error later.
func (r *Relay) settleBeside(ctx context.Context) error {
	if r.settling != nil {
		if len(r.awaiting) < maxAwaiting {
			select {
			case <-r.settling.done:
			default:
				return nil
			}
		}
		if err := r.finishSettling(); err != nil {
			return err
		}
	}
	if r.due() {
		r.settling = r.settlement()
		go r.settling.run(ctx, r.cfg)
	}
	return nil
}

// makeRoom deletes published rows if there are too many of them, however long the pass
// that publishes them still takes.
func (r *Relay) makeRoom(ctx context.Context) error {
	if len(r.awaiting) < maxAwaiting {
		return nil
	}
	if err := r.finishSettling(); err != nil {
		return err
	}
	return r.settle(ctx, true)
}

// finishSettling waits for the settlement that is under way.
func (r *Relay) finishSettling() error {
	if r.settling == nil {
		return nil
	}
	s := r.settling
	r.settling = nil
	<-s.done
	return r.settled(s)
}
