package commitlog

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/store"
)

// trimSingly is the number of batches up to which a trim removes each by its key. A range
// costs the engine more, with every other range that it has not put into its tables yet.
const trimSingly = 32

// maxTopic is the highest number of a topic.
const maxTopic = math.MaxInt64

// Local is a Log on the records of a store engine. It must be the only one on them.
//
// Positions are given under the lock of their partition, held until the batch is visible in
// the engine: the order of positions is the order of commits, in which they become durable.
// So once a commit is known to be on the disk, all earlier ones are, too.
//
// Lock order: Local.deleting, then partitions in ascending order, then what guards a map, or
// the engine's own locks of rows.
type Local struct {
	records store.Records
	now     func() time.Time

	deleting   sync.RWMutex                    // exclusive where topics are made and deleted, shared by appends
	mu         sync.Mutex                      // of the maps
	partitions map[uint64]map[int32]*partition // by topic and number
	windows    producers.Cache[producerName]
	removed    removed
}

var (
	_ Log       = (*Local)(nil)
	_ Reclaimer = (*Local)(nil)
)

// NewLocal makes a Log on an engine's records. now is the clock that batches get their time
// from.
func NewLocal(records store.Records, now func() time.Time) *Local {
	return &Local{records: records, now: now, partitions: map[uint64]map[int32]*partition{}}
}

// partition is the state of a partition since it was used first.
type partition struct {
	id      Partition
	durable atomic.Int64 // below it all is durable

	mu     sync.Mutex
	loaded bool
	head          // as of the last commit
	sweep  []byte // producer with which the search for stopped ones continues; nil: the first
}

// raise says that everything below a position is durable.
func (p *partition) raise(end int64) {
	for {
		old := p.durable.Load()
		if end <= old || p.durable.CompareAndSwap(old, end) {
			return
		}
	}
}

func (l *Local) partition(id Partition) *partition {
	l.mu.Lock()
	defer l.mu.Unlock()
	topic := l.partitions[id.Topic]
	if topic == nil {
		topic = map[int32]*partition{}
		l.partitions[id.Topic] = topic
	}
	p := topic[id.Number]
	if p == nil {
		p = &partition{id: id}
		topic[id.Number] = p
	}
	return p
}

// lock locks a partition and loads it.
func (l *Local) lock(ctx context.Context, p *partition) error {
	p.mu.Lock()
	if p.loaded {
		return nil
	}
	if err := l.load(ctx, p); err != nil {
		p.mu.Unlock()
		return fmt.Errorf("open partition %s: %w", p.id, err)
	}
	p.loaded = true
	p.durable.Store(p.end) // opening the engine made all of it durable
	return nil
}

func (l *Local) load(ctx context.Context, p *partition) error {
	if p.id.OfEventLog() {
		if err := l.checkEventTopic(ctx, p.id); err != nil {
			return err
		}
	}
	var bad error
	err := l.records.Seek(ctx, headKey(p.id), batchKey(p.id, 0), false, func(_ []byte, value func() ([]byte, error)) bool {
		var v []byte
		if v, bad = value(); bad == nil {
			p.head, bad = parseHead(v)
		}
		return false
	})
	if err == nil {
		err = bad
	}
	if err != nil {
		return err
	}
	return l.records.Seek(ctx, batchKey(p.id, 0), batchKey(p.id, math.MaxInt64), true,
		func(key []byte, value func() ([]byte, error)) bool {
			p.end = max(p.end, lastOf(key)+1, p.void[1])
			// One that cannot be read is found when it is read; its time and its bytes are not
			// needed so badly that nothing could be published any more: those of an earlier one do.
			v, err := value()
			if err != nil || len(v) < batchHeader {
				return true
			}
			p.time, p.bytes = max(p.time, timeOf(v)), beforeOf(v)+storedSize(v)
			return false
		})
}

func checkPartition(id Partition) error {
	if id.Number < 0 || id.Number >= MaxPartitions || id.Topic > maxTopic {
		return fmt.Errorf("%w: partition %s", ErrInvalid, id)
	}
	return nil
}

// view returns what may be shown of a partition; from last on there are no batches.
func (l *Local) view(ctx context.Context, id Partition) (start, last, end int64, err error) {
	if err := checkPartition(id); err != nil {
		return 0, 0, 0, err
	}
	p := l.partition(id)
	if err := l.lock(ctx, p); err != nil {
		return 0, 0, 0, err
	}
	defer p.mu.Unlock()
	// A batch that is not durable yet lies behind the end that is shown, and so does the end of the void.
	end = max(p.start, p.durable.Load())
	if last = end; p.void[0] < end && end <= p.void[1] {
		last = max(p.start, p.void[0])
	}
	return p.start, last, end, nil
}

// Create implements Log. A topic that was never written to is an empty log.
func (l *Local) Create(context.Context, Topic) error { return nil }

// Bounds implements Reader.
func (l *Local) Bounds(ctx context.Context, id Partition) (start, end int64, err error) {
	start, _, end, err = l.view(ctx, id)
	return start, end, err
}

// Trim implements Log. It costs no more for much than for a little.
func (l *Local) Trim(ctx context.Context, id Partition, before int64) (int64, error) {
	if err := checkPartition(id); err != nil {
		return 0, err
	}
	had, _ := l.Bytes(ctx, id) // it says only how much space may come back
	from, start, wait, err := l.trim(ctx, id, before)
	switch {
	case err != nil:
		return start, err
	case wait == nil: // another call may have moved the start just now
		return start, l.records.Durable(ctx)
	}
	if err := wait(); err != nil {
		return start, err
	}
	have, _ := l.Bytes(ctx, id)
	l.removed.add(l.records, batchKey(id, from), batchKey(id, start), had-have)
	return start, l.forgetStopped(ctx, id, start-from)
}

// trim moves the start; from is where it was.
func (l *Local) trim(
	ctx context.Context, id Partition, before int64,
) (from, start int64, wait func() error, err error) {
	l.deleting.RLock()
	defer l.deleting.RUnlock()
	p := l.partition(id)
	if err := l.lock(ctx, p); err != nil {
		return 0, 0, nil, err
	}
	defer p.mu.Unlock()
	next := p.head
	before = min(before, p.durable.Load())
	if before <= p.start {
		return p.start, p.start, nil, nil
	}
	var few []store.Record
	err = l.records.Seek(ctx, batchKey(id, p.start), batchKey(id, before), true,
		func(key []byte, _ func() ([]byte, error)) bool {
			next.start = max(next.start, lastOf(key)+1)
			few = append(few, store.Record{Key: slices.Clone(key), Until: append(slices.Clone(key), 0)})
			return len(few) <= trimSingly
		})
	if next.start == p.start {
		return p.start, p.start, nil, err
	}
	if err != nil || len(few) > trimSingly { // a range includes what cannot be read
		few = []store.Record{{Key: batchKey(id, p.start), Until: batchKey(id, next.start)}}
	}
	removals, err := l.stopped(ctx, p, next.start)
	if err != nil {
		return p.start, p.start, nil, err
	}
	wait, err = l.records.Commit(ctx, append(append(removals, few...),
		store.Record{Key: headKey(id), Value: next.value(), Frees: true}))
	if err != nil {
		return p.start, p.start, nil, err
	}
	from, p.head = p.start, next
	return from, next.start, wait, nil
}

// Delete implements Log. A partition that is used afterwards begins at 0 again. Topics of the
// event log go with [Local.RemoveEventTopic].
func (l *Local) Delete(ctx context.Context, topic uint64) error {
	if topic >= FirstEventTopic {
		return fmt.Errorf("%w: topic %d", ErrInvalid, topic)
	}
	wait, err := l.remove(ctx, topic)
	if err != nil {
		return err
	}
	return l.noteRemoval(topic, wait)
}

func (l *Local) remove(ctx context.Context, topic uint64) (wait func() error, err error) {
	l.deleting.Lock()
	defer l.deleting.Unlock()
	wait, err = l.records.Commit(ctx, []store.Record{allOf(topic)})
	if err != nil {
		return nil, err
	}
	l.forget(topic)
	return wait, nil
}

// allOf removes all records of a topic.
func allOf(topic uint64) store.Record {
	return store.Record{Key: topicKey(topic), Until: topicKey(topic + 1)}
}

// forget drops what is in memory of a topic that is deleted.
func (l *Local) forget(topic uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.partitions, topic)
	l.windows.DropAll(func(w producerName) bool { return w.partition.Topic == topic })
}
