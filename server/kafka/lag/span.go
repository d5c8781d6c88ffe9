package lag

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/parley-chat/parley/server/kafka"
)

// silence is how long nothing may come while a span is read.
const silence = 30 * time.Second

var errSilent = errors.New("nothing came from the brokers for 30 s")

// Span is a run of the records of a partition.
type Span struct {
	Partition kafka.Partition
	From, To  int64 // offsets, the second excluded
}

// Spans returns what a topic holds at the call, committed records only, by partition.
func Spans(ctx context.Context, addr, topic string, options ...kafka.Option) ([]Span, error) {
	return spansFrom(ctx, addr, topic, options, func(admin *kadm.Client) (kadm.ListedOffsets, error) {
		return admin.ListStartOffsets(ctx, topic)
	})
}

// SpansSince is Spans without what lies before the first record of a time or later.
func SpansSince(ctx context.Context, addr, topic string, since time.Time, options ...kafka.Option) ([]Span, error) {
	return spansFrom(ctx, addr, topic, options, func(admin *kadm.Client) (kadm.ListedOffsets, error) {
		return admin.ListOffsetsAfterMilli(ctx, since.UnixMilli(), topic)
	})
}

func spansFrom(ctx context.Context, addr, topic string, options []kafka.Option,
	first func(*kadm.Client) (kadm.ListedOffsets, error),
) ([]Span, error) {
	c, err := open(addr, options)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	admin := kadm.NewClient(c)
	starts, err := first(admin)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: first offsets of %s: %w", topic, err)
	}
	ends, err := admin.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: last offsets of %s: %w", topic, err)
	}
	var spans []Span
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := starts.Lookup(topic, end.Partition)
		spans = append(spans, Span{kafka.Partition{Topic: topic, ID: end.Partition}, start.Offset, end.Offset})
	})
	slices.SortFunc(spans, func(a, b Span) int { return int(a.Partition.ID - b.Partition.ID) })
	return spans, nil
}

// Read calls each with the committed records of spans, one span after the other, in
// order. An error of each ends the reading.
func Read(
	ctx context.Context, addr string, spans []Span, each func(*kafka.Record) error, options ...kafka.Option,
) error {
	spans = slices.DeleteFunc(slices.Clone(spans), func(s Span) bool { return s.From >= s.To })
	if len(spans) == 0 {
		return nil
	}
	// Control records are kept so that a span is seen to have ended with one.
	c, err := open(addr, options, kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), kgo.FetchMaxBytes(fetchMaxBytes), kgo.MaxConcurrentFetches(1))
	if err != nil {
		return err
	}
	defer c.Close()
	for _, s := range spans {
		c.AddConsumePartitions(map[string]map[int32]kgo.Offset{
			s.Partition.Topic: {s.Partition.ID: kgo.NewOffset().At(s.From)}})
		if err := read(ctx, c, s, each); err != nil {
			return err
		}
		c.RemoveConsumePartitions(map[string][]int32{s.Partition.Topic: {s.Partition.ID}})
	}
	return nil
}

func read(ctx context.Context, c *kgo.Client, s Span, each func(*kafka.Record) error) error {
	for {
		// The client itself would wait for ever: for brokers that are away, and for records
		// that retention has taken meanwhile.
		poll, cancel := context.WithTimeout(ctx, silence)
		fetches := c.PollRecords(poll, maxPoll)
		quiet := poll.Err() != nil && fetches.NumRecords() == 0
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
		if quiet {
			return fmt.Errorf("kafka: %s/%d: %w", s.Partition.Topic, s.Partition.ID, errSilent)
		}
		for _, e := range fetches.Errors() {
			return fmt.Errorf("kafka: fetch %s/%d: %w", e.Topic, e.Partition, e.Err)
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			if r.Topic != s.Partition.Topic || r.Partition != s.Partition.ID {
				continue // of the span before
			}
			if r.Offset < s.To && !r.Attrs.IsControl() {
				if err := each(r); err != nil {
					return err
				}
			}
			if r.Offset >= s.To-1 {
				return nil
			}
		}
	}
}
