package group

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
)

func limited(change func(*Limits)) func(*Config) {
	return func(c *Config) { change(&c.Limits) }
}

func (b *fixture) join(req *kmsg.JoinGroupRequest) int16 {
	b.t.Helper()
	return b.answer(b.send(req))
}

func TestLimitOfGroups(t *testing.T) {
	b := newFixture(t, limited(func(l *Limits) { l.Groups, l.GroupsPerCredential = 3, 2 }))
	b.code("first", b.commit(commitRequest(9, "a", "", -1, 0, 1)), nil)
	b.code("second", b.join(joinRequest(9, "b", "", "one")), nil)
	b.code("third", b.commit(commitRequest(9, "c", "", -1, 0, 1)), kerr.InvalidCommitOffsetSize)
	b.code("third", b.join(joinRequest(9, "c", "", "one")), kerr.GroupMaxSizeReached)
	b.client.Credential = "other"
	b.code("another's first", b.join(joinRequest(9, "c", "", "")), kerr.MemberIDRequired)
	b.code("another's second", b.join(joinRequest(9, "d", "", "")), kerr.GroupMaxSizeReached)
	b.client.Credential = "reader"
	b.restart(b.m.cfg)
	b.pass(time.Second)
	b.code("after a restart", b.commit(commitRequest(9, "b", "", -1, 0, 1)), nil)
	b.code("after a restart", b.commit(commitRequest(9, "c", "", -1, 0, 1)), kerr.InvalidCommitOffsetSize)
	del := kmsg.NewPtrDeleteGroupsRequest()
	del.Groups = []string{"a"}
	b.code("delete", call[*kmsg.DeleteGroupsResponse](b, del).Groups[0].ErrorCode, nil)
	b.code("after a removal", b.commit(commitRequest(9, "c", "", -1, 0, 1)), nil)
}

func TestLimitOfMembers(t *testing.T) {
	b := newFixture(t, limited(func(l *Limits) { l.Members = 2 }))
	b.send(joinRequest(3, "g", "", ""))
	b.send(joinRequest(3, "g", "", ""))
	b.code("third", b.join(joinRequest(3, "g", "", "")), kerr.GroupMaxSizeReached)
	b.pass(time.Second)
	b.code("third", b.join(joinRequest(3, "g", "", "")), kerr.GroupMaxSizeReached)
	for range 2 {
		b.code("id", b.join(joinRequest(9, "h", "", "")), kerr.MemberIDRequired)
	}
	b.code("third id", b.join(joinRequest(9, "h", "", "")), kerr.GroupMaxSizeReached)
}

func TestLimitOfBytes(t *testing.T) {
	big := func(group, instance string, n int) *kmsg.JoinGroupRequest {
		req := joinRequest(9, group, "", instance)
		req.Protocols[0].Metadata = make([]byte, n)
		return req
	}
	b := newFixture(t, limited(func(l *Limits) { l.MemberBytes, l.GroupBytes, l.Bytes = 20_000, 30_000, 50_000 }))
	b.code("member", b.join(big("a", "one", 20_000)), kerr.GroupMaxSizeReached)
	b.code("member", b.join(big("a", "one", 14_000)), nil)
	b.code("group", b.join(big("a", "two", 19_000)), kerr.GroupMaxSizeReached)
	b.code("group", b.join(big("a", "two", 14_000)), nil)
	b.code("all", b.join(big("b", "one", 18_000)), nil)
	b.code("all", b.join(big("b", "two", 5_000)), kerr.GroupMaxSizeReached)
	b.pass(time.Second)
	g := b.m.groups["a"]
	leader := g.leader
	plan := strings.Repeat("x", 30_001)
	b.code("assignments", call[*kmsg.SyncGroupResponse](b, syncRequest(5, "a", leader, 1, leader, plan)).ErrorCode,
		kerr.GroupMaxSizeReached)
	b.code("assignments", call[*kmsg.SyncGroupResponse](b, syncRequest(5, "a", leader, 1, leader, "A")).ErrorCode, nil)
	b.pass(time.Minute)
	testkit.Equal(t, "bytes when all have left", b.m.bytes, 0)
}

func TestLimitOfNames(t *testing.T) {
	long := strings.Repeat("x", 256)
	b := newFixture(t, nil)
	b.code("group", b.join(joinRequest(9, long, "", "")), kerr.InvalidGroupID)
	b.code("longest group", b.join(joinRequest(9, long[1:], "", "")), kerr.MemberIDRequired)
	b.code("no group", b.join(joinRequest(9, "", "", "")), kerr.InvalidGroupID)
	b.code("instance", b.join(joinRequest(9, "g", "", long)), kerr.InvalidRequest)
	b.code("protocol", b.join(joinRequest(9, "g", "", "", long)), kerr.InvalidRequest)
	b.code("commit", b.commit(commitRequest(9, long, "", -1, 0, 1)), kerr.InvalidGroupID)
	b.code("fetch", call[*kmsg.OffsetFetchResponse](b, fetchRequest(long, 0)).Groups[0].ErrorCode, kerr.InvalidGroupID)
	kind := joinRequest(9, "g", "", "")
	kind.ProtocolType = long
	b.code("type", b.join(kind), kerr.InvalidRequest)
	many := make([]string, 33)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	b.code("protocols", b.join(joinRequest(9, "g", "", "", many...)), kerr.InconsistentGroupProtocol)
	for _, session := range []int32{5_999, 1_800_001} {
		req := joinRequest(9, "g", "", "")
		req.SessionTimeoutMillis = session
		b.code("session", b.join(req), kerr.InvalidSessionTimeout)
	}
	b.client.ID = strings.Repeat("ä", 200)
	res := call[*kmsg.JoinGroupResponse](b, joinRequest(9, "g", "", ""))
	if strings.ToValidUTF8(res.MemberID, "?") != res.MemberID || len(res.MemberID) > 300 {
		t.Fatalf("the id is %q", res.MemberID)
	}
}

func TestLimitOfOffsets(t *testing.T) {
	b := newFixture(t, limited(func(l *Limits) { l.CommitPartitions, l.Offsets, l.MetadataBytes = 3, 4, 10 }))
	many := commitRequest(9, "g", "", -1, 0, 1)
	for p := int32(1); p < 4; p++ {
		many.Topics[0].Partitions = append(many.Topics[0].Partitions, kmsg.OffsetCommitRequestTopicPartition{Partition: p})
	}
	b.code("partitions", b.commit(many), kerr.InvalidCommitOffsetSize)
	note := commitRequest(9, "g", "", -1, 0, 1)
	note.Topics[0].Partitions[0].Metadata = kmsg.StringPtr("01234567890")
	b.code("metadata", b.commit(note), kerr.OffsetMetadataTooLarge)
	for p := range int32(4) {
		b.code("offset", b.commit(commitRequest(9, "g", "", -1, p, 1)), nil)
	}
	b.code("fifth offset", b.commit(commitRequest(9, "g", "", -1, 4, 1)), kerr.InvalidCommitOffsetSize)
	b.code("offset again", b.commit(commitRequest(9, "g", "", -1, 3, 2)), nil)
	b.lazy = true
	token := b.send(commitRequest(9, "h", "", -1, 0, 1))
	for p := int32(1); p < 4; p++ {
		b.send(commitRequest(9, "h", "", -1, p, 1))
	}
	b.code("fifth offset while others are stored",
		b.commit(commitRequest(9, "h", "", -1, 4, 1)), kerr.InvalidCommitOffsetSize)
	b.settle()
	b.code("offset", get[*kmsg.OffsetCommitResponse](b, token).Topics[0].Partitions[0].ErrorCode, nil)
}

func TestLimitOfOffsetBytes(t *testing.T) {
	note := func(group string, partition int32, n int) *kmsg.OffsetCommitRequest {
		req := commitRequest(9, group, "", -1, partition, 1)
		req.Topics[0].Partitions[0].Metadata = kmsg.StringPtr(strings.Repeat("x", n))
		return req
	}
	b := newFixture(t, limited(func(l *Limits) { l.GroupOffsetBytes, l.OffsetBytes = 5000, 8000 }))
	b.code("first", b.commit(note("g", 0, 3000)), nil)
	b.code("above the group's", b.commit(note("g", 1, 3000)), kerr.InvalidCommitOffsetSize)
	b.code("second group", b.commit(note("h", 1, 3000)), nil)
	b.code("above that of all", b.commit(note("i", 1, 3000)), kerr.InvalidCommitOffsetSize)
	for range 20 {
		b.code("again", b.commit(note("g", 0, 3000)), nil)
	}
	b.code("less", b.commit(note("g", 0, 100)), nil)
	b.code("room", b.commit(note("i", 1, 2500)), nil)
	del := kmsg.NewPtrDeleteGroupsRequest()
	del.Groups = []string{"g", "h", "i"}
	call[*kmsg.DeleteGroupsResponse](b, del)
	testkit.Equal(t, "bytes", b.m.offsetBytes, 0)
}
