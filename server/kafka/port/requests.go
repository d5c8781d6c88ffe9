package port

import (
	"encoding/binary"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// minRequest is the size of the smallest request: key, version, number and client.
const minRequest = 8

// keys is a set of kinds of requests.
func keys(list ...kmsg.Key) map[int16]bool {
	m := map[int16]bool{}
	for _, k := range list {
		m[int16(k)] = true
	}
	return m
}

// greeting are requests that need no password yet.
var greeting = keys(kmsg.ApiVersions, kmsg.SASLHandshake, kmsg.SASLAuthenticate)

// allowed are the requests that strangers may make: reading, groups, and those whose
// refusal by the broker tells a client what is wrong. Others end the connection.
var allowed = keys(
	kmsg.ApiVersions, kmsg.SASLHandshake, kmsg.SASLAuthenticate,
	kmsg.Fetch, kmsg.ListOffsets, kmsg.Metadata, kmsg.OffsetForLeaderEpoch, kmsg.DescribeConfigs, kmsg.DescribeCluster,
	kmsg.DescribeTopicPartitions,
	kmsg.FindCoordinator, kmsg.JoinGroup, kmsg.SyncGroup, kmsg.Heartbeat, kmsg.LeaveGroup, kmsg.OffsetCommit,
	kmsg.OffsetFetch, kmsg.OffsetDelete,
	kmsg.DescribeGroups, kmsg.ListGroups, kmsg.DeleteGroups, kmsg.ConsumerGroupHeartbeat, kmsg.ConsumerGroupDescribe,
	// Refused with an answer.
	kmsg.Produce, kmsg.InitProducerID, kmsg.CreateTopics, kmsg.DeleteTopics, kmsg.DeleteRecords, kmsg.CreatePartitions,
	kmsg.AlterConfigs, kmsg.IncrementalAlterConfigs, kmsg.AddPartitionsToTxn, kmsg.EndTxn, kmsg.CreateACLs,
	kmsg.DeleteACLs,
)

// boundFetch bounds what a fetch asks for: the broker makes the answer in memory.
func boundFetch(b []byte) ([]byte, error) {
	req := kmsg.NewPtrFetchRequest()
	r := kbin.Reader{Src: b[4:]}
	_ = r.Int16()
	req.SetVersion(r.Int16())
	_ = r.Int32()
	_ = r.NullableString()
	if req.IsFlexible() {
		kmsg.SkipTags(&r)
	}
	if !r.Ok() || req.Version < 0 || req.Version > req.MaxVersion() {
		return nil, errRefused
	}
	head := b[:len(b)-len(r.Src)]
	if err := req.ReadFrom(r.Src); err != nil {
		return nil, errRefused
	}
	if req.Version >= 3 {
		req.MaxBytes = bound(req.MaxBytes, maxFetch)
	}
	parts := 0
	for i := range req.Topics {
		parts += len(req.Topics[i].Partitions)
	}
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			p := &req.Topics[i].Partitions[j]
			p.PartitionMaxBytes = bound(p.PartitionMaxBytes, maxFetchPart)
			if req.Version < 3 { // there is no bound of the whole
				p.PartitionMaxBytes = bound(p.PartitionMaxBytes, int32(max(1, maxFetch/parts)))
			}
		}
	}
	out := req.AppendTo(append([]byte(nil), head...))
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	return out, nil
}

func bound(n, limit int32) int32 {
	if n < 0 || n > limit {
		return limit
	}
	return n
}

// oldHandshake says in an answer with versions that the first version of the handshake
// is known, too. librdkafka asks for that one, and then takes the second, which is the
// only one that the broker knows.
func oldHandshake(b []byte, version int16) {
	const head = 8 // size and number
	res := kmsg.NewPtrApiVersionsResponse()
	res.SetVersion(version)
	if len(b) < head || version > res.MaxVersion() || res.ReadFrom(b[head:]) != nil {
		return
	}
	for i := range res.ApiKeys {
		if k := &res.ApiKeys[i]; k.ApiKey == int16(kmsg.SASLHandshake) {
			k.MinVersion = 0
		}
	}
	if out := res.AppendTo(nil); len(out) == len(b)-head {
		copy(b[head:], out)
	}
}
