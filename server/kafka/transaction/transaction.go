// Package transaction writes records to Kafka in transactions of several steps: their offsets
// are known before the end.
//
// It owns the settings of the clients that do so, and what an error leaves open. The caller
// owns the records, and decides what follows from an error. Concurrency: a client and its
// transactions belong to one goroutine.
package transaction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/kafka"
)

// Settings of the clients. Everything else is as for all clients of Kafka.
const (
	deadline       = 30 * time.Second // of a record, and of the end of a transaction
	metadataMinAge = 250 * time.Millisecond
	// MaxBatch is the size of a batch of messages, and of one message, in bytes.
	MaxBatch = 9 << 20
	// timeout is the time after which brokers abort a transaction that its producer does
	// not end. A new owner aborts it at once: the timeout only counts where there is none.
	timeout    = time.Minute
	maxRecords = 50_000
)

// NewWriter makes the client that writes topics' messages in transactions. Produced records
// wait for Flush, so that those of one transaction are in few batches.
func NewWriter(addr, id string, more ...kafka.Option) (*kafka.Client, error) {
	c, err := kgo.NewClient(append(slices.Clone(more),
		kgo.SeedBrokers(strings.Split(addr, ",")...), kgo.ClientID("parley-topics"), kgo.DisableClientMetrics(),
		kgo.TransactionalID(id), kgo.TransactionTimeout(timeout),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordDeliveryTimeout(deadline),
		kgo.RetryBackoffFn(kafka.Backoff), kgo.ManualFlushing(), kgo.MaxBufferedRecords(maxRecords),
		kafka.CompressLarge(), kgo.ProducerBatchMaxBytes(MaxBatch),
		kgo.MetadataMinAge(metadataMinAge), kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return c, nil
}

// NewReader makes the client that reads topics' messages, and makes and trims topics.
func NewReader(addr string, more ...kafka.Option) (*kafka.Client, error) {
	c, err := kgo.NewClient(append(slices.Clone(more),
		kgo.SeedBrokers(strings.Split(addr, ",")...), kgo.ClientID("parley-topics"), kgo.DisableClientMetrics(),
		kgo.RetryBackoffFn(kafka.Backoff), kgo.MetadataMinAge(metadataMinAge),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return c, nil
}

// TakeOver fences all earlier clients with the transactional id of this one. When it returns
// nil, no transaction of theirs is open, and none can be committed any more.
func TakeOver(ctx context.Context, c *kafka.Client) error {
	if _, _, err := c.ProducerID(ctx); err != nil {
		return fmt.Errorf("kafka: take over the transactional id: %w", kafka.Fenced(err))
	}
	return nil
}

// Transaction is a transaction of a topic writer, which belongs to one goroutine.
type Transaction struct {
	client   *kafka.Client
	produced []*kafka.Record
}

// Begin begins a transaction for records of some partitions. Errors: kafka.ErrFenced,
// a *kafka.PartitionError if partitions have no leader, after both of which nothing is open; others
// are fatal to the client.
func Begin(ctx context.Context, c *kafka.Client, records []*kafka.Record) (*Transaction, error) {
	if without := kafka.Leaderless(c, records); without != nil {
		return nil, without
	}
	kafka.AwaitTransactionEnd(ctx, c)
	if err := c.BeginTransaction(); err != nil {
		return nil, fmt.Errorf("kafka: begin transaction: %w", kafka.Fenced(err))
	}
	return &Transaction{client: c}, nil
}

// Produce writes records, which get their offsets, and returns once all are acknowledged. It
// may be called again before the end. Errors: kafka.ErrFenced,
// *kafka.PartitionError.
func (t *Transaction) Produce(ctx context.Context, records []*kafka.Record) error {
	t.produced = append(t.produced, records...)
	ctx = context.WithoutCancel(ctx) // a canceled produce can acknowledge what was not written
	results := make(kgo.ProduceResults, len(records))
	for i, r := range records {
		results[i].Record = r
		t.client.Produce(ctx, r, func(_ *kafka.Record, err error) { results[i].Err = err })
	}
	if err := t.client.Flush(ctx); err != nil {
		return fmt.Errorf("kafka: flush: %w", err)
	}
	first := results.FirstErr()
	if first == nil {
		return nil
	}
	if err := kafka.Fenced(first); errors.Is(err, kafka.ErrFenced) {
		return fmt.Errorf("kafka: produce: %w", err)
	}
	return kafka.Refused(results)
}

// End commits or aborts. After an error of a commit the outcome is not known, and the client
// cannot continue.
func (t *Transaction) End(ctx context.Context, commit bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deadline)
	defer cancel()
	if err := kafka.EndTransaction(ctx, t.client, t.produced, commit); err != nil {
		return fmt.Errorf("kafka: end transaction: %w", kafka.Fenced(err))
	}
	return nil
}
