package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/versions"
)

// Limits of an answer about a group.
const (
	maxRows   = 10_000
	maxMember = 1_000
)

// callTime bounds a request to the cluster.
const callTime = 20 * time.Second

// GetConsumerGroup implements opsv1connect.OpsServiceHandler.
func (s *Service) GetConsumerGroup(
	ctx context.Context, req *opsv1.GetConsumerGroupRequest,
) (*opsv1.GetConsumerGroupResponse, error) {
	g, err := s.group(ctx, req.GetGroup())
	if err != nil {
		return nil, err
	}
	out := &opsv1.GetConsumerGroupResponse{State: g.State, Lag: g.Lag}
	for _, m := range g.Members[:min(len(g.Members), maxRows)] {
		out.Members = append(out.Members, &opsv1.ConsumerGroupMember{
			MemberId: truncate(m.ID, maxMember), ClientId: truncate(m.Client, maxMember), Host: truncate(m.Host, maxMember),
			Partitions: int32(m.Partitions),
		})
	}
	for _, p := range g.Partitions[:min(len(g.Partitions), maxRows)] {
		out.Partitions = append(out.Partitions, &opsv1.ConsumerGroupPartition{
			Topic: truncate(p.Partition.Topic, maxName), Partition: p.Partition.ID, Committed: p.Committed, End: p.End,
			Lag: p.Lag, MemberId: truncate(p.Member, maxMember),
		})
	}
	return out, nil
}

func (s *Service) group(ctx context.Context, name string) (lag.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	g, err := lag.OfGroup(ctx, s.cfg.Addr, name, s.cfg.Kafka...)
	if err != nil && !errors.Is(err, lag.ErrNoGroup) {
		err = fmt.Errorf("%w: %w", errLog, err)
	}
	return g, err
}

// Limits of the search for hot keys.
const (
	maxHotRecords = 100_000
	defaultKeys   = 10
)

// ListHotKeys implements opsv1connect.OpsServiceHandler.
func (s *Service) ListHotKeys(ctx context.Context, req *opsv1.ListHotKeysRequest) (*opsv1.ListHotKeysResponse, error) {
	state, err := versions.Load(ctx, s.cfg.Store)
	if err != nil {
		return nil, err
	}
	if v, _ := state.Find(req.GetTopic()); req.GetPartition() >= v.Partitions {
		return nil, fmt.Errorf("%w: there is no partition %d of a topic %.80q", errArgument, req.GetPartition(),
			req.GetTopic())
	}
	g, err := s.group(ctx, req.GetGroup())
	if err != nil {
		return nil, err
	}
	part := kafka.Partition{Topic: req.GetTopic(), ID: req.GetPartition()}
	i := slices.IndexFunc(g.Partitions, func(p lag.GroupPartition) bool { return p.Partition == part })
	if i < 0 {
		return nil, fmt.Errorf("%w: the group does not read this partition", errArgument)
	}
	at := g.Partitions[i]
	from := at.From
	count := map[string]int64{}
	var records int64
	err = lag.Read(ctx, s.cfg.Addr, []lag.Span{{Partition: part, From: from, To: min(at.End, from+maxHotRecords)}},
		func(r *kafka.Record) error {
			records++
			count[truncate(string(r.Key), maxKey)]++
			return nil
		}, s.cfg.Kafka...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLog, err)
	}
	keys := slices.SortedFunc(maps.Keys(count),
		func(a, b string) int { return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b)) })
	out := &opsv1.ListHotKeysResponse{Records: records}
	for _, k := range keys[:min(len(keys), cmp.Or(int(req.GetLimit()), defaultKeys))] {
		out.Keys = append(out.Keys, &opsv1.HotKey{Key: k, Records: count[k]})
	}
	return out, nil
}
