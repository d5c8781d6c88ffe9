package group

import (
	"container/heap"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// never is the time of what is not due.
const never = time.Duration(math.MaxInt64)

// moment is the time of an input.
type moment struct {
	elapsed time.Duration // of a clock that never goes back; sessions and rebalances are timed by it
	wall    time.Time     // for what is stored
}

// request is a request of a client. The token names its answer.
type request struct {
	token  uint64
	client Client
	body   kmsg.Request
	fresh  string // an id that no member has had, in case that one is needed
}

// reply is the answer to the request with the token.
type reply struct {
	token uint64
	body  kmsg.Response
}

// machine is the coordinator's state. Its inputs are handle, forget, wake and stored; take returns what they made.
// After each input, wake must be called at the time that next returns.
type machine struct {
	cfg          Config
	initialDelay time.Duration
	groups       map[string]*group
	queue        queue          // of groups, by their next time
	owned        map[string]int // number of groups by credential
	bytes        int            // of members and assignments of all groups
	offsetBytes  int            // of offsets of all groups

	now     time.Duration // elapsed, of the latest input
	stamped time.Duration // the latest time for rows, since 1970

	written  uint64  // number of the last write
	finished uint64  // number of the last write whose outcome is known
	writes   []write // the others, in order
	waiting  []waiting

	rows    []Row // for take
	replies []reply
}

// write is a number of rows that are stored together. done is called with the outcome.
type write struct {
	number uint64
	done   func(failed bool)
}

// waiting is an answer that depends on writes up to a number.
type waiting struct {
	after  uint64
	token  uint64
	answer func(failed bool) kmsg.Response
}

// newMachine makes a machine of stored rows. Groups that had members when the rows were written are empty from now on,
// which is the first write.
func newMachine(cfg Config, all rows, now moment) *machine {
	m := &machine{cfg: cfg, initialDelay: initialDelay, groups: map[string]*group{}, owned: map[string]int{}}
	for _, h := range all.groups {
		m.stamped = max(m.stamped, h.empty)
	}
	for _, offsets := range all.offsets {
		for _, o := range offsets {
			m.stamped = max(m.stamped, o.committed)
		}
	}
	m.now = now.elapsed
	m.advance(now)
	for name, h := range all.groups {
		g := m.create(name, h.owner)
		g.header, g.persisted = h, true
		for p, o := range all.offsets[name] {
			g.offsets[p] = o
			m.countOffset(g, o.bytes(p))
		}
		if g.empty == 0 {
			g.empty = m.stamp()
			m.writeHeader(g)
		}
		g.expiry = m.firstExpiry(g)
		m.touched(g)
	}
	return m
}

// advance takes the time of an input. See the package comment for the times of rows.
func (m *machine) advance(now moment) {
	passed := max(0, now.elapsed-m.now)
	m.now += passed
	m.stamped = max(m.stamped+passed, time.Duration(min(now.wall.UnixMilli(), maxMilliseconds))*time.Millisecond)
}

// stamp returns the time for a row. It is never 0, which stands for no time.
func (m *machine) stamp() time.Duration {
	return max(time.Millisecond, m.stamped.Truncate(time.Millisecond))
}

// handle takes a request, whose version is in Versions. Its answer, and those of others that it makes possible, are
// among the replies of take, then or after a later input. A request may renew a session that is over as long as wake
// has not ended it: a server that was paused does not hold that against members.
func (m *machine) handle(now moment, r request) {
	m.advance(now)
	switch body := r.body.(type) {
	case *kmsg.JoinGroupRequest:
		m.join(r, body)
	case *kmsg.SyncGroupRequest:
		m.sync(r, body)
	case *kmsg.HeartbeatRequest:
		m.heartbeat(r, body)
	case *kmsg.LeaveGroupRequest:
		m.leave(r, body)
	case *kmsg.OffsetCommitRequest:
		m.commit(r, body)
	case *kmsg.OffsetFetchRequest:
		m.fetch(r, body)
	case *kmsg.OffsetDeleteRequest:
		m.deleteOffsets(r, body)
	case *kmsg.ListGroupsRequest:
		m.list(r, body)
	case *kmsg.DescribeGroupsRequest:
		m.describe(r, body)
	case *kmsg.DeleteGroupsRequest:
		m.deleteGroups(r, body)
	}
}

// forget drops the answer to a request whose connection ended. A member that joined with the request remains, as it
// may come back over another connection, unless it has never been given an id.
func (m *machine) forget(now moment, token uint64) {
	m.advance(now)
	for i, w := range m.waiting {
		if w.token == token {
			m.waiting[i].token = 0
			return
		}
	}
	for _, g := range m.groups {
		for _, x := range g.members {
			switch token {
			case x.sync.token:
				x.sync.token = 0
				return
			case x.join.token:
				x.join.token = 0
				if x.unaware {
					m.remove(g, x, kerr.UnknownMemberID.Code)
					m.reduced(g)
					m.touched(g)
				}
				return
			}
		}
	}
}

// next returns the time at which wake must be called, or never.
func (m *machine) next() time.Duration {
	if len(m.queue) == 0 {
		return never
	}
	return m.queue[0].next
}

// wake does everything that is due, and returns when something will be. Called too early it does nothing; called too
// late, it gives members the whole of the times that start then.
func (m *machine) wake(now moment) time.Duration {
	m.advance(now)
	for m.next() <= m.now {
		g := m.queue[0]
		m.due(g)
		m.touched(g)
	}
	return m.next()
}

// take returns the rows to be stored, the number of the last of their writes for stored, and the answers to be given.
func (m *machine) take() (rows []Row, number uint64, replies []reply) {
	rows, replies = m.rows, m.replies
	m.rows, m.replies = nil, nil
	return rows, m.written, replies
}

// stored tells the outcome of the rows that take returned with the number, and that one only.
func (m *machine) stored(now moment, number uint64, failed bool) {
	m.advance(now)
	for len(m.writes) > 0 && m.writes[0].number <= number {
		w := m.writes[0]
		m.writes = m.writes[1:]
		m.finished = w.number
		w.done(failed)
	}
	left := m.waiting[:0]
	ready := []waiting(nil)
	for _, w := range m.waiting {
		if w.after <= m.finished {
			ready = append(ready, w)
		} else {
			left = append(left, w)
		}
	}
	clear(m.waiting[len(left):])
	m.waiting = left
	for _, w := range ready {
		m.reply(w.token, w.answer(failed))
	}
}

func (m *machine) reply(token uint64, body kmsg.Response) {
	if token != 0 {
		m.replies = append(m.replies, reply{token, body})
	}
}

// answerAfter gives an answer once the outcome of the write with a number is known.
func (m *machine) answerAfter(number, token uint64, answer func(failed bool) kmsg.Response) {
	if number <= m.finished {
		m.reply(token, answer(false))
		return
	}
	m.waiting = append(m.waiting, waiting{number, token, answer})
}

// write has rows of a group stored together. done is called once the outcome is known, and may be nil.
func (m *machine) write(g *group, rows []Row, done func(failed bool)) uint64 {
	m.written++
	m.rows = append(m.rows, rows...)
	g.unknown++
	m.writes = append(m.writes, write{m.written, func(failed bool) {
		g.unknown--
		if done != nil {
			done(failed)
		}
		m.touched(g)
	}})
	return m.written
}

// allRows returns the group's own row, and those of its offsets if any of them may be missing in the store.
func (m *machine) allRows(g *group) []Row {
	all := []Row{{groupKey(g.name), g.header.value()}}
	if !g.persisted {
		for p, o := range g.offsets {
			if !g.erasing[p] {
				all = append(all, Row{offsetKey(g.name, p), o.value()})
			}
		}
	}
	return all
}

// writeHeader stores the group's own row. Answers to JoinGroup wait for it: a group that has members must not be taken
// for one that has been empty for long. If it cannot be stored, members have to join again.
func (m *machine) writeHeader(g *group) {
	generation, whole := g.generation, !g.persisted
	g.headerWrite = m.write(g, m.allRows(g), func(failed bool) {
		switch {
		case !failed:
			g.persisted = g.persisted || whole
		case g.generation == generation && (g.state == completing || g.state == stable):
			m.prepare(g)
		}
	})
}

// create adds a group, which the caller then changes, and calls touched.
func (m *machine) create(name, owner string) *group {
	g := &group{
		name: name, header: header{owner: owner}, offsets: map[partitionKey]offset{}, inflight: map[partitionKey]int{},
		erasing: map[partitionKey]bool{}, stray: map[partitionKey]bool{},
		next: never, joinBy: never, syncBy: never, index: -1,
	}
	m.groups[name] = g
	m.owned[owner]++
	return g
}

// full reports whether a client may not make another group.
func (m *machine) full(c Client) bool {
	return len(m.groups) >= m.cfg.Limits.Groups || m.owned[c.Credential] >= m.cfg.Limits.GroupsPerCredential
}

// touched brings the times of a group up to date after a change, and drops a group of which nothing is left.
func (m *machine) touched(g *group) {
	if m.groups[g.name] != g {
		return
	}
	if g.unknown == 0 && !g.persisted && g.state == empty && len(g.pending)+len(g.offsets)+len(g.stray) == 0 {
		m.drop(g)
		return
	}
	g.next = g.nextTime(m)
	switch {
	case g.index < 0:
		heap.Push(&m.queue, g)
	default:
		heap.Fix(&m.queue, g.index)
	}
}

func (m *machine) drop(g *group) {
	delete(m.groups, g.name)
	if m.owned[g.owner]--; m.owned[g.owner] == 0 {
		delete(m.owned, g.owner)
	}
	if g.index >= 0 {
		heap.Remove(&m.queue, g.index)
	}
}

// queue is a heap of groups by their next time.
type queue []*group

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].next < q[j].next }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push is called by the heap.
func (q *queue) Push(x any) {
	g := x.(*group)
	g.index = len(*q)
	*q = append(*q, g)
}

// Pop is called by the heap.
func (q *queue) Pop() any {
	last := len(*q) - 1
	g := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	g.index = -1
	return g
}
