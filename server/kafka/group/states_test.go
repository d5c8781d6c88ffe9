package group

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// topics are those of all tests.
type topics []Topic

func (t topics) ByName(name string) (Topic, bool) {
	i := slices.IndexFunc(t, func(t Topic) bool { return t.Name == name })
	if i < 0 {
		return Topic{}, false
	}
	return t[i], true
}

func (t topics) ByID(id [16]byte) (Topic, bool) {
	i := slices.IndexFunc(t, func(t Topic) bool { return t.ID == id })
	if i < 0 {
		return Topic{}, false
	}
	return t[i], true
}

var tested = topics{{Name: "events", ID: [16]byte{7}, Partitions: 6}, {Name: "letters", ID: [16]byte{8}, Partitions: 2}}

// fixture drives a machine by hand.
type fixture struct {
	t       *testing.T
	m       *machine
	now     time.Duration
	wall    time.Time
	token   uint64
	answers map[uint64]kmsg.Response
	pending []Row
	number  uint64
	kept    map[string][]byte
	client  Client
	lazy    bool // writes are stored by settle only
	failing bool
}

func newFixture(t *testing.T, change func(*Config)) *fixture {
	cfg := Config{Topics: tested}
	if change != nil {
		change(&cfg)
	}
	b := &fixture{
		t: t, wall: time.Unix(1_700_000_000, 0), answers: map[uint64]kmsg.Response{}, kept: map[string][]byte{},
		client: Client{Credential: "reader", ID: "app", Host: "10.0.0.1"},
	}
	b.restart(cfg)
	return b
}

func (b *fixture) restart(cfg Config) {
	b.t.Helper()
	all := rows{groups: map[string]header{}, offsets: map[string]map[partitionKey]offset{}}
	for k, v := range b.kept {
		if err := all.add(Row{[]byte(k), v}); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := all.check(); err != nil {
		b.t.Fatal(err)
	}
	b.m = newMachine(cfg.withDefaults(), all, b.moment())
	b.pending = nil
	b.flush()
}

func (b *fixture) moment() moment { return moment{b.now, b.wall} }

func (b *fixture) flush() {
	rows, number, replies := b.m.take()
	b.pending, b.number = append(b.pending, rows...), number
	for _, r := range replies {
		if b.answers[r.token] != nil {
			b.t.Fatalf("request %d is answered twice", r.token)
		}
		b.answers[r.token] = r.body
	}
	if !b.lazy && len(b.pending) > 0 {
		b.settle()
	}
}

// settle stores what was written.
func (b *fixture) settle() {
	for _, r := range b.pending {
		switch {
		case b.failing:
		case r.Value == nil:
			delete(b.kept, string(r.Key))
		default:
			b.kept[string(r.Key)] = r.Value
		}
	}
	b.pending = nil
	b.m.stored(b.moment(), b.number, b.failing)
	b.flush()
}

func (b *fixture) pass(d time.Duration) {
	for end := b.now + d; b.now < end; {
		step := min(end, max(b.m.next(), b.now+1)) - b.now
		b.now, b.wall = b.now+step, b.wall.Add(step)
		b.m.wake(b.moment())
		b.flush()
	}
}

// send returns the token of a request that may not be answered at once.
func (b *fixture) send(req kmsg.Request) uint64 {
	b.token++
	b.m.handle(b.moment(), request{token: b.token, client: b.client, body: req, fresh: fmt.Sprintf("id%d", b.token)})
	b.flush()
	return b.token
}

func get[R kmsg.Response](b *fixture, token uint64) R {
	b.t.Helper()
	r, ok := b.answers[token].(R)
	if !ok {
		b.t.Fatalf("request %d has the answer %T", token, b.answers[token])
	}
	return r
}

func call[R kmsg.Response](b *fixture, req kmsg.Request) R {
	b.t.Helper()
	return get[R](b, b.send(req))
}

func (b *fixture) code(what string, got int16, want *kerr.Error) {
	b.t.Helper()
	code := int16(0)
	if want != nil {
		code = want.Code
	}
	if got != code {
		b.t.Fatalf("%s: got %v, want %v", what, kerr.ErrorForCode(got), kerr.ErrorForCode(code))
	}
}

func joinRequest(version int16, group, id, instance string, protocols ...string) *kmsg.JoinGroupRequest {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.ProtocolType = version, group, id, "consumer"
	req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = 10_000, 20_000
	if instance != "" {
		req.InstanceID = &instance
	}
	if protocols == nil {
		protocols = []string{"range"}
	}
	for _, p := range protocols {
		var meta kmsg.ConsumerMemberMetadata
		meta.Topics = []string{"events"}
		req.Protocols = append(req.Protocols, kmsg.JoinGroupRequestProtocol{Name: p, Metadata: meta.AppendTo(nil)})
	}
	return req
}

func syncRequest(version int16, group, id string, generation int32, assign ...string) *kmsg.SyncGroupRequest {
	req := kmsg.NewPtrSyncGroupRequest()
	req.Version, req.Group, req.MemberID, req.Generation = version, group, id, generation
	for i := 0; i < len(assign); i += 2 {
		req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{
			MemberID: assign[i], MemberAssignment: []byte(assign[i+1]),
		})
	}
	return req
}

func heartbeatRequest(group, id string, generation int32) *kmsg.HeartbeatRequest {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 4, group, id, generation
	return req
}

func leaveRequest(group string, members ...kmsg.LeaveGroupRequestMember) *kmsg.LeaveGroupRequest {
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Version, req.Group, req.Members = 5, group, members
	return req
}

func commitRequest(
	version int16, group, id string, generation int32, partition int32, at int64,
) *kmsg.OffsetCommitRequest {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = version, group, id, generation
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Partition, p.Offset, p.LeaderEpoch = partition, at, 3
	p.Metadata = new(string)
	t := kmsg.OffsetCommitRequestTopic{Topic: "events", TopicID: [16]byte{7}}
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	return req
}

// commit returns the code of a commit of one partition.
func (b *fixture) commit(req *kmsg.OffsetCommitRequest) int16 {
	b.t.Helper()
	return call[*kmsg.OffsetCommitResponse](b, req).Topics[0].Partitions[0].ErrorCode
}

// committed returns the committed offset of a partition of events, or -1.
func (b *fixture) committed(group string, partition int32) int64 {
	b.t.Helper()
	res := get[*kmsg.OffsetFetchResponse](b, b.send(fetchRequest(group, partition)))
	return res.Groups[0].Topics[0].Partitions[0].Offset
}

func fetchRequest(group string, partition int32) *kmsg.OffsetFetchRequest {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Version = 9
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group = group
	g.Topics = []kmsg.OffsetFetchRequestGroupTopic{{Topic: "events", Partitions: []int32{partition}}}
	req.Groups = append(req.Groups, g)
	return req
}

// newMember takes a member through the handshake; its JoinGroup may wait.
func (b *fixture) newMember(group string) (id string, token uint64) {
	b.t.Helper()
	res := call[*kmsg.JoinGroupResponse](b, joinRequest(9, group, "", ""))
	b.code("first join", res.ErrorCode, kerr.MemberIDRequired)
	return res.MemberID, b.send(joinRequest(9, group, res.MemberID, ""))
}

// stableGroup makes a group of a dynamic leader and a static follower with the instance id "two", in generation 1.
func (b *fixture) stableGroup(group string) (leader, follower string) {
	b.t.Helper()
	leader, one := b.newMember(group)
	two := b.send(joinRequest(9, group, "", "two"))
	b.pass(2 * initialDelay)
	first, second := get[*kmsg.JoinGroupResponse](b, one), get[*kmsg.JoinGroupResponse](b, two)
	b.code("join", first.ErrorCode, nil)
	b.code("join", second.ErrorCode, nil)
	if follower = second.MemberID; len(first.Members) != 2 || first.LeaderID != leader || len(second.Members) != 0 {
		b.t.Fatalf("the members are %+v for the leader, %+v for the other", first, second)
	}
	wait := b.send(syncRequest(5, group, follower, 1))
	res := call[*kmsg.SyncGroupResponse](b, syncRequest(5, group, leader, 1, leader, "A", follower, "B"))
	other := get[*kmsg.SyncGroupResponse](b, wait)
	if string(res.MemberAssignment) != "A" || string(other.MemberAssignment) != "B" {
		b.t.Fatalf("assignments are %q and %q", res.MemberAssignment, other.MemberAssignment)
	}
	return leader, follower
}

// in brings a new group into a state, in which the leader is a member of generation 1.
func (b *fixture) in(s state, group string) (leader, follower string) {
	b.t.Helper()
	leader, follower = b.stableGroup(group)
	switch s {
	case stable:
	case preparing:
		b.newMember(group)
	case completing:
		b.send(joinRequest(9, group, follower, "two", "range", "other"))
		res := call[*kmsg.JoinGroupResponse](b, joinRequest(9, group, leader, ""))
		b.code("join again", res.ErrorCode, nil)
	case empty:
		call[*kmsg.LeaveGroupResponse](b, leaveRequest(group,
			kmsg.LeaveGroupRequestMember{MemberID: leader}, kmsg.LeaveGroupRequestMember{MemberID: follower}))
	case dead:
		b.in(empty, group+"-")
		b.lazy = true
		call := kmsg.NewPtrDeleteGroupsRequest()
		call.Groups = []string{group + "-"}
		b.send(call)
	}
	return leader, follower
}

func TestAnswersByState(t *testing.T) {
	type row struct {
		state                                           state
		heartbeat, sync, commit, simple, leave, deletes *kerr.Error
	}
	for _, r := range []row{
		{empty, kerr.UnknownMemberID, kerr.UnknownMemberID, kerr.UnknownMemberID, nil, kerr.UnknownMemberID, nil},
		{preparing, kerr.RebalanceInProgress, kerr.RebalanceInProgress, nil, kerr.UnknownMemberID, nil, kerr.NonEmptyGroup},
		{completing, nil, nil, kerr.RebalanceInProgress, kerr.UnknownMemberID, nil, kerr.NonEmptyGroup},
		{stable, nil, nil, nil, kerr.UnknownMemberID, nil, kerr.NonEmptyGroup},
	} {
		t.Run(r.state.String(), func(t *testing.T) {
			b := newFixture(t, nil)
			leader, follower := b.in(r.state, "g")
			g := b.m.groups["g"]
			if g.state != r.state {
				t.Fatalf("the group is %s", g.state)
			}
			gen := g.generation
			b.code("heartbeat", call[*kmsg.HeartbeatResponse](b, heartbeatRequest("g", leader, gen)).ErrorCode, r.heartbeat)
			b.code("commit", b.commit(commitRequest(9, "g", leader, gen, 0, 5)), r.commit)
			b.code("simple commit", b.commit(commitRequest(9, "g", "", -1, 1, 6)), r.simple)
			if r.state != empty {
				b.code("heartbeat of the generation before",
					call[*kmsg.HeartbeatResponse](b, heartbeatRequest("g", leader, gen-1)).ErrorCode, kerr.IllegalGeneration)
				b.code("commit of the generation before",
					b.commit(commitRequest(9, "g", leader, gen-1, 0, 7)), kerr.IllegalGeneration)
				b.code("sync of the generation before",
					call[*kmsg.SyncGroupResponse](b, syncRequest(5, "g", leader, gen-1)).ErrorCode, kerr.IllegalGeneration)
				late := commitRequest(9, "g", leader, gen, 0, 8)
				late.InstanceID = kmsg.StringPtr("two")
				b.code("commit under another's instance id", b.commit(late), kerr.FencedInstanceID)
			}
			b.code("commit of a stranger", b.commit(commitRequest(9, "g", "somebody", gen, 0, 9)), kerr.UnknownMemberID)
			del := kmsg.NewPtrDeleteGroupsRequest()
			del.Groups = []string{"g"}
			if r.state != empty {
				b.code("delete", call[*kmsg.DeleteGroupsResponse](b, del).Groups[0].ErrorCode, r.deletes)
			}
			sync := call[*kmsg.SyncGroupResponse](b, syncRequest(5, "g", leader, gen, leader, "A", follower, "B"))
			b.code("sync", sync.ErrorCode, r.sync)
			leave := call[*kmsg.LeaveGroupResponse](b, leaveRequest("g", kmsg.LeaveGroupRequestMember{MemberID: leader}))
			b.code("leave", leave.ErrorCode, nil)
			b.code("leave", leave.Members[0].ErrorCode, r.leave)
			if r.state == empty {
				b.code("delete", call[*kmsg.DeleteGroupsResponse](b, del).Groups[0].ErrorCode, r.deletes)
				if len(b.kept) != 0 {
					t.Fatalf("%d rows are left of a deleted group", len(b.kept))
				}
			}
		})
	}
}

// A group whose removal is being stored answers nothing that depends on it.
func TestDeadGroup(t *testing.T) {
	b := newFixture(t, nil)
	leader, _ := b.in(dead, "g")
	b.code("join", call[*kmsg.JoinGroupResponse](b, joinRequest(9, "g-", "", "")).ErrorCode, kerr.CoordinatorNotAvailable)
	b.code("heartbeat", call[*kmsg.HeartbeatResponse](b, heartbeatRequest("g-", leader, 1)).ErrorCode,
		kerr.CoordinatorNotAvailable)
	b.code("commit", b.commit(commitRequest(9, "g-", "", -1, 0, 1)), kerr.CoordinatorNotAvailable)
	b.code("leave", call[*kmsg.LeaveGroupResponse](b, leaveRequest("g-")).ErrorCode, kerr.CoordinatorNotAvailable)
	del := kmsg.NewPtrOffsetDeleteRequest()
	del.Group = "g-"
	b.code("delete offsets", call[*kmsg.OffsetDeleteResponse](b, del).ErrorCode, kerr.GroupIDNotFound)
	b.failing = true
	b.settle()
	b.failing, b.lazy = false, false
	b.code("commit after the removal failed", b.commit(commitRequest(9, "g-", "", -1, 0, 1)), nil)
}
