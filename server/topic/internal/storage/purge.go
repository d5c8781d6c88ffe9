package storage

import (
	"context"
	"maps"
	"sync"

	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// purge is what is to be removed of a topic although groups have not acknowledged it. Its row is there
// before anything is removed, and until the log has removed all of it: a process that ends between leaves
// the rest to the next one.
//
// A position stays here, and hides messages, while the log has a part of a batch before it: a batch goes
// as a whole.
type purge struct {
	mu     sync.Mutex      // held while the row is written, so that rows follow each other as the maps do
	before map[int32]int64 // by partition; never changed, but replaced
	due    bool            // the log was not asked to remove it yet, or could not
}

// Purged returns the positions before which messages of a topic are removed, by partition, as far as the
// log may still have some.
func (t *Topic) Purged() map[int32]int64 {
	t.purge.mu.Lock()
	defer t.purge.mu.Unlock()
	return t.purge.before
}

// PurgeDue reports whether the log was not asked yet to remove what Purged returns, or could not.
func (t *Topic) PurgeDue() bool {
	t.purge.mu.Lock()
	defer t.purge.mu.Unlock()
	return t.purge.due
}

// addPurge takes a row over that an earlier process has left.
func (t *Topic) addPurge(row store.Row) error {
	p, err := table.TopicPurgeFrom(row.Item)
	t.purge.before, t.purge.due = p.Before, len(p.Before) > 0
	return err
}

// Purge stores that what lies before positions is to be removed, for good. It works on a full disk.
func (c *Catalog) Purge(ctx context.Context, t *Topic, before map[int32]int64) error {
	t.purge.mu.Lock()
	defer t.purge.mu.Unlock()
	all := maps.Clone(t.purge.before)
	if all == nil {
		all = map[int32]int64{}
	}
	for n, at := range before {
		all[n] = max(all[n], at)
	}
	return c.putPurge(ctx, t, all, true)
}

// Removed is what a log has removed of a partition.
type Removed struct {
	Asked int64 // it was asked to remove what lies before
	Start int64 // where the partition begins after that
}

// PurgeDone says what the log has removed of partitions, so that needs no row any more.
func (c *Catalog) PurgeDone(ctx context.Context, t *Topic, removed map[int32]Removed) error {
	t.purge.mu.Lock()
	defer t.purge.mu.Unlock()
	left, due := maps.Clone(t.purge.before), false
	for n, before := range t.purge.before {
		of := removed[n]
		if of.Start >= before {
			delete(left, n)
		}
		due = due || of.Asked < before // another purge meanwhile means more
	}
	due = due && t.purge.due
	if len(left) < len(t.purge.before) {
		return c.putPurge(ctx, t, left, due)
	}
	t.purge.due = due
	return nil
}

// putPurge writes the row. The caller holds the lock of the topic's purge.
func (c *Catalog) putPurge(ctx context.Context, t *Topic, before map[int32]int64, due bool) error {
	w := store.Write{Op: store.OpDelete, Key: table.TopicPurgeKey(t.Name), Name: "purge"}
	if len(before) > 0 {
		w.Op, w.Frees = store.OpPut, true
		w.Item = table.TopicPurge{Before: before, At: c.clock().UnixMilli()}.Item()
	}
	if err := c.transact(ctx, w); err != nil {
		return err
	}
	t.purge.before, t.purge.due = before, due
	return nil
}
