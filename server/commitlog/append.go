package commitlog

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/store"
)

// Append implements Log.
func (l *Local) Append(ctx context.Context, appends []Append) ([]Appended, error) {
	p, err := l.Begin(ctx, appends)
	if err != nil {
		return nil, err
	}
	if err := p.Wait(ctx); err != nil {
		return nil, err
	}
	return p.Appended, nil
}

// writing is an append under the locks of its partitions.
type writing struct {
	log      *Local
	locked   []*partition // ascending
	next     []head       // what each becomes
	records  []store.Record
	appended []Appended
}

// Begin implements Log.
func (l *Local) Begin(ctx context.Context, appends []Append) (*Pending, error) {
	if len(appends) == 0 {
		return nil, fmt.Errorf("%w: nothing to append", ErrInvalid)
	}
	return l.Publish(ctx, appends, nil)
}

// Publish is Begin that deletes rows of tables in the same commit: the records that these
// rows announce are in the log once the rows are gone, and not before. A row that is not
// there is no error. Without appends it only deletes. It works on a full disk within the
// bound of [store.Records].
func (l *Local) Publish(ctx context.Context, appends []Append, rows []store.Key) (*Pending, error) {
	at := l.now().UnixMilli()
	drafts := make([]*draft, len(appends))
	for i := range appends {
		var err error
		if appends[i].OnlyNumber() {
			err = appends[i].Check()
		} else {
			drafts[i], err = newDraft(&appends[i], at)
		}
		if err != nil {
			return nil, err
		}
	}
	w := &writing{log: l, records: make([]store.Record, 0, 2*len(appends)), appended: make([]Appended, len(appends))}
	l.deleting.RLock()
	defer l.deleting.RUnlock()
	if err := w.lock(ctx, appends); err != nil {
		return nil, err
	}
	defer w.unlock()
	wait, err := w.write(ctx, appends, drafts, rows)
	if err != nil {
		w.forget(appends)
		return nil, err
	}
	return &Pending{w.appended, w.waiter(wait)}, nil
}

func compare(a, b Partition) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Number, b.Number))
}

// lock locks the partitions of the appends, each once, in ascending order.
func (w *writing) lock(ctx context.Context, appends []Append) error {
	ids := make([]Partition, len(appends))
	for i := range appends {
		ids[i] = appends[i].Partition
	}
	slices.SortFunc(ids, compare)
	ids = slices.Compact(ids)
	w.locked, w.next = make([]*partition, 0, len(ids)), make([]head, 0, len(ids))
	for _, id := range ids {
		p := w.log.partition(id)
		if err := w.log.lock(ctx, p); err != nil {
			w.unlock()
			return err
		}
		w.locked, w.next = append(w.locked, p), append(w.next, p.head)
	}
	return nil
}

func (w *writing) unlock() {
	for _, p := range w.locked {
		p.mu.Unlock()
	}
}

// write gives the drafts their positions, and commits them and the deletion of rows. wait is
// nil if all of them were stored before, and there are no rows.
func (w *writing) write(
	ctx context.Context, appends []Append, drafts []*draft, rows []store.Key,
) (wait func() error, err error) {
	for i := range appends {
		if w.appended[i], err = w.add(ctx, appends, i, drafts[i]); err != nil {
			return nil, err
		}
	}
	if err = CheckWhole(appends, w.appended); err != nil {
		return nil, err
	}
	if len(w.records)+len(rows) == 0 {
		return nil, nil
	}
	if wait, err = w.log.records.Commit(ctx, w.records, rows...); err != nil {
		return nil, err
	}
	for i, p := range w.locked {
		p.head = w.next[i]
	}
	return wait, nil
}

// add adds the ith append; d is nil if it only has a number.
func (w *writing) add(ctx context.Context, appends []Append, i int, d *draft) (Appended, error) {
	a := &appends[i]
	at, _ := slices.BinarySearchFunc(w.locked, a.Partition, func(p *partition, id Partition) int {
		return compare(p.id, id)
	})
	next := &w.next[at]
	var known *producers.Window
	if a.Producer.ID != "" {
		var err error
		if known, err = w.log.window(ctx, producerName{a.Partition, a.Producer.ID}); err != nil {
			return Appended{}, err
		}
		if old, found := known.Find(a.Producer.Number); found {
			return a.Repeat(old)
		}
	}
	if d == nil {
		if RepeatsBefore(appends, w.appended, i) {
			return Appended{Replayed: true, Same: true}, nil
		}
		p := a.published(next.end, w.log.now().UnixMilli(), 0)
		return Appended{Base: next.end}, w.remember(known, a, p)
	}
	if d.at < next.time { // another publisher was faster, or the clock was set back
		if err := d.encode(a, next.time); err != nil {
			return Appended{}, err
		}
	}
	producer := a.Producer
	if producer.ID == "" {
		producer = Producer{}
	}
	if a.Gap > MaxGap-next.end {
		return Appended{}, fmt.Errorf("%w: a gap of %d behind position %d", ErrInvalid, a.Gap, next.end)
	}
	d.widen(next.trailing())
	b := d.assignPosition(next.end+a.Gap, next.bytes, producer)
	if known != nil {
		if err := w.remember(known, a, a.published(b.Base, b.Time, b.Count())); err != nil {
			return Appended{}, err
		}
	}
	next.end, next.time, next.bytes = b.End(), b.Time, next.bytes+storedSize(d.value)
	w.records = append(w.records, store.Record{Key: batchKey(a.Partition, b.End()-1), Value: d.value})
	return Appended{Batch: b, Base: b.Base, Count: b.Count()}, nil
}

// forget drops what the windows learned of an append that failed.
func (w *writing) forget(appends []Append) {
	for i := range appends {
		if a := &appends[i]; a.Producer.ID != "" {
			w.log.windows.Drop(producerName{a.Partition, a.Producer.ID})
		}
	}
}

// waiter waits until the append is durable, or what it repeats, and says so.
func (w *writing) waiter(wait func() error) func(context.Context) error {
	locked, next, records := w.locked, w.next, w.log.records
	return func(ctx context.Context) error {
		var err error
		if wait != nil {
			err = wait()
		} else {
			err = records.Durable(ctx)
		}
		if err != nil {
			return err
		}
		for i, p := range locked {
			p.raise(next[i].end)
		}
		return nil
	}
}
