package group

import (
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type phase uint8

const (
	idle     phase = iota // is to join
	joining               // waits for the generation
	joined                // is to ask for its assignment
	syncing               // waits for it
	reading               // has it
	revoking              // waits for a commit, and then joins again
	fenced                // another one has its instance id
)

// position is how far a reader is in a partition that it owns.
type position struct {
	asked, ready bool
	next         int64
}

// reader is a member as clients are: it reads from the committed offset on, processes one record after the other, and
// commits.
type reader struct {
	w        *world
	g        *modelGroup
	name     string
	instance string // of a static member
	version  int16  // of JoinGroup

	alive       bool
	process     int // number of times that it has left
	phase       phase
	id          string
	generation  int32
	plan        *kmsg.SyncGroupRequest // of a leader
	owned       map[int32]*position
	wait        uint64 // token of the request that it waits for
	waiting     *identity
	sent        time.Duration // when the last such request was
	heartbeatAt time.Duration
}

// key names a member in plans; a static one keeps its assignment under another id.
func (r *reader) key() string { return keyOf(r.id, r.instance) }

func keyOf(id, instance string) string {
	if instance != "" {
		return instance
	}
	return id
}

func (r *reader) instanceID() *string {
	if r.instance == "" {
		return nil
	}
	return &r.instance
}

// act does the next thing, or comes to life.
func (r *reader) act() {
	switch w := r.w; {
	case !r.alive:
		if w.one(3) {
			r.alive = true
			w.log("%s starts", r.name)
			if w.one(2) || r.phase == fenced { // otherwise it comes back as it was
				r.reset()
			}
		}
	case r.phase == reading && !w.one(3):
		r.read()
	default:
		r.run()
	}
}

// run does what a client does by itself.
func (r *reader) run() {
	switch r.phase {
	case idle:
		r.join()
	case joined:
		r.sync()
	case reading:
		if r.w.calm || r.w.one(2) {
			r.heartbeat()
		}
		for range 4 * partitions {
			if r.phase == reading && r.w.calm {
				r.read()
			}
		}
	case fenced:
		if r.w.calm {
			r.reset()
		}
	case joining, syncing, revoking:
	}
}

// reset makes it one that has never been a member.
func (r *reader) reset() {
	r.phase, r.id, r.owned, r.generation, r.plan = idle, "", nil, 0, nil
}

// disconnected says that it gets no answer any more.
func (r *reader) disconnected() {
	if r.waiting != nil {
		r.waiting.joining--
		r.waiting.lost = true
	}
	r.wait, r.waiting = 0, nil
	switch r.phase {
	case joining, syncing, revoking:
		r.phase = idle
	case idle, joined, reading, fenced:
	}
	for _, p := range r.owned {
		p.asked = false
	}
}

func (r *reader) die() {
	if !r.alive {
		return
	}
	r.w.log("%s dies", r.name)
	r.alive = false
	for token, c := range r.w.calls {
		if c.from == r {
			if x := r.g.ids[r.id]; x != nil { // what it sent may have prolonged its session
				x.lost = true
			}
			r.w.disconnect(token)
		}
	}
	r.disconnected()
}

// await sends a request that waits for others.
func (r *reader) await(req kmsg.Request, then func(kmsg.Response)) {
	id := r.g.ids[r.id]
	if id != nil {
		id.joining++
	}
	r.waiting, r.sent = id, r.w.now
	answered, process := false, r.process
	token := r.w.send(r, req, func(res kmsg.Response) {
		answered = true
		if id != nil {
			id.joining--
		}
		if process != r.process {
			return // an answer to what it was before it left
		}
		r.wait, r.waiting = 0, nil
		then(res)
	})
	if !answered {
		r.wait = token
	}
}

func (r *reader) join() {
	req := kmsg.NewPtrJoinGroupRequest()
	req.Version, req.Group, req.MemberID, req.InstanceID = r.version, r.g.name, r.id, r.instanceID()
	req.ProtocolType, req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = "consumer", sessionMillis, rebalMillis
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics, meta.Generation = 2, []string{"events"}, r.generation
	if !r.g.cooperative {
		r.owned = nil
	}
	if own := slices.Sorted(maps.Keys(r.owned)); len(own) > 0 {
		meta.OwnedPartitions = append(meta.OwnedPartitions,
			kmsg.ConsumerMemberMetadataOwnedPartition{Topic: "events", Partitions: own})
	}
	req.Protocols = []kmsg.JoinGroupRequestProtocol{{Name: "range", Metadata: meta.AppendTo(nil)}}
	r.phase = joining
	r.await(req, func(res kmsg.Response) { r.onJoin(res.(*kmsg.JoinGroupResponse)) })
}

// refused follows an answer with a code, and reports whether it has one.
func (r *reader) refused(what string, code int16) bool {
	r.w.known(what, code)
	r.w.log("%s: %s: %v", r.name, what, kerr.ErrorForCode(code))
	switch code {
	case 0:
		return false
	case kerr.UnknownMemberID.Code:
		if x := r.g.ids[r.id]; x != nil && what != "join" {
			x.out = x.out || x.life != r.w.life
		}
		r.reset()
	case kerr.FencedInstanceID.Code:
		r.reset()
		r.phase = fenced
	case kerr.IllegalGeneration.Code:
		r.owned, r.phase = nil, idle
	default:
		r.phase = idle
	}
	return true
}

func (r *reader) onJoin(res *kmsg.JoinGroupResponse) {
	if res.ErrorCode == kerr.MemberIDRequired.Code {
		r.g.ids[res.MemberID] = &identity{life: r.w.life, contact: r.w.now}
		r.id, r.phase = res.MemberID, idle
		return
	}
	if r.refused("join", res.ErrorCode) {
		return
	}
	r.id, r.generation, r.phase, r.plan = res.MemberID, res.Generation, joined, nil
	r.g.joined(r.w, r, res)
	if res.LeaderID != res.MemberID || res.SkipAssignment {
		return
	}
	req := kmsg.NewPtrSyncGroupRequest()
	plan := map[string]string{}
	for i, of := range r.assign(res.Members) {
		m := res.Members[i]
		req.GroupAssignment = append(req.GroupAssignment, kmsg.SyncGroupRequestGroupAssignment{
			MemberID: m.MemberID, MemberAssignment: of,
		})
		instance := ""
		if m.InstanceID != nil {
			instance = *m.InstanceID
		}
		plan[keyOf(m.MemberID, instance)] = string(of)
	}
	r.plan = req
	if len(r.g.plans[r.generation]) == 0 { // a leader that joins again may have a plan
		r.g.plans[r.generation] = plan
	}
}

// assign gives partitions to members, one digit for each. Members keep what they own up to their share; cooperative
// ones get what another one owns in a later generation only.
func (r *reader) assign(members []kmsg.JoinGroupResponseMember) [][]byte {
	share := (partitions + len(members) - 1) / max(1, len(members))
	plan, claims := make([][]byte, len(members)), map[int32]int{}
	newest := map[int32]int32{}
	for i, m := range members {
		var meta kmsg.ConsumerMemberMetadata
		if err := meta.ReadFrom(m.ProtocolMetadata); err != nil {
			r.w.fail("metadata: %v", err)
		}
		for _, o := range meta.OwnedPartitions {
			for _, p := range o.Partitions {
				if _, ok := claims[p]; !ok || meta.Generation > newest[p] {
					claims[p], newest[p] = i, meta.Generation
				}
			}
		}
	}
	for p := range int32(partitions) {
		if i, ok := claims[p]; ok && len(plan[i]) < share {
			plan[i] = append(plan[i], byte('0'+p))
			delete(claims, p)
			newest[p] = -2
		}
	}
	for p := range int32(partitions) {
		if _, claimed := claims[p]; claimed || newest[p] == -2 {
			continue
		}
		least := 0
		for i := range plan {
			if len(plan[i]) < len(plan[least]) {
				least = i
			}
		}
		plan[least] = append(plan[least], byte('0'+p))
	}
	return plan
}

func (r *reader) sync() {
	req := kmsg.NewPtrSyncGroupRequest()
	if r.plan != nil {
		req = r.plan
	}
	req.Version, req.Group, req.Generation, req.MemberID = 5, r.g.name, r.generation, r.id
	req.InstanceID = r.instanceID()
	r.phase = syncing
	r.await(req, func(res kmsg.Response) {
		got := res.(*kmsg.SyncGroupResponse)
		if r.refused("sync", got.ErrorCode) {
			return
		}
		r.phase, r.heartbeatAt = reading, r.w.now
		was, again := r.owned, false
		r.owned = map[int32]*position{}
		for _, p := range r.g.synced(r.w, r, got.MemberAssignment) {
			if r.owned[p] = was[p]; r.owned[p] == nil {
				r.owned[p] = &position{}
			}
		}
		for p := range was {
			again = again || r.owned[p] == nil
		}
		r.w.log("%s reads %q in generation %d", r.name, got.MemberAssignment, r.generation)
		if again { // the others wait for what it no longer owns
			r.phase = idle
		}
	})
}

func (r *reader) heartbeat() {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Version, req.Group, req.MemberID, req.Generation, req.InstanceID = 4, r.g.name, r.id, r.generation, r.instanceID()
	id := r.id
	r.w.send(r, req, func(res kmsg.Response) {
		code := res.(*kmsg.HeartbeatResponse).ErrorCode
		if code == 0 || code == kerr.RebalanceInProgress.Code {
			r.g.met(r.w.now, r.w.now, id)
		}
		if code != kerr.RebalanceInProgress.Code {
			r.refused("heartbeat", code)
			return
		}
		if r.phase = idle; r.w.calm || r.w.one(2) {
			r.commit(true)
		}
	})
}

// read does something with a partition.
func (r *reader) read() {
	if len(r.owned) == 0 {
		return
	}
	all := slices.Sorted(maps.Keys(r.owned))
	if r.w.one(4) {
		r.commit(false)
		return
	}
	p := all[r.w.rng.IntN(len(all))]
	switch at := r.owned[p]; {
	case !at.ready && !at.asked:
		r.fetch(p, at)
	case at.ready && at.next < r.g.end[p]:
		r.g.processed(r.w, r, p, at.next)
		at.next++
	}
}

func (r *reader) fetch(p int32, at *position) {
	at.asked = true
	order := r.g.order
	r.w.send(r, fetchRequest(r.g.name, p), func(res kmsg.Response) {
		got := res.(*kmsg.OffsetFetchResponse).Groups[0]
		r.w.known("a fetch", got.ErrorCode)
		next := got.Topics[0].Partitions[0].Offset
		r.g.fetched(r.w, p, order, next)
		r.w.log("%s starts at %d of %d", r.name, next, p)
		at.ready, at.next = true, max(0, next)
	})
}

func (r *reader) commitRequest() *commit {
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Version, req.Group, req.MemberID, req.Generation = 9, r.g.name, r.id, r.generation
	if r.instance != "" {
		req.InstanceID = kmsg.StringPtr(r.instance)
	}
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic, t.TopicID = "events", [16]byte{7}
	for _, p := range slices.Sorted(maps.Keys(r.owned)) {
		if at := r.owned[p]; at.ready {
			one := kmsg.NewOffsetCommitRequestTopicPartition()
			one.Partition, one.Offset = p, at.next
			t.Partitions = append(t.Partitions, one)
		}
	}
	req.Topics = append(req.Topics, t)
	return &commit{req}
}

// commit commits what was processed. A reader that gives up its partitions waits for the answer, or joins at once.
func (r *reader) commit(last bool) {
	c := r.commitRequest()
	if len(c.req.Topics[0].Partitions) == 0 {
		return
	}
	if r.w.one(2) {
		c.req.Version = 10
	}
	if last {
		r.phase = revoking
	}
	token := r.g.commit(r.w, r, c)
	if last && r.phase == revoking {
		r.wait = token
		if r.w.one(3) { // it does not wait
			r.phase, r.wait = idle, 0
		}
	}
}

func (r *reader) committed(code int16) {
	if r.phase == revoking {
		r.phase, r.wait = idle, 0
	}
	if code != 0 && code != kerr.CoordinatorNotAvailable.Code && r.phase == reading {
		r.refused("commit", code)
	}
}

func (r *reader) leave() {
	id := r.g.ids[r.id]
	if !r.alive || id == nil || (r.phase != reading && r.phase != syncing && r.phase != joining) {
		return
	}
	r.w.log("%s leaves", r.name) // over another connection, or an operator removes it, if it waits
	req := leaveRequest(r.g.name, kmsg.LeaveGroupRequestMember{MemberID: r.id, InstanceID: r.instanceID()})
	r.w.send(r, req, func(res kmsg.Response) {
		code := res.(*kmsg.LeaveGroupResponse).ErrorCode
		if code == 0 {
			code = res.(*kmsg.LeaveGroupResponse).Members[0].ErrorCode
		}
		r.w.known("a leave", code)
		id.out = id.out || code == 0
	})
	r.reset()
	r.alive, r.wait, r.waiting = false, 0, nil
	r.process++
}
