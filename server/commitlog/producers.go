package commitlog

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/store"
)

// producerName is whose numbers are remembered where.
type producerName struct {
	partition Partition
	id        string
}

// window loads what is known of a producer. The caller holds the partition's lock.
func (l *Local) window(ctx context.Context, name producerName) (*producers.Window, error) {
	if w := l.windows.Get(name); w != nil {
		return w, nil
	}
	w := &producers.Window{}
	prefix := producerPrefix(name.partition, name.id)
	until := append(slices.Clone(prefix), producers.Remembered)
	var bad error
	err := l.records.Seek(ctx, prefix, until, false, func(key []byte, value func() ([]byte, error)) bool {
		v, err := value()
		if err != nil {
			bad = err
			return false
		}
		p, err := parsePublished(v)
		if err != nil {
			bad = err
			return false
		}
		w.Load(key[len(key)-1], p)
		return true
	})
	if bad != nil {
		err = bad
	}
	if err != nil {
		return nil, fmt.Errorf("producer %q of partition %s: %w", name.id, name.partition, err)
	}
	l.windows.Put(name, w)
	return w, nil
}

// Producers that have stopped are forgotten some time after all that they published was
// trimmed, so that their number does not grow for ever. Each trim checks some, and at more
// the more it trims: each position may have had a producer of its own.
const (
	producersAtOnce = 1000 // records checked under the partition's lock
	producersEach   = 2    // for each position that is trimmed
	producersStay   = 24 * time.Hour
)

// forgetStopped checks producers after a trim of so many positions, beyond those that the
// trim has checked itself, until all have been.
func (l *Local) forgetStopped(ctx context.Context, id Partition, trimmed int64) error {
	for n := trimmed * producersEach / producersAtOnce; n > 0; n-- {
		wait, err := l.forgetSome(ctx, id)
		if err != nil || wait == nil {
			return err
		}
		if err := wait(); err != nil {
			return err
		}
	}
	return nil
}

// forgetSome continues with the producers; wait is nil if it has reached the last one before.
func (l *Local) forgetSome(ctx context.Context, id Partition) (wait func() error, err error) {
	l.deleting.RLock()
	defer l.deleting.RUnlock()
	p := l.partition(id)
	if err := l.lock(ctx, p); err != nil {
		return nil, err
	}
	defer p.mu.Unlock()
	if p.sweep == nil {
		return nil, nil
	}
	removals, err := l.stopped(ctx, p, p.start)
	if err != nil || len(removals) == 0 {
		return func() error { return nil }, err
	}
	return l.records.Commit(ctx, removals)
}

// stopped checks some producers, from where it ended the last time on, and returns
// removals of those that have stopped. The caller holds the partition's lock; start is where
// the partition begins from now on.
func (l *Local) stopped(ctx context.Context, p *partition, start int64) (removals []store.Record, err error) {
	oldest := l.now().Add(-producersStay).UnixMilli()
	var producer []byte // prefix of the keys of the one that is checked
	live, seen := false, 0
	end := func() {
		if producer != nil && !live {
			removals = append(removals, store.Record{Key: producer,
				Until: append(slices.Clone(producer), producers.Remembered)})
			l.windows.Drop(producerName{p.id, string(producer[keyPrefix+1:])})
		}
		producer, live = nil, false
	}
	from := p.sweep
	if p.sweep == nil {
		from = appendPrefix(nil, p.id, kindProducer)
	}
	p.sweep = nil
	err = l.records.Seek(ctx, from, appendPrefix(nil, p.id, kindProducer+1), false,
		func(key []byte, value func() ([]byte, error)) bool {
			if prefix := key[:len(key)-1]; !bytes.Equal(prefix, producer) {
				end()
				if seen >= producersAtOnce {
					p.sweep = slices.Clone(prefix)
					return false
				}
				producer = slices.Clone(prefix)
			}
			seen++
			var last producers.Published
			v, err := value()
			if err == nil {
				last, err = parsePublished(v)
			}
			live = live || err != nil || last.Base+int64(last.Count) > start || last.Time > oldest
			return true
		})
	end()
	return removals, err
}

func parsePublished(v []byte) (producers.Published, error) {
	p, err := producers.Parse(v)
	if err != nil {
		err = fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	return p, err
}

// remember adds a number to its producer's window, and the record that keeps it.
func (w *writing) remember(known *producers.Window, a *Append, p producers.Published) error {
	slot, err := known.Add(p)
	if err != nil {
		return fmt.Errorf("%w: %d is %w", ErrProducerNumber, p.Number, err)
	}
	key := append(producerPrefix(a.Partition, a.Producer.ID), slot)
	w.records = append(w.records, store.Record{Key: key, Value: p.Append(nil)})
	return nil
}

// Remembered implements Log. Numbers can be seen before they are durable, so it waits.
func (l *Local) Remembered(ctx context.Context, p Partition, producer string) ([]producers.Published, error) {
	all, err := l.remembered(ctx, p, producer)
	if err != nil {
		return nil, err
	}
	return all, l.records.Durable(ctx)
}

func (l *Local) remembered(ctx context.Context, id Partition, producer string) ([]producers.Published, error) {
	if err := checkPartition(id); err != nil {
		return nil, err
	}
	p := l.partition(id)
	if err := l.lock(ctx, p); err != nil {
		return nil, err
	}
	defer p.mu.Unlock()
	w, err := l.window(ctx, producerName{id, producer})
	if err != nil {
		return nil, err
	}
	return w.All(), nil
}
