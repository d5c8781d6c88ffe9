package topic

import (
	"context"
	"crypto/rand"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Limits and defaults of sessions.
const (
	defaultMessages = 1000
	defaultBytes    = 8 << 20
	maxBytes        = 64 << 20
	aliveEvery      = 15 * time.Second
	silentIntervals = 3 // after which the session of a poller ends
)

// Delivery holds messages of one partition, see serving.Delivery.
type Delivery = serving.Delivery

// Event is what a session receives, see serving.Event.
type Event = serving.Event

// Session is an attached member.
type Session struct {
	*serving.Session

	service  *Service
	live     *serving.OpenTopic
	caller   Caller
	attached *topicv1.Attached
	pushes   bool // to a webhook
}

// Attach attaches a member to a group and opens its session. A session that is polled
// ends when it is not called for three intervals, see Attached; another one lives until
// Detach or End. Attaching is a heartbeat: it revives a dead group. A group with a webhook has the server
// as its only member.
func (s *Service) Attach(ctx context.Context, c Caller, a *topicv1.Attach, polled bool) (*Session, error) {
	return s.attach(ctx, c, a, polled, false)
}

func (s *Service) attach(ctx context.Context, c Caller, a *topicv1.Attach, polled, pushes bool) (*Session, error) {
	name := a.GetGroup()
	if name == "" {
		name = storage.QueueGroup
	}
	if strings.ContainsFunc(a.GetMember(), unicode.IsControl) { // operators read it in lists and logs
		return nil, refusal.New(refusal.InvalidArgument, "the member's name has a control character")
	}
	if _, err := s.Heartbeat(ctx, c, a.GetTopic(), name); err != nil {
		return nil, err
	}
	l, sub, reading, err := s.subscribed(ctx, c, a.GetTopic(), name)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	defer reading.End()
	g := l.Group(name)
	switch {
	case g == nil:
		return nil, refusal.New(refusal.SubscriptionGone, "the subscription of %q has ended", name)
	case !pushes && sub.Config.GetPush() != nil:
		return nil, refusal.New(refusal.GroupPushed, "the messages of group %.255q go to a webhook: "+
			"remove push from the subscription to consume them, or subscribe another group", name)
	}
	o := options(c, a, polled)
	o.ID = s.engine.Catalog.SessionPrefix() + rand.Text()
	if err := s.cfg.Sessions.Take(c.Principal); err != nil {
		return nil, err
	}
	first := g.Members() == 0
	in, err := g.Attach(o)
	if err != nil {
		s.cfg.Sessions.Leave(c.Principal)
		return nil, err
	}
	if first {
		g.Heartbeats.Restarted(g.Progress())
	}
	l.Track(g)
	o = in.Options()
	open := &Session{Session: in, service: s, live: l, caller: c, pushes: pushes}
	interval := min(aliveEvery, sub.Config.GetHeartbeatInterval().AsDuration())
	open.attached = &topicv1.Attached{
		Session: o.ID, Member: o.Member, Subscription: serving.ShowSubscription(l, sub,
			false), HeartbeatInterval: durationpb.New(interval),
	}
	s.register(open)
	return open, nil
}

// register makes a session known. The goroutines that end sessions may have checked before: Run,
// which stops, and bind, which has stored a binding since Attach asked for it. bind stores first
// and checks then, and this checks the binding after the session is known, so one of the two sees
// the other.
func (s *Service) register(o *Session) {
	s.mu.Lock()
	s.sessions[o.ID()] = o
	stopped := s.stopped
	s.mu.Unlock()
	if stopped && !o.pushes { // the worker ends its own
		o.End(serving.Draining)
	}
	o.endUnlessAllowed()
}

// endUnlessAllowed ends the session if its caller may not use the group any more.
func (o *Session) endUnlessAllowed() {
	t := o.service.engine.Catalog.Topic(o.Group().Topic())
	if t != nil && !o.service.allowed(o.caller, t, subscriber, o.Group().Name()) {
		o.End(forbiddenReason)
	}
}

const forbiddenReason = string(refusal.TopicForbidden)

func options(c Caller, a *topicv1.Attach, polled bool) serving.SessionOptions {
	o := serving.SessionOptions{
		Member: a.GetMember(), Principal: c.Principal, Filter: a.GetFilter(), Messages: a.GetCredits().GetMessages(),
		Bytes: a.GetCredits().GetBytes(), Renew: a.GetRenewCredits(), Polled: polled,
	}
	if o.Member == "" {
		o.Member = "member-" + rand.Text()
	}
	if o.Messages == 0 {
		o.Messages = defaultMessages
	}
	if o.Bytes == 0 {
		o.Bytes = defaultBytes
	}
	if polled {
		o.Bytes = maxBytes
	}
	return o
}

// Session returns an open session of the caller.
func (s *Service) Session(c Caller, id string) (*Session, error) {
	s.mu.Lock()
	o := s.sessions[id]
	s.mu.Unlock()
	if o == nil || o.caller.Principal != c.Principal || o.Ended() != "" {
		return nil, refusal.New(refusal.SessionGone, "there is no such session, or it has ended")
	}
	return o, nil
}

func (s *Service) sessionsOf(principal string) []*Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*Session
	for _, o := range s.sessions {
		if principal == "" || o.caller.Principal == principal {
			list = append(list, o)
		}
	}
	return list
}

// Attached says what the session is.
func (o *Session) Attached() *topicv1.Attached { return o.attached }

// State is the subscription's state now.
func (o *Session) State() topicv1.SubscriptionState { return o.Group().State() }

// Stalls returns the partitions in which the group gets nothing although members wait.
func (o *Session) Stalls() []*topicv1.Stall { return o.Group().Stalls() }

// Receive waits for an event, see serving.Session. A call is a heartbeat.
func (o *Session) Receive(ctx context.Context, limit int) (Event, error) {
	e, err := o.Session.Receive(ctx, limit)
	if e.Gone != "" {
		o.forget()
	}
	return e, err
}

// End ends the session with a reason for Gone. With serving.Broken and serving.Slow what
// it has counts as an attempt that failed.
func (o *Session) End(why string) { o.end(why) }

// end ends the session, and reports whether it was the group's last one. A member that
// goes was heard from.
func (o *Session) end(why string) (last bool) {
	if g := o.live.Group(o.Group().Name()); g != nil && why != serving.Silent {
		o.live.RecordHeartbeat(g, o.service.cfg.Clock())
	}
	last = o.Session.End(why)
	o.forget()
	return last
}

func (o *Session) forget() {
	o.service.mu.Lock()
	_, known := o.service.sessions[o.ID()]
	delete(o.service.sessions, o.ID())
	o.service.mu.Unlock()
	if known {
		o.service.cfg.Sessions.Leave(o.caller.Principal)
	}
}

// Detach ends the session; its messages go to others at once. cancel: the subscription,
// too, if this was its last member.
func (o *Session) Detach(ctx context.Context, cancel bool) error {
	last := o.end("DETACHED")
	if !cancel || !last || o.live.View().Config.GetSemantics() == storage.Queue {
		return nil
	}
	_, err := o.service.ask(ctx, o.caller, o.Group().Topic(), o.Group().Name(), storage.Leave,
		&topicv1.CancelSubscriptionRequest{Topic: o.Group().Topic(), Group: o.Group().Name()})
	return err
}

// endSilent ends sessions of pollers that do not poll.
func (s *Service) endSilent() {
	for _, o := range s.sessionsOf("") {
		if o.Options().Polled && o.Silent() >= silentIntervals*o.attached.GetHeartbeatInterval().AsDuration() {
			o.End(serving.Silent)
		}
	}
}
