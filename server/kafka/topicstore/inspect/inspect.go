// Package inspect shows what Kafka has of topics: the topics of Kafka that hold their messages,
// and what is not as it should be with them.
//
// It changes nothing and needs no slot. Concurrency: its functions have no state.
package inspect

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/topicstore/record"
	"github.com/parley-chat/parley/server/kafka/topicstore/state"
)

// Topic is a topic of Kafka that holds messages of a topic or, with the name state.Name, what is
// kept beside them.
type Topic struct {
	Name       string // in Kafka
	Partitions int
	Replicas   int // of the partition that has the fewest
	Records    int64
	Retention  string // after which messages go by themselves, in ms; -1: never
	Problems   []string
}

// Topics returns the topics by name. Records count the ends of transactions, too.
func Topics(ctx context.Context, client *kafka.Client) ([]Topic, error) {
	admin := kadm.NewClient(client)
	all, err := admin.ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("kafka: list topics: %w", err)
	}
	all.FilterInternal()
	var names []string
	for _, name := range all.Names() {
		if strings.HasPrefix(name, record.Prefix) || name == state.Name {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	slices.Sort(names)
	starts, err := admin.ListStartOffsets(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("kafka: first offsets: %w", err)
	}
	ends, err := admin.ListEndOffsets(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("kafka: last offsets: %w", err)
	}
	configs, err := admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return nil, fmt.Errorf("kafka: settings of topics: %w", err)
	}
	list := make([]Topic, len(names))
	for i, name := range names {
		list[i] = topic(all[name], starts, ends, configs)
	}
	return list, nil
}

func topic(d kadm.TopicDetail, starts, ends kadm.ListedOffsets, configs kadm.ResourceConfigs) Topic {
	t := Topic{Name: d.Topic, Partitions: len(d.Partitions), Retention: "?"}
	problem := func(format string, args ...any) { t.Problems = append(t.Problems, fmt.Sprintf(format, args...)) }
	settings := map[string]string{}
	c, err := configs.On(d.Topic, nil)
	if err == nil {
		err = c.Err
	}
	if err != nil {
		problem("its settings cannot be read: %v", err)
	}
	for _, s := range c.Configs {
		settings[s.Key] = s.MaybeValue()
	}
	least, _ := strconv.Atoi(settings["min.insync.replicas"]) // 0 if it cannot be read
	for i, p := range d.Partitions.Sorted() {
		switch {
		case p.Err != nil || p.Leader < 0:
			problem("partition %d has no leader", p.Partition)
		case len(p.ISR) < least:
			problem("partition %d is on %d brokers that are in sync, of at least %d: it takes no messages", p.Partition,
				len(p.ISR), least)
		case len(p.ISR) < len(p.Replicas):
			problem("partition %d is on %d of %d brokers", p.Partition, len(p.ISR), len(p.Replicas))
		}
		if t.Replicas = min(t.Replicas, len(p.Replicas)); i == 0 {
			t.Replicas = len(p.Replicas)
		}
		start, _ := starts.Lookup(d.Topic, p.Partition)
		if end, ok := ends.Lookup(d.Topic, p.Partition); ok && end.Err == nil && start.Err == nil {
			t.Records += end.Offset - start.Offset
		}
	}
	if err == nil {
		t.Retention = settings["retention.ms"]
		want := map[string]string{"cleanup.policy": "delete", "unclean.leader.election.enable": "false"}
		if d.Topic == state.Name {
			want["cleanup.policy"] = "compact"
		}
		for _, key := range []string{"cleanup.policy", "unclean.leader.election.enable"} {
			if settings[key] != want[key] {
				problem("%s is %s, not %s: messages may be lost", key, settings[key], want[key])
			}
		}
	}
	return t
}
