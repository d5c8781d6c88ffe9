package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/wait"
)

// Settings of producers. A record is acknowledged by all replicas in sync, written by an
// idempotent producer and compressed with LZ4; a batch holds the largest event.
const (
	produceRetries  = 3
	produceDeadline = 30 * time.Second
	produceLinger   = 5 * time.Millisecond
	txnTimeout      = 10 * time.Second
	metadataMinAge  = 250 * time.Millisecond
)

// Backoff is the pause before a retry: 100 ms, 500 ms, then 2 s. Together they last about
// as long as the election of a leader.
func Backoff(tries int) time.Duration {
	waits := [...]time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}
	return waits[min(max(tries, 1), len(waits))-1]
}

// Record is a record to publish: topic, partition, key, value and headers.
type Record = kgo.Record

// Header is a header of a record.
type Header = kgo.RecordHeader

// Names of the headers with an event's id and its type, with the generation of the store's history in
// which the event was committed, and with that in which the record was published: a log that is put
// back to an earlier copy has other records at the offsets after it, from another generation.
const (
	HeaderEventID    = "event_id"
	HeaderEventType  = "event_type"
	HeaderGeneration = "generation"
	HeaderPublished  = "published_in"
)

// Client is a connection to Kafka.
type Client = kgo.Client

type (
	commitRequest  = kmsg.OffsetCommitRequest
	commitResponse = kmsg.OffsetCommitResponse
)

func errorFor(code int16) error { return kerr.ErrorForCode(code) }

// NewTransactional makes the client of a relay's slot. A later one with the same
// id fences it.
func NewTransactional(addr, id string, more ...Option) (*Client, error) {
	c, err := kgo.NewClient(append(slices.Clone(more),
		seeds(addr), kgo.ClientID("parley-relay"), kgo.DisableClientMetrics(),
		kgo.TransactionalID(id), kgo.TransactionTimeout(txnTimeout),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordRetries(produceRetries), kgo.RecordDeliveryTimeout(produceDeadline),
		kgo.RetryBackoffFn(Backoff),
		kgo.ProducerLinger(produceLinger), kgo.ProducerBatchCompression(kgo.Lz4Compression()),
		kgo.ProducerBatchMaxBytes(1<<20), kgo.MetadataMinAge(metadataMinAge),
		// The relay chooses partitions, by the bucket of the chat.
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return c, nil
}

// NewProducer makes a client that publishes single records, acks=all.
func NewProducer(addr string, more ...Option) (*Client, error) {
	c, err := kgo.NewClient(append(slices.Clone(more),
		seeds(addr), kgo.ClientID("parley-producer"), kgo.DisableClientMetrics(), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordRetries(produceRetries), kgo.RecordDeliveryTimeout(produceDeadline), kgo.RetryBackoffFn(Backoff),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()), kgo.MetadataMinAge(metadataMinAge),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return c, nil
}

// Publish publishes one record and waits until it is acknowledged.
func Publish(ctx context.Context, c *Client, r *Record) error {
	if err := c.ProduceSync(context.WithoutCancel(ctx), r).FirstErr(); err != nil {
		return fmt.Errorf("kafka: produce: %w", err)
	}
	return nil
}

// NewReader makes a client that reads topics from their beginning, committed
// records only, without a group.
func NewReader(addr string, topics ...string) (*Client, error) {
	return NewReaderWith(nil, addr, topics...)
}

// NewReaderWith is NewReader with options to authenticate.
func NewReaderWith(more []Option, addr string, topics ...string) (*Client, error) {
	c, err := kgo.NewClient(append(slices.Clone(more),
		seeds(addr), kgo.ClientID("parley-reader"), kgo.DisableClientMetrics(), kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.MetadataMinAge(metadataMinAge),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return c, nil
}

// ErrFenced says that another client took over the transactional id.
var ErrFenced = errors.New("kafka: another producer took over")

// Transact publishes records in one transaction: readers of committed records see all of
// them or none. After an error other than ErrFenced and *PartitionError the outcome is
// unknown; if the caller retries, the records may be published twice.
func Transact(ctx context.Context, c *Client, records []*Record) error {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), produceDeadline)
	defer cancel()
	// The last transaction may still be open, because no broker answered: abort it now.
	// Without one this does nothing.
	if err := c.EndTransaction(end, kgo.TryAbort); err != nil {
		return fmt.Errorf("kafka: end the last transaction: %w", Fenced(err))
	}
	if without := Leaderless(c, records); without != nil {
		return without
	}
	AwaitTransactionEnd(ctx, c)
	if err := c.BeginTransaction(); err != nil {
		return fmt.Errorf("kafka: begin transaction: %w: %w", errUnusable, Fenced(err))
	}
	// Not the caller's context: a canceled produce can acknowledge a record that was not
	// written. The client's own deadline bounds it.
	results := c.ProduceSync(context.WithoutCancel(ctx), records...)
	produced := results.FirstErr()
	end, cancel = context.WithTimeout(context.WithoutCancel(ctx), produceDeadline)
	defer cancel()
	if err := EndTransaction(end, c, records, produced == nil); err != nil {
		return fmt.Errorf("kafka: end transaction: %w", Fenced(err))
	}
	if produced == nil {
		return nil
	}
	if err := Fenced(produced); errors.Is(err, ErrFenced) {
		return fmt.Errorf("kafka: produce: %w", err)
	}
	return Refused(results)
}

// Pauses of AwaitTransactionEnd between two requests, and its time in all.
const (
	firstPoll             = time.Millisecond
	maxPollPause          = 16 * time.Millisecond
	transactionEndTimeout = 5 * time.Second
)

// AwaitTransactionEnd waits until brokers have completed the last transaction. They
// answer its end before they have written its markers, and refuse records of the next one
// until then; each refusal would cost the records one of their few retries and a pause of
// 100 ms or more. It does not wait for brokers that do not report the state.
func AwaitTransactionEnd(ctx context.Context, c *Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), transactionEndTimeout)
	defer cancel()
	id, _ := c.OptValue(kgo.TransactionalID).(string)
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{id}
	for pause := firstPoll; ; pause = min(2*pause, maxPollPause) {
		res, err := req.RequestWith(ctx, c)
		if err != nil || len(res.TransactionStates) != 1 || !strings.HasPrefix(res.TransactionStates[0].State, "Prepare") {
			return
		}
		if wait.For(ctx, pause) != nil {
			return
		}
	}
}

// Fenced says ErrFenced of an error by which brokers say so.
func Fenced(err error) error {
	if errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) {
		return fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return err
}
