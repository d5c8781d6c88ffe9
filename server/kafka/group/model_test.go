package group

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// outcome is what is known of a commit.
type outcome uint8

const (
	unknown outcome = iota // no answer, or that the store failed
	accepted
	refused
)

// attempt is a commit of one partition.
type attempt struct {
	order int
	at    int64
	is    outcome
}

// modelGroup is what the model knows of a group.
type modelGroup struct {
	name        string
	cooperative bool
	end         [partitions]int64 // of the log
	done        [partitions]int64 // every record before has been processed
	attempts    [partitions][]attempt
	fetches     [partitions][][2]int // the commit that each is of, and the last one that came before
	order       int
	highest     int32                       // generation that a member was told of
	owners      map[int32]map[int32]string  // generation → partition → member
	plans       map[int32]map[string]string // generation → member → assignment
	ids         map[string]*identity        // by member id
	contact     time.Duration               // when a member was accepted last
	late        *commit                     // that is still to come
	expired     int                         // commits up to this one may have expired
}

// identity is what is known of a member id.
type identity struct {
	life     int
	instance string
	out      bool // left or was replaced
	contact  time.Duration
	sent     time.Duration // the last commit
	joining  int           // requests that wait
	lost     bool          // a connection that waited ended: the member may be there still
}

// commit is a request and what it commits.
type commit struct {
	req *kmsg.OffsetCommitRequest
}

func newModelGroup(name string, cooperative bool) *modelGroup {
	g := &modelGroup{
		name: name, cooperative: cooperative, owners: map[int32]map[int32]string{}, plans: map[int32]map[string]string{},
		ids: map[string]*identity{},
	}
	for p := range g.end {
		g.end[p] = int64(p * 2)
	}
	return g
}

// mayPass tells why a commit must be refused, or "".
func (g *modelGroup) mayPass(w *world, req *kmsg.OffsetCommitRequest) string {
	id := g.ids[req.MemberID]
	switch {
	case id == nil:
		return "of an id that nobody has"
	case id.life != w.life:
		return "of an id from before a restart"
	case id.out:
		return "of a removed member"
	case req.Generation < g.highest:
		return "of an older generation"
	case !id.lost && id.joining == 0 && w.now-max(id.contact, id.sent) > 3*sessionMillis*time.Millisecond/2:
		return "of a member whose session is over"
	}
	return ""
}

// commit sends a commit. A reader is told the outcome.
func (g *modelGroup) commit(w *world, r *reader, c *commit) uint64 {
	bad, sent := g.mayPass(w, c.req), w.now
	if x := g.ids[c.req.MemberID]; x != nil {
		x.sent = sent // the answer to a later one may come first
	}
	type entry struct {
		p int32
		i int
	}
	var entries []entry
	for _, p := range c.req.Topics[0].Partitions {
		g.order++
		g.attempts[p.Partition] = append(g.attempts[p.Partition], attempt{order: g.order, at: p.Offset})
		entries = append(entries, entry{p.Partition, len(g.attempts[p.Partition]) - 1})
	}
	return w.send(r, c.req, func(res kmsg.Response) {
		code := int16(0)
		for i, p := range res.(*kmsg.OffsetCommitResponse).Topics[0].Partitions {
			code = p.ErrorCode
			w.known("a commit", code)
			a := &g.attempts[entries[i].p][entries[i].i]
			switch code {
			case 0:
				a.is = accepted
				for _, f := range g.fetches[entries[i].p] {
					if f[0] < a.order && a.order <= f[1] {
						w.fail("%s/%d: a fetch missed commit %d, which came before it", g.name, entries[i].p, a.order)
					}
				}
				if bad != "" {
					w.fail("a commit %s is accepted: %s in generation %d", bad, c.req.MemberID, c.req.Generation)
				}
			case kerr.CoordinatorNotAvailable.Code: // the store failed, or did not say
			default:
				a.is = refused
			}
		}
		w.log("commit of %s at %s, generation %d: %v", c.req.MemberID, sent, c.req.Generation, kerr.ErrorForCode(code))
		if code == 0 || code == kerr.RebalanceInProgress.Code {
			g.met(sent, sent, c.req.MemberID)
		}
		if r != nil {
			r.committed(code)
		}
	})
}

// met says that a member was accepted at some time. Answers may come later than that, because they wait for the store.
func (g *modelGroup) met(earliest, latest time.Duration, id string) {
	if earliest-g.contact >= exploreKept {
		g.expired = g.order
	}
	g.contact = max(g.contact, earliest)
	if x := g.ids[id]; x != nil {
		x.contact = max(x.contact, latest)
	}
}

// fetched checks the answer to a request for an offset that was sent when order commits had been.
func (g *modelGroup) fetched(w *world, p int32, order int, got int64) {
	last := 0 // the last commit that was accepted before
	for _, a := range g.attempts[p] {
		if a.is == accepted && a.order <= order && a.order > g.expired {
			last = max(last, a.order)
		}
	}
	matched := 0 // the last commit that the answer may be of
	for _, a := range g.attempts[p] {
		if a.at == got && a.is != refused {
			matched = max(matched, a.order)
		}
	}
	if w.now-g.contact >= exploreKept || order <= g.expired {
		matched = order // what was before may have expired
	}
	g.fetches[p] = append(g.fetches[p], [2]int{matched, order})
	if got < 0 && (last == 0 || w.now-g.contact >= exploreKept) {
		return
	}
	for _, a := range g.attempts[p] {
		if a.at == got && a.is != refused && a.order >= last {
			return
		}
	}
	w.fail("%s/%d: the committed offset is %d; attempts are %+v, the last accepted one was %d", g.name, p, got,
		g.attempts[p], last)
}

// processed checks that no record is skipped.
func (g *modelGroup) processed(w *world, r *reader, p int32, at int64) {
	if at > g.done[p] {
		w.fail("%s skips the records from %d to %d of %s/%d", r.name, g.done[p], at, g.name, p)
	}
	g.done[p] = max(g.done[p], at+1)
}

// joined checks what a member is told of a generation.
func (g *modelGroup) joined(w *world, r *reader, res *kmsg.JoinGroupResponse) {
	if r.sent-g.contact >= exploreKept && res.Generation <= g.highest { // the group is a new one
		g.highest = 0
		clear(g.plans)
		clear(g.owners)
	}
	if res.Generation < g.highest {
		w.fail("%s: a member joins generation %d after generation %d", g.name, res.Generation, g.highest)
	}
	g.highest = max(g.highest, res.Generation)
	if g.plans[res.Generation] == nil {
		g.plans[res.Generation], g.owners[res.Generation] = map[string]string{}, map[int32]string{}
	}
	g.issued(w, r, res.MemberID)
	g.met(r.sent, w.now, res.MemberID)
}

// issued says that a reader has an id. The one that a static member had before is fenced.
func (g *modelGroup) issued(w *world, r *reader, id string) {
	if g.ids[id] == nil {
		g.ids[id] = &identity{life: w.life, contact: w.now, instance: r.instance}
	}
	if r.instance == "" {
		return
	}
	for _, x := range g.ids {
		if x != g.ids[id] && x.instance == r.instance {
			x.out = true
		}
	}
}

// synced checks an assignment.
func (g *modelGroup) synced(w *world, r *reader, assignment []byte) []int32 {
	want, assigned := g.plans[r.generation][r.key()]
	if !assigned {
		w.fail("the leader of generation %d was not told of %s", r.generation, r.name)
	}
	if string(assignment) != want {
		w.fail("%s gets the assignment %q in generation %d, the leader's is %q", r.name, assignment, r.generation, want)
		return nil
	}
	g.met(r.sent, w.now, r.id)
	var of []int32
	for _, b := range assignment {
		p := int32(b - '0')
		of = append(of, p)
		if owner := g.owners[r.generation][p]; owner != "" && owner != r.key() {
			w.fail("%s and %s own %s/%d in generation %d", owner, r.key(), g.name, p, r.generation)
		}
		g.owners[r.generation][p] = r.key()
	}
	return of
}

// unrest tells what of a group has not come to rest, or "".
func (g *modelGroup) unrest(w *world) string {
	owners, generation, alive := map[int32]string{}, int32(0), 0
	for _, r := range w.readers {
		switch {
		case r.g != g || !r.alive:
			continue
		case r.phase != reading:
			return fmt.Sprintf("%s has no assignment: its phase is %d", r.name, r.phase)
		case generation != 0 && r.generation != generation:
			return fmt.Sprintf("%s is in generation %d, another in %d", r.name, r.generation, generation)
		}
		alive++
		generation = r.generation
		for p := range r.owned {
			if owners[p] != "" {
				return fmt.Sprintf("%s and %s read %s/%d", owners[p], r.name, g.name, p)
			}
			owners[p] = r.name
		}
	}
	for p := range int32(partitions) {
		at := int64(-1)
		if x := w.m.groups[g.name]; x != nil {
			if o, ok := x.offsets[partitionKey{"events", p}]; ok {
				at = o.at
			}
		}
		if alive > 0 && (owners[p] == "" || g.done[p] != g.end[p] || (at != g.end[p] && g.end[p] > 0)) {
			return fmt.Sprintf("%s/%d: %q reads it, %d of %d are processed, committed is %d", g.name, p, owners[p],
				g.done[p], g.end[p], at)
		}
	}
	return ""
}
