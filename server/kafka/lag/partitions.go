package lag

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/kafka"
)

// Counts returns how many partitions topics have. A topic that is not there, or of which
// the cluster does not tell, is left out.
func Counts(ctx context.Context, addr string, topics []string, options ...kafka.Option) (map[string]int, error) {
	c, err := open(addr, options)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	list, err := kadm.NewClient(c).ListTopics(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("kafka: list topics: %w", err)
	}
	n := map[string]int{}
	for _, t := range list {
		if t.Err == nil {
			n[t.Topic] = len(t.Partitions)
		}
	}
	return n, nil
}
