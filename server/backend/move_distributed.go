package backend

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topicstore"
	"github.com/parley-chat/parley/server/move"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/topic"
)

// modeDistributed is what an export says of its source.
const modeDistributed = "dynamodb"

// drainTime is how long an export waits after it has closed the tables: a process looks every two seconds
// whether they are closed, and a plan is at most 20 s old when it is committed, by clocks 20 s apart.
const drainTime = time.Minute

// writers is how many batches of rows are written at a time.
const writers = 16

func openMoving(ctx context.Context, cfg Config) (*dynamo.Store, error) {
	d := cfg.Distributed
	st, err := dynamo.Open(ctx, dynamo.Options{Wire: d.Tables.wire(), Prefix: d.Tables.Prefix, Moving: true})
	return st, d.Tables.Explain(err)
}

func openDistributedExport(ctx context.Context, cfg Config, m Moving) (
	src move.Source, closing func() error, err error,
) {
	st, err := openMoving(ctx, cfg)
	if err != nil {
		return src, nil, err
	}
	fail := func(err error) (move.Source, func() error, error) {
		return move.Source{}, nil, errors.Join(err, st.Close())
	}
	p, err := importOf(ctx, st)
	if err == nil && p.Export != "" {
		err = fmt.Errorf("an import into %s* has not ended: run it again with the same export", cfg.Distributed.Tables.Prefix)
	}
	if err != nil {
		return fail(err)
	}
	if err := checkTopics(ctx, st); err != nil {
		return fail(err)
	}
	if err := drain(ctx, st, m); err != nil {
		return fail(err)
	}
	t := &distributedTarget{st: st, cfg: cfg, moving: m}
	if src, err = t.content(ctx); err != nil {
		return fail(err)
	}
	src.Header.Mode, src.Header.History = modeDistributed, st.Lineage()
	counters, err := topic.ReadMovedCounters(ctx, st)
	if err != nil {
		return fail(err)
	}
	src.Header.Topics = move.TopicCounters(counters)
	return src, st.Close, nil
}

const attrExportAt = "at" // of the row that closes the tables, unix ms

// drain closes the tables for all processes, and waits until none of them writes any more.
func drain(ctx context.Context, st *dynamo.Store, m Moving) error {
	it, err := st.Get(ctx, table.ExportKey(), store.Strong)
	if err != nil {
		return err
	}
	if it == nil {
		it = store.NewItem(store.Attr{Name: attrExportAt, Value: store.Int(time.Now().UnixMilli())})
		err := st.Transact(ctx, store.Plan{Writes: []store.Write{{Op: store.OpPut, Key: table.ExportKey(), Item: it}}})
		if err != nil {
			return err
		}
	}
	left := m.Drain - max(0, time.Since(time.UnixMilli(it.Get(attrExportAt).Int64())))
	if left <= 0 {
		return nil
	}
	if m.Waits != nil {
		m.Waits(left)
	}
	select {
	case <-time.After(left):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// CancelExport opens the tables again that an export has closed. Rows that are written from then on
// are in a generation of their own, which a store that the export was imported into does not have.
func CancelExport(ctx context.Context, cfg Config) error {
	if cfg.Distributed == nil {
		return errors.New("an export of a data directory changes nothing: start the server")
	}
	st, err := openMoving(ctx, cfg)
	if err != nil {
		return err
	}
	it, err := st.Get(ctx, table.ExportKey(), store.Strong)
	if err == nil && it == nil {
		err = fmt.Errorf("%s* are not exported", cfg.Distributed.Tables.Prefix)
	}
	if err == nil {
		err = st.Follow(ctx, st.Lineage())
	}
	return errors.Join(err, st.Close())
}

func openDistributedImport(ctx context.Context, cfg Config, m Moving) (move.Target, func() error, error) {
	if m.KeyFile == "" {
		return nil, nil, errors.New("key-file is needed: all servers must have the same key")
	}
	st, err := openMoving(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	t := &distributedTarget{st: st, cfg: cfg, moving: m, carriers: map[int]*topicstore.Carrier{}}
	return t, t.close, nil
}

// distributedTarget is tables of DynamoDB and topics of Kafka. A row keeps processes from them until Finish.
type distributedTarget struct {
	st       *dynamo.Store
	cfg      Config
	moving   Moving
	topics   map[uint64]commitlog.Topic // nil: not read yet
	carriers map[int]*topicstore.Carrier
}

func (t *distributedTarget) close() error {
	for _, c := range t.carriers {
		c.Close()
	}
	return t.st.Close()
}

// Begin implements move.Target.
func (t *distributedTarget) Begin(ctx context.Context, h move.Header) (move.Progress, error) {
	p, err := importOf(ctx, t.st)
	if err != nil || p.Export != "" {
		return p, err
	}
	for _, d := range store.Tables() {
		for row, err := range store.ScanAll(ctx, t.st, store.Scan{Table: d.Name, Segments: 1}) {
			if err != nil {
				return p, err
			}
			if move.Moves(row.Key) || row.Key == table.ExportKey() {
				return p, fmt.Errorf("the tables %s* are not empty: %s has rows; name others with --dynamodb-prefix",
					t.cfg.Distributed.Tables.Prefix, d.Name)
			}
		}
	}
	i := table.Import{Export: h.ID}
	return p, t.st.Transact(ctx, store.Plan{Writes: []store.Write{{
		Op: store.OpPut, Key: table.ImportKey(), Item: i.Item(), Cond: store.Absent(), Name: "import",
	}}})
}

// File implements move.Target.
func (t *distributedTarget) File(f move.File) error { return putKey(t.moving.KeyFile, f.Content) }

// Rows implements move.Target.
func (t *distributedTarget) Rows(ctx context.Context, rows []store.Row) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(writers)
	for part := range slices.Chunk(rows, store.MaxBatchWrite) {
		writes := make([]store.Write, len(part))
		for i, r := range part {
			writes[i] = store.Write{Op: store.OpPut, Key: r.Key, Item: r.Item}
		}
		g.Go(func() error { return t.write(ctx, writes) })
	}
	return g.Wait()
}

// write writes rows, also while DynamoDB refuses some for a while because of its capacity.
func (t *distributedTarget) write(ctx context.Context, writes []store.Write) error {
	for {
		err := t.st.BatchWrite(ctx, writes)
		if !errors.Is(err, store.ErrThrottled) || ctx.Err() != nil {
			return err
		}
	}
}

// log is the configuration of a slot's log.
func (t *distributedTarget) log(ctx context.Context, slot int) (topicstore.Config, error) {
	k := t.cfg.Distributed.Kafka
	if len(k.Brokers) == 0 {
		return topicstore.Config{}, errors.New("kafka-brokers is needed for the messages of durable topics")
	}
	installation, err := topic.Installation(ctx, t.st)
	return topicstore.Config{Addr: k.Addr(), Options: k.Options(), Slot: slot, Slots: t.moving.TopicSlots,
		Installation: installation,
		Replication:  int16(t.moving.Replication), Clock: time.Now, Logger: loggerOf(t.cfg)}, err
}

// Records implements move.Target.
func (t *distributedTarget) Records(ctx context.Context, list []store.Record) error {
	if t.topics == nil {
		topics, err := topic.MovedTopics(ctx, t.st)
		if err != nil {
			return err
		}
		t.topics = topics
	}
	var numbers []commitlog.Carried // of producers of one partition, which are written together
	flush := func() (err error) {
		if len(numbers) > 0 {
			err = t.record(ctx, numbers...)
		}
		numbers = numbers[:0]
		return err
	}
	for _, r := range list {
		c, err := commitlog.ParseCarried(r.Key, r.Value)
		if err != nil {
			return fmt.Errorf("a record of topic %d: %w; run server check on the source", c.Partition.Topic, err)
		}
		if _, ok := t.topics[c.Partition.Topic]; !ok { // of one that was being removed
			continue
		}
		if c.Published != nil && (len(numbers) == 0 || numbers[0].Partition == c.Partition) && len(numbers) < maxNumbers {
			numbers = append(numbers, c)
			continue
		}
		if err := flush(); err != nil {
			return err
		}
		if err := t.record(ctx, c); err != nil {
			return err
		}
	}
	return flush()
}

// maxNumbers is how many numbers of producers are written together.
const maxNumbers = 5_000

// record writes a record, or numbers of producers of one partition.
func (t *distributedTarget) record(ctx context.Context, list ...commitlog.Carried) error {
	c := list[0]
	of := t.topics[c.Partition.Topic]
	to, err := t.carrier(ctx, topic.SlotOf(of.Name, t.moving.TopicSlots))
	if err == nil {
		err = to.Create(ctx, of)
	}
	switch {
	case err != nil:
	case c.Batch != nil:
		err = to.Append(ctx, c.Partition, c.Batch)
	case c.Published != nil:
		var numbers []commitlog.Published
		for _, c := range list {
			numbers = append(numbers, *c.Published)
		}
		err = to.Published(ctx, c.Partition, numbers...)
	default:
		err = to.Start(ctx, c.Partition, c.Start)
	}
	if err != nil {
		return fmt.Errorf("topic %s: %w", of.Name, err)
	}
	return nil
}

// carrier writes the logs of a slot.
func (t *distributedTarget) carrier(ctx context.Context, slot int) (*topicstore.Carrier, error) {
	if c := t.carriers[slot]; c != nil {
		return c, nil
	}
	cfg, err := t.log(ctx, slot)
	if err != nil {
		return nil, err
	}
	c, err := topicstore.NewCarrier(ctx, cfg)
	if err == nil {
		t.carriers[slot] = c
	}
	return c, err
}

// Reached implements move.Target. Earlier writes are durable.
func (t *distributedTarget) Reached(ctx context.Context, p move.Progress) error {
	return reached(ctx, t.st, p)
}

// Written implements move.Target.
func (t *distributedTarget) Written(ctx context.Context) (move.Source, error) { return t.content(ctx) }

// content is what an export reads.
func (t *distributedTarget) content(ctx context.Context) (src move.Source, err error) {
	src.Store = t.st
	slots := t.moving.TopicSlots
	it, err := t.st.Get(ctx, table.TopicSlotsKey(), store.Strong)
	if err != nil {
		return src, err
	}
	if n := it.Get(table.AttrTopicNumber).Int64(); n > 0 && n <= math.MaxInt32 {
		slots = int(n)
	}
	if len(t.cfg.Distributed.Kafka.Brokers) == 0 {
		topics, err := topic.MovedTopics(ctx, t.st)
		if err == nil && len(topics) > 0 {
			err = errors.New("kafka-brokers is needed: there are durable topics")
		}
		return src, err
	}
	cfg, err := t.log(ctx, 0)
	cfg.Slots = slots
	src.Records = func(ctx context.Context, after []byte, each func(key, value []byte) bool) error {
		return topicstore.Carried(ctx, cfg, after, each)
	}
	return src, err
}

// Finish implements move.Target.
func (t *distributedTarget) Finish(ctx context.Context, h move.Header) error {
	if err := topic.CompleteMove(ctx, t.st, topic.MovedCounters(h.Topics), t.moving.TopicSlots); err != nil {
		return err
	}
	all := func(t kafka.Topic) int32 { return t.Partitions }
	if err := announce(ctx, t.st, t.moving.Search, all); err != nil {
		return err
	}
	return t.st.Follow(ctx, h.History)
}
