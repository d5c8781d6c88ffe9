package relay

import (
	"sync"

	"github.com/parley-chat/parley/server/chat"
)

// Set is the relays that run in a process, one for each slot that it holds.
//
// Concurrency: all methods may be called by anybody.
type Set struct {
	mu   sync.RWMutex
	list map[*Relay]bool
	gone Stats // of relays that are not there any more
}

// Add adds a relay that is about to run; the function takes it out again.
func (s *Set) Add(r *Relay) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil {
		s.list = map[*Relay]bool{}
	}
	s.list[r] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.list[r] {
			return
		}
		delete(s.list, r)
		old := r.Stats()
		s.gone.Published += old.Published
		s.gone.Failures += old.Failures
		s.gone.Dropped += old.Dropped
	}
}

// Nudge tells the relay of the chat's shard, if it is one of these. It never waits.
func (s *Set) Nudge(c chat.Commit) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for r := range s.list {
		r.Nudge(c)
	}
}

// Stats sums up what the relays did and what waits for them.
func (s *Set) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	sum := s.gone
	for r := range s.list {
		one := r.Stats()
		sum.Published += one.Published
		sum.Failures += one.Failures
		sum.Poisoned += one.Poisoned
		sum.Dropped += one.Dropped
		sum.Backlog += one.Backlog
		sum.Unavailable += one.Unavailable
		sum.Oldest = max(sum.Oldest, one.Oldest)
		sum.Stalled = max(sum.Stalled, one.Stalled)
	}
	return sum
}
