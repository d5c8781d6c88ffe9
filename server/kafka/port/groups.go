package port

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/group"
	"github.com/parley-chat/parley/server/store"
)

// rows keeps what the coordinator stores as records of the engine. They are small, bounded by the coordinator's
// limits, and written on a full disk too: without the offsets of its readers nothing can be trimmed from the log.
type rows struct {
	records store.Records
	own     []string
}

// Rows returns where the coordinator of groups keeps its rows. own are Parley's groups.
func Rows(records store.Records, own []string) group.Store { return &rows{records, own} }

// Load implements group.Store.
func (s *rows) Load(ctx context.Context, each func(group.Row) error) error {
	var failed error
	err := s.records.Seek(ctx, []byte{groupsKey}, []byte{groupsKey + 1}, false,
		func(key []byte, value func() ([]byte, error)) bool {
			v, err := value()
			if err == nil {
				err = each(group.Row{Key: bytes.Clone(key[1:]), Value: bytes.Clone(v)})
			}
			failed = err
			return err == nil
		})
	if failed != nil {
		return failed
	}
	return err
}

// Write implements group.Store. A write of rows of Parley's own groups only becomes durable with the next sync of any
// cause: after a power loss the group reads some records again. Waiting would cost each round of each consumer a sync.
func (s *rows) Write(ctx context.Context, list []group.Row) error {
	records := make([]store.Record, len(list))
	others := false
	for i, r := range list {
		key := append([]byte{groupsKey}, r.Key...)
		records[i] = store.Record{Key: key, Value: r.Value, Frees: true}
		if r.Value == nil {
			records[i] = store.Record{Key: key, Until: append(slices.Clone(key), 0)}
		}
		others = others || !slices.Contains(s.own, group.NameOf(r.Key))
	}
	wait, err := s.records.Commit(ctx, records)
	switch {
	case err != nil:
		return err
	case others:
		return wait()
	}
	go func() { _ = wait() }() // must be called; an error of a sync ends the process
	return nil
}

// groupsKey begins the keys of records that belong to consumer groups.
const groupsKey = commitlog.OthersKey

// Commit commits offsets of one of Parley's own groups. They are visible when it returns, and durable with the next
// sync of the store.
func (p *Port) Commit(ctx context.Context, name string, next map[kafka.Partition]int64) error {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.Generation = 9, name, -1
	at := map[string]int{}
	for part, offset := range next {
		i, ok := at[part.Topic]
		if !ok {
			i = len(req.Topics)
			at[part.Topic] = i
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic = part.Topic
			req.Topics = append(req.Topics, t)
		}
		rp := kmsg.NewOffsetCommitRequestTopicPartition()
		rp.Partition, rp.Offset = part.ID, offset
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rp)
	}
	res, err := p.groups.Handle(ctx, group.Client{Credential: own}, req)
	if err != nil {
		return fmt.Errorf("commit offsets of %s: %w", name, err)
	}
	for _, t := range res.(*kmsg.OffsetCommitResponse).Topics {
		for _, rp := range t.Partitions {
			if err := kerr.ErrorForCode(rp.ErrorCode); err != nil {
				return fmt.Errorf("commit offsets of %s: %s/%d: %w", name, t.Topic, rp.Partition, err)
			}
		}
	}
	return nil
}

// Committed returns the committed offsets of a group.
func (p *Port) Committed(ctx context.Context, name string) (map[kafka.Partition]int64, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version, req.Group, req.Topics = 2, name, nil
	answer, err := p.groups.Handle(ctx, group.Client{Credential: own}, req)
	if err == nil {
		err = kerr.ErrorForCode(answer.(*kmsg.OffsetFetchResponse).ErrorCode)
	}
	if err != nil {
		return nil, fmt.Errorf("read offsets of %s: %w", name, err)
	}
	all := map[kafka.Partition]int64{}
	for _, t := range answer.(*kmsg.OffsetFetchResponse).Topics {
		for _, rp := range t.Partitions {
			if err := kerr.ErrorForCode(rp.ErrorCode); err != nil {
				return nil, fmt.Errorf("read offsets of %s: %s/%d: %w", name, t.Topic, rp.Partition, err)
			}
			if rp.Offset >= 0 {
				all[kafka.Partition{Topic: t.Topic, ID: rp.Partition}] = rp.Offset
			}
		}
	}
	return all, nil
}

// Joined says that this process reads topics for one of Parley's groups, until the function that it returns is
// called. The group has no members that the coordinator knows; descriptions show the process as one, with all
// partitions.
func (p *Port) Joined(name string, topics []string) (left func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reading[name] = topics
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.reading, name)
	}
}

// shown adds to an answer the groups that this process reads for.
func (g groups) shown(res kmsg.Response) kmsg.Response {
	g.port.mu.Lock()
	defer g.port.mu.Unlock()
	switch res := res.(type) {
	case *kmsg.DescribeGroupsResponse:
		for i := range res.Groups {
			if topics, ok := g.port.reading[res.Groups[i].Group]; ok {
				g.describe(&res.Groups[i], topics)
			}
		}
	case *kmsg.ListGroupsResponse:
		for i := range res.Groups {
			if _, ok := g.port.reading[res.Groups[i].Group]; ok {
				res.Groups[i].GroupState, res.Groups[i].ProtocolType = stable, consumer
			}
		}
	}
	return res
}

// The state, the protocol type and the protocol of a group that is read.
const (
	stable   = "Stable"
	consumer = "consumer"
	direct   = "direct" // the name of its protocol
)

func (g groups) describe(to *kmsg.DescribeGroupsResponseGroup, topics []string) {
	var assigned kmsg.ConsumerMemberAssignment
	for _, name := range topics {
		t, _ := g.topics.ByName(name)
		of := kmsg.NewConsumerMemberAssignmentTopic()
		of.Topic = name
		for id := range t.Partitions {
			of.Partitions = append(of.Partitions, id)
		}
		assigned.Topics = append(assigned.Topics, of)
	}
	one := kmsg.NewDescribeGroupsResponseGroupMember()
	one.MemberID, one.ClientID, one.ClientHost = own, own, g.port.Addr()
	one.ProtocolMetadata, one.MemberAssignment = []byte{}, assigned.AppendTo(nil)
	to.ErrorCode, to.ErrorMessage = 0, nil
	to.State, to.ProtocolType, to.Protocol, to.Members = stable, consumer, direct, append(to.Members[:0], one)
}
