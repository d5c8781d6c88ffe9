package upgrade

import (
	"context"
	"fmt"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/logdir"
)

// A step is committed when it is that large: its content, the old files that it comes from, which
// are in memory as long, or the number of its batches.
const (
	stepBytes   = 4 << 20
	stepFiles   = 16 << 20
	stepBatches = 2_000
	// A batch of the old log becomes one; larger ones become several.
	batchBytes   = 1 << 20
	batchRecords = 1_000
	// referenceBytes is about what a reference has besides the id of its chat.
	referenceBytes = 16
	// The rows of so many events are read together.
	lookup = 1_000
)

// mover moves the records of all partitions.
type mover struct {
	*run
	numbers map[string]uint64 // of the topics in the store
	total   int64             // bytes of files
	done    int64

	at      commitlog.Partition
	next    int64              // offset behind what is in steps and step
	waiting [][]logdir.Entry   // batches whose rows are not read yet
	entries int                // of these
	step    []commitlog.Append // to be committed
	bytes   int                // of step
	size    int                // of its last batch
	files   int64              // that step and waiting come from
}

// mover makes the topics.
func (r *run) mover(ctx context.Context) (*mover, error) {
	m := &mover{run: r, numbers: map[string]uint64{}, total: r.report.Bytes}
	for _, t := range r.topics {
		made, err := r.Log.CreateEventTopic(ctx, commitlog.EventTopic{Name: t.Name, Partitions: t.Partitions,
			ID: r.old.ID(t.Name)})
		if err != nil {
			return nil, fmt.Errorf("make topic %s: %w", t.Name, err)
		}
		m.numbers[t.Name] = made.Number
	}
	return m, nil
}

func (m *mover) partition(p kafka.Partition) commitlog.Partition {
	return commitlog.Partition{Topic: m.numbers[p.Topic], Number: p.ID}
}

func (m *mover) moveAll(ctx context.Context) error {
	var starts, ends []commitlog.Skip
	_ = m.partitions(func(p kafka.Partition) error {
		if start, end := m.old.Bounds(p); end > 0 {
			starts = append(starts, commitlog.Skip{Partition: m.partition(p), Start: start, End: start})
			ends = append(ends, commitlog.Skip{Partition: m.partition(p), Start: start, End: end})
		}
		return nil
	})
	if len(starts) == 0 {
		return nil
	}
	m.progress(0)
	if err := m.Log.Skip(ctx, starts); err != nil {
		return err
	}
	if err := m.partitions(func(p kafka.Partition) error { return m.movePartition(ctx, p) }); err != nil {
		return err
	}
	if err := m.commit(ctx); err != nil {
		return err
	}
	if err := m.Log.Skip(ctx, ends); err != nil {
		return err
	}
	m.progress(m.total - m.done) // what is beside the segments
	return nil
}

// movePartition moves what is left of a partition. The last part of it may wait in step.
func (m *mover) movePartition(ctx context.Context, p kafka.Partition) error {
	m.at = m.partition(p)
	_, end, err := m.Log.Bounds(ctx, m.at)
	if err != nil {
		return err
	}
	if _, old := m.old.Bounds(p); end > old {
		return fmt.Errorf("%s ends with offset %d in the store, and with %d in %s: the event log in the store was written to "+
			"before the old one was moved", p, end, old, m.Dir)
	}
	m.next = end
	err = m.old.Committed(p, end, logdir.Reading{
		Batch: func(list []logdir.Entry) error { return m.add(ctx, list) },
		Bad:   func(bad *logdir.BatchError) error { return m.bad(ctx, bad) },
		Segment: func(bytes int64) {
			m.files += bytes
			m.progress(bytes)
		},
	})
	if err != nil {
		return err
	}
	return m.resolve(ctx)
}

// progress says how far the move is.
func (m *mover) progress(bytes int64) {
	if m.done += bytes; m.Progress != nil {
		m.Progress(min(m.done, m.total), m.total)
	}
}

// bad records a batch that cannot be decoded. That is durable before the move passes it.
func (m *mover) bad(ctx context.Context, bad *logdir.BatchError) error {
	m.report.Damaged++
	return m.lost(ctx, bad.Partition, m.old.Marks[bad.Partition].Since, bad.Error(), true)
}

// add takes a batch of the old log.
func (m *mover) add(ctx context.Context, list []logdir.Entry) error {
	m.waiting, m.entries = append(m.waiting, list), m.entries+len(list)
	if m.entries < lookup && m.files < stepFiles {
		return nil
	}
	return m.resolve(ctx)
}

// resolve makes new batches of those that wait.
func (m *mover) resolve(ctx context.Context) error {
	found, err := m.references(ctx, m.waiting, m.entries)
	if err != nil {
		return err
	}
	n := 0
	for _, list := range m.waiting {
		fresh := true // a batch of the old log begins another one: it has its own time
		for i := range list {
			m.put(&list[i], found[n], fresh)
			fresh, n = false, n+1
		}
		if m.bytes >= stepBytes || len(m.step) >= stepBatches || m.small {
			if err := m.commit(ctx); err != nil {
				return err
			}
		}
	}
	m.waiting, m.entries = nil, 0
	if m.files >= stepFiles {
		return m.commit(ctx)
	}
	return nil
}

// put adds a record to the step: to its last batch, or to a new one.
func (m *mover) put(e *logdir.Entry, ref *reference, fresh bool) {
	gap := e.Offset - m.next
	m.next = e.Offset + 1
	rec := recordOf(e)
	size := rec.Size()
	if ref != nil {
		size = len(ref.Chat) + referenceBytes
	}
	if fresh || gap > 0 || !m.extends(ref, size) {
		m.step, m.size = append(m.step, commitlog.Append{Partition: m.at, Gap: gap}), 0
	}
	a := &m.step[len(m.step)-1]
	m.bytes, m.size = m.bytes+size, m.size+size
	if ref == nil {
		a.Records = append(a.Records, rec)
		m.report.Copies++
		return
	}
	a.References.PublishedIn = ref.publishedIn
	a.References.List = append(a.References.List, ref.Reference)
	m.report.References++
}

// extends reports whether the last batch of the step may take another record.
func (m *mover) extends(ref *reference, size int) bool {
	a := &m.step[len(m.step)-1]
	if ref != nil && a.References.PublishedIn != ref.publishedIn {
		return false
	}
	n := len(a.Records)
	if ref != nil {
		n = len(a.References.List)
	}
	return n > 0 && n < batchRecords && m.size+size <= batchBytes
}

// commit commits the step. Its batches follow each other in their partitions, so that the end of
// each partition says what is there.
func (m *mover) commit(ctx context.Context) error {
	if len(m.step) > 0 {
		if _, err := m.Log.Append(ctx, m.step); err != nil {
			return err
		}
	}
	m.step, m.bytes, m.files = m.step[:0], 0, 0
	return ctx.Err()
}

func recordOf(e *logdir.Entry) record.Record {
	r := record.Record{Key: e.Key, Value: e.Value, Time: e.Time}
	for _, h := range e.Headers {
		r.Headers = append(r.Headers, record.Header{Key: h.Key, Value: h.Value})
	}
	return r
}
