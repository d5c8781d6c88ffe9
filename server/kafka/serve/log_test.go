package serve_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/kafka"
)

// memoryLog is a log in memory: the contract of serve.Log, with offsets that a test can skip.
type memoryLog struct {
	mu      sync.Mutex
	topics  []kafka.Topic
	parts   map[kafka.Partition]*memoryPartition
	grown   chan struct{} // closed by each append
	waiting int           // callers of Wait
	reads   int           // calls of Read
	broken  error         // what Read returns
	reading func()        // called by Read before it reads; may be nil
}

type memoryPartition struct {
	start, end int64
	records    []*kgo.Record
}

func newMemoryLog(topics ...kafka.Topic) *memoryLog {
	return &memoryLog{topics: topics, parts: map[kafka.Partition]*memoryPartition{}, grown: make(chan struct{})}
}

func (l *memoryLog) part(p kafka.Partition) *memoryPartition {
	if l.parts[p] == nil {
		l.parts[p] = &memoryPartition{}
	}
	return l.parts[p]
}

// append appends records whose offsets follow each other.
func (l *memoryLog) append(p kafka.Partition, records ...*kgo.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.part(p)
	for _, r := range records {
		r.Offset = m.end
		m.end++
		m.records = append(m.records, r)
	}
	l.wake()
}

// skip leaves out offsets.
func (l *memoryLog) skip(p kafka.Partition, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part(p).end += n
	l.wake()
}

// trim removes the records before an offset.
func (l *memoryLog) trim(p kafka.Partition, start int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.part(p)
	m.start = start
	m.records = slices.DeleteFunc(slices.Clone(m.records), func(r *kgo.Record) bool { return r.Offset < start })
}

func (l *memoryLog) wake() {
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *memoryLog) Topics() []kafka.Topic {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.topics
}

func (l *memoryLog) Bounds(_ context.Context, p kafka.Partition) (start, end int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.part(p)
	return m.start, m.end, nil
}

func (l *memoryLog) Read(_ context.Context, p kafka.Partition, from int64, maxBytes int) ([]*kgo.Record, error) {
	l.mu.Lock()
	reading := l.reading
	l.mu.Unlock()
	if reading != nil {
		reading()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	var list []*kgo.Record
	size := 0
	m := l.part(p)
	i, _ := slices.BinarySearchFunc(m.records, from,
		func(r *kgo.Record, offset int64) int { return cmp.Compare(r.Offset, offset) })
	for _, r := range m.records[i:] {
		if len(list) > 0 && size >= maxBytes {
			break
		}
		list = append(list, r)
		size += len(r.Key) + len(r.Value)
	}
	return list, l.broken
}

func (l *memoryLog) OffsetAt(_ context.Context, p kafka.Partition, t time.Time) (int64, time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.part(p).records {
		if !r.Timestamp.Before(t) {
			return r.Offset, r.Timestamp, nil
		}
	}
	return -1, time.Time{}, nil
}

func (l *memoryLog) Newest(_ context.Context, p kafka.Partition) (int64, time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	offset, at := int64(-1), time.Time{}
	for _, r := range l.part(p).records {
		if offset < 0 || r.Timestamp.After(at) {
			offset, at = r.Offset, r.Timestamp
		}
	}
	return offset, at, nil
}

func (l *memoryLog) Wait(ctx context.Context, beyond []kafka.Position) error {
	l.mu.Lock()
	l.waiting++
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.waiting--
	}()
	for {
		l.mu.Lock()
		grown := l.grown
		ready := slices.ContainsFunc(beyond, func(p kafka.Position) bool { return l.part(p.Partition).end > p.Offset })
		l.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// waits says how many fetches wait.
func (l *memoryLog) waits() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting
}

var errBroken = errors.New("the log is broken")
