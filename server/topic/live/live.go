// Package live holds the topics that are in use: their open partitions, their groups, and
// what is known of the groups' heartbeats and not all stored yet.
//
// It owns no rule. Concurrency: everything may be used by many goroutines.
package live

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/topic/catalog"
	"github.com/parley-chat/parley/server/topic/owner"
	"github.com/parley-chat/parley/server/topic/session"
)

// Topic is a topic in use: its partitions are open.
type Topic struct {
	*catalog.Topic
	Parts []*owner.Partition

	holds  atomic.Int64
	mu     sync.RWMutex
	groups map[string]*Group
	busy   map[*Group]bool // that have members, or heartbeats that are not stored
	due    time.Time       // of the first heartbeat of these
}

// Hold keeps the topic open until Release. It is called with the topic's lock, or by who
// holds it already.
func (t *Topic) Hold() { t.holds.Add(1) }

// Release ends what Hold began.
func (t *Topic) Release() { t.holds.Add(-1) }

// Held reports whether somebody holds the topic.
func (t *Topic) Held() bool { return t.holds.Load() > 0 }

// Group is a subscription that may have members.
type Group struct {
	*session.Group
	Generation int64
	Pulse      Pulse
	Meter      Meter
}

// New makes a topic without partitions and groups.
func New(t *catalog.Topic) *Topic {
	return &Topic{Topic: t, groups: map[string]*Group{}, busy: map[*Group]bool{}}
}

// Add adds a group, in place of an earlier generation.
func (t *Topic) Add(g *Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.busy, t.groups[g.Name()])
	t.groups[g.Name()] = g
}

// Beat says that a member of a group was heard from.
func (t *Topic) Beat(g *Group, now time.Time) {
	g.Pulse.Beat(now)
	t.Attend(g)
}

// Attend says that a group has a member, or a heartbeat more. Groups of which neither is so
// cost nothing.
func (t *Topic) Attend(g *Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.groups[g.Name()] != g || t.busy[g] {
		return
	}
	if at := g.Pulse.Due(); len(t.busy) == 0 || at.Before(t.due) {
		t.due = at
	}
	t.busy[g] = true
}

// Beating returns the groups that have members, or heartbeats that are not stored, if a
// heartbeat of one is due. Beaten follows.
func (t *Topic) Beating(now time.Time) []*Group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(t.busy) == 0 || now.Before(t.due) {
		return nil
	}
	return t.busyLocked()
}

// Busy returns the groups that have members, and some that had.
func (t *Topic) Busy() []*Group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.busyLocked()
}

func (t *Topic) busyLocked() []*Group {
	if len(t.busy) == 0 {
		return nil
	}
	list := make([]*Group, 0, len(t.busy))
	for g := range t.busy {
		list = append(list, g)
	}
	return list
}

// Beaten says that the heartbeats that were due are counted.
func (t *Topic) Beaten() {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := true
	for g := range t.busy {
		if g.Members() == 0 && g.Pulse.Settled() {
			delete(t.busy, g)
			continue
		}
		if at := g.Pulse.Due(); first || at.Before(t.due) {
			t.due, first = at, false
		}
	}
}

// Remove takes a group out.
func (t *Topic) Remove(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.busy, t.groups[name])
	delete(t.groups, name)
}

// Group returns a group, nil if there is none.
func (t *Topic) Group(name string) *Group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.groups[name]
}

// Groups returns all groups.
func (t *Topic) Groups() []*Group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := make([]*Group, 0, len(t.groups))
	for _, g := range t.groups {
		list = append(list, g)
	}
	return list
}

// Wake lets the groups look what has come to a partition.
func (t *Topic) Wake(part int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, g := range t.groups {
		g.Wake(part)
	}
}
