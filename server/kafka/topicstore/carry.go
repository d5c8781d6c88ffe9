package topicstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
	"github.com/parley-chat/parley/server/kafka/transaction"
)

// Carrier writes the logs of topics that come from another engine, each message at the position that it had there: an
// offset. It writes without transactions, whose ends would take offsets, and fills what does not exist with them. It
// leaves messages that are there already, so a part may be repeated. It belongs to one goroutine.
type Carrier struct {
	log   *Log
	plain *kafka.Client
	marks *kafka.Client
	ends  map[commitlog.Partition]int64
	txn   *kmsg.InitProducerIDResponse // nil: not yet
}

// carrying is the transactional id under which offsets are filled.
const carrying = Transactions + "move"

// fillers is how many records at a time fill what lies before the start of a partition.
const fillers = 10_000

// NewCarrier takes the log of a slot over. Close must be called.
func NewCarrier(ctx context.Context, cfg Config) (*Carrier, error) {
	l, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	base := append(slices.Clone(cfg.Options),
		kgo.SeedBrokers(strings.Split(cfg.Addr, ",")...), kgo.ClientID("parley-topics"), kgo.DisableClientMetrics(),
		kgo.RetryBackoffFn(kafka.Backoff))
	plain, err := kgo.NewClient(append(slices.Clone(base), kgo.RequiredAcks(kgo.AllISRAcks()), kafka.CompressLarge(),
		kgo.ProducerBatchMaxBytes(transaction.MaxBatch), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	// Later versions of its requests are for brokers among each other, or give the producer another epoch.
	marks, err := kgo.NewClient(append(base, kgo.MaxVersions(kversion.V3_4_0()))...)
	if err != nil {
		plain.Close()
		l.Close()
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return &Carrier{log: l, plain: plain, marks: marks, ends: map[commitlog.Partition]int64{}}, nil
}

// Close ends the carrier.
func (c *Carrier) Close() {
	c.marks.Close()
	c.plain.Close()
	c.log.Close()
}

// Create makes what the log needs for a topic.
func (c *Carrier) Create(ctx context.Context, t commitlog.Topic) error { return c.log.Create(ctx, t) }

// end is behind the last offset of a partition, and the name of its topic.
func (c *Carrier) end(ctx context.Context, p commitlog.Partition) (name string, end int64, err error) {
	if name, err = c.log.kafkaName(p); err == nil && name == "" {
		err = fmt.Errorf("%w: topic %d was not created", commitlog.ErrInvalid, p.Topic)
	}
	if err != nil {
		return "", 0, err
	}
	if end, ok := c.ends[p]; ok {
		return name, end, nil
	}
	end, err = c.ask(ctx, name, p.Number)
	if err == nil {
		c.ends[p] = end
	}
	return name, end, err
}

func (c *Carrier) ask(ctx context.Context, name string, number int32) (int64, error) {
	ends, err := kadm.NewClient(c.plain).ListEndOffsets(ctx, name)
	if err != nil {
		return 0, c.log.explain(fmt.Errorf("offsets of %s: %w", name, err))
	}
	o, ok := ends.Lookup(name, number)
	if !ok || o.Err != nil {
		return 0, c.log.explain(fmt.Errorf("offsets of %s: %w", name, errors.Join(o.Err)))
	}
	return o.Offset, nil
}

// Start has a partition begin with a position. Earlier positions are filled and removed.
func (c *Carrier) Start(ctx context.Context, p commitlog.Partition, start int64) error {
	name, end, err := c.end(ctx, p)
	if err != nil {
		return err
	}
	for now := time.Now().UnixMilli(); end < start; {
		list := make([]*kafka.Record, min(fillers, start-end))
		for i := range list {
			list[i] = &kafka.Record{Topic: name, Partition: p.Number, Timestamp: time.UnixMilli(now)}
		}
		if end, err = c.produce(ctx, p, list, end); err != nil {
			return err
		}
	}
	s := newSubmission(nil)
	s.state = []*kafka.Record{c.log.stateRecord(state.StartKey(p), state.Start(start))}
	s.part, s.start = p, start
	if err := c.log.submit(ctx, s); err != nil {
		return err
	}
	c.log.remove(ctx)
	return nil
}

// Append writes the messages of a batch that are not there.
func (c *Carrier) Append(ctx context.Context, p commitlog.Partition, b *commitlog.Batch) error {
	name, end, err := c.end(ctx, p)
	if err != nil {
		return err
	}
	if end, err = c.fill(ctx, p, name, end, b.Base); err != nil {
		return err
	}
	var list []*kafka.Record
	for at := max(end, b.Base); at < b.End(); at++ {
		m, err := b.Message(int(at - b.Base))
		if err != nil {
			return err
		}
		list = append(list, record.Of(name, p.Number, b.Time, m, b.Producer))
	}
	if len(list) == 0 {
		return nil
	}
	_, err = c.produce(ctx, p, list, end)
	return err
}

// produce writes records to a partition that ends with an offset, and returns its new end.
func (c *Carrier) produce(ctx context.Context, p commitlog.Partition, list []*kafka.Record, end int64) (int64, error) {
	if err := c.plain.ProduceSync(context.WithoutCancel(ctx), list...).FirstErr(); err != nil {
		delete(c.ends, p)
		return 0, c.log.explain(fmt.Errorf("write to %s: %w", list[0].Topic, err))
	}
	for i, r := range list {
		if r.Offset != end+int64(i) {
			return 0, fmt.Errorf("topicstore: %s/%d gives offset %d where %d is expected: another program writes to it",
				r.Topic, r.Partition, r.Offset, end+int64(i))
		}
	}
	c.ends[p] = end + int64(len(list))
	return c.ends[p], ctx.Err()
}

// fill ends so many empty transactions in a partition that it ends with an offset. Each takes one.
func (c *Carrier) fill(ctx context.Context, p commitlog.Partition, name string, end, to int64) (int64, error) {
	for ; end < to; end++ {
		if err := c.mark(ctx, name, p.Number); err != nil {
			return end, c.log.explain(fmt.Errorf("fill %s/%d: %w", name, p.Number, err))
		}
		for { // the end of a transaction is answered before it is in the partition
			now, err := c.ask(ctx, name, p.Number)
			if err != nil {
				return end, err
			}
			if now > end {
				break
			}
			if err := wait.For(ctx, markPause); err != nil {
				return end, err
			}
		}
		c.ends[p] = end + 1
	}
	return end, nil
}

const (
	markPause = 2 * time.Millisecond
	markTries = 500
)

// mark ends a transaction of one partition, without records.
func (c *Carrier) mark(ctx context.Context, name string, number int32) error {
	id := carrying
	if c.txn == nil {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID, req.TransactionTimeoutMillis = &id, int32(time.Minute.Milliseconds())
		err := c.until(ctx, func() error {
			res, err := req.RequestWith(ctx, c.marks)
			if err == nil {
				err = kerr.ErrorForCode(res.ErrorCode)
			}
			c.txn = res
			return err
		})
		if err != nil {
			c.txn = nil
			return err
		}
	}
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch = id, c.txn.ProducerID, c.txn.ProducerEpoch
	topic := kmsg.NewAddPartitionsToTxnRequestTopic()
	topic.Topic, topic.Partitions = name, []int32{number}
	add.Topics = append(add.Topics, topic)
	err := c.until(ctx, func() error {
		res, err := add.RequestWith(ctx, c.marks)
		if err != nil {
			return err
		}
		for _, t := range res.Topics {
			for _, p := range t.Partitions {
				err = errors.Join(err, kerr.ErrorForCode(p.ErrorCode))
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	end := kmsg.NewPtrEndTxnRequest()
	end.TransactionalID, end.ProducerID, end.ProducerEpoch, end.Commit = id, c.txn.ProducerID, c.txn.ProducerEpoch, true
	return c.until(ctx, func() error {
		res, err := end.RequestWith(ctx, c.marks)
		if err == nil {
			err = kerr.ErrorForCode(res.ErrorCode)
		}
		return err
	})
}

// until repeats a request while the transaction before is being ended.
func (c *Carrier) until(ctx context.Context, request func() error) (err error) {
	for range markTries {
		if err = request(); !errors.Is(err, kerr.ConcurrentTransactions) {
			return err
		}
		if err := wait.For(ctx, markPause); err != nil {
			return err
		}
	}
	return err
}

// Published remembers numbers of producers of one slot.
func (c *Carrier) Published(ctx context.Context, p commitlog.Partition, list ...commitlog.Published) error {
	s := newSubmission(nil)
	for _, x := range list {
		key := state.Key{Partition: p, ID: x.Producer}
		s.state = append(s.state, c.log.published(key.Slot(x.Slot), x.Published))
	}
	return c.log.submit(ctx, s)
}
