package serve

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/kafka"
)

// catalog is the topics of the log, by name and by id.
type catalog struct {
	topics []kafka.Topic // as the log returned them
	sorted []*kafka.Topic
	names  map[string]*kafka.Topic
	ids    map[[16]byte]*kafka.Topic
}

// Catalog finds the topics of a log. It keeps what it has made of them: topics change a few times in the life of a
// server, and each fetch needs the catalog. It is safe for concurrent use.
type Catalog struct {
	log  Log
	last atomic.Pointer[catalog]
}

// NewCatalog makes the catalog of a log.
func NewCatalog(l Log) *Catalog { return &Catalog{log: l} }

// ByName finds a topic by its name.
func (c *Catalog) ByName(name string) (kafka.Topic, bool) { return found(c.now().names[name]) }

// ByID finds a topic by its id.
func (c *Catalog) ByID(id [16]byte) (kafka.Topic, bool) { return found(c.now().ids[id]) }

func found(t *kafka.Topic) (kafka.Topic, bool) {
	if t == nil {
		return kafka.Topic{}, false
	}
	return *t, true
}

func (c *Catalog) now() *catalog {
	topics := c.log.Topics()
	last := c.last.Load()
	if last != nil && len(last.topics) == len(topics) && (len(topics) == 0 || &last.topics[0] == &topics[0]) {
		return last
	}
	last = &catalog{topics: topics, names: map[string]*kafka.Topic{}, ids: map[[16]byte]*kafka.Topic{}}
	for i := range topics {
		t := &topics[i]
		last.sorted = append(last.sorted, t)
		last.names[t.Name], last.ids[t.ID] = t, t
	}
	slices.SortFunc(last.sorted, func(a, b *kafka.Topic) int { return cmp.Compare(a.Name, b.Name) })
	c.last.Store(last)
	return last
}

// partition returns a partition, or the code for one that does not exist.
func (c *catalog) partition(name string, id int32) (kafka.Partition, int16) {
	t := c.names[name]
	if t == nil || id < 0 || id >= t.Partitions {
		return kafka.Partition{}, kerr.UnknownTopicOrPartition.Code
	}
	return kafka.Partition{Topic: name, ID: id}, 0
}

// checkEpoch compares the leader epoch that a client knows with the one that there is; -1: it knows none.
func checkEpoch(known int32) int16 {
	if known > epoch {
		return kerr.UnknownLeaderEpoch.Code
	}
	return 0
}

// storageError is the code for an error of the log. Clients try again after it.
func storageError(err error) int16 {
	if err != nil {
		return kerr.KafkaStorageError.Code
	}
	return 0
}

// validName says whether a topic can have the name in Kafka.
func validName(s string) bool {
	return s != "" && len(s) <= 249 && s != "." && s != ".." && strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}) < 0
}

// Permissions of readers, as the sets of bits in which Kafka shows them.
const (
	topicOperations = 1<<int32(kmsg.ACLOperationRead) | 1<<int32(kmsg.ACLOperationDescribe) |
		1<<int32(kmsg.ACLOperationDescribeConfigs)
	clusterOperations = 1<<int32(kmsg.ACLOperationDescribe) | 1<<int32(kmsg.ACLOperationDescribeConfigs)
	notRequested      = -1 << 31
)

func operations(requested bool, set int32) int32 {
	if requested {
		return set
	}
	return notRequested
}

// metadata describes topics.
func (c *conn) metadata(_ context.Context, h header, req *kmsg.MetadataRequest) (kmsg.Response, error) {
	s := c.server
	res := kmsg.NewPtrMetadataResponse()
	b := kmsg.NewMetadataResponseBroker()
	b.NodeID, b.Host, b.Port = node, s.Host, s.Port
	res.Brokers = append(res.Brokers, b)
	res.ClusterID, res.ControllerID = &s.ClusterID, node
	res.AuthorizedOperations = operations(req.IncludeClusterAuthorizedOperations, clusterOperations)
	topics := s.catalog.now()
	if req.Topics == nil || (h.version == 0 && len(req.Topics) == 0) {
		for _, t := range topics.sorted {
			res.Topics = append(res.Topics, metadata(t, req.IncludeTopicAuthorizedOperations))
		}
		return res, nil
	}
	type key struct { // a response is larger than what requests it, so each topic is in it once
		id   [16]byte
		name string
	}
	seen := map[key]bool{}
	for _, want := range req.Topics {
		k := key{id: want.TopicID}
		if want.Topic != nil {
			k.name = *want.Topic
		}
		if seen[k] {
			continue
		}
		seen[k] = true
		if t := topics.find(want.Topic, want.TopicID); t != nil {
			res.Topics = append(res.Topics, metadata(t, req.IncludeTopicAuthorizedOperations))
			continue
		}
		rt := kmsg.NewMetadataResponseTopic()
		rt.Topic, rt.TopicID, rt.ErrorCode = want.Topic, want.TopicID, missing(want.Topic)
		if h.version < 12 && rt.Topic == nil { // the name cannot be null yet
			rt.Topic = &k.name
		}
		res.Topics = append(res.Topics, rt)
	}
	return res, nil
}

// find returns a topic by name, or by id where there is no name.
func (c *catalog) find(name *string, id [16]byte) *kafka.Topic {
	if name == nil {
		return c.ids[id]
	}
	return c.names[*name]
}

// missing is the code for a topic that was not found.
func missing(name *string) int16 {
	switch {
	case name == nil:
		return kerr.UnknownTopicID.Code
	case !validName(*name):
		return kerr.InvalidTopicException.Code
	default:
		return kerr.UnknownTopicOrPartition.Code
	}
}

func metadata(t *kafka.Topic, operationsToo bool) kmsg.MetadataResponseTopic {
	rt := kmsg.NewMetadataResponseTopic()
	rt.Topic, rt.TopicID = &t.Name, t.ID
	rt.AuthorizedOperations = operations(operationsToo, topicOperations)
	rt.Partitions = make([]kmsg.MetadataResponseTopicPartition, t.Partitions)
	nodes := []int32{node}
	for i := range rt.Partitions {
		p := &rt.Partitions[i]
		p.Default()
		p.Partition, p.Leader, p.LeaderEpoch, p.Replicas, p.ISR = int32(i), node, epoch, nodes, nodes
	}
	return rt
}

// maxDescribed is the number of partitions in one response to DescribeTopicPartitions, as in Kafka.
const maxDescribed = 2000

// describeTopics describes topics in order of their names, from the cursor on, and as many partitions as the
// client wants; the response says where to continue.
func (c *conn) describeTopics(_ context.Context, _ header,
	req *kmsg.DescribeTopicPartitionsRequest) (kmsg.Response, error) {
	topics := c.server.catalog.now()
	var names []string
	for _, t := range req.Topics {
		names = append(names, t.Topic)
	}
	if len(names) == 0 {
		for _, t := range topics.sorted {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	first := int32(0)
	if cur := req.Cursor; cur != nil {
		names = slices.DeleteFunc(names, func(name string) bool { return name < cur.Topic })
		if len(names) > 0 && names[0] == cur.Topic {
			first = max(cur.Partition, 0)
		}
	}
	room := int32(maxDescribed)
	if n := req.ResponsePartitionLimit; n > 0 {
		room = min(room, n)
	}
	res := kmsg.NewPtrDescribeTopicPartitionsResponse()
	for _, name := range names {
		next := first
		if room > 0 {
			t := topics.names[name]
			rt := described(t, name, first, room)
			res.Topics = append(res.Topics, rt)
			room -= int32(len(rt.Partitions))
			if next += int32(len(rt.Partitions)); t == nil || next >= t.Partitions {
				first = 0
				continue
			}
		}
		cursor := kmsg.NewDescribeTopicPartitionsResponseNextCursor()
		cursor.Topic, cursor.Partition = name, next
		res.NextCursor = &cursor
		break
	}
	return res, nil
}

// described describes up to most partitions of a topic; nil: of none that exists.
func described(t *kafka.Topic, name string, first, limit int32) kmsg.DescribeTopicPartitionsResponseTopic {
	rt := kmsg.NewDescribeTopicPartitionsResponseTopic()
	rt.Topic, rt.AuthorizedOperations = &name, topicOperations
	if t == nil {
		rt.ErrorCode, rt.AuthorizedOperations = missing(&name), notRequested
		return rt
	}
	rt.TopicID = t.ID
	nodes := []int32{node}
	for i := first; i < t.Partitions && i-first < limit; i++ {
		p := kmsg.NewDescribeTopicPartitionsResponseTopicPartition()
		p.Partition, p.LeaderID, p.LeaderEpoch, p.Replicas, p.ISR = i, node, epoch, nodes, nodes
		// Java's client does not read null here.
		p.EligibleLeaderReplicas, p.LastKnownELR, p.OfflineReplicas = []int32{}, []int32{}, []int32{}
		rt.Partitions = append(rt.Partitions, p)
	}
	return rt
}

// describeCluster describes the only broker.
func (c *conn) describeCluster(_ context.Context, _ header, req *kmsg.DescribeClusterRequest) (kmsg.Response, error) {
	s := c.server
	res := kmsg.NewPtrDescribeClusterResponse()
	res.ClusterID, res.ControllerID, res.EndpointType = s.ClusterID, node, 1
	res.ClusterAuthorizedOperations = operations(req.IncludeClusterAuthorizedOperations, clusterOperations)
	switch req.EndpointType {
	case 1:
		b := kmsg.NewDescribeClusterResponseBroker()
		b.NodeID, b.Host, b.Port = node, s.Host, s.Port
		res.Brokers = append(res.Brokers, b)
	case 2: // controllers
		res.ErrorCode = kerr.MismatchedEndpointType.Code
	default:
		res.ErrorCode = kerr.UnsupportedEndpointType.Code
	}
	return res, nil
}

// Types of keys in FindCoordinator.
const (
	groupKey       = 0
	transactionKey = 1
)

// findCoordinator names the broker as the coordinator of each group. There are no transactions.
func (c *conn) findCoordinator(_ context.Context, h header, req *kmsg.FindCoordinatorRequest) (kmsg.Response, error) {
	s := c.server
	res := kmsg.NewPtrFindCoordinatorResponse()
	var code int16
	switch req.CoordinatorType {
	case groupKey:
	case transactionKey:
		code = kerr.TransactionalIDAuthorizationFailed.Code
	default:
		code = kerr.InvalidRequest.Code
	}
	id, host, port := int32(node), s.Host, s.Port
	if code != 0 {
		id, host, port = -1, "", -1
	}
	res.ErrorCode, res.NodeID, res.Host, res.Port = code, id, host, port
	if h.version < 4 {
		return res, nil
	}
	for _, key := range req.CoordinatorKeys {
		rc := kmsg.NewFindCoordinatorResponseCoordinator()
		rc.Key, rc.ErrorCode, rc.NodeID, rc.Host, rc.Port = key, code, id, host, port
		res.Coordinators = append(res.Coordinators, rc)
	}
	return res, nil
}
