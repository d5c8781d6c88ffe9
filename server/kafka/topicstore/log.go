// Package topicstore keeps the messages of topics in Apache Kafka: for each topic a topic of
// Kafka, whose offsets are the positions.
//
// Topics are assigned to slots; a Log is that of a slot's owner, and its only writer. It
// writes in transactions under an id of the slot: to open a log aborts the transaction of an
// earlier owner and fences it from further writes. Concurrent appends share a transaction. The
// same transaction writes the stored numbers of publishers to state.Name, from which they are
// read when the log is opened.
//
// A trim is recorded in such a transaction, too, before Kafka removes records, and the
// partition begins at the recorded position from then on. So an owner that hangs before it
// removes records of Kafka, and resumes when another one has the slot, does no harm, although
// Kafka checks no epoch when records are removed. If its transaction was committed, the later
// owner has read it when it opened the log, and shows no reader what lies before. If not, it
// cannot be committed any more, and nothing is removed. The service that has the topic decides
// how far a trim may go: in memory its groups may be ahead of their stored cursors only by
// acknowledgements of their members and requests of operators.
//
// It owns the names and settings of these topics, how a message looks as a record, and how far
// a log has come. It does not own the assignment of slots, nor the reading of a topic of Kafka
// (package topiclog).
//
// Concurrency: a Log is safe for concurrent use. One goroutine writes; the lock guards
// what it shares with others and is never held while a broker is asked.
package topicstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topiclog"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
	"github.com/parley-chat/parley/server/kafka/transaction"
	"github.com/parley-chat/parley/server/store"
)

// Transactions begins the transactional ids of slots; the number of the slot follows.
const Transactions = "parley-topics-"

// Config configures a Log. All fields are required but Options and Counters.
type Config struct {
	Addr    string         // of brokers, with commas between them
	Options []kafka.Option // to authenticate
	// Slot is whose log it is, below Slots, which never changes for an installation.
	Slot, Slots int
	// Installation is the id of the installation: Kafka's topics are one's alone.
	Installation string
	Replication  int16 // of topics that are made
	Clock        func() time.Time
	Logger       *slog.Logger
	Counters     *Counters // nil: the log's own
}

// Log is a commitlog.Log and a commitlog.Follower.
type Log struct {
	cfg    Config
	client *kafka.Client // reads, makes and trims topics
	admin  *kadm.Client
	reader *topiclog.Log
	writer *kafka.Client // of the goroutine that writes
	stop   context.CancelFunc
	ended  sync.WaitGroup
	fenced chan struct{} // closed when nothing can be written any more
	step   func(string) error

	creating sync.Mutex // held while a topic is made or removed

	mu          sync.Mutex
	memory      *state.State
	known       map[uint64]*topic
	parts       map[commitlog.Partition]*part
	queue       []*submission
	bytes       int                           // of the queue
	wake        chan struct{}                 // something is in the queue
	cause       error                         // why nothing can be written any more
	removed     [][]byte                      // keys to be removed from state.Name with the next transaction
	trimmed     map[commitlog.Partition]int64 // what Kafka may still have of what lies before
	moved       map[commitlog.Partition]int64
	notifyMoved chan struct{} // something is in moved
	reached     reached
}

var (
	_ commitlog.Log      = (*Log)(nil)
	_ commitlog.Follower = (*Log)(nil)
	_ commitlog.Mirror   = (*Log)(nil)
)

// topic is a topic in use.
type topic struct {
	commitlog.Topic
	kafka string // its name there
	kept  kept   // as it was set
}

// Open takes a slot's log over. When it returns nil, no earlier owner can write, and its
// writes can be read. Close must be called. ErrForeign: the topics are another
// installation's.
func Open(ctx context.Context, cfg Config) (*Log, error) {
	l, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	if err := l.takeOver(ctx); err != nil {
		l.Close()
		return nil, err
	}
	background, stop := context.WithCancel(context.Background())
	l.stop = stop
	l.ended.Go(func() { l.write(background) })
	l.ended.Go(func() { l.mirror(background) })
	l.ended.Go(func() { l.watch(background) })
	return l, nil
}

func connect(cfg Config) (*Log, error) {
	if cfg.Slot < 0 || cfg.Slot >= cfg.Slots || cfg.Installation == "" || cfg.Clock == nil || cfg.Logger == nil ||
		cfg.Replication < 1 {
		return nil, errors.New("topicstore: slot, slots, installation, replication, clock and logger are required")
	}
	if cfg.Counters == nil {
		cfg.Counters = &Counters{}
	}
	client, err := transaction.NewReader(cfg.Addr, cfg.Options...)
	if err != nil {
		return nil, err
	}
	writer, err := transaction.NewWriter(cfg.Addr, Transactions+strconv.Itoa(cfg.Slot), cfg.Options...)
	if err != nil {
		client.Close()
		return nil, err
	}
	return &Log{
		cfg: cfg, client: client, admin: kadm.NewClient(client), writer: writer, stop: func() {},
		reader: topiclog.New(topiclog.Config{Client: client, Message: record.Message, Producer: record.Producer}),
		fenced: make(chan struct{}),
		step:   func(string) error { return nil },
		memory: state.New(), known: map[uint64]*topic{}, parts: map[commitlog.Partition]*part{},
		wake: make(chan struct{}, 1), moved: map[commitlog.Partition]int64{}, notifyMoved: make(chan struct{}, 1),
		reached: reached{}, trimmed: map[commitlog.Partition]int64{},
	}, nil
}

func (l *Log) takeOver(ctx context.Context) error {
	if err := l.createState(ctx); err != nil {
		return err
	}
	if err := l.refuseForeign(ctx); err != nil {
		return err
	}
	if err := transaction.TakeOver(ctx, l.writer); err != nil {
		return err
	}
	m, err := state.Load(ctx, l.reader, l.slot())
	if err != nil {
		return err
	}
	if err := l.compare(m.Owner); err != nil {
		return err
	}
	if m.Owner == "" {
		if err := l.claim(ctx); err != nil {
			return l.explain(fmt.Errorf("claim slot %d: %w", l.cfg.Slot, err))
		}
	}
	l.memory = m
	l.removed = m.Excess()
	for number, t := range m.Topics {
		l.reader.Add(number, t.Name)
	}
	return nil
}

// Close ends the log. Appends that are under way fail, and may be stored all the same.
func (l *Log) Close() {
	l.end(fmt.Errorf("%w: %w: it is closed", commitlog.ErrFenced, store.ErrUnavailable))
	l.stop()
	l.writer.Close()
	l.ended.Wait()
	l.client.Close()
}

// Fenced is closed when nothing can be written any more: another process has opened the
// slot's log, or it must be opened again because of what became of a transaction is unknown.
func (l *Log) Fenced() <-chan struct{} { return l.fenced }

// end records why nothing can be written any more, and answers the waiting callers. It
// reports whether that was not said before.
func (l *Log) end(cause error) (first bool) {
	l.mu.Lock()
	if first = l.cause == nil; first {
		l.cause = cause
		close(l.fenced)
	}
	queue := l.queue
	l.cfg.Counters.Waiting.Add(-int64(l.bytes))
	l.queue, l.bytes = nil, 0
	l.mu.Unlock()
	for _, s := range queue {
		s.answer(cause)
	}
	return first
}

// kafkaName returns a topic's name in Kafka; "" if it was never created.
func (l *Log) kafkaName(p commitlog.Partition) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok := l.memory.Topics[p.Topic]
	if p.Number < 0 || p.Number >= commitlog.MaxPartitions || ok && p.Number >= t.Partitions {
		return "", fmt.Errorf("%w: partition %s", commitlog.ErrInvalid, p)
	}
	return t.Name, nil
}

// Bounds implements commitlog.Reader.
func (l *Log) Bounds(ctx context.Context, p commitlog.Partition) (start, end int64, err error) {
	name, err := l.kafkaName(p)
	if err != nil || name == "" {
		return 0, 0, err
	}
	if err := l.load(ctx, p); err != nil {
		return 0, 0, err
	}
	start, visible, err := l.reader.Bounds(ctx, p)
	if err != nil {
		return 0, 0, l.explainRead(err)
	}
	start = max(start, l.started(p))
	return start, max(start, l.see(p, visible)), nil
}

// Read implements commitlog.Reader.
func (l *Log) Read(ctx context.Context, p commitlog.Partition, from int64, maxBytes int) ([]*commitlog.Batch, error) {
	name, err := l.kafkaName(p)
	if err != nil {
		return nil, err
	}
	if name != "" {
		if err := l.load(ctx, p); err != nil {
			return nil, err
		}
	}
	end := l.see(p, 0)
	switch start := l.started(p); {
	case from < start:
		return nil, fmt.Errorf("%w: %d, partition %s begins with %d", commitlog.ErrTrimmed, from, p, start)
	case from > end:
		return nil, fmt.Errorf("%w: %d, partition %s ends with %d", commitlog.ErrBeyondEnd, from, p, end)
	case from == end:
		return nil, nil
	}
	if err := l.await(ctx, p); err != nil {
		return nil, err
	}
	batches, err := l.reader.ReadTo(ctx, p, from, end, maxBytes)
	return batches, l.explainRead(err)
}

// PositionAt implements commitlog.Reader.
func (l *Log) PositionAt(ctx context.Context, p commitlog.Partition, t time.Time) (int64, error) {
	name, err := l.kafkaName(p)
	if err != nil || name == "" {
		return 0, err
	}
	if err := l.load(ctx, p); err != nil {
		return 0, err
	}
	if err := l.await(ctx, p); err != nil {
		return 0, err
	}
	at, err := l.reader.PositionAt(ctx, p, t)
	if err != nil {
		return 0, l.explainRead(err)
	}
	return min(max(at, l.started(p)), l.see(p, 0)), nil
}

// explain says that Kafka is not there in the words of the store, which callers know.
func (l *Log) explain(err error) error {
	var corrupt *commitlog.CorruptError
	switch {
	case err == nil, errors.As(err, &corrupt), errors.Is(err, commitlog.ErrTrimmed),
		errors.Is(err, commitlog.ErrBeyondEnd), errors.Is(err, commitlog.ErrInvalid),
		errors.Is(err, commitlog.ErrFenced), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrUnavailable, err)
}

// explainRead is explain for what was read of a partition that the topic has: a broker that does
// not know the partition has not heard yet of the topic, which was just made.
func (l *Log) explainRead(err error) error {
	if errors.Is(err, commitlog.ErrInvalid) {
		return fmt.Errorf("%w: %s", store.ErrUnavailable, err.Error())
	}
	return l.explain(err)
}

// tombstones are records that remove keys of the state.
func (l *Log) tombstones(keys [][]byte) (list []*kafka.Record) {
	for _, key := range keys {
		list = append(list, l.stateRecord(key, nil))
	}
	return list
}

func (l *Log) stateRecord(key, value []byte) *kafka.Record {
	return &kafka.Record{Topic: state.Name, Partition: l.slot(), Key: key, Value: value}
}

func (l *Log) published(key []byte, p producers.Published) *kafka.Record {
	r := l.stateRecord(key, nil)
	r.Value, r.Headers = state.Published(p)
	return r
}

// Remembered implements commitlog.Log. The numbers in memory were committed.
func (l *Log) Remembered(_ context.Context, p commitlog.Partition, producer string) ([]producers.Published, error) {
	if _, err := l.kafkaName(p); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.memory.Window(state.Key{Partition: p, ID: producer})
	if w == nil {
		return nil, nil
	}
	return w.All(), nil
}

func (l *Log) slot() int32 { return int32(l.cfg.Slot) }
