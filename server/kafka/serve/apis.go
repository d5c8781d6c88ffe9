package serve

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// api is a request that the server answers.
type api struct {
	key      kmsg.Key
	min, max int16 // versions
	shape    shape
	handle   handler
	password bool // the client must have shown a password
	charged  bool // the answer grows with topics or partitions, and so takes memory of the budget
}

type handler func(*conn, context.Context, header, kmsg.Request) (kmsg.Response, error)

// entry is a row of the table of requests.
type entry struct {
	key      kmsg.Key
	min, max int16
	shape    string // see parseShape; only what the versions have
	handle   handler
}

// on makes a handler of a method.
func on[Q kmsg.Request](f func(*conn, context.Context, header, Q) (kmsg.Response, error)) handler {
	return func(c *conn, ctx context.Context, h header, req kmsg.Request) (kmsg.Response, error) {
		return f(c, ctx, h, req.(Q)) // parse made it by the same key
	}
}

// The tables below list every request that is answered. Versions are those of Apache Kafka 4, with these
// exceptions:
//
//   - Those that need something the server does not have: ApiVersions 5 (routing by node), AddPartitionsToTxn 4
//     (between brokers).
//   - SASLHandshake 0: librdkafka authenticates only if it is announced, and then sends version 1.
//
// Fetch starts at version 4, the first one with the only format of batches that the server writes.

// greetings are answered before the password.
func greetings() []entry {
	return []entry{
		{kmsg.ApiVersions, 0, 4, "3+:s 3+:s", on((*conn).apiVersions)},
		{kmsg.SASLHandshake, 0, 1, "s", on((*conn).handshake)},
		{kmsg.SASLAuthenticate, 0, 2, "b", on((*conn).authenticate)},
	}
}

// reads describe topics and their records.
func reads() []entry {
	return []entry{
		{kmsg.Metadata, 0, 13, "[10+:16 s] 4+:1 8-10:1 8+:1", on((*conn).metadata)},
		{kmsg.DescribeTopicPartitions, 0, 0, "[s] 4 ?[s 4]", on((*conn).describeTopics)},
		{kmsg.DescribeCluster, 0, 2, "1 1+:1 2+:1", on((*conn).describeCluster)},
		{kmsg.DescribeConfigs, 1, 4, "[1 s *s] 1+:1 3+:1", on((*conn).describeConfigs)},
		{kmsg.ListOffsets, 1, 11, "4 2+:1 [s [4 4+:4 8]] 10+:4", on((*conn).listOffsets)},
		{kmsg.FindCoordinator, 0, 6, "0-3:s 1+:1 4+:*s", on((*conn).findCoordinator)},
		{kmsg.OffsetForLeaderEpoch, 2, 4, "3+:4 [s [4 2+:4 4]]", on((*conn).epochEnds)},
		{kmsg.Fetch, 4, 18, "0-14:4 4 4 3+:4 4+:1 7+:4 7+:4 [0-12:s 13+:16 [4 9+:4 8 12+:4 5+:8 4]] " +
			"7+:[7-12:s 13+:16 *4] 11+:s", nil}, // see answerFetch
	}
}

// coordinated are answered by the coordinator of groups, in those of these versions that it has.
func coordinated() []entry {
	return []entry{
		{kmsg.JoinGroup, 0, 9, "s 4 1+:4 s 5+:s s [s b] 8+:s", (*conn).group},
		{kmsg.SyncGroup, 0, 5, "s 4 s 3+:s 5+:s 5+:s [s b]", (*conn).group},
		{kmsg.Heartbeat, 0, 4, "s 4 s 3+:s", (*conn).group},
		{kmsg.LeaveGroup, 0, 5, "s 0-2:s 3+:[s s 5+:s]", (*conn).group},
		{kmsg.OffsetCommit, 2, 10, "s 1+:4 1+:s 7+:s 2-4:8 [0-9:s 10+:16 [4 8 6+:4 s]]", (*conn).group},
		{kmsg.OffsetFetch, 1, 10, "0-7:s 0-7:[s *4] 8+:[s 9+:s 9+:4 [8-9:s 10+:16 *4]] 7+:1", (*conn).group},
		{kmsg.OffsetDelete, 0, 0, "s [s [4]]", (*conn).group},
		{kmsg.DescribeGroups, 0, 6, "*s 3+:1", (*conn).group},
		{kmsg.ListGroups, 0, 5, "4+:*s 5+:*s", (*conn).group},
		{kmsg.DeleteGroups, 0, 3, "*s", (*conn).group},
	}
}

// refusals would change something. They are announced because a client reports an error code of its answer
// at once and by name.
func refusals() []entry {
	return []entry{
		{kmsg.Produce, 0, 13, "3+:s 2 4 [0-12:s 13+:16 [4 b]]", refuse(refuseProduce)},
		{kmsg.InitProducerID, 0, 5, "s 4 3+:8 3+:2", refuse(refuseInitProducerID)},
		{kmsg.CreateTopics, 2, 7, "[s 4 2 [4 *4] [s s]] 4 1+:1", refuse(refuseCreateTopics)},
		{kmsg.DeleteTopics, 1, 6, "0-5:*s 6+:[s 16] 4", refuse(refuseDeleteTopics)},
		{kmsg.DeleteRecords, 0, 2, "[s [4 8]] 4", refuse(refuseDeleteRecords)},
		{kmsg.CreatePartitions, 0, 3, "[s 4 [*4]] 4 1", refuse(refuseCreatePartitions)},
		{kmsg.AlterConfigs, 0, 2, "[1 s [s s]] 1", refuse(refuseAlterConfigs)},
		{kmsg.IncrementalAlterConfigs, 0, 1, "[1 s [s 1 s]] 1", refuse(refuseIncrementalAlterConfigs)},
		{kmsg.AddPartitionsToTxn, 0, 3, "s 8 2 [s *4]", refuse(refuseAddPartitionsToTxn)},
		{kmsg.EndTxn, 0, 5, "s 8 2 1", refuse(refuseEndTxn)},
		{kmsg.CreateACLs, 1, 3, "[1 s 1+:1 s s 1 1]", refuse(refuseCreateACLs)},
		{kmsg.DeleteACLs, 1, 3, "[1 s 1+:1 s s 1 1]", refuse(refuseDeleteACLs)},
	}
}

// newAPIs makes the table of requests, by key.
func newAPIs(groups Groups) (map[int16]*api, error) {
	apis := map[int16]*api{}
	for _, part := range []struct {
		entries                        []entry
		password, charged, coordinated bool
	}{
		{entries: greetings()},
		{entries: reads(), password: true, charged: true},
		{entries: coordinated(), password: true, coordinated: true},
		{entries: refusals(), password: true, charged: true},
	} {
		for _, e := range part.entries {
			s, err := parseShape(e.shape)
			if err != nil {
				return nil, err
			}
			if part.coordinated {
				first, last, ok := groups.Versions(e.key)
				if e.min, e.max = max(e.min, first), min(e.max, last); !ok || e.min > e.max {
					continue
				}
			}
			apis[int16(e.key)] = &api{key: e.key, min: e.min, max: e.max, shape: s, handle: e.handle,
				password: part.password, charged: part.charged}
		}
	}
	return apis, nil
}

// flexible says whether a version has compact fields and tags.
func (a *api) flexible(version int16) bool {
	req := a.key.Request()
	req.SetVersion(version)
	return req.IsFlexible()
}

// parse reads a request behind its header.
func (a *api) parse(version int16, b []byte) (kmsg.Request, error) {
	req := a.key.Request()
	req.SetVersion(version)
	if _, err := a.shape.walk(b, version, req.IsFlexible()); err != nil {
		return nil, err
	}
	return req, req.ReadFrom(b)
}

// apiVersions lists the requests.
func (c *conn) apiVersions(_ context.Context, h header, req *kmsg.ApiVersionsRequest) (kmsg.Response, error) {
	res := kmsg.NewPtrApiVersionsResponse()
	if h.version >= 3 && (!softwareName(req.ClientSoftwareName) || !softwareName(req.ClientSoftwareVersion)) {
		res.ErrorCode = kerr.InvalidRequest.Code
		return res, nil
	}
	for _, a := range c.server.apis {
		res.ApiKeys = append(res.ApiKeys, a.announcement())
	}
	slices.SortFunc(res.ApiKeys, func(a, b kmsg.ApiVersionsResponseApiKey) int { return int(a.ApiKey) - int(b.ApiKey) })
	return res, nil
}

func (a *api) announcement() kmsg.ApiVersionsResponseApiKey {
	k := kmsg.NewApiVersionsResponseApiKey()
	k.ApiKey, k.MinVersion, k.MaxVersion = int16(a.key), a.min, a.max
	return k
}

// unknownVersion answers ApiVersions of a version that the server does not have. It is in version 0, which
// every client reads, and has the versions that there are of this request.
func unknownVersion(apis map[int16]*api) kmsg.Response {
	res := kmsg.NewPtrApiVersionsResponse()
	res.ErrorCode = kerr.UnsupportedVersion.Code
	res.ApiKeys = append(res.ApiKeys, apis[int16(kmsg.ApiVersions)].announcement())
	return res
}

// softwareName checks the name or the version of a client's software as KIP-511 defines it.
func softwareName(s string) bool {
	for i, r := range s {
		alphanumeric := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		inside := i > 0 && i < len(s)-1
		if !alphanumeric && (!inside || (r != '-' && r != '.')) {
			return false
		}
	}
	return s != ""
}

// group passes a request to the coordinator.
func (c *conn) group(ctx context.Context, h header, req kmsg.Request) (kmsg.Response, error) {
	return c.server.Groups.Handle(ctx, c.client(h), req)
}
