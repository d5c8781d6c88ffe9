package serving

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/topic/internal/storage"
)

// OpenTopic is a topic in use: its partitions are open.
type OpenTopic struct {
	*storage.Topic
	Parts []*Partition

	holds   atomic.Int64
	size    topicSize
	refused atomic.Bool // a publish, because the topic is full
	mu      sync.RWMutex
	groups  map[string]*Group
	busy    map[*Group]bool // that have members, or heartbeats that are not stored
	due     time.Time       // of the first heartbeat of these
}

// Hold keeps the topic open until Release. It is called with the topic's lock, or by a
// caller that already holds the topic.
func (t *OpenTopic) Hold() { t.holds.Add(1) }

// Release ends what Hold began.
func (t *OpenTopic) Release() { t.holds.Add(-1) }

// TakeRefused reports whether a publish was refused since the last call because the topic is full.
func (t *OpenTopic) TakeRefused() bool { return t.refused.Swap(false) }

// Held reports whether a caller holds the topic.
func (t *OpenTopic) Held() bool { return t.holds.Load() > 0 }

// newOpenTopic makes a topic without partitions and groups.
func newOpenTopic(t *storage.Topic) *OpenTopic {
	return &OpenTopic{Topic: t, groups: map[string]*Group{}, busy: map[*Group]bool{}}
}

// Add adds a group, in place of an earlier generation.
func (t *OpenTopic) Add(g *Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.busy, t.groups[g.Name()])
	t.groups[g.Name()] = g
}

// RecordHeartbeat says that a member of a group was heard from.
func (t *OpenTopic) RecordHeartbeat(g *Group, now time.Time) {
	g.Heartbeats.Record(now)
	t.Track(g)
}

// Track says that a group has a member, or a heartbeat more. Groups of which neither is so
// cost nothing.
func (t *OpenTopic) Track(g *Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.groups[g.Name()] != g || t.busy[g] {
		return
	}
	if at := g.Heartbeats.Due(); len(t.busy) == 0 || at.Before(t.due) {
		t.due = at
	}
	t.busy[g] = true
}

// DueHeartbeats returns the groups that have members, or heartbeats that are not stored, if a
// heartbeat of one is due. The caller then calls HeartbeatsFlushed.
func (t *OpenTopic) DueHeartbeats(now time.Time) []*Group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(t.busy) == 0 || now.Before(t.due) {
		return nil
	}
	return t.busyLocked()
}

// Busy returns the groups that have members, and some that had.
func (t *OpenTopic) Busy() []*Group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.busyLocked()
}

func (t *OpenTopic) busyLocked() []*Group {
	if len(t.busy) == 0 {
		return nil
	}
	list := make([]*Group, 0, len(t.busy))
	for g := range t.busy {
		list = append(list, g)
	}
	return list
}

// HeartbeatsFlushed says that the heartbeats that were due are counted.
func (t *OpenTopic) HeartbeatsFlushed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := true
	for g := range t.busy {
		if g.Members() == 0 && g.Heartbeats.Settled() {
			delete(t.busy, g)
			continue
		}
		if at := g.Heartbeats.Due(); first || at.Before(t.due) {
			t.due, first = at, false
		}
	}
}

// Remove takes a group out.
func (t *OpenTopic) Remove(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.busy, t.groups[name])
	delete(t.groups, name)
}

// Group returns a group, nil if there is none.
func (t *OpenTopic) Group(name string) *Group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.groups[name]
}

// Groups returns all groups.
func (t *OpenTopic) Groups() []*Group {
	t.mu.RLock()
	defer t.mu.RUnlock()
	list := make([]*Group, 0, len(t.groups))
	for _, g := range t.groups {
		list = append(list, g)
	}
	return list
}

// Wake lets the groups look what has come to a partition.
func (t *OpenTopic) Wake(part int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, g := range t.groups {
		g.Wake(part)
	}
}
