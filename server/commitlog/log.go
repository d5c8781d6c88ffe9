// Package commitlog keeps the messages of durable topics and the records of the event log:
// partitions, each an ordered log of batches with positions from 0 on.
//
// It owns positions, the encoding of batches, which messages a producer has published
// already, where a partition begins and ends, and which topics the event log has. It owns
// neither durable topics, which are numbers here, nor the readers, the retention of
// messages, or the cache for readers.
//
// Durable topics hold messages, topics of the event log hold records of Kafka or references
// to events of chats (package record). The number of a topic says which.
//
// Concurrency: a Log is safe for concurrent use. A Batch never changes once it is made and
// is shared by all its readers.
package commitlog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog/producers"
	"github.com/parley-chat/parley/server/commitlog/record"
	"github.com/parley-chat/parley/server/event"
)

// Limits of an append. The limit of a publisher is lower.
const (
	MaxMessages    = 10_000               // of a batch
	MaxBatchBytes  = 8 << 20              // of a batch, encoded
	MaxPartitions  = 1024                 // of a topic; durable topics are configured with fewer
	MaxProducerID  = 255                  // bytes
	MaxGap         = 1 << 62              // positions before a batch; no gap ends behind it
	ProducerWindow = producers.Remembered // numbers of a producer that a partition remembers
)

// Errors of a Log, besides those of the store.
var (
	// ErrTrimmed says that a position is before the start.
	ErrTrimmed = errors.New("commitlog: position is trimmed")
	// ErrBeyondEnd says that a position is after the end.
	ErrBeyondEnd = errors.New("commitlog: position is beyond the end")
	// ErrProducerNumber says that a producer's number is older than those that are remembered,
	// or that not all partitions of its request remember it any more: whether all of it was
	// published is not known.
	ErrProducerNumber = errors.New("commitlog: producer's number is too old")
	// ErrProducerReuse says that a number was published with other messages.
	ErrProducerReuse = errors.New("commitlog: producer's number was used for something else")
	// ErrTooLarge says that an append exceeds MaxMessages or MaxBatchBytes.
	ErrTooLarge = errors.New("commitlog: batch is too large")
	// ErrInvalid says that an append cannot be stored by anybody.
	ErrInvalid = errors.New("commitlog: invalid append")
	// ErrFenced says that nothing can be appended any more: another process has opened the
	// log, or it has to be opened again.
	ErrFenced = errors.New("commitlog: another process has taken the log over")
	// ErrNoTopic says that the event log has no topic of a number or a name, or that the topic
	// does not have the partition.
	ErrNoTopic = errors.New("commitlog: the event log has no such topic")
	// ErrLost says that a topic's messages are not where they were stored.
	ErrLost = errors.New("commitlog: the topic's log is lost")
)

// CorruptError says that a batch cannot be read as it was written. The batches before and
// after it can be read.
type CorruptError struct {
	Partition Partition
	From, To  int64 // its positions, [From,To)
	Cause     error // wraps store.ErrCorrupt
}

// Error names the positions, in one line.
func (e *CorruptError) Error() string {
	cause, _, _ := strings.Cut(e.Cause.Error(), "\n")
	return fmt.Sprintf("commitlog: positions %d to %d of partition %s: %s", e.From, e.To-1, e.Partition, cause)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Cause }

// Partition is the address of a log.
type Partition struct {
	Topic  uint64 // number of the topic, never used again
	Number int32  // from 0
}

// FirstEventTopic is the lowest number of a topic of the event log. Numbers of durable topics
// count up from 1 and never get there.
const FirstEventTopic = 1 << 62

// OfEventLog reports whether a partition belongs to the event log.
func (p Partition) OfEventLog() bool { return p.Topic >= FirstEventTopic }

func (p Partition) String() string { return fmt.Sprintf("%d/%d", p.Topic, p.Number) }

// Topic is what a log has to know of a topic.
type Topic struct {
	Number     uint64
	Name       string
	Partitions int32
	Retention  time.Duration // after which messages may go by themselves; 0: never
	// Bytes is how many its messages may take, 0 for any number. It bounds nothing by itself: a log keeps messages so
	// that Size is at most a fraction of it more than what is not trimmed.
	Bytes int64
	// Shared says that others write to the topic, too, not by this interface.
	Shared bool
}

// PartitionOf is the partition of a key among n, as Kafka's default partitioner has it.
// Where messages without a key go is the publisher's choice: one that repeats a publish
// must choose the same again.
func PartitionOf(key string, n int32) int32 { return int32(event.Murmur2(key)&0x7fffffff) % n }

// Message is what is published.
type Message = topicv1.TopicMessage

// Producer makes an append repeatable: a partition stores each number of an id once. The
// zero Producer is not repeatable.
type Producer struct {
	ID     string
	Number int64
}

// Append is a batch to be stored. A durable topic has Messages. A topic of the event log has
// either Records or References, which only a [Local] stores.
type Append struct {
	Partition  Partition
	Messages   []*Message // they are not kept; publish_time is not read
	Records    []record.Record
	References record.References
	Producer   Producer
	// Request is the hash of all messages of the producer's request, of which the append may
	// have a part ([HashOf]). A repetition must have the same. The zero Request is not compared.
	//
	// An append that has a Request and no messages stores nothing but the number: a later
	// request with that number meets it there, wherever its own messages go. It comes directly
	// behind the other appends of its request.
	Request producers.Hash
	// Gap is how many positions before the batch are not given to anything. Only topics of
	// the event log have some: they keep the offsets that their records had elsewhere.
	Gap int64
}

// form is what the batch holds.
func (a *Append) form() Form {
	switch {
	case len(a.References.List) > 0:
		return References
	case len(a.Records) > 0:
		return Records
	}
	return Messages
}

// Check refuses what no log stores, but for the content of messages, which [NewBatch] checks.
func (a *Append) Check() error {
	if err := checkPartition(a.Partition); err != nil {
		return err
	}
	events, form := a.Partition.OfEventLog(), a.form()
	if events != (form != Messages) || form == References && len(a.Records) > 0 ||
		form != Messages && len(a.Messages) > 0 {
		return fmt.Errorf("%w: %d messages, %d records and %d references for partition %s", ErrInvalid,
			len(a.Messages), len(a.Records), len(a.References.List), a.Partition)
	}
	if a.Gap < 0 || a.Gap > MaxGap || !events && a.Gap > 0 || events && a.Producer.ID != "" {
		return fmt.Errorf("%w: a gap of %d, producer %q for partition %s", ErrInvalid, a.Gap, a.Producer.ID, a.Partition)
	}
	if events && a.Hashed() || a.Hashed() && a.Producer.ID == "" {
		return fmt.Errorf("%w: a request without a producer for partition %s", ErrInvalid, a.Partition)
	}
	if n := len(a.Producer.ID); n > MaxProducerID || a.Producer.Number < 0 {
		return fmt.Errorf("%w: producer's id has %d bytes, number is %d", ErrInvalid, n, a.Producer.Number)
	}
	return nil
}

// Appended is what became of an Append.
type Appended struct {
	Batch    *Batch // nil if replayed
	Base     int64  // position of the first message
	Count    int
	Replayed bool // it was stored before
	// Same says of an append that was replayed that its messages are those that were stored:
	// hashes have been compared. Numbers that earlier releases stored have no hash.
	Same bool
}

// Pending is an append that has its positions and may not be durable yet.
type Pending struct {
	Appended []Appended // in the order of the appends
	wait     func(ctx context.Context) error
}

// NewPending is for logs of other packages: wait is called once.
func NewPending(appended []Appended, wait func(ctx context.Context) error) *Pending {
	return &Pending{appended, wait}
}

// Wait waits until the append is durable; it must be called once. An error of the sync is
// fatal to the store; after another error than of ctx nothing is known.
func (p *Pending) Wait(ctx context.Context) error { return p.wait(ctx) }

// Reader reads partitions. Nothing is shown that is not durable.
type Reader interface {
	// Read returns batches from the one that holds a position on, at least one, until they
	// have maxBytes; none if nothing exists from there to the end. Positions before the first
	// batch's, and between batches, do not exist. Errors: ErrTrimmed, ErrBeyondEnd, *CorruptError if the first
	// batch is corrupt (a later one ends the result).
	Read(ctx context.Context, p Partition, from int64, maxBytes int) ([]*Batch, error)
	// Bounds returns the first position and that behind the last.
	Bounds(ctx context.Context, p Partition) (start, end int64, err error)
	// PositionAt returns the first position that was appended at a time or later; the end
	// if there is none.
	PositionAt(ctx context.Context, p Partition, t time.Time) (int64, error)
}

// Log is a Reader that is written to.
type Log interface {
	Reader
	// Create makes what the log needs for a topic, unless it is there. It is called before
	// the topic is used, by each process that uses it, and after its settings have changed.
	Create(ctx context.Context, t Topic) error
	// Append stores batches of any partitions, all of them or none, and returns when they
	// are durable. Errors: ErrInvalid, ErrTooLarge, ErrProducerNumber, ErrProducerReuse,
	// store.ErrFull, and those of the store.
	Append(ctx context.Context, appends []Append) ([]Appended, error)
	// Begin is Append without the wait: positions are given in the order of the calls, and
	// become durable in that order.
	Begin(ctx context.Context, appends []Append) (*Pending, error)
	// Size returns how many bytes a topic of so many partitions takes: those of its batches, or
	// what the brokers that have them say, of each partition the largest replica. Brokers count
	// what was trimmed until they have removed it; a partition of which all was trimmed counts nothing.
	Size(ctx context.Context, topic uint64, partitions int32) (int64, error)
	// Trim removes batches that lie before a position as a whole, and returns the start
	// that this leaves, which is durable.
	Trim(ctx context.Context, p Partition, before int64) (start int64, err error)
	// Delete removes all partitions of a topic.
	Delete(ctx context.Context, topic uint64) error
	// Remembered returns what a partition remembers of a producer, by number. All of it is
	// durable.
	Remembered(ctx context.Context, p Partition, producer string) ([]producers.Published, error)
}

// Reclaimer is a Log on a disk of the process's own.
type Reclaimer interface {
	// Reclaim gives the space of what was trimmed and deleted back to the disk: once at least so many
	// bytes were removed, and whenever the disk is short. It takes the time of a merge, and is to be
	// called after trims and deletions.
	Reclaim(ctx context.Context, least int64) error
	// Short reports whether the disk is so full that writes are refused, or soon will be.
	Short() bool
}

// Follower is a Log whose partitions may become longer without a call of Append or Begin
// that said so.
type Follower interface {
	// Follow calls moved with each partition that has become longer, and its end, until the
	// context ends. It ends with ErrFenced if another process has opened the log.
	Follow(ctx context.Context, moved func(p Partition, end int64)) error
}

// Mirror is a Log that shows others how far groups have come.
type Mirror interface {
	// Reached says that a group has everything of a partition below a position. It does not
	// wait.
	Reached(group string, p Partition, position int64)
}
