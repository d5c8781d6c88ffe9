package versions

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/kafka"
)

// Discover has an Admin look after the versions of topics that a cluster has, for who does
// not ask the store: each later version beside the declared topics, with as many
// partitions as it has, and none that is missing and has a later version. Which one is in
// use, and whether its partitions are right, processes check when they start.
func Discover(ctx context.Context, a *kafka.Admin) error {
	all, err := kadm.NewClient(a.Client()).ListTopics(ctx)
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	have := map[string]int32{}
	for name, t := range all {
		if t.Err == nil {
			have[name] = int32(len(t.Partitions))
		}
	}
	a.Use(found(have))
	return nil
}

func found(have map[string]int32) []kafka.Topic {
	var list []kafka.Topic
	for _, t := range kafka.Topics() {
		var later []kafka.Topic
		for name, partitions := range have {
			if base, number, ok := Base(name); ok && base == t.Name && number > 1 {
				later = append(later, kafka.Topic{Name: name, Partitions: partitions, Configs: t.Configs})
			}
		}
		slices.SortFunc(later, func(a, b kafka.Topic) int { return strings.Compare(a.Name, b.Name) })
		if have[t.Name] > 0 || len(later) == 0 {
			list = append(list, t)
		}
		list = append(list, later...)
	}
	return list
}
