package group

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func syncResponse(version, code int16) *kmsg.SyncGroupResponse {
	res := kmsg.NewPtrSyncGroupResponse()
	res.Version, res.ErrorCode = version, code
	return res
}

// sync takes a member that asks for its assignment. The leader brings those of all.
func (m *machine) sync(r request, req *kmsg.SyncGroupRequest) {
	g, x, code := m.memberOf(r, req.Group, req.MemberID, req.InstanceID, req.Generation)
	switch {
	case code != 0:
	case different(req.ProtocolType, g.kind), different(req.Protocol, g.protocol):
		code = kerr.InconsistentGroupProtocol.Code
	case g.state == preparing:
		code = kerr.RebalanceInProgress.Code
	case g.state == completing && g.leader == x.id && !m.assignable(g, req.GroupAssignment):
		code = kerr.GroupMaxSizeReached.Code
	}
	if code != 0 {
		m.reply(r.token, syncResponse(req.Version, code))
		return
	}
	defer m.touched(g)
	m.refuseSync(x, kerr.RebalanceInProgress.Code) // it has come over another connection
	x.syncing, x.sync = true, waiter{r.token, req.Version}
	if x.unsynced {
		x.unsynced = false
		if !slices.ContainsFunc(g.members, func(y *member) bool { return y.unsynced }) {
			g.syncBy = never
		}
	}
	switch {
	case g.state == stable:
		m.synced(g, x)
	case g.leader == x.id:
		m.assign(g, req.GroupAssignment)
		g.state = stable
		for _, y := range g.members {
			m.synced(g, y)
		}
	}
}

func different(got *string, is string) bool { return got != nil && *got != is }

// memberOf returns the group and the member that a request comes from, or the code that refuses the request.
func (m *machine) memberOf(r request, name, id string, instance *string, generation int32) (*group, *member, int16) {
	g := m.groups[name]
	switch {
	case name == "" || len(name) > m.cfg.Limits.Name:
		return nil, nil, kerr.InvalidGroupID.Code
	case m.cfg.Forbidden(r.client, name):
		return nil, nil, kerr.GroupAuthorizationFailed.Code
	case g == nil:
		return nil, nil, kerr.UnknownMemberID.Code
	case g.state == dead:
		return nil, nil, kerr.CoordinatorNotAvailable.Code
	}
	x, code := g.check(id, instance)
	switch {
	case code != 0:
		return nil, nil, code
	case generation != g.generation:
		return nil, nil, kerr.IllegalGeneration.Code
	}
	return g, x, 0
}

// assignable reports whether there is room for the assignments.
func (m *machine) assignable(g *group, all []kmsg.SyncGroupRequestGroupAssignment) bool {
	n := 0
	for _, a := range all {
		n += len(a.MemberAssignment)
	}
	return n <= m.cfg.Limits.GroupBytes && m.bytes-g.assigned+n <= m.cfg.Limits.Bytes
}

// assign gives each member its assignment, which is empty if there is none.
func (m *machine) assign(g *group, all []kmsg.SyncGroupRequestGroupAssignment) {
	m.count(g, -g.assigned)
	g.assigned = 0
	to := map[string][]byte{}
	for _, a := range all {
		to[a.MemberID] = a.MemberAssignment
	}
	for _, x := range g.members {
		x.assignment = slices.Clone(to[x.id])
		g.assigned += len(x.assignment)
	}
	m.count(g, g.assigned)
}

// synced answers a member that asked for its assignment.
func (m *machine) synced(g *group, x *member) {
	if !x.syncing {
		return
	}
	res := syncResponse(x.sync.version, 0)
	kind, name := g.kind, g.protocol
	res.ProtocolType, res.Protocol, res.MemberAssignment = &kind, &name, x.assignment
	m.reply(x.sync.token, res)
	x.syncing, x.sync = false, waiter{}
	x.until = m.now + x.session
}

func (m *machine) refuseSync(x *member, code int16) {
	if x.syncing {
		m.reply(x.sync.token, syncResponse(x.sync.version, code))
		x.syncing, x.sync = false, waiter{}
		x.until = m.now + x.session
	}
}

// expireSync removes the members that have not asked for their assignment in time.
func (m *machine) expireSync(g *group) {
	g.syncBy = never
	for _, x := range slices.Clone(g.members) {
		if x.unsynced {
			m.remove(g, x, kerr.UnknownMemberID.Code)
		}
	}
	m.reduced(g)
}

func (m *machine) heartbeat(r request, req *kmsg.HeartbeatRequest) {
	res := kmsg.NewPtrHeartbeatResponse()
	res.Version = req.Version
	g, x, code := m.memberOf(r, req.Group, req.MemberID, req.InstanceID, req.Generation)
	if res.ErrorCode = code; code == 0 {
		x.until = m.now + x.session
		if g.state == preparing {
			res.ErrorCode = kerr.RebalanceInProgress.Code
		}
		m.touched(g)
	}
	m.reply(r.token, res)
}

// leave removes members.
func (m *machine) leave(r request, req *kmsg.LeaveGroupRequest) {
	res := kmsg.NewPtrLeaveGroupResponse()
	res.Version = req.Version
	leaving := req.Members
	if req.Version < 3 {
		leaving = []kmsg.LeaveGroupRequestMember{{MemberID: req.MemberID}}
	}
	g := m.groups[req.Group]
	switch {
	case req.Group == "" || len(req.Group) > m.cfg.Limits.Name:
		res.ErrorCode = kerr.InvalidGroupID.Code
	case m.cfg.Forbidden(r.client, req.Group):
		res.ErrorCode = kerr.GroupAuthorizationFailed.Code
	case g != nil && g.state == dead:
		res.ErrorCode = kerr.CoordinatorNotAvailable.Code
	default:
		removed, unpended := false, false
		for _, one := range leaving {
			answer := kmsg.NewLeaveGroupResponseMember()
			answer.MemberID, answer.InstanceID, answer.ErrorCode = one.MemberID, one.InstanceID, kerr.UnknownMemberID.Code
			if g != nil {
				x, code := g.leaving(one)
				answer.ErrorCode = code
				switch {
				case x != nil:
					m.remove(g, x, kerr.UnknownMemberID.Code)
					removed = true
				case code == 0:
					unpended = m.unpendID(g, one.MemberID) || unpended
				}
			}
			res.Members = append(res.Members, answer)
		}
		if removed {
			m.reduced(g)
		} else if unpended {
			m.tryComplete(g)
		}
		if g != nil {
			m.touched(g)
		}
		if req.Version < 3 {
			res.ErrorCode, res.Members = res.Members[0].ErrorCode, nil
		}
	}
	m.reply(r.token, res)
}

// leaving returns the member that is to leave, nil if it was only given an id, or the code that refuses it.
func (g *group) leaving(one kmsg.LeaveGroupRequestMember) (*member, int16) {
	switch {
	case one.MemberID == "" && one.InstanceID != nil: // an operator removes it
		if x := g.static(*one.InstanceID); x != nil {
			return x, 0
		}
		return nil, kerr.UnknownMemberID.Code
	case g.isPending(one.MemberID):
		return nil, 0
	}
	return g.check(one.MemberID, one.InstanceID)
}
