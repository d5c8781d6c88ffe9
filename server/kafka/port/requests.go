package port

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// minRequest is the size of the smallest request: key, version, number and client.
const minRequest = 8

// access says when the port lets a request through to the broker.
type access uint8

const (
	never access = iota // the port closes the connection
	afterPassword
	always // a client sends it to find out versions, or to authenticate
)

// answered are the requests of readers that the broker answers: reading, groups, and those whose
// refusal tells a client what is wrong. The port announces these requests and no others, because
// a client sends what is announced, and repeats for a minute what closes its connection. A
// client reports a request that is not announced as unsupported, without sending it.
//
// DescribeTopicPartitions is not here, although the broker knows it: its answer has
// null in place of lists, which Java's client cannot read. Without it that client uses Metadata.
var answered = map[kmsg.Key]access{
	kmsg.ApiVersions: always, kmsg.SASLHandshake: always, kmsg.SASLAuthenticate: always,

	kmsg.Fetch: afterPassword, kmsg.ListOffsets: afterPassword, kmsg.Metadata: afterPassword,
	kmsg.OffsetForLeaderEpoch: afterPassword, kmsg.DescribeConfigs: afterPassword, kmsg.DescribeCluster: afterPassword,

	kmsg.FindCoordinator: afterPassword, kmsg.JoinGroup: afterPassword, kmsg.SyncGroup: afterPassword,
	kmsg.Heartbeat: afterPassword, kmsg.LeaveGroup: afterPassword, kmsg.OffsetCommit: afterPassword,
	kmsg.OffsetFetch: afterPassword, kmsg.OffsetDelete: afterPassword, kmsg.DescribeGroups: afterPassword,
	kmsg.ListGroups: afterPassword, kmsg.DeleteGroups: afterPassword, kmsg.ConsumerGroupHeartbeat: afterPassword,
	kmsg.ConsumerGroupDescribe: afterPassword,

	// The broker refuses these with an error code.
	kmsg.Produce: afterPassword, kmsg.InitProducerID: afterPassword, kmsg.CreateTopics: afterPassword,
	kmsg.DeleteTopics: afterPassword, kmsg.DeleteRecords: afterPassword, kmsg.CreatePartitions: afterPassword,
	kmsg.AlterConfigs: afterPassword, kmsg.IncrementalAlterConfigs: afterPassword,
	kmsg.AddPartitionsToTxn: afterPassword, kmsg.EndTxn: afterPassword, kmsg.CreateACLs: afterPassword,
	kmsg.DeleteACLs: afterPassword,
}

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

// announce returns the broker's answer to an ApiVersions request of a version, with only the
// requests that the port lets through. It also announces version 0 of the handshake: librdkafka
// requires that version, and then sends version 1, which is the only one that the broker knows.
func announce(b []byte, version int16) ([]byte, error) {
	const head = 8 // size and correlation id
	res := kmsg.NewPtrApiVersionsResponse()
	if version < 0 || version > res.MaxVersion() { // the broker answers in version 0, which names ApiVersions alone
		version = 0
	}
	res.SetVersion(version)
	if len(b) < head {
		return nil, errRefused
	}
	if err := res.ReadFrom(b[head:]); err != nil {
		return nil, fmt.Errorf("kafka: read the broker's versions: %w", err)
	}
	res.ApiKeys = slices.DeleteFunc(res.ApiKeys, func(k kmsg.ApiVersionsResponseApiKey) bool {
		return answered[kmsg.Key(k.ApiKey)] == never
	})
	for i := range res.ApiKeys {
		if k := &res.ApiKeys[i]; kmsg.Key(k.ApiKey) == kmsg.SASLHandshake {
			k.MinVersion = 0
		}
	}
	out := res.AppendTo(append([]byte(nil), b[:head]...))
	binary.BigEndian.PutUint32(out, uint32(len(out)-4))
	return out, nil
}
