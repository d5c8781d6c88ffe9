package serving

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// SessionOptions of a session.
type SessionOptions struct {
	ID, Member string
	Principal  string
	Filter     *topicv1.Filter
	Messages   int64 // credits
	Bytes      int64
	Renew      bool // acknowledged messages return their credits
	Polled     bool // credits come with Receive
}

// Delivery holds messages of one partition. Its wire form is a message Delivery: the
// fields below, and for field 3 the Pieces one after another, which are shared and must
// not be changed.
type Delivery struct {
	Partition int32
	Base      int64
	Count     int
	Pieces    [][]byte
	Offsets   []uint32 // of each message less Base; nil if they follow each other
	Attempts  []uint32 // nil if all are delivered for the first time
	Moves     int64    // of the subscription in the partition
}

// Event is what a session receives. One field is set.
type Event struct {
	Deliveries []Delivery
	State      topicv1.SubscriptionState // it was paused or resumed
	LeaseLost  []*topicv1.Positions
	Gone       string // the reason, see topicv1.Gone; the session has ended
}

// Session is an attached member.
type Session struct {
	options SessionOptions
	group   *Group
	budget  *machine.Budget
	members []*machine.Member // by partition
	wake    chan struct{}
	empty   atomic.Int64 // when a poll ended without an event, unix ns; 0: the last one had one
	waits   bool         // it is in the group's list; guarded by the group's lock

	mu     sync.Mutex
	queue  []Event
	late   []Event // deliveries that came when it had ended
	ended  string  // the reason
	called time.Time
	inside int // calls of Receive that have not returned
}

func newSession(g *Group, o SessionOptions) *Session {
	s := &Session{options: o, group: g, wake: make(chan struct{}, 1), called: g.cfg.Clock()}
	if o.Polled {
		o.Messages, o.Renew = 0, false
	}
	s.budget = machine.NewBudget(o.Messages, o.Bytes, o.Renew).Within(g.quota)
	return s
}

// delivery joins pieces of one member.
func delivery(n int32, pieces []machine.Piece, count int) Delivery {
	d := Delivery{Partition: n, Base: pieces[0].Batch.Base + int64(pieces[0].From), Count: count,
		Moves: pieces[0].Member.Group().Moves()}
	next, together, again := d.Base, true, false
	for _, p := range pieces {
		d.Pieces = append(d.Pieces, p.Batch.Bytes(p.From, p.To))
		together = together && p.Batch.Base+int64(p.From) == next
		next = p.Batch.Base + int64(p.To)
		again = again || p.Attempt > 1
	}
	if !together {
		d.Offsets = make([]uint32, 0, count)
		for _, p := range pieces {
			for i := p.From; i < p.To; i++ {
				d.Offsets = append(d.Offsets, uint32(p.Batch.Base+int64(i)-d.Base))
			}
		}
	}
	if again {
		d.Attempts = make([]uint32, 0, count)
		for _, p := range pieces {
			for range p.To - p.From {
				d.Attempts = append(d.Attempts, uint32(p.Attempt))
			}
		}
	}
	return d
}

func (s *Session) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Session) push(e Event) {
	s.mu.Lock()
	if s.ended == "" {
		s.queue = append(s.queue, e)
	} else if len(e.Deliveries) > 0 {
		s.late = append(s.late, e) // until its budget is closed, see leave
	}
	s.mu.Unlock()
	s.signal()
}

// withdraw takes deliveries of a partition that the session has lost out of what waits to be
// sent.
func (s *Session) withdraw(n int32, from, to int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = slices.DeleteFunc(s.queue, func(e Event) bool {
		return len(e.Deliveries) == 1 && e.Deliveries[0].Partition == n && e.Deliveries[0].within(from, to)
	})
}

// each calls f with the runs of its positions.
func (d *Delivery) each(f func(from, to int64)) {
	if d.Offsets == nil {
		f(d.Base, d.Base+int64(d.Count))
		return
	}
	for _, offset := range d.Offsets {
		f(d.Base+int64(offset), d.Base+int64(offset)+1)
	}
}

// within reports whether all messages lie from from to to.
func (d *Delivery) within(from, to int64) bool {
	last := d.Base + int64(d.Count) - 1
	if d.Offsets != nil {
		last = d.Base + int64(d.Offsets[d.Count-1])
	}
	return d.Base >= from && last < to
}

// take returns what waits: deliveries of limit messages at most or, if the first one has
// more, that one.
func (s *Session) take(limit int) (Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 {
		return Event{Gone: s.ended}, s.ended != ""
	}
	e := s.queue[0]
	n := 1
	if len(e.Deliveries) > 0 {
		for count := e.Deliveries[0].Count; n < len(s.queue); n++ {
			more := s.queue[n].Deliveries
			if len(more) == 0 || count+more[0].Count > limit {
				break
			}
			count += more[0].Count
			e.Deliveries = append(e.Deliveries, more[0])
		}
	}
	if n == len(s.queue) {
		clear(s.queue)
		s.queue = s.queue[:0]
	} else {
		s.queue = append([]Event(nil), s.queue[n:]...)
	}
	return e, true
}

// Receive waits for an event. Deliveries hold at most limit messages in all, and take
// credits; for a polled session limit is what is taken. One Receive at a time. The error is
// the context's. A session that has ended returns Gone again and again.
func (s *Session) Receive(ctx context.Context, limit int) (Event, error) {
	limit = min(limit, maxDelivery)
	s.enter(1)
	defer s.enter(-1)
	waited := false
	defer func() { // it may have been about to deliver for others, which find it without credits
		if waited || ctx.Err() != nil {
			s.group.stopWait(s)
		}
	}()
	if s.options.Polled {
		s.budget.Set(int64(limit), maxPoll)
		defer s.endPoll()
		s.group.WakeAll()
	}
	for {
		e, ok := s.take(limit)
		if !ok && ctx.Err() == nil {
			s.group.pump(ctx, limit)
			e, ok = s.take(limit)
		}
		if ok || ctx.Err() != nil {
			if ok {
				s.empty.Store(0)
				return e, nil
			}
			if s.options.Polled {
				s.empty.Store(s.group.cfg.Clock().UnixNano())
			}
			return Event{}, context.Cause(ctx)
		}
		waited = true
		if s.group.wait(s) {
			select {
			case <-s.wake:
			case <-ctx.Done():
			}
		}
	}
}

// endPoll takes the credits of a poll back, and returns what no poll has taken. Without that a
// message could stay in the queue while its lease runs:
//
//  1. A poll takes what it answers with, or its time is over, and it has credits left.
//  2. Another session pumps, takes these credits and puts a delivery into the queue.
//  3. The poll ends. The next one, if there is one, gets that delivery beside what it asks for.
//
// A pump takes credits and queues the delivery in one hold of the partition's lock: with the
// credits gone, nothing enters the queue behind the check of it under that lock.
func (s *Session) endPoll() {
	s.budget.Set(0, 0)
	for n := range s.members {
		s.giveBack(n, func() []Event { return s.unsent(n) })
	}
}

// Return gives deliveries back to the group that were not sent, which is no attempt.
func (s *Session) Return(list []Delivery) {
	for _, d := range list {
		s.giveBack(int(d.Partition), func() []Event { return []Event{{Deliveries: []Delivery{d}}} })
	}
}

// giveBack returns the deliveries of a partition that what names under the partition's lock.
func (s *Session) giveBack(n int, what func() []Event) {
	var list []Event
	s.group.cfg.Parts[n].Do(func(*machine.Machine) {
		list = what()
		returnIn(n, s.members[n], list)
	})
	if len(list) > 0 {
		s.group.Wake(n)
		s.group.wakeBlocked() // what waits in other partitions may be for other members
	}
}

// returnIn gives back what of events was delivered from a partition, whose lock is held.
func returnIn(n int, m *machine.Member, list []Event) {
	for _, e := range list {
		for i := range e.Deliveries {
			if d := &e.Deliveries[i]; int(d.Partition) == n {
				d.each(func(from, to int64) { m.Return(machine.Positions{Base: from, Count: to - from}) })
			}
		}
	}
}

// unsent takes the deliveries of a partition out of the queue.
func (s *Session) unsent(n int) (list []Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = slices.DeleteFunc(s.queue, func(e Event) bool {
		if len(e.Deliveries) == 0 || int(e.Deliveries[0].Partition) != n {
			return false
		}
		list = append(list, e)
		return true
	})
	return list
}

// Touch says that a call of the session was made.
func (s *Session) Touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called = s.group.cfg.Clock()
}

func (s *Session) enter(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inside += n
	s.called = s.group.cfg.Clock()
}

// Silent is how long no call has been made.
func (s *Session) Silent() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inside > 0 {
		return 0
	}
	return s.group.cfg.Clock().Sub(s.called)
}

// ID returns the session's id.
func (s *Session) ID() string { return s.options.ID }

// Options returns what the session was made with.
func (s *Session) Options() SessionOptions { return s.options }

// Group returns the group.
func (s *Session) Group() *Group { return s.group }

// Ended returns the reason for which the session has ended; empty if it has not.
func (s *Session) Ended() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// AddCredits adds credits and returns what may be sent now.
func (s *Session) AddCredits(c *topicv1.Credits) *topicv1.Credits {
	s.Touch()
	messages, bytes := s.budget.Add(c.GetMessages(), c.GetBytes())
	s.group.WakeAll()
	return &topicv1.Credits{Messages: messages, Bytes: bytes}
}

// Reasons for which a session ends that count as an attempt of what it had.
const (
	Broken = "BROKEN" // its connection ended
	Slow   = "SLOW"   // it did not read
	Silent = "SILENT" // it was not polled
)

// End ends the session with a reason for Gone. Its messages go to other members. It reports
// whether it was the last one of the group.
func (s *Session) End(why string) (last bool) {
	s.mu.Lock()
	if s.ended != "" {
		s.mu.Unlock()
		return false
	}
	s.ended = why
	unsent := s.queue
	s.queue = nil
	s.mu.Unlock()
	last = s.group.remove(s)
	s.leave(unsent, why == Broken || why == Slow || why == Silent)
	s.signal()
	return last
}

// leave takes the members out of the group, after an abnormal end that first from which the session
// got what it probably died of: the earliest message that it was sent and had not settled. A
// message that was not sent is no attempt.
func (s *Session) leave(unsent []Event, failed bool) {
	s.budget.Close()
	first := 0
	if failed {
		first = s.returnUnsent(unsent)
	}
	now := s.group.cfg.Clock()
	for i := range s.members {
		n := (first + i) % len(s.members)
		m := s.members[n]
		s.group.do(n, func(*machine.GroupState) { m.Detach(failed, now) })
		s.group.byMember.Delete(m)
	}
	s.group.WakeAll()
}

// returnUnsent gives back what was not sent, and returns the partition of the earliest message that
// was. A pump may deliver for the session meanwhile:
//
//  1. It takes credits of the session, and holds the lock of a partition.
//  2. The session ends, and its budget is closed: nothing else is taken.
//  3. The pump queues the delivery, which is late, and frees the lock.
//  4. The lock is taken here, and messages that come too late are returned.
func (s *Session) returnUnsent(unsent []Event) (first int) {
	earliest := machine.NoEnd
	for n, m := range s.members {
		s.group.cfg.Parts[n].Do(func(*machine.Machine) {
			returnIn(n, m, unsent)
			s.mu.Lock()
			late := s.late
			s.mu.Unlock()
			returnIn(n, m, late)
			if order := m.First(); order < earliest {
				earliest, first = order, n
			}
		})
	}
	return first
}

func (s *Session) open() error {
	s.Touch()
	if why := s.Ended(); why != "" {
		return refusal.New(refusal.SessionGone, "the session has ended: %s", why)
	}
	return nil
}
