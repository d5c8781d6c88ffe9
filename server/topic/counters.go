package topic

import (
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/serving"
	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// Counters returns the counters.
func (s *Service) Counters() *serving.Counters { return s.engine.Counters }

// ReleaseCauses are the causes by which messages are taken from groups to which they were due.
func ReleaseCauses() []string {
	list := make([]string, machine.Causes)
	for c := range list {
		list[c] = machine.Cause(c).String()
	}
	return list
}

// Sizes are what there is now, for metrics.
type Sizes struct {
	Topics, Open, Sessions  int
	Resident, ResidentLimit int64 // bytes of messages in memory
}

// Sizes counts what there is now.
func (s *Service) Sizes() Sizes {
	s.mu.Lock()
	sessions := len(s.sessions)
	s.mu.Unlock()
	return Sizes{
		Topics: s.engine.Catalog.Count(), Open: s.engine.Topics.Len(), Sessions: sessions,
		Resident: s.engine.Memory.Used(), ResidentLimit: s.engine.Memory.Limit(),
	}
}

// LargestBacklog is how far the group that is furthest behind is from the end of a partition,
// among the topics that are open: what it has not acknowledged, and what follows. It grows
// while a group is stuck, also on one message.
func (s *Service) LargestBacklog() (highest int64) {
	for _, l := range s.engine.Topics.All() {
		for _, g := range l.Groups() {
			if !storage.Receives(g.State()) {
				continue
			}
			for _, p := range l.Parts {
				p.Do(func(m *machine.Machine) {
					if h := m.Group(g.Name()); h != nil {
						_, end := m.Bounds()
						highest = max(highest, end-h.Floor())
					}
				})
			}
		}
	}
	return highest
}
