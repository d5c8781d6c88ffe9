package topicrpc

import (
	"context"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/topic/refusal"
)

// maxStreams is the number of streams that a principal may have open.
const maxStreams = 1000

// Streams knows the open streams, to end them when the server goes down or a session of a
// token ends.
type Streams struct {
	revoked  func(Identity) bool
	mu       sync.Mutex
	draining bool
	open     map[*opened]struct{}
	of       map[string]int      // streams by principal
	polled   map[string]struct{} // sessions with a poll under way
	drained  chan struct{}       // closed when the drain begins
}

// NewStreams makes a Streams. revoked, if given, says whether the access of a user was revoked
// by now. It is called after a stream was registered: EndRevoked finds what is open, and this
// what is being opened.
func NewStreams(revoked func(Identity) bool) *Streams {
	return &Streams{revoked: revoked, open: map[*opened]struct{}{}, of: map[string]int{},
		polled: map[string]struct{}{}, drained: make(chan struct{})}
}

// opened is an open stream.
type opened struct {
	identity Identity
	end      func(reason string)
	expires  *time.Timer
}

// Enter registers a stream, which end ends with a reason. leave removes it. Errors: those of
// going down, of too many streams, and of access that was revoked meanwhile.
func (s *Streams) Enter(id Identity, end func(reason string)) (leave func(), err error) {
	o, err := s.enter(id, end)
	if err != nil {
		return nil, err
	}
	if s.revoked != nil && !id.Operator && !id.Carried && s.revoked(id) {
		s.leave(o)
		return nil, refusal.New(refusal.TopicForbidden, "the caller's access was revoked")
	}
	return func() { s.leave(o) }, nil
}

func (s *Streams) enter(id Identity, end func(reason string)) (*opened, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return nil, errDraining
	case !id.Operator && s.of[id.Principal] >= maxStreams:
		return nil, refusal.New(refusal.TooMany, "%d streams are open, which is as many as can be", maxStreams)
	}
	o := &opened{identity: id, end: end}
	if !id.Token.ExpiresAt.IsZero() {
		o.expires = time.AfterFunc(time.Until(id.Token.ExpiresAt), func() { end("TOKEN_EXPIRED") })
	}
	s.open[o] = struct{}{}
	s.of[id.Principal]++
	return o, nil
}

func (s *Streams) leave(o *opened) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.expires != nil {
		o.expires.Stop()
	}
	delete(s.open, o)
	if s.of[o.identity.Principal]--; s.of[o.identity.Principal] == 0 {
		delete(s.of, o.identity.Principal)
	}
}

// poll registers a poll of a session, of which there is one at a time. leave removes it.
func (s *Streams) poll(session string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.polled[session]; ok {
		return nil, refusal.New(refusal.TooMany, "the session has a call of Pull under way")
	}
	s.polled[session] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.polled, session)
	}, nil
}

// Len is the number of open streams.
func (s *Streams) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// EndRevoked ends the streams of the callers that covers selects, other than operators.
func (s *Streams) EndRevoked(covers func(Identity) bool) {
	s.each("TOPIC_FORBIDDEN", func(o *opened) bool { return !o.identity.Operator && covers(o.identity) })
}

// Drain ends all streams, and polls that wait; from then on none is opened.
func (s *Streams) Drain() {
	s.mu.Lock()
	first := !s.draining
	s.draining = true
	s.mu.Unlock()
	if first {
		close(s.drained)
	}
	s.each("DRAINING", func(*opened) bool { return true })
}

func (s *Streams) each(reason string, which func(*opened) bool) {
	s.mu.Lock()
	var all []*opened
	for o := range s.open {
		if which(o) {
			all = append(all, o)
		}
	}
	s.mu.Unlock()
	for _, o := range all {
		o.end(reason)
	}
}

// untilDrain is a context that also ends when the drain begins.
func (s *Streams) untilDrain(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		cancel()
		return ctx, cancel
	}
	go func() {
		select {
		case <-s.drained:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
