package topicstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
	"github.com/parley-chat/parley/server/store"
)

// part is how far a partition has come.
type part struct {
	loading sync.Mutex // held while it is loaded

	// Guarded by the log's lock.
	loaded bool
	end    int64 // behind the last message, not what lies behind that: ends of transactions
	time   int64 // of the last message, unix ms
	// visible is up to where readers of committed records have been seen to come. They learn
	// of a transaction a little later than the writer that has ended it.
	visible int64
	// scannedTo is the offset up to which records of other processes were looked for.
	scannedTo int64
}

func (l *Log) part(p commitlog.Partition) *part {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.parts[p]
	if x == nil {
		x = &part{}
		l.parts[p] = x
	}
	return x
}

// see returns the end of a partition, which readers can see up to an offset.
func (l *Log) see(p commitlog.Partition, visible int64) int64 {
	x := l.part(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	x.visible = max(x.visible, visible)
	return x.end
}

// load finds the end of a partition, once. No other process writes to the partition.
func (l *Log) load(ctx context.Context, p commitlog.Partition) error {
	x := l.part(p)
	x.loading.Lock()
	defer x.loading.Unlock()
	l.mu.Lock()
	loaded := x.loaded
	l.mu.Unlock()
	if loaded {
		return nil
	}
	found, err := l.last(ctx, p)
	if err != nil {
		return l.explainRead(fmt.Errorf("open partition %s: %w", p, err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if start := l.memory.Starts[p]; found.start < start { // an earlier owner could not remove it
		l.trimmed[p] = start
		found.end = max(found.end, start)
	}
	x.loaded, x.end, x.time, x.visible, x.scannedTo = true, found.end, found.time, found.visible, found.visible
	return nil
}

// extent is what of a partition is in Kafka: times are unix ms, the rest positions.
type extent struct{ start, end, time, visible int64 }

// last looks for the last message of a partition, further back with each try: behind it are
// ends of transactions, and transactions that were aborted.
func (l *Log) last(ctx context.Context, p commitlog.Partition) (x extent, err error) {
	if x.start, x.visible, err = l.reader.Bounds(ctx, p); err != nil {
		return x, err
	}
	name, err := l.kafkaName(p)
	if err != nil {
		return x, err
	}
	x.end = x.start
	for back := int64(firstStepBack); ; back *= stepBack {
		from := max(x.start, x.visible-back)
		err := state.Scan(ctx, l.reader, name, p.Number, from, func(r *kafka.Record) error {
			x.end, x.time = r.Offset+1, max(x.time, r.Timestamp.UnixMilli())
			return nil
		})
		if err != nil || x.end > x.start || from == x.start {
			return x, err
		}
	}
}

const (
	firstStepBack = 2 // the end of a transaction, and a message
	stepBack      = 16
)

// await waits until readers see a partition up to its end.
func (l *Log) await(ctx context.Context, p commitlog.Partition) error {
	ctx, cancel := context.WithTimeout(ctx, seenWithin)
	defer cancel()
	x := l.part(p)
	for pause := time.Millisecond; ; pause = min(2*pause, longestPause) {
		l.mu.Lock()
		there := x.visible >= x.end
		l.mu.Unlock()
		if there {
			return nil
		}
		_, visible, err := l.reader.Bounds(ctx, p)
		if err != nil {
			return l.explainRead(err)
		}
		if end := l.see(p, visible); visible >= end {
			return nil
		}
		if wait.For(ctx, pause) != nil {
			return fmt.Errorf("%w: what was written to %s cannot be seen yet", store.ErrUnavailable, p)
		}
	}
}

// How long readers may take to see the end of a transaction, and the pauses between tries.
const (
	seenWithin   = 10 * time.Second
	longestPause = 50 * time.Millisecond
)
