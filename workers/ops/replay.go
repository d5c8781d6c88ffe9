package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/inspect"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/workers/replay"
)

// ReplayEvents implements opsv1connect.OpsServiceHandler.
func (s *Service) ReplayEvents(ctx context.Context, req *opsv1.ReplayEventsRequest, stream *connect.ServerStream[opsv1.ReplayEventsResponse]) (err error) {
	if (len(req.GetChatIds()) == 0) != req.GetAllChats() {
		return fmt.Errorf("%w: either chats or all of them, which must be said", errArgument)
	}
	var rep replay.Report
	choice := proto.CloneOf(req)
	choice.Execute = false
	ended := s.audit(ctx, "replay", req.GetExecute(), choice)
	defer func() { ended(rep, &err) }()
	tell := func(done bool) error {
		if err := s.cfg.Store.Durable(ctx); err != nil {
			return err
		}
		return stream.Send(&opsv1.ReplayEventsResponse{
			Chats: int64(rep.Chats), Events: int64(rep.Events), Unpublished: int64(rep.New), More: rep.More, Done: done, Resume: rep.Resume,
		})
	}
	told := s.cfg.Clock()
	rep, err = replay.Run(ctx, s.cfg.Store, s.cfg.Clock, replay.Choice{
		Chats: req.GetChatIds(), From: req.GetFromVersion(), To: req.GetToVersion(), Types: req.GetEventTypes(),
		After: timeOf(req.GetFromTime()), Until: timeOf(req.GetBeforeTime()),
	}, replay.Options{
		DryRun: !req.GetExecute(), Limit: int(req.GetLimit()), Rate: int(req.GetRate()), Resume: req.GetResume(),
		Each: func(r replay.Report) error {
			if s.cfg.Clock().Sub(told) < tellEvery {
				return nil
			}
			rep, told = r, s.cfg.Clock()
			return tell(false)
		},
	})
	if err != nil {
		if rep.Events > 0 {
			_ = tell(false) // what was done is done; the error is what counts
		}
		return err
	}
	return tell(true)
}

// Limits of what is told of a group.
const (
	maxRows   = 10_000
	maxMember = 1_000
)

// callTime bounds what a cluster is asked.
const callTime = 20 * time.Second

// GetConsumerGroup implements opsv1connect.OpsServiceHandler.
func (s *Service) GetConsumerGroup(ctx context.Context, req *opsv1.GetConsumerGroupRequest) (*opsv1.GetConsumerGroupResponse, error) {
	g, err := s.group(ctx, req.GetGroup())
	if err != nil {
		return nil, err
	}
	out := &opsv1.GetConsumerGroupResponse{State: g.State, Lag: g.Lag}
	for _, m := range g.Members[:min(len(g.Members), maxRows)] {
		out.Members = append(out.Members, &opsv1.ConsumerGroupMember{
			MemberId: cut(m.ID, maxMember), ClientId: cut(m.Client, maxMember), Host: cut(m.Host, maxMember), Partitions: int32(m.Partitions),
		})
	}
	for _, p := range g.Partitions[:min(len(g.Partitions), maxRows)] {
		out.Partitions = append(out.Partitions, &opsv1.ConsumerGroupPartition{
			Topic: cut(p.Partition.Topic, maxName), Partition: p.Partition.ID, Committed: p.Committed, End: p.End, Lag: p.Lag, MemberId: cut(p.Member, maxMember),
		})
	}
	return out, nil
}

func (s *Service) group(ctx context.Context, name string) (inspect.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	g, err := inspect.OfGroup(ctx, s.cfg.Addr, name, s.cfg.Kafka...)
	if err != nil && !errors.Is(err, inspect.ErrNoGroup) {
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
		return nil, fmt.Errorf("%w: there is no partition %d of a topic %.80q", errArgument, req.GetPartition(), req.GetTopic())
	}
	g, err := s.group(ctx, req.GetGroup())
	if err != nil {
		return nil, err
	}
	part := kafka.Partition{Topic: req.GetTopic(), ID: req.GetPartition()}
	i := slices.IndexFunc(g.Partitions, func(p inspect.GroupPartition) bool { return p.Partition == part })
	if i < 0 {
		return nil, fmt.Errorf("%w: the group does not read this partition", errArgument)
	}
	at := g.Partitions[i]
	from := at.From
	count := map[string]int64{}
	var records int64
	err = inspect.Read(ctx, s.cfg.Addr, []inspect.Span{{Partition: part, From: from, To: min(at.End, from+maxHotRecords)}}, func(r *kafka.Record) error {
		records++
		count[cut(string(r.Key), maxKey)]++
		return nil
	}, s.cfg.Kafka...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errLog, err)
	}
	keys := slices.SortedFunc(maps.Keys(count), func(a, b string) int { return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b)) })
	limit := int(req.GetLimit())
	if limit == 0 {
		limit = defaultKeys
	}
	out := &opsv1.ListHotKeysResponse{Records: records}
	for _, k := range keys[:min(len(keys), limit)] {
		out.Keys = append(out.Keys, &opsv1.HotKey{Key: k, Records: count[k]})
	}
	return out, nil
}
