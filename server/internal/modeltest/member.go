package modeltest

import (
	"context"
	"errors"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	client "github.com/parley-chat/parley/server/client/topic"
)

// member is a consumer in a group.
type member struct {
	*World
	*group
	of   *topicState
	stop context.Context // it ends when it has answered what it has
	ctx  context.Context // of its calls
}

// attend starts the members of a group: three, of which some stream, and one converses if others stream.
func (w *World) attend(g *group) {
	tasks := newTasks(w.consuming.ctx)
	g.members = &tasks
	for n := range 3 {
		m := &member{World: w, group: g, of: g.topic, stop: tasks.ctx,
			ctx: context.WithoutCancel(w.consuming.ctx)}
		tasks.all.Go(func() {
			for m.stop.Err() == nil {
				switch {
				case n < g.streams:
					m.stream()
				case n == g.streams && n > 0:
					m.converse()
				default:
					m.poll()
				}
				sleep(m.stop, 20*time.Millisecond) // not as fast as it goes: a server may be starting
			}
		})
	}
}

// open records a session that started between two moments.
func (m *member) open(id string, start stamp) *session {
	now := m.stamp()
	s := &session{id: id, start: start, opened: now, last: now}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions = append(m.sessions, s)
	return s
}

// over records that a session is gone: it ended at some moment after it was last there.
func (m *member) over(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.end.seq == 0 {
		s.end = s.last
	}
}

// ended reports whether an error says that the session does not exist any more.
func ended(err error) bool {
	return client.Reason(err) == "SESSION_GONE" || client.Reason(err) == "DRAINING"
}

// missed records that a session may have begun whose answer was lost, and with which nothing is done.
func (m *member) missed(call stamp, err error) {
	if transient(err) {
		m.over(m.open("", call))
	}
}

// absent records that a session has ended for certain, if it has.
func (m *member) absent(s *session, certain bool) {
	now := m.stamp()
	m.mu.Lock()
	defer m.mu.Unlock()
	if certain && s.gone.seq == 0 {
		s.gone = now
	}
}

// fails records an error that the server must not answer with, and reports whether the member can
// continue with the session.
func (m *member) fails(call string, err error) bool {
	if transient(err) && client.Reason(err) != "DRAINING" {
		if m.Simulated && m.ctx.Err() == nil {
			m.find("%s: a server that is there fails %s: %v", m.group.name, call, err)
		}
		return true
	}
	switch client.Reason(err) {
	case "SESSION_GONE", "NOT_ACTIVE", "MEMBER_EXISTS", "NO_OWNER", "DRAINING":
	default:
		m.find("refused: %s of %s, group %s: %v", call, m.of.name, m.group.name, err)
	}
	return false
}

// poll is the life of a session that polls.
func (m *member) poll() {
	var s *session
	defer func() { m.detach(s) }()
	for m.stop.Err() == nil {
		req := &topicv1.PullRequest{Topic: m.of.name, Group: m.group.name, MaxMessages: int32(1 + m.chance(8)),
			Wait: durationpb.New(m.wait())}
		if s != nil {
			req.Session = s.id
		}
		call := m.stamp()
		res, err := try(m.ctx, m.User.Consumers.Pull, req)
		if err != nil {
			if s == nil {
				m.missed(call, err)
			}
			if m.fails("Pull", err) {
				sleep(m.stop, 20*time.Millisecond)
				continue
			}
			if s != nil {
				m.over(s)
				m.absent(s, ended(err))
			}
			return
		}
		if s == nil {
			s = m.open(res.GetSession(), call)
		}
		list := m.receive(s, call, int(req.GetMaxMessages()), res.GetDeliveries())
		m.handle(s, list)
	}
}

// wait is how long a poll waits. A real member ends as soon as its poll does.
func (w *World) wait() time.Duration {
	if w.Simulated {
		return 5 * time.Second
	}
	return 300 * time.Millisecond
}

// stream is the life of a session that streams. A goroutine reads all the time, so that in simulated
// time a message is read at the moment at which it was sent.
func (m *member) stream() {
	ctx, cancel := context.WithCancel(m.ctx)
	defer cancel()
	call := m.stamp()
	stream, err := m.User.Consumers.Consume(ctx, &topicv1.ConsumeRequest{Attach: &topicv1.Attach{
		Topic: m.of.name, Group: m.group.name, RenewCredits: true,
		Credits: &topicv1.Credits{Messages: int64(1 + m.chance(20))}}})
	if err != nil {
		m.missed(call, err)
		m.fails("Consume", err)
		return
	}
	defer stream.Close()
	if !stream.Receive() || stream.Msg().GetAttached() == nil {
		if err := stream.Err(); err != nil {
			m.missed(call, err)
			m.fails("Consume", err)
		} else {
			m.find("stream: %s starts with %v", m.group.name, stream.Msg())
		}
		return
	}
	s := m.open(stream.Msg().GetAttached().GetSession(), call)
	batches := make(chan []*delivery, 1000) // more than the credits
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.read(s, stream, batches)
	}()
	if m.handleAll(s, batches, ended) {
		m.detach(s)
		cancel()
		<-ended
	}
}

// handleAll handles the messages of a stream until the member is to stop. It returns false if the stream ended before.
func (m *member) handleAll(s *session, batches <-chan []*delivery, ended <-chan struct{}) bool {
	for m.stop.Err() == nil {
		select {
		case list := <-batches:
			m.handle(s, list)
			s.talk.give(int64(len(list)))
		case <-time.After(lease): // messages that were taken back before they were sent have cost credits, too
			s.talk.give(1)
		case <-m.stop.Done():
		case <-ended:
			return false
		}
	}
	return true
}

// read reads a stream to its end.
func (m *member) read(
	s *session, stream *connect.ServerStreamForClient[topicv1.ConsumeResponse], batches chan<- []*delivery,
) {
	for stream.Receive() {
		if d := stream.Msg().GetDelivery(); d != nil {
			batches <- m.receive(s, s.start, 0, []*topicv1.Delivery{d})
		}
		if stream.Msg().GetGone() != nil {
			m.absent(s, true)
			break
		}
		m.seen(s)
	}
	m.over(s)
	if err := stream.Err(); err != nil && m.stop.Err() == nil {
		m.fails("Consume", err)
	}
}

// positionIn is where message i of a delivery stands.
func positionIn(d *topicv1.Delivery, i int) position {
	if d.GetOffsets() != nil {
		i = int(d.GetOffsets()[i])
	}
	return position{d.GetPartition(), d.GetBase() + int64(i)}
}

// seen records that a session is there.
func (m *member) seen(s *session) {
	now := m.stamp()
	m.mu.Lock()
	defer m.mu.Unlock()
	s.last = now
}

func (m *member) detach(s *session) {
	if s == nil {
		return
	}
	m.seen(s)
	m.over(s) // it may end while the call is under way
	_, err := try(m.ctx, m.User.Consumers.Detach, &topicv1.DetachRequest{Session: s.id})
	if err != nil {
		m.fails("Detach", err)
	}
	m.absent(s, err == nil || ended(err))
}

// receive records deliveries of a response. The server gave their messages away after from, and in
// simulated time at the moment at which they are received.
func (m *member) receive(s *session, from stamp, limit int, deliveries []*topicv1.Delivery) (list []*delivery) {
	now, first := m.now()
	if m.Simulated && from.before(first) {
		from = first
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.last = now
	for _, d := range deliveries {
		before := int64(-1)
		for i, message := range d.GetMessages() {
			at := positionIn(d, i)
			got := &delivery{session: s, from: from, at: now, position: at, message: message, attempt: 1}
			if d.GetAttempts() != nil {
				got.attempt = int(d.GetAttempts()[i])
			}
			if at.position <= before {
				m.report("order: %s of %s gets position %d behind %d", m.group.name, m.of.name, at.position, before)
			}
			before = at.position
			m.delivered[at] = append(m.delivered[at], got)
			list = append(list, got)
		}
	}
	if limit > 0 && len(list) > limit {
		m.report("limit: %s of %s asked for %d messages and got %d", m.group.name, m.of.name, limit, len(list))
	}
	return list
}

// calmed reports whether members do nothing but acknowledge.
func (w *World) calmed() bool {
	select {
	case <-w.calm:
		return true
	default:
		return false
	}
}

// handle does with messages what consumers do: most are acknowledged, soon or late, some are
// returned, kept for longer, or forgotten.
func (m *member) handle(s *session, list []*delivery) {
	var quick []*delivery
	var slow []func()
	for _, d := range list {
		what := m.chance(100)
		switch {
		case m.poisoned() && d.message.GetType() == poisonous && !(m.parks() && m.calmed()) &&
			d.message.GetHeaders()[redrivenHeader] == "": // its handler was repaired
			slow = append(slow, func() { m.settle(s, nack, 0, d) })
		case m.calmed() || what < 80:
			quick = append(quick, d)
		case what < 88:
			delay := time.Duration(m.chance(int(lease)))
			slow = append(slow, func() { m.settle(s, nack, delay, d) })
		case what < 92:
			slow = append(slow, func() {
				sleep(m.stop, lease*6/10)
				m.settle(s, extend, 0, d)
				sleep(m.stop, lease*6/10)
				m.settle(s, ack, 0, d)
			})
		case what < 96:
			slow = append(slow, func() { // another member has it by then, or had it
				sleep(m.stop, lease+lease/5)
				m.settle(s, ack, 0, d)
			})
		} // the remaining ones are forgotten
	}
	if len(quick) > 0 {
		if !m.calmed() {
			sleep(m.stop, time.Duration(m.chance(int(40*time.Millisecond))))
		}
		m.acknowledge(s, quick)
		if !m.calmed() && m.chance(20) == 0 {
			m.settle(s, ack, 0, quick...) // changes nothing
		}
	}
	for _, f := range slow {
		f()
	}
}

// acknowledge acknowledges messages: together, or on a stream in both directions one by one, without waiting for
// the answers in between.
func (m *member) acknowledge(s *session, list []*delivery) {
	if s.talk == nil || m.chance(2) == 0 {
		m.settle(s, ack, 0, list...)
		return
	}
	var all sync.WaitGroup
	for _, d := range list {
		all.Go(func() { m.settle(s, ack, 0, d) })
	}
	all.Wait()
}

// settle says something of messages, again if there is no answer.
func (m *member) settle(s *session, kind settleKind, delay time.Duration, list ...*delivery) {
	for n := 0; ; n++ {
		call := m.stamp()
		refusals, err := m.say(s, kind, delay, list)
		ret := m.stamp()
		again := err != nil && !errors.Is(err, errOver) && m.fails("an answer to messages", err) && n < 3
		m.mu.Lock()
		for _, d := range list {
			x := &settlement{span: span{call, ret}, session: s, kind: kind, delay: delay}
			switch {
			case err == nil && among(refusals, d.position):
				x.outcome = refused
			case err == nil:
				x.outcome = done
			case !transient(err):
				x.outcome = refused
			}
			m.settled[d.position] = append(m.settled[d.position], x)
		}
		if err == nil {
			s.last = call
		}
		m.mu.Unlock()
		if err != nil && !transient(err) {
			m.over(s)
		}
		if !again || !sleep(m.ctx, 30*time.Millisecond) {
			return
		}
	}
}

// say makes the call.
func (m *member) say(s *session, kind settleKind, delay time.Duration, list []*delivery) ([]*topicv1.Refusal, error) {
	set := positions(list, m.chance(2) == 0)
	if s.talk != nil {
		return s.talk.say(m.ctx, kind, delay, set)
	}
	switch c := m.User.Consumers; kind {
	case nack:
		res, err := try(m.ctx, c.Nack, &topicv1.NackRequest{Session: s.id,
			Set: &topicv1.NackSet{Positions: set, Delay: durationpb.New(delay), Reason: "no"}})
		return res.GetRefusals(), err
	case extend:
		res, err := try(m.ctx, c.Extend, &topicv1.ExtendRequest{Session: s.id, Set: &topicv1.ExtendSet{Positions: set}})
		return res.GetRefusals(), err
	}
	res, err := try(m.ctx, m.User.Consumers.Ack, &topicv1.AckRequest{Session: s.id, Set: &topicv1.AckSet{Positions: set}})
	return res.GetRefusals(), err
}

// positions names messages: as ranges, or one by one.
func positions(list []*delivery, ranges bool) (all []*topicv1.Positions) {
	for _, d := range list {
		if n := len(all); ranges && n > 0 && all[n-1].GetPartition() == d.position.partition &&
			all[n-1].GetBase()+all[n-1].GetCount() == d.position.position {
			all[n-1].Count++
			continue
		}
		all = append(all, &topicv1.Positions{Partition: d.position.partition, Base: d.position.position, Count: 1})
	}
	return all
}

// among reports whether a message is among what was refused.
func among(list []*topicv1.Refusal, at position) bool {
	for _, r := range list {
		p := r.GetPositions()
		if p.GetPartition() == at.partition && at.position >= p.GetBase() && at.position < p.GetBase()+max(p.GetCount(), 1) {
			return true
		}
	}
	return false
}
