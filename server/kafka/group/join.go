package group

import (
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// maxProtocols bounds the assignors that a member has; clients have up to four.
const maxProtocols = 32

func (m *machine) refuseJoinRequest(r request, id string, code int16) {
	m.reply(r.token, joinResponse(r.body.GetVersion(), id, code))
}

func joinResponse(version int16, id string, code int16) *kmsg.JoinGroupResponse {
	res := kmsg.NewPtrJoinGroupResponse()
	res.Version, res.ErrorCode, res.MemberID = version, code, id
	return res
}

// joinBounds returns the code that refuses a request whose values are out of bounds.
func (m *machine) joinBounds(c Client, req *kmsg.JoinGroupRequest) int16 {
	session := time.Duration(req.SessionTimeoutMillis) * time.Millisecond
	switch {
	case req.Group == "" || len(req.Group) > m.cfg.Limits.Name:
		return kerr.InvalidGroupID.Code
	case m.cfg.Forbidden(c, req.Group):
		return kerr.GroupAuthorizationFailed.Code
	case session < minSession || session > maxSession:
		return kerr.InvalidSessionTimeout.Code
	case req.InstanceID != nil && len(*req.InstanceID) > m.cfg.Limits.Name, len(req.ProtocolType) > m.cfg.Limits.Name:
		return kerr.InvalidRequest.Code
	case len(req.Protocols) > maxProtocols:
		return kerr.InconsistentGroupProtocol.Code
	}
	for _, p := range req.Protocols {
		if len(p.Name) > m.cfg.Limits.Name {
			return kerr.InvalidRequest.Code
		}
	}
	return 0
}

func (m *machine) join(r request, req *kmsg.JoinGroupRequest) {
	if code := m.joinBounds(r.client, req); code != 0 {
		m.refuseJoinRequest(r, req.MemberID, code)
		return
	}
	g := m.groups[req.Group]
	switch {
	case g == nil && req.MemberID != "":
		m.refuseJoinRequest(r, req.MemberID, kerr.UnknownMemberID.Code)
		return
	case g == nil && m.full(r.client):
		m.refuseJoinRequest(r, "", kerr.GroupMaxSizeReached.Code)
		return
	case g == nil:
		g = m.create(req.Group, r.client.Credential)
	}
	defer m.touched(g)
	switch code := g.admit(req); {
	case code != 0:
		m.refuseJoinRequest(r, req.MemberID, code)
	case !g.accepts(req.MemberID, m.cfg.Limits.Members) || !m.fits(g, r, req):
		m.refuseJoinRequest(r, "", kerr.GroupMaxSizeReached.Code)
	case req.MemberID == "":
		m.joinNew(g, r, req)
	default:
		m.joinAgain(g, r, req)
	}
}

// admit returns the code that refuses a request because of the group's state.
func (g *group) admit(req *kmsg.JoinGroupRequest) int16 {
	switch {
	case g.state == dead:
		return kerr.CoordinatorNotAvailable.Code
	case !g.supports(req.ProtocolType, req.Protocols):
		return kerr.InconsistentGroupProtocol.Code
	case req.MemberID == "" || (g.isPending(req.MemberID) && req.InstanceID == nil):
		return 0
	}
	_, code := g.check(req.MemberID, req.InstanceID)
	return code
}

// accepts reports whether there is room for the member. While the group prepares, members that may not come back leave
// theirs.
func (g *group) accepts(id string, limit int) bool {
	x := g.find(id)
	if g.state == preparing {
		waiting := 0
		for _, y := range g.members {
			if y.joining {
				waiting++
			}
		}
		return (x != nil && x.joining) || waiting < limit
	}
	return x != nil || len(g.members) < limit
}

func joinBytes(c Client, req *kmsg.JoinGroupRequest) int {
	n := 256 + len(c.ID) + len(c.Host) // and what Go needs for a member
	if req.InstanceID != nil {
		n += len(*req.InstanceID)
	}
	for _, p := range req.Protocols {
		n += 64 + len(p.Name) + len(p.Metadata)
	}
	return n
}

// fits reports whether there is room for what a member would be kept with.
func (m *machine) fits(g *group, r request, req *kmsg.JoinGroupRequest) bool {
	n, was := joinBytes(r.client, req), 0
	if x := g.find(req.MemberID); x != nil {
		was = x.bytes
	} else if req.InstanceID != nil {
		if x := g.static(*req.InstanceID); x != nil {
			was = x.bytes
		}
	}
	l := m.cfg.Limits
	return n <= l.MemberBytes && g.bytes-g.assigned+n-was <= l.GroupBytes && m.bytes+n-was <= l.Bytes
}

// joinNew takes a member without an id.
func (m *machine) joinNew(g *group, r request, req *kmsg.JoinGroupRequest) {
	name := r.client.ID
	if req.InstanceID != nil {
		name = *req.InstanceID
	}
	// Clients give the id back as text, so it has no half of a character.
	id := strings.ToValidUTF8(name[:min(len(name), m.cfg.Limits.Name)], "") + "-" + r.fresh
	switch {
	case req.InstanceID != nil:
		if x := g.static(*req.InstanceID); x != nil {
			m.replace(g, x, id, r, req)
			return
		}
		m.add(g, id, r, req)
	case req.Version >= 4:
		if len(g.pending) >= m.cfg.Limits.Members {
			m.refuseJoinRequest(r, "", kerr.GroupMaxSizeReached.Code)
			return
		}
		g.pending = append(g.pending, pendingMember{id, m.now + time.Duration(req.SessionTimeoutMillis)*time.Millisecond})
		m.count(g, pendingBytes)
		m.refuseJoinRequest(r, id, kerr.MemberIDRequired.Code)
	default:
		m.add(g, id, r, req)
	}
}

// add makes a member.
func (m *machine) add(g *group, id string, r request, req *kmsg.JoinGroupRequest) {
	x := &member{
		id: id, instance: req.InstanceID, fresh: true, unaware: req.MemberID == "" && req.InstanceID == nil,
		until: m.now + newMemberTimeout,
	}
	if len(g.members) == 0 {
		g.kind, g.leader = req.ProtocolType, id
	}
	m.unpendID(g, id)
	g.members = append(g.members, x)
	g.newMember = true
	m.update(g, x, r, req)
	m.await(x, r)
	m.rebalance(g)
}

// update takes what a request says of a member.
func (m *machine) update(g *group, x *member, r request, req *kmsg.JoinGroupRequest) {
	x.client = r.client
	x.session = time.Duration(req.SessionTimeoutMillis) * time.Millisecond
	if x.rebalance = time.Duration(req.RebalanceTimeoutMillis) * time.Millisecond; x.rebalance <= 0 {
		x.rebalance = x.session
	}
	x.protocols = x.protocols[:0:0]
	for _, p := range req.Protocols {
		x.protocols = append(x.protocols, protocol{p.Name, slices.Clone(p.Metadata)})
	}
	n := joinBytes(r.client, req)
	m.count(g, n-x.bytes)
	x.bytes = n
}

// await makes a member wait for the next generation. If it waits already, it has come over another connection.
func (m *machine) await(x *member, r request) {
	m.refuseJoin(x, kerr.RebalanceInProgress.Code)
	m.refuseSync(x, kerr.RebalanceInProgress.Code)
	x.joining, x.join = true, waiter{r.token, r.body.GetVersion()}
}

func (m *machine) refuseJoin(x *member, code int16) {
	if x.joining {
		id := x.id
		if code == kerr.UnknownMemberID.Code {
			id = ""
		}
		m.reply(x.join.token, joinResponse(x.join.version, id, code))
		x.joining, x.join = false, waiter{}
	}
}

// joinAgain takes a member with an id, or one that was given an id just now.
func (m *machine) joinAgain(g *group, r request, req *kmsg.JoinGroupRequest) {
	x := g.find(req.MemberID)
	if x == nil {
		m.add(g, req.MemberID, r, req)
		return
	}
	same := slices.EqualFunc(x.protocols, req.Protocols, func(p protocol, q kmsg.JoinGroupRequestProtocol) bool {
		return p.name == q.Name && string(p.metadata) == string(q.Metadata)
	})
	if same && (g.state == completing || (g.state == stable && g.leader != x.id)) {
		// It did not get the answer, or joins without a reason.
		m.joined(g, x, waiter{r.token, req.Version}, g.leader, false)
		return
	}
	m.update(g, x, r, req)
	m.await(x, r)
	m.rebalance(g)
}

// replace gives the place of a static member to one that has the same instance id and no member id. The old one is
// fenced. If the group stays as it is, the new one gets the assignment of the old one without a rebalance.
func (m *machine) replace(g *group, x *member, id string, r request, req *kmsg.JoinGroupRequest) {
	leader := g.leader
	m.refuseJoin(x, kerr.FencedInstanceID.Code)
	m.refuseSync(x, kerr.FencedInstanceID.Code)
	if g.leader == x.id {
		g.leader = id
	}
	x.id = id
	m.update(g, x, r, req)
	if !x.fresh {
		x.until = m.now + x.session
	}
	switch {
	case g.state == stable && g.choose() == g.protocol:
		skip := g.leader == id && req.Version >= 9
		if skip {
			leader = id
		}
		// An older client that is told that it leads would assign, and the others would not learn of it.
		m.joined(g, x, waiter{r.token, req.Version}, leader, skip)
	default:
		// In the middle of a generation, the leader assigns to the id that is gone.
		m.await(x, r)
		m.rebalance(g)
	}
}

// joined tells a member of the generation, once its row is durable. skip tells a leader to leave assignments as they
// are.
func (m *machine) joined(g *group, x *member, to waiter, leader string, skip bool) {
	res := joinResponse(to.version, x.id, 0)
	res.Generation, res.LeaderID, res.SkipAssignment = g.generation, leader, skip
	kind, name := g.kind, g.protocol
	res.ProtocolType, res.Protocol = &kind, &name
	if leader == x.id {
		for _, y := range g.members {
			one := kmsg.NewJoinGroupResponseMember()
			one.MemberID, one.InstanceID, one.ProtocolMetadata = y.id, y.instance, y.metadata(g.protocol)
			res.Members = append(res.Members, one)
		}
	}
	id := x.id
	m.answerAfter(g.headerWrite, to.token, func(failed bool) kmsg.Response {
		if failed {
			return joinResponse(to.version, id, kerr.CoordinatorNotAvailable.Code)
		}
		return res
	})
}

// rebalance starts a rebalance, or goes on with the one that there is.
func (m *machine) rebalance(g *group) {
	if g.state == preparing {
		m.tryComplete(g)
		return
	}
	m.prepare(g)
}

// prepare starts a rebalance: all members have to join.
func (m *machine) prepare(g *group) {
	if g.state == completing {
		m.assign(g, nil)
		for _, x := range g.members {
			m.refuseSync(x, kerr.RebalanceInProgress.Code)
		}
	}
	for _, x := range g.members {
		x.unsynced = false
	}
	g.syncBy = never
	g.initial = g.state == empty
	g.state = preparing
	if g.initial {
		g.newMember = false
		g.initialEnd = m.now + min(max(initialMax, m.initialDelay), g.rebalanceTimeout())
		g.joinBy = min(m.now+m.initialDelay, g.initialEnd)
		return
	}
	g.joinBy = m.now + g.rebalanceTimeout()
	m.tryComplete(g)
}

// tryComplete ends preparing if there is nothing to wait for.
func (m *machine) tryComplete(g *group) {
	if g.state != preparing || g.initial || len(g.pending) > 0 ||
		slices.ContainsFunc(g.members, func(x *member) bool { return !x.joining }) {
		return
	}
	m.complete(g)
}

// joinTimeout ends preparing, or prolongs the delay of a first generation.
func (m *machine) joinTimeout(g *group) {
	if g.initial && g.newMember && m.now < g.initialEnd {
		g.newMember = false
		g.joinBy = min(m.now+m.initialDelay, g.initialEnd)
		return
	}
	m.complete(g)
}

// complete begins a generation with the members that have joined, and with static ones that may still come back.
func (m *machine) complete(g *group) {
	for _, x := range slices.Clone(g.members) {
		if !x.joining && x.instance == nil {
			m.remove(g, x, kerr.UnknownMemberID.Code)
		}
	}
	if x := g.find(g.leader); len(g.members) > 0 && (x == nil || !x.joining) {
		i := slices.IndexFunc(g.members, func(x *member) bool { return x.joining })
		if i < 0 { // static ones only: their sessions decide
			g.joinBy = m.now + max(time.Second, g.rebalanceTimeout())
			return
		}
		g.leader = g.members[i].id
	}
	g.joinBy, g.initial = never, false
	g.generation = max(1, g.generation+1) // 1 again after the largest
	m.assign(g, nil)
	if len(g.members) == 0 {
		g.state, g.protocol, g.leader = empty, "", ""
		g.empty = m.stamp()
		g.expiry = m.firstExpiry(g)
		m.writeHeader(g)
		return
	}
	g.state, g.protocol, g.empty = completing, g.choose(), 0
	m.writeHeader(g)
	for _, x := range g.members {
		x.unsynced = true
		if !x.joining {
			continue
		}
		x.fresh, x.unaware, x.joining = false, false, false
		x.until = m.now + x.session
		m.joined(g, x, x.join, g.leader, false)
		x.join = waiter{}
	}
	g.syncBy = m.now + g.rebalanceTimeout()
}
