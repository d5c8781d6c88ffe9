package relay

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/store"
)

// A deletion flushes the log and then deletes the rows whose records are durable. That takes
// as long as the disk takes, so Run does it in the background: otherwise everything that is
// committed meanwhile would wait for it.
type deletion struct {
	rows    []store.Key // published before it started; the flush does not cover later ones
	deleted []store.Key // those of rows that were deleted, in any order
	err     error
	done    chan struct{}
}

const (
	// maxPendingDelete bounds the rows that are published and not deleted. With more of them
	// the relay waits for the disk, also in the middle of a sweep.
	maxPendingDelete = 1 << 16
	// flushRows is how many published rows bring a deletion as soon as FlushEvery permits one:
	// a sync costs about the same for one row as for hundreds.
	flushRows = 500
	// parallelDeletes is how many batches are deleted at a time: the embedded store commits
	// them together.
	parallelDeletes = 8
)

// newDeletion returns a deletion of all rows that are published by now.
func (r *Relay) newDeletion() *deletion {
	return &deletion{rows: r.pendingDelete[:len(r.pendingDelete):len(r.pendingDelete)], done: make(chan struct{})}
}

// run waits until the records of the rows are durable, and deletes the rows.
func (s *deletion) run(ctx context.Context, cfg Config) {
	defer close(s.done)
	if s.err = cfg.Flush(ctx); s.err != nil {
		return
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	limit := make(chan struct{}, parallelDeletes)
	for chunk := range slices.Chunk(s.rows, store.MaxBatchWrite) {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
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
			s.deleted = append(s.deleted, chunk...)
		})
	}
	wg.Wait()
}

// complete removes the deleted rows from those that are pending, and returns the error.
func (r *Relay) complete(s *deletion) error {
	r.lastDelete = r.cfg.Clock()
	for _, k := range s.deleted {
		delete(r.isPending, k)
	}
	var remaining []store.Key // some rows, after an error
	for _, k := range r.pendingDelete {
		if r.isPending[k] {
			remaining = append(remaining, k)
		}
	}
	r.pendingDelete = remaining
	return s.err
}

// deletionAt returns when published rows are to be deleted.
func (r *Relay) deletionAt() time.Time {
	if len(r.pendingDelete) >= flushRows {
		return r.lastDelete.Add(r.cfg.FlushEvery)
	}
	return r.lastDelete.Add(r.cfg.FlushWithin)
}

// deletionDue reports whether the next deletion is due.
func (r *Relay) deletionDue() bool {
	return len(r.pendingDelete) > 0 && !r.cfg.Clock().Before(r.deletionAt())
}

// deletePublished deletes published rows once their records are durable, not before they are
// due, unless it must be now.
func (r *Relay) deletePublished(ctx context.Context, now bool) error {
	if len(r.pendingDelete) == 0 || !now && !r.deletionDue() {
		return nil
	}
	s := r.newDeletion()
	s.run(ctx, r.cfg)
	return r.complete(s)
}

// startDeletion is deletePublished in the background. It returns the error of an earlier
// call.
func (r *Relay) startDeletion(ctx context.Context) error {
	if r.deleting != nil {
		if len(r.pendingDelete) < maxPendingDelete {
			select {
			case <-r.deleting.done:
			default:
				return nil
			}
		}
		if err := r.finishDeletion(); err != nil {
			return err
		}
	}
	if r.deletionDue() {
		r.deleting = r.newDeletion()
		go r.deleting.run(ctx, r.cfg)
	}
	return nil
}

// makeRoom deletes published rows if too many of them are pending, also in the middle of a
// pass.
func (r *Relay) makeRoom(ctx context.Context) error {
	if len(r.pendingDelete) < maxPendingDelete {
		return nil
	}
	if err := r.finishDeletion(); err != nil {
		return err
	}
	return r.deletePublished(ctx, true)
}

// finishDeletion waits for the deletion in the background.
func (r *Relay) finishDeletion() error {
	if r.deleting == nil {
		return nil
	}
	s := r.deleting
	r.deleting = nil
	<-s.done
	return r.complete(s)
}
