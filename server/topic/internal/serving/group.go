package serving

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Limits of sessions.
const (
	maxDelivery = 1000    // messages
	maxPoll     = 4 << 20 // bytes of a Receive of a session that is polled
)

// GroupConfig holds the dependencies of a Group.
type GroupConfig struct {
	Topic, Name string
	Parts       []*Partition // by number
	Flusher     *Flusher
	Clock       func() time.Time
	AfterFunc   func(time.Duration, func()) Timer // nil: that of package time
	KeyOrder    bool
	MaxInFlight int64 // messages that the members have together; 0: no bound
	// Durable reports whether an acknowledgement is answered once it is stored.
	Durable func() bool
	// Undeliverable is called with messages of a partition that failed too often. It does not
	// wait.
	Undeliverable func(g *Group, part int, deadLetters []machine.Undeliverable)
	// Failed is called with an error of the log that stops the deliveries for a moment.
	Failed func(error)
}

// Group is a subscription that may have members, with their sessions.
type Group struct {
	Generation int64
	Heartbeats Heartbeats
	Meter      Meter
	Metric     *GroupMetric
	Push       PushReport

	cfg   GroupConfig
	parts []part
	quota *machine.Quota // of all members

	mu       sync.Mutex
	sessions map[string]*Session // by member
	limit    *PrincipalLimit     // that they take
	keyOrder atomic.Bool         // one message of a key at a time
	// waiting are the sessions that wait for something to deliver. No wake-up is lost between Wake
	// and wait: Wake sets ready before it takes mu, wait joins the list before it reads ready, with
	// mu. Either wait sees ready, or wakeOne gets mu later and finds the session in the list.
	waiting []*Session
	state   topicv1.SubscriptionState
	closed  bool

	// held counts the calls of Hold that have not ended. While there are any, no session pumps, and
	// each waits although a partition is ready. The end of the last one wakes all partitions.
	held atomic.Int32
	// pumping is held by the one session that takes messages for all. Another session does not wait
	// for it. What becomes ready meanwhile is found by the one that pumps: it reads ready again once it
	// has released the lock, and pumps again, or wakes another session if it has messages of its own.
	pumping  sync.Mutex
	first    int         // partition that the next pump begins with; guarded by pumping
	progress atomic.Bool // something was acknowledged since it was asked last
	byMember sync.Map    // *machine.Member to *Session
}

// part is what a group keeps of a partition.
type part struct {
	ready atomic.Bool // Next may have something to do
	// blocked says that Next stopped for lack of credits or room. It is set before Next runs, and
	// cleared after it if Next stopped for another reason:
	//
	//	pump: blocked = true
	//	pump: Next finds no credits
	//	                        member: acknowledges, returns credits
	//	                        member: wakeBlocked clears blocked and sets ready
	//	pump: returns; ready is set, and it pumps again
	//
	// If Next set it when it returns, the member would find it clear, and its credits would wake nothing.
	blocked atomic.Bool

	front int64 // floor of the group at the last check for what is over; guarded by the partition's lock

	mu    sync.Mutex
	timer Timer
	due   time.Time // of the timer; zero: it does not run
	stall stall
}

// NewGroup makes a group without members.
func NewGroup(c GroupConfig, state topicv1.SubscriptionState) *Group {
	if c.AfterFunc == nil {
		c.AfterFunc = func(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }
	}
	g := &Group{
		cfg: c, parts: make([]part, len(c.Parts)), sessions: map[string]*Session{}, state: state,
		limit: memberLimit(c.Name),
	}
	g.keyOrder.Store(c.KeyOrder)
	g.quota = machine.NewQuota(c.MaxInFlight, g.wakeBlocked)
	return g
}

// Wake says that a partition may have something to deliver.
func (g *Group) Wake(part int) {
	g.parts[part].ready.Store(true)
	g.wakeOne()
}

// WakeAll is Wake of all partitions.
func (g *Group) WakeAll() {
	for i := range g.parts {
		g.parts[i].ready.Store(true)
	}
	g.wakeOne()
}

// wakeBlocked lets the partitions look again that stopped for lack of credits or room.
// Members have one budget for all of them, and the group has one quota.
func (g *Group) wakeBlocked() {
	some := false
	for i := range g.parts {
		if g.parts[i].blocked.Load() && g.parts[i].blocked.Swap(false) {
			g.parts[i].ready.Store(true)
			some = true
		}
	}
	if some {
		g.wakeOne()
	}
}

// wakeOne wakes a session that waits: it delivers for all. One that does not wait looks
// before it does.
func (g *Group) wakeOne() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := len(g.waiting); n > 0 {
		s := g.waiting[n-1]
		g.waiting = g.waiting[:n-1]
		s.waits = false
		s.signal()
	}
}

func (g *Group) anyReady() bool {
	for i := range g.parts {
		if g.parts[i].ready.Load() {
			return true
		}
	}
	return false
}

// wait registers a session as waiting, unless there is something to do.
func (g *Group) wait(s *Session) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !s.waits {
		s.waits = true
		g.waiting = append(g.waiting, s)
	}
	if g.anyReady() && g.canPump() {
		g.stopWaiting(s)
		return false
	}
	return true
}

// stopWait ends what wait began. If the session was woken to deliver messages, it wakes
// another session to do so.
func (g *Group) stopWait(s *Session) {
	g.mu.Lock()
	g.stopWaiting(s)
	g.mu.Unlock()
	if g.anyReady() {
		g.wakeOne()
	}
}

// canPump reports whether a session may pump and none does. A session that pumps checks for
// ready partitions again before it ends.
func (g *Group) canPump() bool {
	if g.held.Load() > 0 || !g.pumping.TryLock() {
		return false
	}
	g.pumping.Unlock()
	return true
}

// stopWaiting takes a session off the list. The caller holds the lock.
func (g *Group) stopWaiting(s *Session) {
	if !s.waits {
		return
	}
	s.waits = false
	for i, w := range g.waiting {
		if w == s {
			g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
			return
		}
	}
}

// pump delivers what the partitions have, up to about limit messages of each. Only one
// session of a group does so at a time.
func (g *Group) pump(ctx context.Context, limit int) {
	for g.anyReady() && ctx.Err() == nil && g.held.Load() == 0 {
		if !g.pumping.TryLock() {
			return // the session that pumps checks again
		}
		delivered := 0
		for i := range g.parts {
			n := (g.first + i) % len(g.parts)
			if g.parts[n].ready.Swap(false) {
				delivered += g.next(ctx, n, limit)
			}
		}
		g.first++
		g.pumping.Unlock()
		if delivered > 0 {
			if g.anyReady() {
				g.wakeOne() // another session continues: this one has messages to process
			}
			return
		}
	}
}

// next delivers messages of a partition.
func (g *Group) next(ctx context.Context, n, limit int) (delivered int) {
	p := &g.parts[n]
	p.blocked.Store(true) // also what is acknowledged before it is known why Next stops is checked
	lost := func(list []machine.Lost) { g.lose(int32(n), list) }
	h, err := g.cfg.Parts[n].Next(ctx, g.cfg.Name, limit, lost, func(pieces []machine.Piece) {
		for i := range pieces {
			delivered += pieces[i].To - pieces[i].From
		}
		g.deliver(int32(n), pieces)
	})
	if len(h.Undeliverable) > 0 {
		g.cfg.Undeliverable(g, n, h.Undeliverable)
	}
	g.arm(n, h.Wake)
	if err != nil && ctx.Err() != nil {
		p.ready.Store(true) // for another session
		return delivered
	}
	if err != nil {
		g.cfg.Failed(err)
		g.arm(n, g.cfg.Clock().Add(pauseAfterError))
		return delivered
	}
	if h.Wait.Reason != machine.Credits && h.Wait.Reason != machine.Full {
		p.blocked.Store(false)
	}
	if h.Wait.Reason == machine.Limit || h.Wait.Reason == machine.Fetch {
		p.ready.Store(true)
	}
	return delivered
}

// pauseAfterError is how long deliveries of a partition stop that cannot be read.
const pauseAfterError = time.Second

// do calls f with the machine's group in a partition, if it is there, does what is due, notifies
// members of what they lost by both, passes dead letters on, and sets the timer for what the group
// has to do next. It returns how many messages were due.
//
// Members are notified under the partition's lock. After it the next pump may deliver the same
// positions to the same member again, and lose would take that delivery out of its queue.
func (g *Group) do(n int, f func(h *machine.GroupState)) (done int64) {
	p := g.cfg.Parts[n]
	var deadLetters []machine.Undeliverable
	var woken machine.Woken
	p.Do(func(m *machine.Machine) {
		if h := m.Group(g.cfg.Name); h != nil {
			f(h)
			woken = h.Wake(g.cfg.Clock())
			g.lose(int32(n), m.TakeLost(nil))
			deadLetters = h.TakeUndeliverable(nil)
		}
	})
	p.Mark(g.cfg.Name)
	g.arm(n, woken.Next)
	if len(deadLetters) > 0 {
		g.cfg.Undeliverable(g, n, deadLetters)
	}
	if woken.Done > 0 {
		g.Wake(n)
	}
	g.wakeBlocked()
	return woken.Done
}

// Do calls f with the machine's group in each partition, as for a change of state, and
// wakes the members. The first error ends it.
func (g *Group) Do(f func(part int, h *machine.GroupState) error) error {
	for n := range g.parts {
		var err error
		g.do(n, func(h *machine.GroupState) { err = f(n, h) })
		if err != nil {
			return err
		}
	}
	g.WakeAll()
	return nil
}

// DoIn is Do in one partition.
func (g *Group) DoIn(n int, f func(h *machine.GroupState) error) (err error) {
	g.do(n, func(h *machine.GroupState) { err = f(h) })
	g.Wake(n)
	return err
}

// lose notifies members of what they have lost. The partition's lock is held.
func (g *Group) lose(n int32, lost []machine.Lost) {
	for _, l := range lost {
		if s, ok := g.byMember.Load(l.Member); ok {
			s.(*Session).withdraw(n, l.From, l.To)
			s.(*Session).push(Event{LeaseLost: []*topicv1.Positions{
				{Partition: n, Base: l.From, Count: l.To - l.From},
			}})
		}
	}
}

// deliver gives pieces to the members' sessions, those that ascend as one delivery: it says
// where they are from its first one on. The partition's lock is held.
func (g *Group) deliver(n int32, pieces []machine.Piece) {
	for len(pieces) > 0 {
		i, count := 1, pieces[0].To-pieces[0].From
		for i < len(pieces) && pieces[i].Member == pieces[0].Member && follows(&pieces[i-1], &pieces[i]) &&
			near(&pieces[0], &pieces[i]) && count+pieces[i].To-pieces[i].From <= maxDelivery {
			count += pieces[i].To - pieces[i].From
			i++
		}
		if s, ok := g.byMember.Load(pieces[0].Member); ok {
			s.(*Session).push(Event{Deliveries: []Delivery{delivery(n, pieces[:i], count)}})
		}
		pieces = pieces[i:]
	}
}

// follows reports whether b comes after a in the partition.
func follows(a, b *machine.Piece) bool {
	return a.Batch.Base+int64(a.From) < b.Batch.Base+int64(b.From)
}

// near reports whether an offset of a delivery from a on reaches the end of b. A message can be that
// late that it does not.
func near(a, b *machine.Piece) bool {
	return b.Batch.Base+int64(b.To)-a.Batch.Base-int64(a.From) <= math.MaxUint32
}

// Attach opens a session of a member.
func (g *Group) Attach(o SessionOptions) (*Session, error) {
	f, err := machine.CompileFilter(o.Filter)
	if err != nil {
		return nil, refusal.New(refusal.InvalidFilter, "%v", err)
	}
	s := newSession(g, o)
	if err := g.add(s); err != nil {
		return nil, err
	}
	for _, p := range g.cfg.Parts {
		var m *machine.Member
		err := g.gone()
		p.Do(func(pm *machine.Machine) {
			if h := pm.Group(g.cfg.Name); h != nil {
				if m, err = h.Attach(o.Member, f, s.budget); err == nil {
					g.byMember.Store(m, s)
				}
			}
		})
		if err != nil {
			s.End(GoneReason)
			return nil, err
		}
		s.members = append(s.members, m)
	}
	g.WakeAll()
	return s, nil
}

// GoneReason is the reason for which sessions end whose subscription has.
const GoneReason = "SUBSCRIPTION_GONE"

func (g *Group) gone() error {
	return refusal.New(refusal.SubscriptionGone, "the subscription of %q has ended", g.cfg.Name)
}

// add takes a session's name.
func (g *Group) add(s *Session) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch name := s.options.Member; {
	case g.closed:
		return g.gone()
	case g.sessions[name] != nil:
		return refusal.New(refusal.MemberExists, "group %q has a member %q", g.cfg.Name, name)
	}
	if err := g.limit.Take(s.options.Principal); err != nil {
		return err
	}
	g.sessions[s.options.Member] = s
	return nil
}

// remove takes a session out, and reports whether it was the last one.
func (g *Group) remove(s *Session) (last bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sessions[s.options.Member] == s {
		delete(g.sessions, s.options.Member)
		g.limit.Leave(s.options.Principal)
		last = len(g.sessions) == 0
	}
	g.stopWaiting(s)
	return last
}

// Members is the number of sessions.
func (g *Group) Members() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sessions)
}

// Sessions returns the sessions.
func (g *Group) Sessions() []*Session {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := make([]*Session, 0, len(g.sessions))
	for _, s := range g.sessions {
		list = append(list, s)
	}
	return list
}

// Name returns the group's name, Topic its topic's.
func (g *Group) Name() string { return g.cfg.Name }

// Topic returns the name of the topic.
func (g *Group) Topic() string { return g.cfg.Topic }

// Progress reports whether something was acknowledged since the last call.
func (g *Group) Progress() bool { return g.progress.Swap(false) }

// SetState reports a state to the members.
func (g *Group) SetState(state topicv1.SubscriptionState) {
	g.mu.Lock()
	changed := g.state != state
	g.state = state
	g.mu.Unlock()
	if changed {
		for _, s := range g.Sessions() {
			s.push(Event{State: state})
		}
	}
}

// State returns the state.
func (g *Group) State() topicv1.SubscriptionState {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

// Close ends all sessions with a reason, and takes no more.
func (g *Group) Close(why string) {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	for _, s := range g.Sessions() {
		s.End(why)
	}
	for i := range g.parts {
		p := &g.parts[i]
		p.mu.Lock()
		if p.timer != nil {
			p.timer.Stop()
		}
		p.mu.Unlock()
	}
}
