package relay

import (
	"sync"
	"time"

	"github.com/parley-chat/parley/server/chat"
)

// Set is the relays that run in a process, one for each slot that the process holds.
//
// Concurrency: all methods are safe for concurrent use.
type Set struct {
	mu      sync.RWMutex
	relays  map[*Relay]bool
	removed Stats // counters of removed relays
}

// Add adds a relay that is about to run. The returned function removes it.
func (s *Set) Add(r *Relay) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.relays == nil {
		s.relays = map[*Relay]bool{}
	}
	s.relays[r] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.relays[r] {
			return
		}
		delete(s.relays, r)
		old := r.Stats()
		s.removed.Published += old.Published
		s.removed.Failures += old.Failures
		s.removed.Dropped += old.Dropped
	}
}

// Nudge passes a nudge to the relay of the chat's shard, if that runs here. It never waits.
func (s *Set) Nudge(c chat.Commit) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for r := range s.relays {
		r.Nudge(c)
	}
}

// Wake passes the name of a stream with new rows to the relay of its shard, if that runs here.
// It never waits.
func (s *Set) Wake(stream string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for r := range s.relays {
		r.Wake(stream)
	}
}

// Waiting returns the longest that any relay reports for each topic, see Relay.Waiting.
func (s *Set) Waiting() map[string]time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	longest := map[string]time.Duration{}
	for r := range s.relays {
		for topic, d := range r.Waiting() {
			longest[topic] = max(longest[topic], d)
		}
	}
	return longest
}

// Stats sums up the counters of the relays. Durations are the longest of any relay.
func (s *Set) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	sum := s.removed
	for r := range s.relays {
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
