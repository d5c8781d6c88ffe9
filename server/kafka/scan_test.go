package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Times that ListOffsets knows by a number.
const (
	atEnd   = -1
	atStart = -2
)

// scan reads a topic from its beginning to the end that it has at the call, committed
// records only, and calls each with every record, in order within a partition. A
// transaction that was ended a moment ago may not count yet: brokers answer before they
// have marked its end. An error of each ends the scan.
func scan(ctx context.Context, addr, topic string, each func(*Record) error) error {
	admin, err := kgo.NewClient(seeds(addr), kgo.ClientID("parley-scan"), kgo.DisableClientMetrics())
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer admin.Close()
	n := Partitions(topic)
	starts, err := listOffsets(ctx, admin, topic, n, atStart)
	if err != nil {
		return err
	}
	ends, err := listOffsets(ctx, admin, topic, n, atEnd)
	if err != nil {
		return err
	}
	from := map[int32]kgo.Offset{}
	for id, end := range ends {
		if starts[id] < end {
			from[id] = kgo.NewOffset().At(starts[id])
		}
	}
	if len(from) == 0 {
		return nil
	}
	// Control records are kept so that a partition is seen to have ended with one.
	c, err := kgo.NewClient(
		seeds(addr), kgo.ClientID("parley-scan"), kgo.DisableClientMetrics(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxBytes(FetchBytes),
		kgo.MaxConcurrentFetches(2),
		kgo.MetadataMinAge(metadataMinAge),
	)
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer c.Close()
	for len(from) > 0 {
		fetches := c.PollRecords(ctx, MaxPoll)
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, e := range fetches.Errors() {
			return fmt.Errorf("kafka: fetch %s/%d: %w", e.Topic, e.Partition, e.Err)
		}
		for it := fetches.RecordIter(); !it.Done(); {
			r := it.Next()
			end := ends[r.Partition]
			if r.Offset < end && !r.Attrs.IsControl() {
				if err := each(r); err != nil {
					return err
				}
			}
			if r.Offset >= end-1 {
				delete(from, r.Partition)
			}
		}
	}
	return nil
}

func listOffsets(
	ctx context.Context, c *kgo.Client, topic string, partitions int32, at int64,
) (map[int32]int64, error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.IsolationLevel = 1 // the end of what is committed
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = topic
	for id := range partitions {
		p := kmsg.NewListOffsetsRequestTopicPartition()
		p.Partition, p.Timestamp = id, at
		t.Partitions = append(t.Partitions, p)
	}
	req.Topics = append(req.Topics, t)
	res, err := req.RequestWith(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("kafka: list offsets of %s: %w", topic, err)
	}
	out := map[int32]int64{}
	for _, t := range res.Topics {
		for _, p := range t.Partitions {
			if err := errorFor(p.ErrorCode); err != nil {
				return nil, fmt.Errorf("kafka: list offsets of %s/%d: %w", topic, p.Partition, err)
			}
			out[p.Partition] = p.Offset
		}
	}
	return out, nil
}
