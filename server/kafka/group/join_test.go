package group

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
)

func (b *fixture) heartbeat(id string, generation int32, want *kerr.Error) {
	b.t.Helper()
	b.code("heartbeat of "+id, call[*kmsg.HeartbeatResponse](b, heartbeatRequest("g", id, generation)).ErrorCode, want)
}

// A member learns its id before it joins from version 4 on; a static one does not need to.
func TestHandshake(t *testing.T) {
	for version := int16(2); version <= 9; version++ {
		b := newFixture(t, nil)
		token := b.send(joinRequest(version, "g", "", ""))
		if version >= 4 {
			res := get[*kmsg.JoinGroupResponse](b, token)
			b.code("join", res.ErrorCode, kerr.MemberIDRequired)
			if res.MemberID != "app-id1" {
				t.Fatalf("the id is %q", res.MemberID)
			}
			token = b.send(joinRequest(version, "g", res.MemberID, ""))
		}
		b.pass(time.Second)
		res := get[*kmsg.JoinGroupResponse](b, token)
		b.code("join", res.ErrorCode, nil)
		testkit.Equal(t, "id", res.MemberID, "app-id1")
		testkit.Equal(t, "leader", res.LeaderID, res.MemberID)
		testkit.Equal(t, "generation", res.Generation, 1)
	}
	b := newFixture(t, nil)
	token := b.send(joinRequest(9, "g", "", "one"))
	b.pass(time.Second)
	testkit.Equal(t, "id", get[*kmsg.JoinGroupResponse](b, token).MemberID, "one-id1")
	b.code("unknown id", call[*kmsg.JoinGroupResponse](b, joinRequest(9, "g", "old", "")).ErrorCode, kerr.UnknownMemberID)
	b.code("no group", call[*kmsg.JoinGroupResponse](b, joinRequest(9, "h", "old", "")).ErrorCode, kerr.UnknownMemberID)
	b.code("fenced", call[*kmsg.JoinGroupResponse](b, joinRequest(9, "g", "old", "one")).ErrorCode, kerr.FencedInstanceID)
}

// An id that no member joins with is forgotten after a session, and nothing is left of a group without more.
func TestPendingMembers(t *testing.T) {
	b := newFixture(t, nil)
	res := call[*kmsg.JoinGroupResponse](b, joinRequest(4, "g", "", ""))
	b.pass(10*time.Second + time.Millisecond)
	if len(b.m.groups) != 0 || b.m.bytes != 0 || len(b.m.owned) != 0 || len(b.m.queue) != 0 {
		t.Fatalf("%d groups are left, with %d bytes", len(b.m.groups), b.m.bytes)
	}
	b.code("join", call[*kmsg.JoinGroupResponse](b, joinRequest(4, "g", res.MemberID, "")).ErrorCode, kerr.UnknownMemberID)
	// While it is awaited, a rebalance waits for it.
	leader, follower := b.stableGroup("g")
	call[*kmsg.JoinGroupResponse](b, joinRequest(4, "g", "", ""))
	one := b.send(joinRequest(9, "g", leader, ""))
	two := b.send(joinRequest(9, "g", follower, "two"))
	b.pass(9 * time.Second)
	if b.answers[one] != nil || b.answers[two] != nil {
		t.Fatal("the rebalance does not wait for a member that was given an id")
	}
	b.pass(2 * time.Second)
	testkit.Equal(t, "generation", get[*kmsg.JoinGroupResponse](b, one).Generation, 2)
	testkit.Equal(t, "generation", get[*kmsg.JoinGroupResponse](b, two).Generation, 2)
}

// Members that come within the delay are in the first generation, and each one prolongs it, up to three seconds.
func TestInitialDelay(t *testing.T) {
	b := newFixture(t, nil)
	var tokens []uint64
	for b.now < 2900*time.Millisecond {
		tokens = append(tokens, b.send(joinRequest(2, "g", "", "")))
		b.pass(200 * time.Millisecond)
	}
	b.pass(200 * time.Millisecond)
	for _, token := range tokens {
		testkit.Equal(t, "generation", get[*kmsg.JoinGroupResponse](b, token).Generation, 1)
	}
	alone := newFixture(t, nil)
	token := alone.send(joinRequest(2, "g", "", ""))
	alone.pass(249 * time.Millisecond)
	if alone.answers[token] != nil {
		t.Fatal("the delay is shorter than 250 ms")
	}
	alone.pass(2 * time.Millisecond)
	get[*kmsg.JoinGroupResponse](alone, token)
}

func TestProtocols(t *testing.T) {
	b := newFixture(t, nil)
	var tokens []uint64
	for _, p := range [][]string{{"a", "b", "c"}, {"c", "b"}, {"c", "b", "d"}, {"c", "b"}} {
		tokens = append(tokens, b.send(joinRequest(3, "g", "", "", p...)))
	}
	b.pass(time.Second)
	for _, token := range tokens {
		testkit.Equal(t, "protocol", *get[*kmsg.JoinGroupResponse](b, token).Protocol, "c")
	}
	b.code("nothing in common", call[*kmsg.JoinGroupResponse](b, joinRequest(3, "g", "", "", "a", "d")).ErrorCode,
		kerr.InconsistentGroupProtocol)
	other := joinRequest(3, "g", "", "", "c")
	other.ProtocolType = "connect"
	b.code("another type", call[*kmsg.JoinGroupResponse](b, other).ErrorCode, kerr.InconsistentGroupProtocol)
	other = joinRequest(3, "i", "", "")
	other.Protocols = nil
	b.code("no protocols", call[*kmsg.JoinGroupResponse](b, other).ErrorCode, kerr.InconsistentGroupProtocol)
	if b.m.groups["i"] != nil {
		t.Fatal("a refused request leaves a group")
	}
	sync := syncRequest(5, "g", get[*kmsg.JoinGroupResponse](b, tokens[0]).MemberID, 1)
	sync.Protocol = kmsg.StringPtr("b")
	b.code("sync", call[*kmsg.SyncGroupResponse](b, sync).ErrorCode, kerr.InconsistentGroupProtocol)
	sync.Protocol, sync.ProtocolType = nil, kmsg.StringPtr("connect")
	b.code("sync", call[*kmsg.SyncGroupResponse](b, sync).ErrorCode, kerr.InconsistentGroupProtocol)
}

func TestJoinAgain(t *testing.T) {
	b := newFixture(t, nil)
	leader, follower := b.stableGroup("g")
	res := call[*kmsg.JoinGroupResponse](b, joinRequest(9, "g", follower, "two"))
	testkit.Equal(t, "generation of a follower without news", res.Generation, 1)
	testkit.Equal(t, "members told to a follower", len(res.Members), 0)
	b.heartbeat(leader, 1, nil)
	token := b.send(joinRequest(9, "g", leader, "")) // a leader that joins wants a rebalance
	b.code("sync", call[*kmsg.SyncGroupResponse](b, syncRequest(5, "g", leader, 1)).ErrorCode, kerr.RebalanceInProgress)
	again := b.send(joinRequest(9, "g", leader, "")) // over another connection
	b.code("first connection", get[*kmsg.JoinGroupResponse](b, token).ErrorCode, kerr.RebalanceInProgress)
	b.send(joinRequest(9, "g", follower, "two"))
	testkit.Equal(t, "generation", get[*kmsg.JoinGroupResponse](b, again).Generation, 2)
	res = call[*kmsg.JoinGroupResponse](b, joinRequest(9, "g", leader, "")) // the answer was lost
	testkit.Equal(t, "generation", res.Generation, 2)
	testkit.Equal(t, "members told to the leader", len(res.Members), 2)
}

// A static member that comes back without its id gets its assignment, and a leader is told not to assign again.
func TestStaticMemberReturns(t *testing.T) {
	for _, version := range []int16{5, 9} {
		b := newFixture(t, nil)
		token := b.send(joinRequest(version, "g", "", "one"))
		b.pass(time.Second)
		old := get[*kmsg.JoinGroupResponse](b, token).MemberID
		call[*kmsg.SyncGroupResponse](b, syncRequest(5, "g", old, 1, old, "A"))
		res := call[*kmsg.JoinGroupResponse](b, joinRequest(version, "g", "", "one"))
		testkit.Equal(t, "generation", res.Generation, 1)
		testkit.Equal(t, "skip", res.SkipAssignment, version == 9)
		testkit.Equal(t, "told that it leads", res.LeaderID == res.MemberID, version == 9)
		testkit.Equal(t, "members", len(res.Members), map[bool]int{true: 1, false: 0}[version == 9])
		testkit.Equal(t, "assignment", string(call[*kmsg.SyncGroupResponse](b,
			syncRequest(5, "g", res.MemberID, 1)).MemberAssignment), "A")
		heartbeat := heartbeatRequest("g", old, 1)
		heartbeat.InstanceID = kmsg.StringPtr("one")
		b.code("heartbeat of the old one", call[*kmsg.HeartbeatResponse](b, heartbeat).ErrorCode, kerr.FencedInstanceID)
		b.heartbeat(old, 1, kerr.UnknownMemberID)
		b.code("commit of the old one", b.commit(commitRequest(9, "g", old, 1, 0, 1)), kerr.UnknownMemberID)
		testkit.Equal(t, "offset", b.committed("g", 0), -1)
		// With another protocol, the group rebalances.
		token = b.send(joinRequest(version, "g", "", "one", "other"))
		b.code("other protocol", get[*kmsg.JoinGroupResponse](b, token).ErrorCode, kerr.InconsistentGroupProtocol)
		token = b.send(joinRequest(version, "g", "", "one", "other", "range"))
		testkit.Equal(t, "generation", get[*kmsg.JoinGroupResponse](b, token).Generation, 2)
	}
}

// In the middle of a generation the leader would assign to the old id: the group rebalances once more.
func TestStaticMemberReturnsBeforeTheAssignment(t *testing.T) {
	b := newFixture(t, nil)
	leader, follower := b.in(completing, "g")
	wait := b.send(syncRequest(5, "g", follower, 2))
	token := b.send(joinRequest(9, "g", "", "two"))
	b.code("wait of the old one", get[*kmsg.SyncGroupResponse](b, wait).ErrorCode, kerr.FencedInstanceID)
	b.heartbeat(leader, 2, kerr.RebalanceInProgress)
	b.send(joinRequest(9, "g", leader, ""))
	testkit.Equal(t, "generation", get[*kmsg.JoinGroupResponse](b, token).Generation, 3)
}

func TestTimeouts(t *testing.T) {
	t.Run("session", func(t *testing.T) {
		b := newFixture(t, nil)
		leader, follower := b.stableGroup("g")
		b.pass(9 * time.Second)
		b.heartbeat(leader, 1, nil)
		b.pass(2 * time.Second)
		b.heartbeat(leader, 1, kerr.RebalanceInProgress)
		b.heartbeat(follower, 1, kerr.UnknownMemberID)
		b.code("commit in a rebalance", b.commit(commitRequest(9, "g", leader, 1, 0, 4)), nil)
		b.code("commit of the removed member", b.commit(commitRequest(9, "g", follower, 1, 0, 9)), kerr.UnknownMemberID)
		testkit.Equal(t, "offset", b.committed("g", 0), 4)
	})
	t.Run("rebalance", func(t *testing.T) {
		b := newFixture(t, nil)
		leader, follower := b.stableGroup("g")
		token := b.send(joinRequest(9, "g", follower, "two", "range", "other"))
		for range 6 { // alive, but it does not join
			b.pass(3 * time.Second)
			b.heartbeat(leader, 1, kerr.RebalanceInProgress)
		}
		b.pass(2 * time.Second)
		res := get[*kmsg.JoinGroupResponse](b, token)
		testkit.Equal(t, "leader", res.LeaderID, follower)
		b.heartbeat(leader, 1, kerr.UnknownMemberID)
	})
	t.Run("assignment", func(t *testing.T) {
		b := newFixture(t, nil)
		leader, follower := b.in(completing, "g")
		wait := b.send(syncRequest(5, "g", follower, 2))
		for range 6 {
			b.pass(3 * time.Second)
			b.heartbeat(leader, 2, nil)
		}
		b.pass(3 * time.Second)
		b.code("wait for an assignment", get[*kmsg.SyncGroupResponse](b, wait).ErrorCode, kerr.RebalanceInProgress)
		b.heartbeat(leader, 2, kerr.UnknownMemberID)
	})
	t.Run("late wake", func(t *testing.T) {
		b := newFixture(t, nil)
		_, follower := b.stableGroup("g")
		b.now += time.Hour // both sessions and all that follows are long over
		b.code("join", b.answer(b.send(joinRequest(9, "g", follower, "two", "range", "x"))), nil)
		b.m.wake(b.moment())
		b.flush()
		b.pass(time.Second)
		if g := b.m.groups["g"]; g.find(follower) == nil || g.state != completing {
			t.Fatalf("the group is %s", g.state)
		}
	})
}

// answer returns the code of a JoinGroup, 0 if it waits.
func (b *fixture) answer(token uint64) int16 {
	if res, ok := b.answers[token].(*kmsg.JoinGroupResponse); ok {
		return res.ErrorCode
	}
	return 0
}

// A member whose connection ends before it knows its id is removed; another may come back.
func TestLostConnections(t *testing.T) {
	b := newFixture(t, nil)
	token := b.send(joinRequest(2, "g", "", ""))
	b.m.forget(b.moment(), token)
	b.flush()
	b.pass(time.Second)
	testkit.Equal(t, "state", b.m.groups["g"].state, empty)
	id, token := b.newMember("h")
	b.m.forget(b.moment(), token)
	b.pass(time.Second)
	if b.answers[token] != nil || b.m.groups["h"].find(id) == nil {
		t.Fatal("a member that knows its id is not there any more")
	}
	token = b.send(joinRequest(9, "h", id, ""))
	testkit.Equal(t, "generation", get[*kmsg.JoinGroupResponse](b, token).Generation, 1)
}

func TestLeave(t *testing.T) {
	b := newFixture(t, nil)
	leader, follower := b.stableGroup("g")
	req := leaveRequest("g", kmsg.LeaveGroupRequestMember{MemberID: "nobody"},
		kmsg.LeaveGroupRequestMember{InstanceID: kmsg.StringPtr("two")},
		kmsg.LeaveGroupRequestMember{InstanceID: kmsg.StringPtr("three")},
		kmsg.LeaveGroupRequestMember{MemberID: follower, InstanceID: kmsg.StringPtr("two")})
	res := call[*kmsg.LeaveGroupResponse](b, req)
	for i, want := range []*kerr.Error{kerr.UnknownMemberID, nil, kerr.UnknownMemberID, kerr.UnknownMemberID} {
		b.code(fmt.Sprint("member ", i), res.Members[i].ErrorCode, want)
	}
	b.heartbeat(leader, 1, kerr.RebalanceInProgress)
	old := kmsg.NewPtrLeaveGroupRequest()
	old.Version, old.Group, old.MemberID = 2, "g", "nobody"
	b.code("version 2", call[*kmsg.LeaveGroupResponse](b, old).ErrorCode, kerr.UnknownMemberID)
	old.MemberID = leader
	b.code("version 2", call[*kmsg.LeaveGroupResponse](b, old).ErrorCode, nil)
	testkit.Equal(t, "state", b.m.groups["g"].state, empty)
	testkit.Equal(t, "bytes", b.m.bytes, 0)
	b.code("no group", call[*kmsg.LeaveGroupResponse](b, leaveRequest("h",
		kmsg.LeaveGroupRequestMember{MemberID: leader})).Members[0].ErrorCode, kerr.UnknownMemberID)
}

// A member that is removed while it waits is told so.
func TestRemovedWhileWaiting(t *testing.T) {
	b := newFixture(t, nil)
	_, follower := b.in(completing, "g")
	wait := b.send(syncRequest(5, "g", follower, 2))
	leave := leaveRequest("g", kmsg.LeaveGroupRequestMember{InstanceID: kmsg.StringPtr("two")})
	b.code("leave", call[*kmsg.LeaveGroupResponse](b, leave).Members[0].ErrorCode, nil)
	b.code("wait for an assignment", get[*kmsg.SyncGroupResponse](b, wait).ErrorCode, kerr.UnknownMemberID)
	token := b.send(joinRequest(9, "g", "", "two"))
	b.code("leave", call[*kmsg.LeaveGroupResponse](b, leave).Members[0].ErrorCode, nil)
	b.code("wait for a generation", get[*kmsg.JoinGroupResponse](b, token).ErrorCode, kerr.UnknownMemberID)
}

// A generation that cannot be stored is not told to members; they join again.
func TestGenerationIsStoredFirst(t *testing.T) {
	b := newFixture(t, nil)
	b.lazy = true
	id, token := b.newMember("g")
	b.pass(time.Second)
	if b.answers[token] != nil {
		t.Fatal("a member is told of a generation that is not stored")
	}
	b.failing = true
	b.settle()
	b.code("join", get[*kmsg.JoinGroupResponse](b, token).ErrorCode, kerr.CoordinatorNotAvailable)
	b.failing, b.lazy = false, false
	res := call[*kmsg.JoinGroupResponse](b, joinRequest(9, "g", id, ""))
	b.code("join", res.ErrorCode, nil)
	testkit.Equal(t, "generation", res.Generation, 2)
	b.restart(b.m.cfg)
	b.heartbeat(id, 2, kerr.UnknownMemberID)
	_, token = b.newMember("g")
	b.pass(time.Second)
	testkit.Equal(t, "generation after a restart", get[*kmsg.JoinGroupResponse](b, token).Generation, 3)
}
