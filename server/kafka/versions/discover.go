package versions

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/kafka"
)

// Discover makes an Admin manage the versions of topics that a cluster has, for commands
// without a store: the declared topics and each later version, with the partitions that it
// has, but no topic that is missing and has a later version. Processes check at their start
// which version is in use and whether its partitions are right.
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

// askTime bounds the queries of Published.
const askTime = 2 * time.Second

// Published returns the version of a declared topic that events are published to, for
// commands without a store: the last one that has ever had a record. A new version has none
// before it is the current one. While the brokers do not answer, it returns the declared
// name.
func Published(ctx context.Context, addr, base string, options ...kafka.Option) string {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c, err := kafka.NewReaderWith(options, addr)
	if err != nil {
		return base
	}
	defer c.Close()
	admin := kadm.NewClient(c)
	all, err := admin.ListTopics(ctx)
	if err != nil {
		return base
	}
	var versions []string
	for _, name := range all.Names() {
		if b, _, ok := Base(name); ok && b == base {
			versions = append(versions, name)
		}
	}
	ends, err := admin.ListEndOffsets(ctx, versions...)
	if err != nil {
		return base
	}
	last := 1
	ends.Each(func(o kadm.ListedOffset) {
		if _, number, ok := Base(o.Topic); ok && o.Err == nil && o.Offset > 0 {
			last = max(last, number)
		}
	})
	return Name(base, last)
}

func found(have map[string]int32) []kafka.Topic {
	var list []kafka.Topic
	for _, t := range kafka.Topics() {
		var later []kafka.Topic
		for name, partitions := range have {
			if base, number, ok := Base(name); ok && base == t.Name && number > 1 {
				of := t
				of.Name, of.Partitions = name, partitions
				later = append(later, of)
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
