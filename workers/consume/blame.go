package consume

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// Which record ended the process?
//
// The owner of a partition has a row in the store, from the first record that
// comes until it gives the partition back. Who finds the row of another takes the
// records that may have been in work for suspects: those from the committed offset
// on, at most as many as one round has, that were there when the partition was
// begun. Suspects are worked on one by one, with nothing else in work in the
// process, and each is named in the row before. A suspect that stands in the row
// when the next owner comes was alone when the process ended, and only that counts
// against it: a record that ends the process costs the run that met it first and
// maxAttempts more, and a process that is killed from outside costs a record
// nothing unless it was that record's turn as often.
//
// Without a crash that is one write for a partition's first records, and one when
// it is given back.

// alone is held by who works on a suspect, and shared by all others: what ends is the
// process, so all engines of a process share it.
var alone sync.RWMutex

// trial is what is left to find out about a partition whose owner ended.
type trial struct {
	left int             // records that may still be suspects
	seen int64           // last offset that was counted in left
	end  int64           // offset of the first record that came later
	ends map[int64]int64 // of the process, by offset
}

// suspect reports whether a record must be worked on alone. Records come in order
// of their offsets; some come again.
func (t *trial) suspect(offset int64) bool {
	if offset >= t.end {
		return false
	}
	if offset > t.seen {
		if t.left == 0 {
			return false
		}
		t.left--
		t.seen = offset
	}
	return true
}

// partitions of one plan, so that two writes for each are not too many.
const beginChunk = store.MaxPlanWrites / 2

// begin takes the partitions whose first records have come. Those that it cannot
// take have to wait.
func (e *Engine) begin(ctx context.Context, shares []*share) error {
	var list []*share
	e.mu.Lock()
	for _, sh := range shares {
		if e.fresh[sh.part] {
			list = append(list, sh)
		}
	}
	e.mu.Unlock()
	var failed error
	for chunk := range slices.Chunk(list, beginChunk) {
		if err := e.beginChunk(ctx, chunk); err != nil {
			failed = err
			for _, sh := range chunk {
				sh.stopped = true
			}
		}
	}
	return failed
}

func (e *Engine) beginChunk(ctx context.Context, shares []*share) error {
	keys := make([]store.Key, len(shares))
	for i, sh := range shares {
		keys[i] = table.OwnershipKey(e.attempts(sh.part))
	}
	rows, err := e.cfg.Store.BatchGet(ctx, keys, store.Strong)
	if err != nil {
		return err
	}
	now := e.cfg.Clock()
	own := table.Ownership{Consumer: e.cfg.Consumer, Since: now.UnixMilli()}.Item()
	var writes []store.Write
	trials := map[kafka.Partition]*trial{}
	for i, sh := range shares {
		writes = append(writes, store.Write{Op: store.OpPut, Key: keys[i], Item: own})
		if rows[i] == nil {
			continue
		}
		first := sh.batch.Records[0].Offset
		t := &trial{left: kafka.MaxPoll, seen: first - 1, end: sh.batch.End}
		if t.ends, err = e.ends(ctx, sh.part, first); err != nil {
			return err
		}
		trials[sh.part] = t
		old := table.OwnershipFrom(rows[i])
		if offset := old.Alone - 1; offset >= first {
			e.cfg.Logger.Warn("consume: the last owner of a partition ended", "group", e.cfg.Group, "topic", sh.part.Topic, "partition", sh.part.ID, "owner", old.Consumer, "record", offset)
			t.ends[offset]++
			writes = append(writes, e.increment(sh.part, offset, table.AttrEnds))
		}
	}
	if err := e.cfg.Store.Transact(ctx, store.Plan{Writes: writes}); err != nil {
		return err
	}
	if len(trials) > 0 { // after any kill, so it is one line
		e.cfg.Logger.Info("consume: the last owner of partitions ended without handing them over", "group", e.cfg.Group, "partitions", len(trials))
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, sh := range shares {
		delete(e.fresh, sh.part)
		e.open[sh.part] = true
	}
	for part, t := range trials {
		e.trial[part] = t
	}
	return nil
}

// ends reads how often the process ended on which record.
func (e *Engine) ends(ctx context.Context, part kafka.Partition, from int64) (map[int64]int64, error) {
	ends := map[int64]int64{}
	q := store.Query{
		Table: store.ConsumerAttempts, PK: e.attempts(part), From: table.Number(from), To: table.Number(1<<63 - 1), Consistency: store.Strong,
	}
	for first := true; first || q.Cursor != ""; first = false {
		page, err := e.cfg.Store.Query(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, row := range page.Rows {
			a, err := table.AttemptsFrom(row)
			if err != nil {
				return nil, err
			}
			if a.Ends > 0 {
				ends[a.Offset] = a.Ends
			}
		}
		q.Cursor = page.Cursor
	}
	return ends, nil
}

// workAlone handles the suspects at the beginning of a share. Nothing more is begun once
// full is set: the others of the share wait for the next round.
func (e *Engine) workAlone(ctx context.Context, sh *share, full *atomic.Bool) {
	t := e.trial[sh.part]
	if t == nil || sh.stopped {
		return
	}
	alone.Lock()
	defer alone.Unlock()
	named := false
	for ; sh.next < len(sh.done) && !sh.stopped && ctx.Err() == nil; sh.next++ {
		if full.Load() {
			sh.stopped = true
			break
		}
		r := sh.batch.Records[sh.next]
		if !t.suspect(r.Offset) {
			delete(e.trial, sh.part)
			break
		}
		if sh.done[sh.next] {
			continue
		}
		err := e.name(ctx, sh.part, r.Offset)
		switch {
		case err != nil:
			err = Fail(Authoritative, "name the record", err)
		case t.ends[r.Offset] >= maxAttempts:
			named = true
			err = e.bury(ctx, r, int(t.ends[r.Offset]), "unknown: the process ended while it worked on the record")
		default:
			named = true
			_, err = e.record(ctx, r, downstreamWaits)
		}
		switch {
		case err == nil:
			sh.done[sh.next] = true
		case classOf(err) == Fatal:
			sh.stopped, sh.fatal = true, err
		default:
			sh.stopped = true
			e.waits(r, err)
		}
	}
	if ctx.Err() != nil {
		sh.stopped = true
	}
	if named {
		if err := e.name(context.WithoutCancel(ctx), sh.part, -1); err != nil {
			e.cfg.Logger.Warn("consume: a record stays named that is not alone", "group", e.cfg.Group, "error", err)
		}
	}
}

// name writes which record of a partition is worked on alone; -1: none.
func (e *Engine) name(ctx context.Context, part kafka.Partition, offset int64) error {
	up := store.Update{Set: []store.Attr{{Name: table.AttrAlone, Value: store.Int(offset + 1)}}}
	if offset < 0 {
		up = store.Update{Remove: []string{table.AttrAlone}}
	}
	return e.cfg.Store.Transact(ctx, store.Plan{Writes: []store.Write{{Op: store.OpUpdate, Key: table.OwnershipKey(e.attempts(part)), Update: up}}})
}

// giveBackTimeout bounds the writes at the end of an ownership; a row that stays
// costs the next owner some time and no record anything.
const giveBackTimeout = 5 * time.Second

// giveBack says that nothing is in work in partitions any more.
func (e *Engine) giveBack(parts []kafka.Partition) {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTimeout)
	defer cancel()
	for chunk := range slices.Chunk(parts, store.MaxBatchWrite) {
		writes := make([]store.Write, len(chunk))
		for i, p := range chunk {
			writes[i] = store.Write{Op: store.OpDelete, Key: table.OwnershipKey(e.attempts(p))}
		}
		if err := e.cfg.Store.BatchWrite(ctx, writes); err != nil {
			e.cfg.Logger.Warn("consume: partitions are not given back", "group", e.cfg.Group, "error", err)
			return
		}
	}
}

// keepAttempts is how long a count is kept.
const keepAttempts = 7 * 24 * time.Hour

func (e *Engine) attempts(p kafka.Partition) string {
	return table.AttemptsPartition(e.cfg.Group, p.Topic, p.ID)
}

// count adds an attempt at a record, durably, and returns their number.
func (e *Engine) count(ctx context.Context, r *kafka.Record) (int, error) {
	part := kafka.Partition{Topic: r.Topic, ID: r.Partition}
	w := e.increment(part, r.Offset, table.AttrAttempts)
	if err := e.cfg.Store.Transact(ctx, store.Plan{Writes: []store.Write{w}}); err != nil {
		return 0, err
	}
	it, err := e.cfg.Store.Get(ctx, w.Key, store.Strong)
	return int(it.Get(table.AttrAttempts).Int64()), err
}

func (e *Engine) increment(part kafka.Partition, offset int64, attr string) store.Write {
	return store.Write{
		Op: store.OpUpdate, Key: table.AttemptsKey(e.attempts(part), offset),
		Update: store.Update{
			Set: []store.Attr{{Name: store.ExpiresAtField, Value: store.Int(e.cfg.Clock().Add(keepAttempts).Unix())}},
			Add: []store.Increment{{Name: attr, N: 1}},
		},
	}
}
