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

// Every version of a commit is stored, and every version of a fetch finds it.
func TestOffsetVersions(t *testing.T) {
	for commit := int16(2); commit <= 10; commit++ {
		b := newFixture(t, nil)
		req := commitRequest(commit, "g", "", -1, 3, 42)
		req.Topics[0].Partitions[0].Metadata = kmsg.StringPtr("note")
		b.code(fmt.Sprint("commit of version ", commit), b.commit(req), nil)
		epoch := int32(3)
		if commit < 6 {
			epoch = -1
		}
		want := []any{int32(3), int64(42), "note", epoch}
		for version := int16(1); version <= 10; version++ {
			what := fmt.Sprintf("commit of version %d, fetch of version %d", commit, version)
			for _, all := range []bool{false, true} {
				if all && version < 2 {
					continue
				}
				req := kmsg.NewPtrOffsetFetchRequest()
				req.Version = version
				if version < 8 {
					if req.Group = "g"; !all {
						req.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "events", Partitions: []int32{3, 3, 4}}}
					}
					res := call[*kmsg.OffsetFetchResponse](b, req)
					p := res.Topics[0].Partitions
					testkit.Equal(t, what, []any{p[0].Partition, p[0].Offset, *p[0].Metadata, p[0].LeaderEpoch}, want)
					testkit.Equal(t, what, len(p), map[bool]int{false: 2, true: 1}[all])
					continue
				}
				g := kmsg.OffsetFetchRequestGroup{Group: "g"}
				if !all {
					g.Topics = []kmsg.OffsetFetchRequestGroupTopic{
						{Topic: "events", TopicID: [16]byte{7}, Partitions: []int32{3, 3, 4}},
					}
				}
				req.Groups = []kmsg.OffsetFetchRequestGroup{g, g, {Group: "h", Topics: g.Topics}}
				res := call[*kmsg.OffsetFetchResponse](b, req)
				testkit.Equal(t, what+": groups", len(res.Groups), 2)
				topic := res.Groups[0].Topics[0]
				p := topic.Partitions
				testkit.Equal(t, what, []any{p[0].Partition, p[0].Offset, *p[0].Metadata, p[0].LeaderEpoch}, want)
				testkit.Equal(t, what, len(p), map[bool]int{false: 2, true: 1}[all])
				testkit.Equal(t, what, topic.TopicID, [16]byte{7})
				if !all {
					other := res.Groups[1].Topics[0].Partitions[0].Offset
					testkit.Equal(t, what, []any{p[1].Offset, *p[1].Metadata, p[1].ErrorCode, other},
						[]any{int64(-1), "", int16(0), int64(-1)})
				}
			}
		}
	}
	b := newFixture(t, nil)
	unknown := commitRequest(10, "g", "", -1, 0, 1)
	unknown.Topics[0].TopicID = [16]byte{1}
	b.code("unknown id", b.commit(unknown), kerr.UnknownTopicID)
	unknown = commitRequest(9, "g", "", -1, 0, 1)
	unknown.Topics[0].Topic = "other"
	b.code("unknown topic", b.commit(unknown), kerr.UnknownTopicOrPartition)
	b.code("unknown partition", b.commit(commitRequest(9, "g", "", -1, 6, 1)), kerr.UnknownTopicOrPartition)
	b.code("no group", b.commit(commitRequest(9, "g", "id", 3, 0, 1)), kerr.IllegalGeneration)
	if len(b.m.groups) != 0 || len(b.kept) != 0 {
		t.Fatal("refused commits leave a group")
	}
	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.Version = 10
	topic := kmsg.OffsetFetchRequestGroupTopic{TopicID: [16]byte{1}, Partitions: []int32{0}}
	fetch.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "g", Topics: []kmsg.OffsetFetchRequestGroupTopic{topic}}}
	b.code("fetch of an unknown id", call[*kmsg.OffsetFetchResponse](b, fetch).Groups[0].Topics[0].Partitions[0].ErrorCode,
		kerr.UnknownTopicID)
}

// A fetch waits for the commits before it; neither is answered before the commit is durable.
func TestFetchWaitsForCommits(t *testing.T) {
	b := newFixture(t, nil)
	b.lazy = true
	commit := b.send(commitRequest(9, "g", "", -1, 0, 5))
	fetch := b.send(fetchRequest("g", 0))
	other := b.send(fetchRequest("h", 0))
	if b.answers[commit] != nil || b.answers[fetch] != nil || b.answers[other] == nil {
		t.Fatal("a fetch must wait for the commits of its group, and for those only")
	}
	b.settle()
	get[*kmsg.OffsetCommitResponse](b, commit)
	testkit.Equal(t, "offset", get[*kmsg.OffsetFetchResponse](b, fetch).Groups[0].Topics[0].Partitions[0].Offset, 5)
	commit, fetch = b.send(commitRequest(9, "g", "", -1, 0, 6)), b.send(fetchRequest("g", 0))
	b.failing = true
	b.settle()
	b.code("commit", get[*kmsg.OffsetCommitResponse](b, commit).Topics[0].Partitions[0].ErrorCode,
		kerr.CoordinatorNotAvailable)
	testkit.Equal(t, "offset", get[*kmsg.OffsetFetchResponse](b, fetch).Groups[0].Topics[0].Partitions[0].Offset, 5)
}

func deleteRequest(group, topic string, partition int32) *kmsg.OffsetDeleteRequest {
	req := kmsg.NewPtrOffsetDeleteRequest()
	req.Group = group
	of := []kmsg.OffsetDeleteRequestTopicPartition{{Partition: partition}}
	req.Topics = []kmsg.OffsetDeleteRequestTopic{{Topic: topic, Partitions: of}}
	return req
}

func TestOffsetDelete(t *testing.T) {
	b := newFixture(t, nil)
	code := func(req *kmsg.OffsetDeleteRequest) int16 {
		res := call[*kmsg.OffsetDeleteResponse](b, req)
		if res.ErrorCode != 0 {
			return res.ErrorCode
		}
		return res.Topics[0].Partitions[0].ErrorCode
	}
	b.code("no group", code(deleteRequest("g", "events", 0)), kerr.GroupIDNotFound)
	leader, _ := b.stableGroup("g")
	b.code("commit", b.commit(commitRequest(9, "g", leader, 1, 0, 5)), nil)
	deadLetters := commitRequest(9, "g", leader, 1, 1, 5)
	deadLetters.Topics[0].Topic = "letters"
	b.code("commit", b.commit(deadLetters), nil)
	b.code("topic that members read", code(deleteRequest("g", "events", 0)), kerr.GroupSubscribedToTopic)
	b.code("topic that they do not read", code(deleteRequest("g", "letters", 1)), nil)
	b.code("nothing committed", code(deleteRequest("g", "letters", 1)), nil)
	b.code("no topic", code(deleteRequest("g", "other", 1)), kerr.UnknownTopicOrPartition)
	testkit.Equal(t, "rows", len(b.kept), 2)
	strange := joinRequest(9, "h", "", "one")
	strange.ProtocolType = "connect"
	b.send(strange)
	b.code("not consumers", code(deleteRequest("h", "letters", 1)), kerr.NonEmptyGroup)
	b.code("no name", code(deleteRequest("", "letters", 1)), kerr.InvalidGroupID)
	b.in(empty, "i")
	b.code("commit", b.commit(commitRequest(9, "i", "", -1, 0, 5)), nil)
	b.code("no members", code(deleteRequest("i", "events", 0)), nil)
	testkit.Equal(t, "offset", b.committed("i", 0), -1)
}

func TestExpiry(t *testing.T) {
	const day = 24 * time.Hour
	t.Run("seven days", func(t *testing.T) {
		b := newFixture(t, nil)
		b.code("commit", b.commit(commitRequest(9, "g", "", -1, 0, 5)), nil)
		b.pass(5 * day)
		b.code("commit", b.commit(commitRequest(9, "g", "", -1, 1, 6)), nil)
		b.pass(2*day + time.Second)
		testkit.Equal(t, "old", b.committed("g", 0), -1)
		testkit.Equal(t, "new", b.committed("g", 1), 6)
		b.pass(5 * day)
		if len(b.kept) != 0 || len(b.m.groups) != 0 || b.m.offsetBytes != 0 {
			t.Fatalf("%d rows are left", len(b.kept))
		}
	})
	t.Run("members, then a restart", func(t *testing.T) {
		b := newFixture(t, nil)
		leader, _ := b.newMember("g")
		b.pass(time.Second)
		call[*kmsg.SyncGroupResponse](b, syncRequest(5, "g", leader, 1, leader, "A"))
		b.code("commit", b.commit(commitRequest(9, "g", leader, 1, 0, 5)), nil)
		for end := b.now + 8*day; b.now < end; {
			b.pass(9 * time.Second)
			b.heartbeat(leader, 1, nil)
		}
		testkit.Equal(t, "offset after days with a member", b.committed("g", 0), 5)
		b.restart(b.m.cfg)
		b.pass(6 * day)
		testkit.Equal(t, "offset", b.committed("g", 0), 5)
		b.restart(b.m.cfg) // does not start the time again
		b.pass(day + time.Second)
		testkit.Equal(t, "offset", b.committed("g", 0), -1)
	})
	t.Run("a member after days, then a restart", func(t *testing.T) {
		b := newFixture(t, nil)
		b.code("commit", b.commit(commitRequest(9, "g", "", -1, 0, 5)), nil)
		b.pass(6 * day)
		b.newMember("g")
		b.pass(time.Second)
		b.restart(b.m.cfg)
		b.pass(6 * day)
		testkit.Equal(t, "offset", b.committed("g", 0), 5)
		b.pass(day + time.Second)
		testkit.Equal(t, "offset", b.committed("g", 0), -1)
	})
	t.Run("a clock that was behind", func(t *testing.T) {
		b := newFixture(t, nil)
		b.code("commit", b.commit(commitRequest(9, "g", "", -1, 0, 5)), nil)
		b.wall = time.Unix(0, 0)
		b.restart(b.m.cfg)
		b.code("commit", b.commit(commitRequest(9, "g", "", -1, 1, 6)), nil)
		b.wall = time.Unix(1_700_000_000, 0).Add(time.Hour)
		b.pass(day)
		testkit.Equal(t, "offset", b.committed("g", 1), 6)
	})
	t.Run("a clock that stays behind", func(t *testing.T) {
		b := newFixture(t, nil)
		b.code("commit", b.commit(commitRequest(9, "g", "", -1, 0, 5)), nil)
		b.wall = b.wall.Add(-365 * day)
		b.pass(7*day + time.Second)
		testkit.Equal(t, "offset", b.committed("g", 0), -1)
	})
	t.Run("retention of the commit", func(t *testing.T) {
		b := newFixture(t, nil)
		req := commitRequest(4, "g", "", -1, 0, 5)
		req.RetentionTimeMillis = 60_000
		b.code("commit", b.commit(req), nil)
		b.restart(b.m.cfg)
		b.pass(59 * time.Second)
		testkit.Equal(t, "offset", b.committed("g", 0), 5)
		b.pass(2 * time.Second)
		testkit.Equal(t, "offset", b.committed("g", 0), -1)
		req.RetentionTimeMillis = 1<<63 - 1
		b.code("commit", b.commit(req), nil)
		b.pass(300 * day)
		testkit.Equal(t, "offset", b.committed("g", 0), 5)
	})
	t.Run("a removal that fails", func(t *testing.T) {
		b := newFixture(t, nil)
		b.code("commit", b.commit(commitRequest(9, "g", "", -1, 0, 5)), nil)
		b.failing = true
		b.pass(7*day + time.Second)
		testkit.Equal(t, "offset", b.committed("g", 0), 5)
		b.failing = false
		b.pass(time.Minute)
		testkit.Equal(t, "rows", len(b.kept), 0)
	})
}

func TestListsAndDescriptions(t *testing.T) {
	b := newFixture(t, func(c *Config) {
		c.Forbidden = func(c Client, g string) bool { return c.Credential == "reader" && strings.HasPrefix(g, "parley.") }
	})
	leader, _ := b.stableGroup("g")
	b.in(empty, "h")
	list := func(states, types []string) (names string) {
		req := kmsg.NewPtrListGroupsRequest()
		req.Version, req.StatesFilter, req.TypesFilter = 5, states, types
		for _, g := range call[*kmsg.ListGroupsResponse](b, req).Groups {
			names += fmt.Sprintf("%s %s %s %s;", g.Group, g.ProtocolType, g.GroupState, g.GroupType)
		}
		return names
	}
	testkit.Equal(t, "all", list(nil, nil), "g consumer Stable classic;h consumer Empty classic;")
	testkit.Equal(t, "stable", list([]string{"stable"}, nil), "g consumer Stable classic;")
	testkit.Equal(t, "new ones", list(nil, []string{"consumer"}), "")
	b.client.Credential = "parley"
	b.in(empty, "parley.own")
	b.client.Credential = "reader"
	testkit.Equal(t, "all", list(nil, []string{"Classic"}),
		"g consumer Stable classic;h consumer Empty classic;parley.own consumer Empty classic;")
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Version, req.IncludeAuthorizedOperations = 6, true
	req.Groups = []string{"g", "h", "g", "none", "parley.own"}
	res := call[*kmsg.DescribeGroupsResponse](b, req)
	testkit.Equal(t, "groups", len(res.Groups), 4)
	g := res.Groups[0]
	testkit.Equal(t, "group", fmt.Sprint(g.State, g.ProtocolType, g.Protocol, g.AuthorizedOperations),
		"Stableconsumerrange328")
	m := g.Members[0]
	testkit.Equal(t, "member", fmt.Sprint(m.MemberID, m.ClientID, m.ClientHost, string(m.MemberAssignment)),
		leader+"app10.0.0.1A")
	testkit.Equal(t, "instance", *g.Members[1].InstanceID, "two")
	b.code("none", res.Groups[2].ErrorCode, kerr.GroupIDNotFound)
	testkit.Equal(t, "state", res.Groups[2].State, "Dead")
	own := res.Groups[3]
	testkit.Equal(t, "own", fmt.Sprint(own.ErrorCode, own.State, own.AuthorizedOperations), "0Empty256")
	req.Version = 5
	b.code("none", call[*kmsg.DescribeGroupsResponse](b, req).Groups[2].ErrorCode, nil)
}

// A reader can read groups that are forbidden to it, and change nothing of them.
func TestForbiddenGroups(t *testing.T) {
	b := newFixture(t, func(c *Config) {
		c.Forbidden = func(c Client, g string) bool { return c.Credential == "reader" && g == "own" }
	})
	b.client.Credential = "parley"
	b.code("commit of the owner", b.commit(commitRequest(9, "own", "", -1, 0, 5)), nil)
	b.client.Credential = "reader"
	want := kerr.GroupAuthorizationFailed
	b.code("join", call[*kmsg.JoinGroupResponse](b, joinRequest(9, "own", "", "")).ErrorCode, want)
	b.code("sync", call[*kmsg.SyncGroupResponse](b, syncRequest(5, "own", "", 1)).ErrorCode, want)
	b.code("heartbeat", call[*kmsg.HeartbeatResponse](b, heartbeatRequest("own", "", 1)).ErrorCode, want)
	b.code("leave", call[*kmsg.LeaveGroupResponse](b, leaveRequest("own")).ErrorCode, want)
	b.code("commit", b.commit(commitRequest(9, "own", "", -1, 0, 1)), want)
	b.code("delete offsets", call[*kmsg.OffsetDeleteResponse](b, deleteRequest("own", "events", 0)).ErrorCode, want)
	del := kmsg.NewPtrDeleteGroupsRequest()
	del.Groups = []string{"own"}
	b.code("delete", call[*kmsg.DeleteGroupsResponse](b, del).Groups[0].ErrorCode, want)
	testkit.Equal(t, "offset", b.committed("own", 0), 5)
}
