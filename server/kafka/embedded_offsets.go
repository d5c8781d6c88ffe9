package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// resetOffsets resets committed offsets beyond the end of the log to that end. A power
// loss can truncate the log and not the commits; a group that continued from such an offset
// would miss the records that are written up to it. The reset is on the disk before any
// new record is.
func (b *Broker) resetOffsets() error {
	ctx, cancel := context.WithTimeout(context.Background(), recoverTimeout)
	defer cancel()
	// Later versions of the commit name topics by their ids.
	c, err := kgo.NewClient(append(b.Options(),
		kgo.SeedBrokers(b.addr), kgo.ClientID("parley-recovery"), kgo.MaxVersions(kversion.V3_0_0()),
		kgo.DisableClientMetrics(),
	)...)
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer c.Close()
	groups, err := kmsg.NewPtrListGroupsRequest().RequestWith(ctx, c)
	if err != nil {
		return fmt.Errorf("list groups: %w", err)
	}
	changed := false
	for _, g := range groups.Groups {
		req := b.beyondEnd(g.Group)
		if len(req.Topics) == 0 {
			continue
		}
		if b.cfg.Logger != nil {
			b.cfg.Logger.Error("the log was truncated: a group continues from its end", "group", g.Group, "topics",
				len(req.Topics))
		}
		changed = true
		res, err := req.RequestWith(ctx, c)
		if err != nil {
			return fmt.Errorf("reset offsets of %s: %w", g.Group, err)
		}
		for _, t := range res.Topics {
			for _, p := range t.Partitions {
				if err := errorFor(p.ErrorCode); err != nil {
					return fmt.Errorf("reset offset of %s in %s/%d: %w", g.Group, t.Topic, p.Partition, err)
				}
			}
		}
	}
	if !changed {
		return nil
	}
	return b.Flush(ctx)
}

// beyondEnd makes the request that commits the end of each partition for which the
// group has committed more.
func (b *Broker) beyondEnd(group string) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation = group, -1 // no member, like an administrator
	info := b.cluster.GroupInfo(group)
	if info == nil {
		return req
	}
	for _, t := range *b.topics.Load() {
		topic := kmsg.NewOffsetCommitRequestTopic()
		topic.Topic = t.Name
		for _, p := range b.cluster.PartitionInfos(t.Name) {
			if info.Commits[t.Name][p.Partition].Offset <= p.HighWatermark {
				continue
			}
			part := kmsg.NewOffsetCommitRequestTopicPartition()
			part.Partition, part.Offset = p.Partition, p.HighWatermark
			topic.Partitions = append(topic.Partitions, part)
		}
		if len(topic.Partitions) > 0 {
			req.Topics = append(req.Topics, topic)
		}
	}
	return req
}
