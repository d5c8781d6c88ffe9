// Package topiclog reads Kafka's topics as logs of topics, so that the events of chats can
// be subscribed to as any other topic.
//
// A position is an offset. Offsets without a committed record (ends of transactions, aborted
// ones) are positions that do not exist. Every read names its offset: nothing is ever reset,
// and an offset that is out of range is an error.
//
// It owns how a record looks as a message; it writes nothing. Concurrency: a Log may be used
// by many goroutines.
package topiclog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
)

// Config configures a Log. Client is required.
type Config struct {
	Client *kafka.Client
	// Message makes a message of a record; nil: of an event.
	Message func(r *kafka.Record) *commitlog.Message
	// Producer returns the batch that a record belongs to, where its readers need it; nil:
	// where no reader does.
	Producer func(r *kafka.Record) commitlog.Producer
	Clock    func() time.Time // nil: time.Now
}

// Log is a commitlog.Reader.
type Log struct {
	cfg   Config
	admin *kadm.Client
	// decompress keeps its buffers, which are megabytes, from one fetch to the next.
	decompress kgo.Decompressor

	mu      sync.Mutex
	names   map[uint64]string // of topics, by number
	leaders map[string]kadm.TopicDetail
	asked   time.Time // last, for what is in a topic
}

var _ commitlog.Reader = (*Log)(nil)

// New makes a Log.
func New(cfg Config) *Log {
	if cfg.Message == nil {
		cfg.Message = message
	}
	if cfg.Producer == nil {
		cfg.Producer = func(*kafka.Record) commitlog.Producer { return commitlog.Producer{} }
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	return &Log{cfg: cfg, admin: kadm.NewClient(cfg.Client), decompress: kgo.DefaultDecompressor(),
		names:   map[uint64]string{},
		leaders: map[string]kadm.TopicDetail{}}
}

// Bounds of a fetch, bytes and time.
const (
	maxFetch  = 8 << 20
	fetchWait = 500 * time.Millisecond
	maxTries  = 5 // of a fetch that brings nothing
	// retryPause grows with each try: a partition may have no leader for a moment.
	retryPause = 50 * time.Millisecond
)

// Add makes a topic readable by a number. It may be repeated.
func (l *Log) Add(number uint64, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names[number] = name
}

// Remove makes a topic not readable any more.
func (l *Log) Remove(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.leaders, l.names[number])
	delete(l.names, number)
}

// usedFor is how long a Log counts as in use after a call: longer than the pause between two
// reads of the bounds of a topic that a group consumes.
const usedFor = 2 * time.Second

// InUse reports whether a caller has read messages or bounds within usedFor.
func (l *Log) InUse() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.asked.IsZero() && l.cfg.Clock().Sub(l.asked) < usedFor
}

// Named reports whether a name is that of a topic of events, one that is to come too.
func (l *Log) Named(name string) bool {
	base, _, ok := versions.Base(name)
	return ok && base != kafka.DeadLetters
}

// Partitions returns how many partitions a topic has, 0 if there is none.
func (l *Log) Partitions(ctx context.Context, name string) (int32, error) {
	d, err := l.detail(ctx, name)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return 0, nil
	}
	return int32(len(d.Partitions)), err
}

// name returns the name of a topic that is asked for.
func (l *Log) name(p commitlog.Partition) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = l.cfg.Clock()
	name, ok := l.names[p.Topic]
	if !ok {
		return "", fmt.Errorf("%w: partition %s is of no topic of Kafka", commitlog.ErrInvalid, p)
	}
	return name, nil
}

// Bounds implements commitlog.Reader.
func (l *Log) Bounds(ctx context.Context, p commitlog.Partition) (start, end int64, err error) {
	name, err := l.name(p)
	if err != nil {
		return 0, 0, err
	}
	if start, err = l.offsetAt(ctx, p, name, atStart); err != nil {
		return 0, 0, err
	}
	if end, err = l.offsetAt(ctx, p, name, atEnd); err != nil {
		return 0, 0, err
	}
	return start, end, nil
}

// AllBounds returns the bounds of all partitions of a topic.
func (l *Log) AllBounds(ctx context.Context, number uint64) (starts, ends []int64, err error) {
	name, err := l.name(commitlog.Partition{Topic: number})
	if err != nil {
		return nil, nil, err
	}
	first, err := l.admin.ListStartOffsets(ctx, name)
	if err != nil {
		return nil, nil, fmt.Errorf("offsets of %s: %w", name, err)
	}
	last, err := l.admin.ListCommittedOffsets(ctx, name)
	if err != nil {
		return nil, nil, fmt.Errorf("offsets of %s: %w", name, err)
	}
	for n := range int32(len(last[name])) {
		p := commitlog.Partition{Topic: number, Number: n}
		start, err := offset(p, name)(first, nil)
		if err != nil {
			return nil, nil, err
		}
		end, err := offset(p, name)(last, nil)
		if err != nil {
			return nil, nil, err
		}
		starts, ends = append(starts, start), append(ends, end)
	}
	return starts, ends, nil
}

// offset takes a partition's offset out of an answer.
func offset(p commitlog.Partition, name string) func(kadm.ListedOffsets, error) (int64, error) {
	return func(all kadm.ListedOffsets, err error) (int64, error) {
		if err != nil {
			return 0, fmt.Errorf("offsets of %s: %w", name, err)
		}
		o, ok := all.Lookup(name, p.Number)
		if !ok || errors.Is(o.Err, kerr.UnknownTopicOrPartition) {
			return 0, fmt.Errorf("%w: %s has no partition %d", commitlog.ErrInvalid, name, p.Number)
		}
		if o.Err != nil {
			return 0, fmt.Errorf("offset of %s/%d: %w", name, p.Number, o.Err)
		}
		return o.Offset, nil
	}
}

// Times that stand for the ends of a partition, in Kafka's protocol.
const (
	atStart = -2
	atEnd   = -1
)

// offsetAt asks for one offset of one partition: of the first record at a time, in ms, or
// one of the ends. It is -1 if there is no such record.
func (l *Log) offsetAt(ctx context.Context, p commitlog.Partition, name string, at int64) (int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.IsolationLevel = 1 // committed records only
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = name
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Partition, rp.Timestamp = p.Number, at
	topic.Partitions = append(topic.Partitions, rp)
	req.Topics = append(req.Topics, topic)
	for tries := 1; ; tries++ {
		res, err := req.RequestWith(ctx, l.cfg.Client)
		if err == nil && (len(res.Topics) != 1 || len(res.Topics[0].Partitions) != 1) {
			err = errors.New("the broker answers without the partition")
		}
		var got kmsg.ListOffsetsResponseTopicPartition
		if err == nil {
			got = res.Topics[0].Partitions[0]
			err = kerr.ErrorForCode(got.ErrorCode)
		}
		switch {
		case err == nil:
			return got.Offset, nil
		case errors.Is(err, kerr.UnknownTopicOrPartition) && tries == maxTries: // one just made is not known to all at once
			return 0, fmt.Errorf("%w: %s has no partition %d", commitlog.ErrInvalid, name, p.Number)
		case !kerr.IsRetriable(err) || tries == maxTries:
			return 0, fmt.Errorf("offset of %s/%d: %w", name, p.Number, err)
		}
		if err := wait.For(ctx, time.Duration(tries)*retryPause); err != nil {
			return 0, fmt.Errorf("offset of %s/%d: %w", name, p.Number, err)
		}
	}
}

// PositionAt implements commitlog.Reader. Times are those of the records, which may be out
// of order.
func (l *Log) PositionAt(ctx context.Context, p commitlog.Partition, t time.Time) (int64, error) {
	_, end, err := l.Bounds(ctx, p)
	if err != nil {
		return 0, err
	}
	name, err := l.name(p)
	if err != nil {
		return 0, err
	}
	ms := t.UnixMilli()
	if t.Nanosecond()%int(time.Millisecond) != 0 {
		ms++
	}
	at, err := l.offsetAt(ctx, p, name, ms)
	if err != nil {
		return 0, err
	}
	if at < 0 {
		at = end
	}
	// It may be the end of a transaction, whose time is that of the broker: the next record
	// may be older.
	for range maxTries {
		batches, err := l.Read(ctx, p, min(at, end), maxFetch)
		if err != nil || len(batches) == 0 {
			return end, err
		}
		for _, b := range batches {
			if b.Time >= ms {
				return b.Base, nil
			}
			at = b.End()
		}
	}
	return at, nil // too early rather than too late
}

// Read implements commitlog.Reader. Positions without a record at the end of what it looks
// at are skipped, so that no batches mean that there are none up to the end.
func (l *Log) Read(ctx context.Context, p commitlog.Partition, from int64, maxBytes int) ([]*commitlog.Batch, error) {
	return l.ReadTo(ctx, p, from, 0, maxBytes)
}

// ReadTo is Read of a partition that is known to end not before an offset. A leader that is new
// may not know yet up to where records are committed: then there is an error, and no batches
// mean that there are none up to that offset.
func (l *Log) ReadTo(
	ctx context.Context, p commitlog.Partition, from, end int64, maxBytes int,
) ([]*commitlog.Batch, error) {
	name, err := l.name(p)
	if err != nil {
		return nil, err
	}
	for next, tries := from, 0; ; {
		f, err := l.fetch(ctx, name, p.Number, next, maxBytes)
		if errors.Is(err, kerr.OffsetOutOfRange) {
			return nil, l.outOfRange(ctx, p, next)
		}
		if err != nil {
			return nil, fmt.Errorf("read %s/%d from %d on: %w", name, p.Number, next, err)
		}
		if f.end < end {
			if len(f.records) > 0 {
				return l.batches(p, from, f.records)
			}
			l.forget(name)
			return nil, fmt.Errorf("%w: read %s/%d from %d on: its leader knows of offsets up to %d, not %d",
				store.ErrUnavailable, name, p.Number, next, f.end, end)
		}
		if next > f.end {
			return nil, fmt.Errorf("%w: %d, partition %s ends with %d", commitlog.ErrBeyondEnd, from, p, f.end)
		}
		if len(f.records) > 0 {
			return l.batches(p, from, f.records)
		}
		if f.next >= f.end {
			return nil, nil
		}
		if tries++; f.next > next {
			tries = 0
		}
		if next = f.next; tries == maxTries {
			return nil, fmt.Errorf("read %s/%d from %d on: the broker sends nothing", name, p.Number, next)
		}
	}
}

func (l *Log) outOfRange(ctx context.Context, p commitlog.Partition, from int64) error {
	start, end, err := l.Bounds(ctx, p)
	switch {
	case err != nil:
		return err
	case from < start:
		return fmt.Errorf("%w: %d, partition %s begins with %d", commitlog.ErrTrimmed, from, p, start)
	}
	return fmt.Errorf("%w: %d, partition %s ends with %d", commitlog.ErrBeyondEnd, from, p, end)
}
