package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// maxFailures is after how many consecutive failed transactions a client is replaced.
const maxFailures = 3

// Publisher publishes transactions under one transactional id until another publisher
// with the same id fences it. A client of the library can enter states that it never
// leaves: its producer id expired on the brokers after days without records, its
// permission was revoked for a while, a coordinator ended its transaction, a topic was
// deleted and created again. Such a client is replaced by a new one, which first aborts
// what the old one left open.
//
// Concurrency: a Publisher belongs to one goroutine.
type Publisher struct {
	addr, id string
	options  []Option

	client   *Client
	failures int // consecutive, of this client
}

// NewPublisher makes a Publisher. It sends nothing to brokers before Publish.
func NewPublisher(addr, id string, more ...Option) (*Publisher, error) {
	c, err := NewTransactional(addr, id, more...)
	if err != nil {
		return nil, err
	}
	return &Publisher{addr: addr, id: id, options: slices.Clone(more), client: c}, nil
}

// Publish publishes records in one transaction, like [Transact]. Errors: ErrFenced,
// after which it must not be called again; *PartitionError, if partitions refused their
// records; those of Kafka.
func (p *Publisher) Publish(ctx context.Context, records []*Record) error {
	if p.client == nil {
		c, err := NewTransactional(p.addr, p.id, p.options...)
		if err != nil {
			return err
		}
		p.client = c
	}
	err := Transact(ctx, p.client, records)
	var partial *PartitionError
	switch {
	case err == nil, errors.As(err, &partial) && !partial.All && !partial.unknownTopic():
		p.failures = 0 // the transaction's end was confirmed
		return err
	case errors.Is(err, ErrFenced):
		return err
	}
	p.failures++
	if p.failures >= maxFailures || errors.Is(err, errUnusable) {
		p.client.Close()
		p.client, p.failures = nil, 0
		return fmt.Errorf("%w; a new producer takes over", err)
	}
	return err
}

// Renew replaces the client. When it returns nil, no transaction of this id is open, and no
// earlier owner of the id can commit another.
func (p *Publisher) Renew(ctx context.Context) error {
	c, err := NewTransactional(p.addr, p.id, p.options...)
	if err != nil {
		return err
	}
	p.Close()
	p.client, p.failures = nil, 0
	// The coordinator answers after it has ended the open transaction of the id.
	if _, _, err := c.ProducerID(ctx); err != nil {
		c.Close()
		return fmt.Errorf("kafka: take over the transactional id: %w", Fenced(err))
	}
	p.client = c
	return nil
}

// Close closes the client.
func (p *Publisher) Close() {
	if p.client != nil {
		p.client.Close()
	}
}

// errUnusable says that a client can never begin a transaction again.
var errUnusable = errors.New("kafka: the producer cannot continue")

// PartitionError says which partitions refused their records. The transaction was aborted
// as a whole; without these partitions it may succeed.
type PartitionError struct {
	Partitions []Partition // at least one
	Err        error       // of the first of them
	// All says that none of several partitions accepted its records: there is perhaps nothing
	// wrong with the partitions, but with Kafka as a whole or with the producer.
	All bool
}

// Error names the partitions, the first few of them.
func (e *PartitionError) Error() string {
	const most = 3
	var names []string
	for _, p := range e.Partitions[:min(most, len(e.Partitions))] {
		names = append(names, fmt.Sprintf("%s/%d", p.Topic, p.ID))
	}
	if n := len(e.Partitions) - most; n > 0 {
		names = append(names, fmt.Sprintf("%d more", n))
	}
	return fmt.Sprintf("kafka: produce to %s: %v", strings.Join(names, ", "), e.Err)
}

// Unwrap returns the cause.
func (e *PartitionError) Unwrap() error { return e.Err }

// Permanent reports whether the same records would be refused always.
func (e *PartitionError) Permanent() bool { return permanent(e.Err) }

func permanent(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) ||
		errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.CorruptMessage)
}

// unknownTopic reports whether the cause is a topic that was deleted, and perhaps created
// again, since the client first used it.
func (e *PartitionError) unknownTopic() bool {
	return errors.Is(e.Err, kerr.UnknownTopicID) || errors.Is(e.Err, kerr.InconsistentTopicID) ||
		errors.Is(e.Err, kerr.UnknownTopicOrPartition)
}

// Leaderless returns the partitions of records that have no leader by the client's
// metadata, or nil: the client would wait for one until the transaction has timed out.
func Leaderless(c *Client, records []*Record) error {
	e := &PartitionError{Err: kerr.LeaderNotAvailable}
	for _, r := range records {
		if _, _, err := c.PartitionLeader(r.Topic, r.Partition); errors.Is(err, kerr.LeaderNotAvailable) {
			e.add(r)
		}
	}
	if len(e.Partitions) == 0 {
		return nil
	}
	c.ForceMetadataRefresh() // to find the next leader
	return e
}

// Refused is the *PartitionError of a transaction that was aborted because not all records were
// accepted. If some refusals are permanent and others are not, it names the partitions whose
// refusals are like the first: records of a partition that is only away must not count as
// refused for good. The next transaction finds the others.
func Refused(results kgo.ProduceResults) error {
	e, others := &PartitionError{Err: results.FirstErr()}, false
	for _, r := range results {
		if r.Err == nil || permanent(r.Err) != e.Permanent() {
			others = true
		} else {
			e.add(r.Record)
		}
	}
	e.All = !others && len(e.Partitions) > 1
	return e
}

func (e *PartitionError) add(r *Record) {
	if p := (Partition{Topic: r.Topic, ID: r.Partition}); !slices.Contains(e.Partitions, p) {
		e.Partitions = append(e.Partitions, p)
	}
}
