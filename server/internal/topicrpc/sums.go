package topicrpc

import (
	"maps"
	"slices"
	"sync"

	"github.com/parley-chat/parley/server/topic"
)

// sums adds up what the services of a process show. A server that is alone has one; one of
// many has those of its slots, which come and go. The counts of a slot that was given up stay:
// a counter never goes back.
type sums struct {
	mu       sync.Mutex
	services map[*topic.Service]struct{}
	counted  []*countedSlots
}

// countedSlots is one counter.
type countedSlots struct {
	read func(*topic.Service) float64
	past float64 // of services that have ended
}

func newSums() *sums { return &sums{services: map[*topic.Service]struct{}{}} }

// begin adds a service.
func (s *sums) begin(of *topic.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[of] = struct{}{}
}

// end takes a service out that has ended.
func (s *sums) end(of *topic.Service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.services[of]; !ok {
		return
	}
	delete(s.services, of)
	for _, c := range s.counted {
		c.past += c.read(of)
	}
}

// counter is the sum of a counter over all services, those included that have ended since.
func (s *sums) counter(read func(*topic.Service) float64) func() float64 {
	c := &countedSlots{read: read}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counted = append(s.counted, c)
	return func() float64 {
		// Under the lock: counts in neither part would be missing for a moment.
		s.mu.Lock()
		defer s.mu.Unlock()
		n := c.past
		for of := range s.services {
			n += read(of)
		}
		return n
	}
}

// gauge is the sum of a gauge over the services that there are.
func (s *sums) gauge(read func(*topic.Service) float64) func() float64 {
	return func() (n float64) {
		for _, of := range s.all() {
			n += read(of)
		}
		return n
	}
}

// most is the largest value of a gauge among the services that there are.
func (s *sums) most(read func(*topic.Service) float64) func() float64 {
	return func() (n float64) {
		for _, of := range s.all() {
			n = max(n, read(of))
		}
		return n
	}
}

// all are the services that there are.
func (s *sums) all() []*topic.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.services))
}
