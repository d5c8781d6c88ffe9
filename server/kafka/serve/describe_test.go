package serve_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
)

func names(res *kmsg.MetadataResponse) string {
	var list []string
	for _, t := range res.Topics {
		name := "null"
		if t.Topic != nil {
			name = *t.Topic
		}
		list = append(list, fmt.Sprintf("%s %d %d", name, t.ErrorCode, len(t.Partitions)))
	}
	return strings.Join(list, ", ")
}

// Metadata describes all topics, those by name and those by id, each once, and what is wrong with the others.
func TestMetadata(t *testing.T) {
	c := start(t, open).raw(t)
	ask := func(version int16, topics []kmsg.MetadataRequestTopic) *kmsg.MetadataResponse {
		t.Helper()
		req := kmsg.NewPtrMetadataRequest()
		req.SetVersion(version)
		req.Topics = topics
		req.IncludeTopicAuthorizedOperations, req.IncludeClusterAuthorizedOperations = true, true
		return testkit.Value(c.send(req))(t).(*kmsg.MetadataResponse)
	}
	byName := func(names ...string) []kmsg.MetadataRequestTopic {
		list := []kmsg.MetadataRequestTopic{}
		for _, name := range names {
			list = append(list, kmsg.MetadataRequestTopic{Topic: &name})
		}
		return list
	}
	const all = "events 0 4, letters 0 1"
	for version := range int16(14) {
		testkit.Equal(t, "all", names(ask(version, nil)), all)
		none := names(ask(version, byName()))
		testkit.Equal(t, fmt.Sprint("none ", version), none, map[bool]string{true: all}[version == 0])
		res := ask(version, byName(deadLetters, "other", "a b", deadLetters))
		testkit.Equal(t, "by name", names(res), "letters 0 1, other 3 0, a b 17 0")
		top := res.Topics[0]
		if version >= 10 && top.TopicID != [16]byte{2} {
			t.Errorf("version %d: the id is %v", version, top.TopicID)
		}
		if version >= 8 {
			testkit.Equal(t, "operations", top.AuthorizedOperations, 1<<3|1<<8|1<<10)
		}
		if version >= 8 && version <= 10 {
			testkit.Equal(t, "cluster operations", res.AuthorizedOperations, 1<<8|1<<10)
		}
		p := top.Partitions[0]
		testkit.Equal(t, "partition", fmt.Sprint(p.Partition, p.Leader, p.Replicas, p.ISR), "0 0 [0] [0]")
		if b := res.Brokers[0]; len(res.Brokers) != 1 || b.NodeID != 0 || b.Host != "127.0.0.1" || b.Port == 0 {
			t.Errorf("brokers %+v", res.Brokers)
		}
		if version >= 2 && *res.ClusterID != "cluster" {
			t.Errorf("cluster %q", *res.ClusterID)
		}
	}
	byID := []kmsg.MetadataRequestTopic{{TopicID: [16]byte{2}}, {TopicID: [16]byte{9}}}
	testkit.Equal(t, "by id", names(ask(12, byID)), "letters 0 1, null 100 0")
}

// A change of the topics is visible at once.
func TestTopicsChange(t *testing.T) {
	b := start(t, open)
	c := b.raw(t)
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(9)
	testkit.Equal(t, "before", names(testkit.Value(c.send(req))(t).(*kmsg.MetadataResponse)), "events 0 4, letters 0 1")
	b.log.mu.Lock()
	b.log.topics = append([]kafka.Topic{{Name: "a", ID: [16]byte{8}, Partitions: 2}}, b.log.topics[:1]...)
	b.log.mu.Unlock()
	testkit.Equal(t, "after", names(testkit.Value(c.send(req))(t).(*kmsg.MetadataResponse)), "a 0 2, events 0 4")
}

// DescribeTopicPartitions continues at its cursor until all is described; no list of it is null.
func TestDescribeTopicPartitions(t *testing.T) {
	c := start(t, open).raw(t)
	for limit, want := range map[int32]string{
		3:    "events 0 012+ | events 0 3, letters 0 0", // met within a topic,
		4:    "events 0 0123+ | letters 0 0",            // and between two
		2:    "events 0 01+ | events 0 23+ | letters 0 0",
		100:  "events 0 0123, letters 0 0",
		0:    "events 0 0123, letters 0 0",
		5000: "events 0 0123, letters 0 0",
	} {
		var pages []string
		req := kmsg.NewPtrDescribeTopicPartitionsRequest()
		req.ResponsePartitionLimit = limit
		for {
			res := testkit.Value(c.send(req))(t).(*kmsg.DescribeTopicPartitionsResponse)
			var list []string
			for _, rt := range res.Topics {
				line := fmt.Sprint(*rt.Topic, " ", rt.ErrorCode, " ")
				for _, p := range rt.Partitions {
					line += fmt.Sprint(p.Partition)
					if p.EligibleLeaderReplicas == nil || p.LastKnownELR == nil {
						t.Error("a list is null")
					}
				}
				list = append(list, line)
			}
			pages = append(pages, strings.Join(list, ", "))
			if res.NextCursor == nil {
				break
			}
			pages[len(pages)-1] += "+"
			next := kmsg.NewDescribeTopicPartitionsRequestCursor()
			next.Topic, next.Partition = res.NextCursor.Topic, res.NextCursor.Partition
			req.Cursor = &next
		}
		testkit.Equal(t, fmt.Sprint("limit ", limit), strings.Join(pages, " | "), want)
	}
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	for _, name := range []string{"other", deadLetters, "a b", deadLetters} {
		rt := kmsg.NewDescribeTopicPartitionsRequestTopic()
		rt.Topic = name
		req.Topics = append(req.Topics, rt)
	}
	req.ResponsePartitionLimit = 100
	var list []string
	for _, rt := range testkit.Value(c.send(req))(t).(*kmsg.DescribeTopicPartitionsResponse).Topics {
		list = append(list, fmt.Sprint(*rt.Topic, rt.ErrorCode, len(rt.Partitions)))
	}
	testkit.Equal(t, "named", strings.Join(list, " "), "a b17 0 letters0 1 other3 0")
}

// An administrator's client shows the cluster, the topics and their configuration.
func TestAdmin(t *testing.T) {
	b := start(t, nil)
	a := kadm.NewClient(b.client(t))
	ctx := limited(t)
	meta := testkit.Value(a.BrokerMetadata(ctx))(t)
	testkit.Equal(t, "cluster", fmt.Sprint(meta.Cluster, meta.Controller, len(meta.Brokers)), "cluster0 1")
	listed := testkit.Value(a.ListTopics(ctx))(t)
	testkit.Equal(t, "topics", strings.Join(listed.Names(), " "), events+" "+deadLetters)
	configs := testkit.Value(a.DescribeTopicConfigs(ctx, events, "other"))(t)
	got := testkit.Value(configs.On(events, nil))(t)
	var list []string
	for _, c := range got.Configs {
		list = append(list, c.Key+"="+c.MaybeValue())
	}
	testkit.Equal(t, "configuration", strings.Join(list, " "), "cleanup.policy=delete retention.ms=1000")
	if other := testkit.Value(configs.On("other", nil))(t); !errors.Is(other.Err, kerr.UnknownTopicOrPartition) {
		t.Errorf("the configuration of another topic: %v", other.Err)
	}
	brokers := testkit.Value(a.DescribeBrokerConfigs(ctx, 0))(t)
	testkit.Equal(t, "broker", fmt.Sprint(len(brokers), len(brokers[0].Configs)), "1 1")
	if _, err := a.CreateTopic(ctx, 1, 1, nil, "mine"); !errors.Is(err, kerr.TopicAuthorizationFailed) {
		t.Errorf("create a topic: %v", err)
	}
}

// DescribeConfigs has one answer for each resource, with the entries that the client names.
func TestDescribeConfigs(t *testing.T) {
	c := start(t, open).raw(t)
	for version := int16(1); version <= 4; version++ {
		req := kmsg.NewPtrDescribeConfigsRequest()
		req.SetVersion(version)
		req.IncludeSynonyms, req.IncludeDocumentation = true, true
		req.Resources = []kmsg.DescribeConfigsRequestResource{
			{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: events, ConfigNames: []string{"retention.ms", "x"}},
			{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: events},
			{ResourceType: kmsg.ConfigResourceTypeTopic, ResourceName: "a b"},
			{ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: "0"},
			{ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: ""},
			{ResourceType: kmsg.ConfigResourceTypeBroker, ResourceName: "1"},
			{ResourceType: kmsg.ConfigResourceTypeBrokerLogger, ResourceName: "0"},
			{ResourceType: kmsg.ConfigResourceTypeGroupConfig, ResourceName: "mine"},
		}
		var list []string
		for _, r := range testkit.Value(c.send(req))(t).(*kmsg.DescribeConfigsResponse).Resources {
			line := fmt.Sprint(r.ResourceName, " ", r.ErrorCode)
			for _, e := range r.Configs {
				line += fmt.Sprint(" ", e.Name, "=", *e.Value, " ", int8(e.Source), e.ReadOnly, len(e.ConfigSynonyms))
			}
			list = append(list, line)
		}
		testkit.Equal(t, "configs", strings.Join(list, "; "), "events 0 retention.ms=1000 1 true 1; a b 17; "+
			"0 0 auto.create.topics.enable=false 4 true 1;  0; 1 42; 0 31; mine 30")
	}
}

// DescribeCluster describes brokers, and no controllers.
func TestDescribeCluster(t *testing.T) {
	c := start(t, open).raw(t)
	for kind, want := range map[int8]string{1: "0 1", 2: "114 0", 3: "115 0"} {
		req := kmsg.NewPtrDescribeClusterRequest()
		req.SetVersion(2)
		req.EndpointType, req.IncludeClusterAuthorizedOperations = kind, kind == 1
		res := testkit.Value(c.send(req))(t).(*kmsg.DescribeClusterResponse)
		testkit.Equal(t, "answer", fmt.Sprint(res.ErrorCode, len(res.Brokers)), want)
		testkit.Equal(t, "operations", res.ClusterAuthorizedOperations, map[bool]int32{true: 1<<8 | 1<<10,
			false: -1 << 31}[kind == 1])
	}
}

// Each group has the broker as its coordinator. There are no transactions and no share groups.
func TestFindCoordinator(t *testing.T) {
	b := start(t, open)
	c := b.raw(t)
	for version := range int16(7) {
		for kind, want := range map[int8]int16{0: 0, 1: kerr.TransactionalIDAuthorizationFailed.Code,
			2: kerr.InvalidRequest.Code} {
			if version == 0 && kind > 0 {
				continue
			}
			req := kmsg.NewPtrFindCoordinatorRequest()
			req.SetVersion(version)
			req.CoordinatorKey, req.CoordinatorKeys, req.CoordinatorType = "a", []string{"a", "b"}, kind
			res := testkit.Value(c.send(req))(t).(*kmsg.FindCoordinatorResponse)
			code, id, host, keys := res.ErrorCode, res.NodeID, res.Host, "a b"
			if version >= 4 {
				first := res.Coordinators[0]
				code, id, host, keys = first.ErrorCode, first.NodeID, first.Host, ""
				for _, rc := range res.Coordinators {
					keys = strings.TrimSpace(keys + " " + rc.Key)
				}
			}
			testkit.Equal(t, "code", code, want)
			testkit.Equal(t, "keys", keys, "a b")
			testkit.Equal(t, "coordinator", fmt.Sprint(id, host), map[bool]string{true: "0127.0.0.1", false: "-1"}[kind == 0])
		}
	}
}

// Offsets by time, in each version that has the time.
func TestListOffsets(t *testing.T) {
	b := start(t, open)
	for _, ms := range []int64{100, 300, 300, 200} {
		b.log.append(first, &kgo.Record{Timestamp: time.UnixMilli(ms)})
	}
	b.log.trim(first, 1)
	b.log.skip(first, 2)
	c := b.raw(t)
	for version := int16(1); version <= 11; version++ {
		for _, q := range []struct {
			p     kafka.Partition
			time  int64
			want  string // code, offset, time
			since int16
		}{
			{first, -1, "0 6 -1", 1}, {first, -2, "0 1 -1", 1}, {first, 0, "0 1 300", 1}, {first, 300, "0 1 300", 1},
			{first, 301, "0 -1 -1", 1}, {first, -3, "0 1 300", 7}, {first, -4, "0 1 -1", 8}, {first, -5, "0 -1 -1", 9},
			{first, -6, "0 -1 -1", 11}, {first, -7, "35 -1 -1", 1}, {second, -1, "0 0 -1", 1}, {second, -3, "0 -1 -1", 7},
			{second, 5, "0 -1 -1", 1}, {kafka.Partition{Topic: events, ID: 4}, -1, "3 -1 -1", 1},
			{kafka.Partition{Topic: "other"}, -1, "3 -1 -1", 1},
		} {
			req := kmsg.NewPtrListOffsetsRequest()
			req.SetVersion(version)
			req.ReplicaID = -1
			rt, rp := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
			rt.Topic, rp.Partition, rp.Timestamp = q.p.Topic, q.p.ID, q.time
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics = append(req.Topics, rt)
			p := testkit.Value(c.send(req))(t).(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
			want := q.want
			if version < q.since {
				want = "35 -1 -1"
			}
			testkit.Equal(t, fmt.Sprint(version, q), fmt.Sprint(p.ErrorCode, p.Offset, p.Timestamp), want)
			if version < 4 {
				continue
			}
			testkit.Equal(t, "epoch", p.LeaderEpoch, map[bool]int32{true: 0, false: -1}[p.Offset >= 0])
			req.Topics[0].Partitions[0].CurrentLeaderEpoch = 3
			req.Topics = append(req.Topics, req.Topics[0], rt)
			req.Topics[2].Partitions = slices.Clone(rt.Partitions)
			req.Topics[2].Partitions[0].Partition = 2
			req.Topics[2].Topic, req.Topics[2].Partitions[0].CurrentLeaderEpoch = events, 3
			res := testkit.Value(c.send(req))(t).(*kmsg.ListOffsetsResponse)
			testkit.Equal(t, "twice", res.Topics[0].Partitions[0].ErrorCode, kerr.InvalidRequest.Code)
			testkit.Equal(t, "epoch", res.Topics[2].Partitions[0].ErrorCode, kerr.UnknownLeaderEpoch.Code)
		}
	}
}

// The only leader epoch ends with the log.
func TestOffsetForLeaderEpoch(t *testing.T) {
	b := start(t, open)
	b.log.append(first, record(1), record(1))
	c := b.raw(t)
	for version := int16(2); version <= 4; version++ {
		for _, q := range []struct {
			topic          string
			current, epoch int32
			want           string
		}{
			{events, -1, 0, "0 0 2"}, {events, 0, 0, "0 0 2"}, {events, 1, 0, "75 -1 -1"}, {events, -1, 1, "0 -1 -1"},
			{events, -1, -1, "0 -1 -1"}, {"other", -1, 0, "3 -1 -1"},
		} {
			req := kmsg.NewPtrOffsetForLeaderEpochRequest()
			req.SetVersion(version)
			rt, rp := kmsg.NewOffsetForLeaderEpochRequestTopic(), kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
			rt.Topic, rp.CurrentLeaderEpoch, rp.LeaderEpoch = q.topic, q.current, q.epoch
			rt.Partitions = append(rt.Partitions, rp)
			req.Topics = append(req.Topics, rt)
			p := testkit.Value(c.send(req))(t).(*kmsg.OffsetForLeaderEpochResponse).Topics[0].Partitions[0]
			testkit.Equal(t, fmt.Sprint(version, q), fmt.Sprint(p.ErrorCode, p.LeaderEpoch, p.EndOffset), q.want)
		}
	}
	if !reflect.DeepEqual(b.log.topics, topics()) {
		t.Error("the server changed the topics")
	}
}
