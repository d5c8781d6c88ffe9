package topicstore

import (
	"context"
	"fmt"
	"sync"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
	"github.com/parley-chat/parley/server/store"
)

// submission is something that waits to be written.
type submission struct {
	appends  []commitlog.Append
	batches  []*commitlog.Batch // of the appends, without positions; nil of those that have no messages
	appended []commitlog.Appended
	state    []*kafka.Record // for state.Name
	forget   string          // topic of Kafka that is gone
	gone     func(k state.Key, w *producers.Window) bool
	part     commitlog.Partition // begins with start from then on, if that is not 0
	start    int64
	bytes    int
	count    int // of records

	// Guarded by the log's lock.
	left    bool // no caller waits any more
	settled bool // what became of it is known

	group *group // with which it was written
	done  chan struct{}
	err   error
}

func newSubmission(appends []commitlog.Append) *submission {
	return &submission{appends: appends, appended: make([]commitlog.Appended, len(appends)), done: make(chan struct{})}
}

// group is the set of submissions written in one transaction. A submission whose positions
// are known waits for the others of the group: no end is reported before all batches up to it
// have arrived.
type group struct{ others sync.WaitGroup }

// answer reports the outcome of a submission to its caller. It is called once.
func (s *submission) answer(err error) {
	s.err = err
	close(s.done)
}

// Limits of what waits, and of a transaction. One submission may be larger.
const (
	maxQueued  = 64 << 20 // bytes
	groupBytes = 16 << 20
	groupCount = 20_000 // records
)

// Append implements commitlog.Log.
func (l *Log) Append(ctx context.Context, appends []commitlog.Append) ([]commitlog.Appended, error) {
	p, err := l.Begin(ctx, appends)
	if err != nil {
		return nil, err
	}
	if err := p.Wait(ctx); err != nil {
		return nil, err
	}
	return p.Appended, nil
}

// Begin implements commitlog.Log. It returns once the messages are durable: a broker may
// still abort messages that have positions. If the context ends before, they may be stored
// all the same, and Follow reports it.
func (l *Log) Begin(ctx context.Context, appends []commitlog.Append) (*commitlog.Pending, error) {
	if len(appends) == 0 {
		return nil, fmt.Errorf("%w: nothing to append", commitlog.ErrInvalid)
	}
	s := newSubmission(appends)
	now := l.cfg.Clock()
	for i := range appends {
		a := &appends[i]
		if err := a.Check(); err != nil {
			return nil, err
		}
		if name, err := l.kafkaName(a.Partition); err != nil {
			return nil, err
		} else if name == "" {
			return nil, fmt.Errorf("%w: topic %d was not created", commitlog.ErrInvalid, a.Partition.Topic)
		}
		s.count++
		if a.OnlyNumber() {
			s.batches = append(s.batches, nil)
			continue
		}
		b, err := commitlog.NewBatch(0, now, a.Messages)
		if err != nil {
			return nil, err
		}
		s.batches = append(s.batches, b)
		s.bytes += b.Size(0, b.Count())
		s.count += b.Count()
	}
	if err := l.submit(ctx, s); err != nil {
		return nil, err
	}
	if s.group == nil { // all of it was stored before
		return commitlog.NewPending(s.appended, func(context.Context) error { return nil }), nil
	}
	return commitlog.NewPending(s.appended, func(context.Context) error {
		s.group.others.Done()
		s.group.others.Wait()
		return nil
	}), nil
}

// submit enqueues a submission and waits for its outcome.
func (l *Log) submit(ctx context.Context, s *submission) error {
	if err := l.enqueue(s); err != nil {
		return err
	}
	select {
	case <-s.done:
		return s.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	settled := s.settled
	s.left = true
	l.mu.Unlock()
	if settled {
		<-s.done
		return s.err
	}
	return fmt.Errorf("%w: %w", store.ErrAmbiguous, ctx.Err())
}

func (l *Log) enqueue(s *submission) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.cause != nil:
		return l.cause
	case l.bytes > 0 && l.bytes+s.bytes > maxQueued:
		return fmt.Errorf("%w: %d bytes wait to be written to Kafka", store.ErrThrottled, l.bytes)
	}
	l.queue = append(l.queue, s)
	l.bytes += s.bytes
	l.cfg.Counters.Waiting.Add(int64(s.bytes))
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return nil
}

// take returns what goes into the next transaction, nil when the log has ended. Submissions
// whose callers have left meanwhile are not written.
func (l *Log) take(ctx context.Context) []*submission {
	for {
		l.mu.Lock()
		var list []*submission
		bytes, count, n := 0, 0, 0
		for _, s := range l.queue {
			if len(list) > 0 && (bytes+s.bytes > groupBytes || count+s.count > groupCount) {
				break
			}
			n++
			l.bytes -= s.bytes
			l.cfg.Counters.Waiting.Add(-int64(s.bytes))
			if !s.left {
				list = append(list, s)
				bytes, count = bytes+s.bytes, count+s.count
			}
		}
		clear(l.queue[:n])
		if l.queue = l.queue[n:]; len(l.queue) == 0 {
			l.queue = nil
		}
		ended := l.cause != nil
		l.mu.Unlock()
		switch {
		case ended:
			return nil
		case len(list) > 0:
			return list
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		}
	}
}
