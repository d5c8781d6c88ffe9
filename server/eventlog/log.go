package eventlog

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
)

// Config is what a Log needs. All fields without another word are required.
type Config struct {
	// Store has the rows of events, to which references lead, and the ledger.
	Store store.Store
	// Log has the batches. Nothing else writes to its topics of the event log while this Log is open.
	Log *commitlog.Local
	// Generation is that of the store's history in which records are published. Records say so.
	Generation string
	// Topics are made where they are missing; nil: kafka.Topics().
	Topics []kafka.Topic
	// MaxBytes caps the records that are stored as copies: search events and dead letters. Each kind
	// has its share (kafka.Kind.Share).
	MaxBytes int64
	// Committed returns how far a consumer group of Parley has read: the offset of the next record,
	// of each partition for which the group has committed one. It is called by Trim.
	Committed func(ctx context.Context, group string) (map[kafka.Partition]int64, error)
	Clock     func() time.Time // nil: time.Now
	Logger    *slog.Logger     // nil: none
}

// tailBytes is how many bytes of the last records stay in memory, in all partitions together.
const tailBytes = 16 << 20

// Log is the event log of a process: the topics of Kafka that lie in the store. It is safe for
// concurrent use.
type Log struct {
	cfg   Config
	tail  tail
	stamp stamp

	changing sync.Mutex // one change of the topics at a time; held across the store
	index    atomic.Pointer[index]

	unreadable atomic.Int64
	lostLines  atomic.Int64 // about what is unreadable

	trimming sync.Mutex // one Trim at a time; held across the store
	ledger   ledger
	gaveUp   atomic.Int64
}

// index is the topics of a log. It never changes: a change makes another one, which shares the
// partitions.
type index struct {
	topics     []kafka.Topic           // with ids
	partitions map[string][]*partition // of a topic, by number
}

// Open opens the log and creates the topics that are missing. Topics of the log that the
// configuration does not name stay, as topics that search events were sent to under another
// setting. A topic with another number of partitions than the configuration says is an error.
func Open(ctx context.Context, cfg Config) (*Log, error) {
	if cfg.Topics == nil {
		cfg.Topics = kafka.Topics()
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{cfg: cfg, tail: tail{limit: tailBytes}, ledger: ledger{store: cfg.Store}}
	l.stamp.clock = cfg.Clock
	list, err := cfg.Log.EventTopics(ctx)
	if err != nil {
		return nil, err
	}
	x := &index{partitions: map[string][]*partition{}}
	for _, made := range list {
		if err := l.load(ctx, x, declaration(cfg.Topics, made), made); err != nil {
			return nil, err
		}
	}
	l.index.Store(x)
	for _, t := range cfg.Topics {
		if err := l.Add(ctx, t); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// declaration is what is known of a topic of the log. One that is not declared was a topic of
// search events.
func declaration(declared []kafka.Topic, made commitlog.EventTopic) kafka.Topic {
	for _, t := range declared {
		if t.Name == made.Name {
			return t
		}
	}
	search := kafka.Topics()
	t := search[slices.IndexFunc(search, func(t kafka.Topic) bool { return t.Kind == kafka.Searches })]
	t.Name, t.Partitions, t.Readers = made.Name, made.Partitions, nil
	return t
}

// load adds a topic that the log has.
func (l *Log) load(ctx context.Context, x *index, t kafka.Topic, made commitlog.EventTopic) error {
	parts := make([]*partition, made.Partitions)
	for i := range parts {
		p := &partition{name: kafka.Partition{Topic: t.Name, ID: int32(i)}, waiting: map[*waiter]int64{},
			id: commitlog.Partition{Topic: made.Number, Number: int32(i)}}
		var err error
		if p.start, p.end, err = l.cfg.Log.Bounds(ctx, p.id); err != nil {
			return fmt.Errorf("open %s of the event log: %w", p.name, err)
		}
		parts[i] = p
	}
	t.ID = made.ID
	x.topics = append(x.topics, t)
	x.partitions[t.Name] = parts
	return nil
}

// Add creates a topic, durably, or takes over the declaration of one that the log has, which must
// have as many partitions. From the next Open on the caller must list it in Config.Topics.
func (l *Log) Add(ctx context.Context, t kafka.Topic) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	old := l.index.Load()
	x := &index{topics: slices.Clone(old.topics), partitions: old.partitions}
	at := slices.IndexFunc(x.topics, func(o kafka.Topic) bool { return o.Name == t.Name })
	switch {
	case at < 0:
		made, err := l.cfg.Log.CreateEventTopic(ctx, commitlog.EventTopic{Name: t.Name, Partitions: t.Partitions})
		if err != nil {
			return fmt.Errorf("create topic %s: %w", t.Name, err)
		}
		x.partitions = make(map[string][]*partition, len(old.partitions)+1)
		for name, parts := range old.partitions {
			x.partitions[name] = parts
		}
		if err := l.load(ctx, x, t, made); err != nil {
			return err
		}
	case len(x.partitions[t.Name]) != int(t.Partitions):
		return fmt.Errorf("topic %s has %d partitions in the event log, not %d", t.Name, len(x.partitions[t.Name]),
			t.Partitions)
	default:
		t.ID = x.topics[at].ID
		x.topics[at] = t
	}
	l.index.Store(x)
	return nil
}

// SetReaders takes over which groups of Parley read topics of the log; topics that are not listed
// keep theirs. A topic can lose its readers while the process runs.
func (l *Log) SetReaders(topics []kafka.Topic) {
	l.changing.Lock()
	defer l.changing.Unlock()
	old := l.index.Load()
	x := &index{topics: slices.Clone(old.topics), partitions: old.partitions}
	changed := false
	for i := range x.topics {
		at := slices.IndexFunc(topics, func(t kafka.Topic) bool { return t.Name == x.topics[i].Name })
		if at >= 0 && !slices.Equal(x.topics[i].Readers, topics[at].Readers) {
			x.topics[i].Readers, changed = topics[at].Readers, true
		}
	}
	if changed {
		l.index.Store(x)
	}
}

// Topics returns all topics, with their ids: the same slice until something changes. The caller does not change it.
func (l *Log) Topics() []kafka.Topic { return l.index.Load().topics }

func (x *index) partition(p kafka.Partition) (*partition, error) {
	parts := x.partitions[p.Topic]
	if p.ID < 0 || int(p.ID) >= len(parts) {
		return nil, fmt.Errorf("%w: %s", commitlog.ErrNoTopic, p)
	}
	return parts[p.ID], nil
}

func (l *Log) partition(p kafka.Partition) (*partition, error) { return l.index.Load().partition(p) }

// Bounds returns the offset of the first record, and the offset after the last durable one. Error:
// commitlog.ErrNoTopic.
func (l *Log) Bounds(_ context.Context, p kafka.Partition) (start, end int64, err error) {
	part, err := l.partition(p)
	if err != nil {
		return 0, 0, err
	}
	start, end = part.bounds()
	return start, end, nil
}

// Wait returns nil once the end of one of the partitions is greater than its offset here, which may
// be at once, and the cause of the context's end otherwise. Error: commitlog.ErrNoTopic.
func (l *Log) Wait(ctx context.Context, beyond []kafka.Position) error {
	x := l.index.Load()
	w := &waiter{wake: make(chan struct{}, 1)}
	var parts []*partition // that w waits for
	defer func() {
		for _, p := range parts {
			p.leave(w)
		}
	}()
	for _, at := range beyond {
		p, err := x.partition(at.Partition)
		if err != nil {
			return err
		}
		if p.join(w, at.Offset) {
			return nil
		}
		parts = append(parts, p)
	}
	select {
	case <-w.wake:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stamp gives times to records.
type stamp struct {
	clock func() time.Time
	mu    sync.Mutex
	last  int64
}

// now returns the time in unix ms, never before one that it has returned.
func (s *stamp) now() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = max(s.last, s.clock().UnixMilli())
	return s.last
}
