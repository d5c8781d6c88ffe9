package topicstore

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
)

// Follow implements commitlog.Follower.
func (l *Log) Follow(ctx context.Context, moved func(p commitlog.Partition, end int64)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.fenced:
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.cause
		case <-l.notifyMoved:
		}
		l.mu.Lock()
		news := l.moved
		l.moved = map[commitlog.Partition]int64{}
		l.mu.Unlock()
		for p, end := range news {
			moved(p, end)
		}
	}
}

// news notifies the followers that partitions are longer.
func (l *Log) news() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.moved) > 0 {
		select {
		case l.notifyMoved <- struct{}{}:
		default:
		}
	}
}

// How often shared topics are refreshed, and how long a refresh may take.
const (
	watchEvery  = 250 * time.Millisecond
	watchWithin = 5 * time.Second
)

// watch looks for what others write to shared topics, until the context ends.
func (l *Log) watch(ctx context.Context) {
	wait.Every(ctx, watchEvery, func() {
		for _, t := range l.shared() {
			if err := l.refreshEnds(ctx, t); err != nil && ctx.Err() == nil {
				l.cfg.Logger.Warn("a shared topic cannot be followed, trying again", "topic", t.Name, "error", err)
			}
		}
		l.news()
	})
}

func (l *Log) shared() (list []*topic) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.known {
		if t.Shared {
			list = append(list, t)
		}
	}
	return list
}

// refreshEnds reads the present ends of the partitions of a shared topic.
func (l *Log) refreshEnds(ctx context.Context, t *topic) error {
	ctx, cancel := context.WithTimeout(ctx, watchWithin)
	defer cancel()
	starts, ends, err := l.reader.AllBounds(ctx, t.Number)
	if err != nil {
		return err
	}
	for n, visible := range ends {
		p := commitlog.Partition{Topic: t.Number, Number: int32(n)}
		x := l.part(p)
		l.mu.Lock()
		from, same := max(x.end, starts[n]), !x.loaded || visible <= x.scannedTo
		l.mu.Unlock()
		if same { // one that was not loaded is not in use
			continue
		}
		end := from
		err := state.Scan(ctx, l.reader, t.kafka, p.Number, from, func(r *kafka.Record) error {
			end = r.Offset + 1
			return nil
		})
		if err != nil {
			return err
		}
		l.mu.Lock()
		x.visible, x.scannedTo = max(x.visible, visible), visible
		if end > x.end {
			x.end = end
			l.moved[p] = end
		}
		l.mu.Unlock()
	}
	return nil
}
