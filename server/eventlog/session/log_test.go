package session

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/kafka"
)

var errBroken = errors.New("the disk is broken")

// log is a log and committed offsets in memory, for tests of time and of errors. The tests of
// package consume read the real one.
type log struct {
	mu      sync.Mutex
	topics  []kafka.Topic
	parts   map[kafka.Partition]*part
	grown   chan struct{} // is closed when the log grows
	waits   int           // calls of Wait
	reads   int
	offsets map[kafka.Partition]int64
	fail    func(p kafka.Partition) error // of reads
	refuse  error                         // of Committed and Commit
}

type part struct {
	start, end int64
	records    []*kafka.Record
}

func newLog(topics ...kafka.Topic) *log {
	l := &log{parts: map[kafka.Partition]*part{}, grown: make(chan struct{}), offsets: map[kafka.Partition]int64{},
		fail: func(kafka.Partition) error { return nil }}
	for _, t := range topics {
		l.create(t)
	}
	return l
}

func (l *log) create(t kafka.Topic) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.topics = append(slices.Clone(l.topics), t)
	for id := range t.Partitions {
		l.parts[kafka.Partition{Topic: t.Name, ID: id}] = &part{}
	}
}

var _, _ Log = (*log)(nil), (*eventlog.Log)(nil)

// append appends a record of some bytes behind a gap; without bytes, it appends the gap alone.
func (l *log) append(p kafka.Partition, gap int64, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.parts[p]
	if at.end += gap; bytes > 0 {
		at.records = append(at.records, &kafka.Record{Topic: p.Topic, Partition: p.ID, Offset: at.end,
			Value: make([]byte, bytes)})
		at.end++
	}
	close(l.grown)
	l.grown = make(chan struct{})
}

func (l *log) trim(p kafka.Partition, start int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.parts[p]
	at.start = start
	at.records = slices.DeleteFunc(at.records, func(r *kafka.Record) bool { return r.Offset < start })
}

func (l *log) Topics() []kafka.Topic {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.topics
}

func (l *log) Bounds(_ context.Context, p kafka.Partition) (start, end int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parts[p].start, l.parts[p].end, nil
}

func (l *log) Read(_ context.Context, p kafka.Partition, from int64, maxBytes int) (list []*kafka.Record, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reads++; l.fail(p) != nil {
		return nil, l.fail(p)
	}
	for _, r := range l.parts[p].records {
		if r.Offset >= from && maxBytes > 0 {
			list = append(list, r)
			maxBytes -= len(r.Value)
		}
	}
	return list, nil
}

// refuses makes Committed and Commit fail from now on, or no longer.
func (l *log) refuses(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refuse = err
}

func (l *log) Wait(ctx context.Context, beyond []kafka.Position) error {
	l.mu.Lock()
	l.waits++
	l.mu.Unlock()
	for {
		l.mu.Lock()
		grown := l.grown
		there := slices.ContainsFunc(beyond, func(p kafka.Position) bool { return l.parts[p.Partition].end > p.Offset })
		l.mu.Unlock()
		if there {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *log) Committed(context.Context, string) (map[kafka.Partition]int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.offsets), l.refuse
}

func (l *log) Commit(_ context.Context, _ string, next map[kafka.Partition]int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refuse == nil {
		maps.Copy(l.offsets, next)
	}
	return l.refuse
}

// member is a session and what its callbacks were told.
type member struct {
	*Session
	assigned, gone []kafka.Partition
}

func join(t *testing.T, l *log, cfg kafka.SessionConfig) *member {
	t.Helper()
	m := &member{}
	cfg.Group = "g"
	cfg.Assigned = func(list []kafka.Partition) { m.assigned = append(m.assigned, list...) }
	cfg.Gone = func(list []kafka.Partition, lost bool) {
		if m.gone = append(m.gone, list...); lost {
			t.Error("partitions were lost, expected them to be given up")
		}
	}
	m.Session = Join(l, l, cfg)
	return m
}

func offsets(b kafka.Batch) (list []int64) {
	for _, r := range b.Records {
		list = append(list, r.Offset)
	}
	return list
}
