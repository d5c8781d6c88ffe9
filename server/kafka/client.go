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

	"github.com/parley-chat/parley/server/wait"
)

// Settings of producers (K-058…K-067), in franz-go's words.
const (
	produceRetries  = 3
	produceDeadline = 30 * time.Second
	produceLinger   = 5 * time.Millisecond
	txnTimeout      = 10 * time.Second
	metadataMinAge  = 250 * time.Millisecond
)

// backoff is the wait before a retry: 100 ms, 500 ms, then 2 s (K-060, L-117), which
// together is about what the election of a leader takes.
func backoff(tries int) time.Duration {
	waits := [...]time.Duration{100 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second}
	return waits[min(max(tries, 1), len(waits))-1]
}

// Record is a record to publish: topic, partition, key, value and headers.
type Record = kgo.Record

// Header is a header of a record.
type Header = kgo.RecordHeader

// Names of headers: what an event's id and its type are in.
const (
	HeaderEventID   = "event_id"
	HeaderEventType = "event_type"
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
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.RecordRetries(produceRetries), kgo.RecordDeliveryTimeout(produceDeadline), kgo.RetryBackoffFn(backoff),
		kgo.ProducerLinger(produceLinger), kgo.ProducerBatchCompression(kgo.Lz4Compression()),
		kgo.ProducerBatchMaxBytes(1<<20), kgo.MetadataMinAge(metadataMinAge),
		// Partitions are ours to choose: a bucket of the chat, never the client's.
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return c, nil
}

// NewReader makes a client that reads topics from their beginning, committed
// records only, without a group.
func NewReader(addr string, topics ...string) (*Client, error) {
	return NewReaderWith(nil, addr, topics...)
}

// NewReaderWith is NewReader with what is needed to be let in.
func NewReaderWith(more []Option, addr string, topics ...string) (*Client, error) {
	c, err := kgo.NewClient(append(slices.Clone(more),
		seeds(addr), kgo.ClientID("parley-reader"), kgo.DisableClientMetrics(), kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.MetadataMinAge(metadataMinAge),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	return c, nil
}

// ErrFenced says that another client took over the transactional id.
var ErrFenced = errors.New("kafka: another producer took over")

// Transact publishes records in one transaction: readers of committed records see
// all of them or none. The outcome is not known after an error other than
// ErrFenced and *PartitionError only in so far as the records may come once more.
func Transact(ctx context.Context, c *Client, records []*Record) error {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), produceDeadline)
	defer cancel()
	// The last transaction may be without an end, because nobody answered: it is
	// given up now. Without one this does nothing.
	if err := c.EndTransaction(end, kgo.TryAbort); err != nil {
		return fmt.Errorf("kafka: end the last transaction: %w", fenced(err))
	}
	if without := leaderless(c, records); without != nil {
		return without
	}
	settle(ctx, c)
	if err := c.BeginTransaction(); err != nil {
		return fmt.Errorf("kafka: begin transaction: %w: %w", errUnusable, fenced(err))
	}
	// Never the caller's context: a canceled produce can acknowledge a record that
	// was not written. The client's own deadline bounds it.
	results := c.ProduceSync(context.WithoutCancel(ctx), records...)
	produced := results.FirstErr()
	commit := kgo.TransactionEndTry(produced == nil)
	end, cancel = context.WithTimeout(context.WithoutCancel(ctx), produceDeadline)
	defer cancel()
	if err := c.EndTransaction(end, commit); err != nil {
		return fmt.Errorf("kafka: end transaction: %w", fenced(err))
	}
	if produced == nil {
		return nil
	}
	if err := fenced(produced); errors.Is(err, ErrFenced) {
		return fmt.Errorf("kafka: produce: %w", err)
	}
	return refused(results)
}

// Waits of settle: between two questions, and in all.
const (
	firstAsk   = time.Millisecond
	maxAsk     = 16 * time.Millisecond
	settleTime = 5 * time.Second
)

// settle waits until brokers are done with the last transaction. They answer its end
// before they have written its markers, and refuse records of the next one until then:
// each refusal would cost the records one of their few retries, and a wait of 100 ms and
// more (KIP-890). Where brokers do not say, nothing is waited for.
func settle(ctx context.Context, c *Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	id, _ := c.OptValue(kgo.TransactionalID).(string)
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{id}
	for pause := firstAsk; ; pause = min(2*pause, maxAsk) {
		res, err := req.RequestWith(ctx, c)
		if err != nil || len(res.TransactionStates) != 1 || !strings.HasPrefix(res.TransactionStates[0].State, "Prepare") {
			return
		}
		if wait.For(ctx, pause) != nil {
			return
		}
	}
}

func fenced(err error) error {
	if errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) {
		return fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return err
}
