package lag

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/kafka"
)

// UnderReplicated counts the partitions of some topics that have fewer replicas
// in sync than replicas, or no leader.
func UnderReplicated(ctx context.Context, addr string, topics []kafka.Topic, options ...kafka.Option) (int, error) {
	c, err := open(addr, options)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	var names []string
	for _, t := range topics {
		names = append(names, t.Name)
	}
	list, err := kadm.NewClient(c).ListTopics(ctx, names...)
	if err == nil {
		err = list.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("kafka: list topics: %w", err)
	}
	n := 0
	list.EachPartition(func(p kadm.PartitionDetail) {
		if len(p.ISR) < len(p.Replicas) || p.Leader < 0 {
			n++
		}
	})
	return n, nil
}
