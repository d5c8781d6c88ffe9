package serving

import (
	"context"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

const (
	idle      = 10 * time.Minute // without use, after which a topic is closed
	idleEvery = time.Minute      // at which topics are checked
)

// Run closes topics that no caller uses until the context ends.
func (s *TopicCache) Run(ctx context.Context) {
	for wait.For(ctx, idleEvery) == nil {
		s.CloseIdle(idle)
	}
}

// CloseIdle closes the topics that were not used for some time, that have no members, and of
// which all is stored. Changes that are not stored yet are stored from then on, and the
// topic is closed the next time.
func (s *TopicCache) CloseIdle(unused time.Duration) {
	for _, l := range s.unused(unused) {
		s.close(l)
	}
}

// unused returns the topics that no caller holds or has held for some time.
func (s *TopicCache) unused(long time.Duration) (list []*OpenTopic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.engine.Steady().Add(-long)
	for _, e := range s.open {
		if !e.Held() && !e.used.After(before) {
			list = append(list, e.OpenTopic)
		}
	}
	return list
}

// close closes a topic, unless a caller has acquired it meanwhile or a part of its state is
// not stored. No caller can acquire the topic during this check, because a caller that wants
// it waits for its lock. So nothing of the topic changes between the check and the end. The
// next caller that opens it finds all of it in the store, as a process that starts does.
func (s *TopicCache) close(l *OpenTopic) {
	defer l.Changing().End()
	s.mu.Lock()
	e := s.open[l.Number]
	free := e != nil && e.OpenTopic == l && !l.Held()
	if free {
		s.drop(l.Number)
	}
	s.mu.Unlock()
	if !free {
		return
	}
	if !settled(l) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.put(e)
		return
	}
	for _, g := range l.Groups() {
		l.Observed(g.Name(), g.Heartbeats.Fill)
	}
	shut(l, "IDLE") // no notification: the topic has no members
}

// settled reports whether a topic has no members, and all of it is stored.
func settled(l *OpenTopic) bool {
	for _, g := range l.Groups() {
		if g.Members() > 0 || !g.Heartbeats.Settled() {
			return false
		}
	}
	all := true
	for _, p := range l.Parts {
		all = p.Settled() && all
	}
	return all
}
