package kafka

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Read reads the committed records of a partition, from its start to its present end.
func (b *Broker) Read(ctx context.Context, p Partition, each func(*Record)) error {
	info := b.cluster.PartitionInfo(p.Topic, p.ID)
	if info == nil || info.LogStartOffset >= info.HighWatermark {
		return nil
	}
	c, err := kgo.NewClient(append(b.Options(),
		seeds(b.addr), kgo.ClientID("parley-recovery"), kgo.DisableClientMetrics(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // the last record may be one
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{p.Topic: {p.ID: kgo.NewOffset().At(info.LogStartOffset)}}),
	)...)
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer c.Close()
	for {
		fetches := c.PollFetches(ctx)
		if err := cmp.Or(ctx.Err(), fetches.Err()); err != nil {
			return fmt.Errorf("read %s: %w", p, err)
		}
		end := false
		fetches.EachRecord(func(r *Record) {
			if !r.Attrs.IsControl() {
				each(r)
			}
			end = end || r.Offset >= info.HighWatermark-1
		})
		if end {
			return nil
		}
	}
}

// Ends reads the last committed record of each partition that has one near its end.
func (b *Broker) Ends(ctx context.Context) ([]*Record, error) {
	from, ends := map[string]map[int32]kgo.Offset{}, map[Partition]int64{}
	for _, t := range *b.topics.Load() {
		from[t.Name] = map[int32]kgo.Offset{}
		for _, p := range b.cluster.PartitionInfos(t.Name) {
			if p.LogStartOffset >= p.HighWatermark {
				continue
			}
			// The last one is the end of a transaction.
			from[t.Name][p.Partition] = kgo.NewOffset().At(max(p.LogStartOffset, p.HighWatermark-2))
			ends[Partition{Topic: t.Name, ID: p.Partition}] = p.HighWatermark - 1
		}
	}
	if len(ends) == 0 {
		return nil, nil
	}
	c, err := kgo.NewClient(append(b.Options(),
		seeds(b.addr), kgo.ClientID("parley-recovery"), kgo.DisableClientMetrics(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), kgo.ConsumePartitions(from),
	)...)
	if err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	defer c.Close()
	last := map[Partition]*Record{}
	for len(ends) > 0 {
		fetches := c.PollFetches(ctx)
		if err := cmp.Or(ctx.Err(), fetches.Err()); err != nil {
			return nil, fmt.Errorf("read the ends of the log: %w", err)
		}
		fetches.EachRecord(func(r *Record) {
			p := Partition{Topic: r.Topic, ID: r.Partition}
			if !r.Attrs.IsControl() {
				last[p] = r
			}
			if r.Offset >= ends[p] {
				delete(ends, p)
			}
		})
	}
	return slices.Collect(maps.Values(last)), nil
}
