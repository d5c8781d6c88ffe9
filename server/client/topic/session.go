package topic

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// How acknowledgements are grouped: those that come within a while go together, unless
// handlers have nothing else to do.
const (
	ackDelay = 5 * time.Millisecond
	ackBatch = 200
)

// usualAlive is how often a stream shows that it is alive; one that is silent for three
// times that has ended.
const usualAlive = 15 * time.Second

var errSilent = errors.New("topic: nothing was heard from the server")

// session is an attachment of the consumer.
type session struct {
	*run
	link    link
	id      string
	cut     context.CancelCauseFunc
	watch   *time.Timer
	silence time.Duration // after which watch cuts it
	credits int64         // with a limit: messages that may still come
}

// session attaches and works until the connection ends, or until ctx ends and what was begun
// is finished.
func (r *run) session(ctx context.Context, again *retry) error {
	own, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	hurry := context.AfterFunc(ctx, func() { cut(context.Cause(ctx)) })
	s := &session{run: r, cut: cut, watch: time.AfterFunc(callTimeout, func() { cut(errSilent) })}
	defer s.watch.Stop()
	attached, err := s.dial(own)
	if err != nil {
		return err
	}
	defer s.link.close()
	if s.client.shown.restores() != s.restores {
		return errEnded // the local state may be of another history than the stream
	}
	// From the first delivery on a handler may end ctx, and its message is still to be acknowledged.
	if !hurry() {
		return nil // ctx ended before that
	}
	again.succeeded()
	s.begin(attached)
	var wg sync.WaitGroup
	for _, f := range []func(context.Context) error{s.receive, s.settle, s.extend} {
		wg.Go(func() {
			if err := f(own); err != nil {
				cut(err)
			}
		})
	}
	select {
	case <-own.Done():
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		err = s.end(ctx, own)
	}
	cut(nil)
	s.link.close()
	wg.Wait()
	r.update(func() { r.inbox.disown(time.Now().Add(r.lease)) })
	if ctx.Err() != nil {
		return err
	}
	return context.Cause(own)
}

// dial opens the connection and attaches.
func (s *session) dial(ctx context.Context) (*topicv1.Attached, error) {
	dial := dialCalls
	if s.twoWays = s.canTwoWays(); s.twoWays {
		dial = dialStream
	}
	l, err := dial(ctx, s.client.consumers, s.ask(), s.confirm)
	if err == nil {
		var f frame
		f, err = l.receive()
		switch {
		case err == nil && f.attached != nil:
			s.link, s.id = l, f.attached.GetSession()
			return f.attached, nil
		case err == nil && f.gone != nil:
			err = &GoneError{f.gone.GetReason()}
		case err == nil:
			err = errEnded
		}
		l.close()
	}
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	return nil, err
}

// ask is what the member says of itself. With a limit, an acknowledgement returns no
// credits, so that no more messages come than are to be handled, and those that may come
// again.
func (s *session) ask() *topicv1.Attach {
	a := s.attach()
	if s.cfg.Limit > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.credits = max(1, min(a.GetCredits().GetMessages(), int64(s.left+len(s.inbox.items))))
		a.RenewCredits, a.Credits.Messages = false, s.credits
	}
	return a
}

// limit ends the consumer once as many messages were handled as it is to take, and the
// server knows. The error ends a session of which nothing that is missing can come any more:
// it has used its credits and has nothing.
func (s *session) limit() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == 0 && s.inbox.untouched() {
		s.finish()
	}
	if s.cfg.Limit > 0 && s.left > 0 && s.credits <= 0 && !s.inbox.owns() {
		return errUsed
	}
	return nil
}

// canTwoWays reports whether the server may take a stream in both directions. As long as
// nothing is known of it, that is tried once.
func (r *run) canTwoWays() bool {
	version := r.client.http.major.Load()
	return version >= 2 || version == 0 && !r.twoWays
}

// begin takes the description of the session.
func (s *session) begin(a *topicv1.Attached) {
	alive := a.GetHeartbeatInterval().AsDuration()
	if alive <= 0 {
		alive = usualAlive
	}
	s.silence = 3 * alive
	s.watch.Reset(s.silence)
	s.attached = true
	s.update(func() { s.know(a.GetSubscription()) })
}

// receive takes what comes until the stream ends.
func (s *session) receive(context.Context) error {
	for {
		f, err := s.link.receive()
		if errors.Is(err, io.EOF) {
			return errEnded
		}
		if err != nil {
			return err
		}
		s.watch.Reset(s.silence)
		if f.gone != nil {
			return &GoneError{f.gone.GetReason()}
		}
		s.update(func() { s.take(f) })
		s.wake() // what comes again may have been handled already
	}
}

// take takes a frame. The caller holds mu.
func (s *session) take(f frame) {
	now := time.Now()
	s.heartbeats.heard(now)
	if f.delivery != nil {
		s.inbox.add(f.delivery)
		s.credits -= int64(len(f.delivery.GetMessages()))
	}
	for _, p := range f.lost.GetPositions() {
		eachPosition(p, func(at int64) { s.inbox.lose(messagePosition{p.GetPartition(), at}, ErrLeaseLost) })
	}
	if f.alive != nil {
		s.warnStalled(f.alive.GetStalls())
	}
	if f.state != topicv1.SubscriptionState_SUBSCRIPTION_STATE_UNSPECIFIED {
		s.cfg.Log.Info("topic: the subscription has another state", "state", f.state)
		if f.state != topicv1.SubscriptionState_SUBSCRIPTION_STATE_ACTIVE {
			s.inbox.disown(now.Add(s.lease))
		}
	}
}

// confirm takes the answer to something that was sent.
func (r *run) confirm(o *outgoing, refusals []*topicv1.Refusal) {
	r.update(func() {
		r.inbox.confirm(o.items)
		for _, refusal := range refusals {
			if o.extend != nil {
				p := refusal.GetPositions()
				eachPosition(p, func(at int64) { r.inbox.lose(messagePosition{p.GetPartition(), at}, ErrLeaseLost) })
			}
		}
	})
	if len(refusals) > 0 && len(o.items) > 0 {
		r.cfg.Log.Warn("topic: messages were handled that were not this consumer's any more; they come again",
			"outcome", refusals[0].GetOutcome(), "partition", refusals[0].GetPositions().GetPartition(),
			"position", refusals[0].GetPositions().GetBase())
	}
}

// settle sends what became of messages.
func (s *session) settle(ctx context.Context) error {
	for {
		select {
		case <-s.flush:
		case <-ctx.Done():
			return nil
		}
		s.gather(ctx)
		s.mu.Lock()
		items := s.inbox.take()
		s.mu.Unlock()
		for _, o := range outgoings(items) {
			if err := s.link.send(ctx, o); err != nil {
				return onlyOwn(err)
			}
		}
		if err := s.limit(); err != nil {
			return err
		}
	}
}

// gather waits a little for more to settle.
func (s *session) gather(ctx context.Context) {
	late := time.NewTimer(ackDelay)
	defer late.Stop()
	for {
		s.mu.Lock()
		now := s.prompt || s.stopping || s.inbox.idle() || len(s.inbox.settled) >= ackBatch
		s.mu.Unlock()
		if now {
			return
		}
		select {
		case <-s.flush:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// onlyOwn leaves it to receive to say why a stream ended. A session that the server does not
// know any more is followed by another.
func onlyOwn(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	if Reason(err) == reasonNoSession {
		return errEnded
	}
	return err
}

// extend keeps the leases of what is here.
func (s *session) extend(ctx context.Context) error {
	for {
		s.mu.Lock()
		pause := s.lease / 3
		s.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		s.mu.Lock()
		s.inbox.expire(time.Now())
		holds := s.inbox.holds()
		s.mu.Unlock()
		s.wake() // for the limit, which waits for what was forgotten
		if !holds {
			continue
		}
		if err := s.link.send(ctx, &outgoing{extend: &topicv1.ExtendSet{}}); err != nil {
			return onlyOwn(err)
		}
	}
}

// end lets handlers finish, acknowledges what they have done and detaches.
func (s *session) end(ctx, own context.Context) error {
	if err := fatal(ctx); err != nil {
		return err
	}
	s.drain(own)
	s.wake()
	short, cancel := context.WithTimeout(own, heartbeatTimeout)
	defer cancel()
	s.waitFor(short, s.inbox.isSettled)
	if own.Err() != nil {
		return nil
	}
	// The stream ends with it, and must not take the call along.
	if err := s.detach(context.WithoutCancel(own), s.id); err != nil {
		return &detachError{err}
	}
	return nil
}
