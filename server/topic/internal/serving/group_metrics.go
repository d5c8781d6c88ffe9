package serving

import (
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/topic/internal/machine"
)

// ShownGroups is how many groups of a process have metrics of their own. They have ten series each.
const ShownGroups = 1000

// AllGroups stands for the topic, and for the group, of the others. No topic and no group has this name.
const AllGroups = "*"

// GroupMetrics are the metrics of the groups of a process. The groups that came first are shown by
// name, ShownGroups of them, and the others together. Safe for concurrent use.
type GroupMetrics struct {
	mu    sync.Mutex
	named map[groupName]*list.Element
	shown list.List // of *GroupMetric, in the order in which they came
	rest  list.List
	past  GroupValues // what those have counted that were among the rest
}

type groupName struct{ topic, group string }

// GroupMetric has the metrics of a group, which lives in a topic whether that is open or not.
type GroupMetric struct {
	machine.Counts
	name   groupName
	owner  *Engine
	hidden bool // among the rest

	lag     atomic.Int64
	oldest  atomic.Int64 // when the oldest message was stored that an active group has to do, unix ns; 0: none
	stalled atomic.Bool

	PushFailures atomic.Int64 // requests to the webhook
	PushFailing  atomic.Bool
}

// GroupValues are metrics of a group, or of several.
type GroupValues struct {
	Topic, Group string
	Lag          int64         // messages that are to be acknowledged
	Oldest       time.Duration // age of the oldest of these, of an active group
	Stalled      int64         // groups that get nothing although a member waits

	Delivered, Redelivered, Acknowledged, LeasesExpired, DeadLettered int64 // see machine.Counts

	PushFailures int64 // requests to webhooks that failed
	PushFailing  int64 // groups whose webhook fails
}

// NewGroupMetrics makes metrics without groups.
func NewGroupMetrics() *GroupMetrics {
	return &GroupMetrics{named: map[groupName]*list.Element{}}
}

// of returns the metrics of a group that an engine has from now on.
func (m *GroupMetrics) of(owner *Engine, topic, group string) *GroupMetric {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := groupName{topic, group}
	if e := m.named[name]; e != nil {
		x := e.Value.(*GroupMetric)
		x.owner = owner
		return x
	}
	x := &GroupMetric{name: name, owner: owner, hidden: m.shown.Len() >= ShownGroups}
	if x.hidden {
		m.named[name] = m.rest.PushBack(x)
	} else {
		m.named[name] = m.shown.PushBack(x)
	}
	return x
}

// Knows reports whether a group has metrics.
func (m *GroupMetrics) Knows(topic, group string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.named[groupName{topic, group}] != nil
}

// forget takes groups out that an engine has: one, all of a topic if group is empty, or all of them if
// topic is empty, too. Those of the rest that came first are shown in their place.
func (m *GroupMetrics) forget(owner *Engine, topic, group string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if group != "" {
		if e := m.named[groupName{topic, group}]; e != nil && e.Value.(*GroupMetric).owner == owner {
			m.remove(e)
		}
	} else {
		for name, e := range m.named {
			if e.Value.(*GroupMetric).owner == owner && (topic == "" || name.topic == topic) {
				m.remove(e)
			}
		}
	}
	for m.shown.Len() < ShownGroups && m.rest.Len() > 0 {
		x := m.rest.Remove(m.rest.Front()).(*GroupMetric)
		m.past.add(x.counted()) // a sum of counters never goes back
		x.hidden = false
		m.named[x.name] = m.shown.PushBack(x)
	}
}

// remove takes a group out. The caller holds the lock.
func (m *GroupMetrics) remove(e *list.Element) {
	x := e.Value.(*GroupMetric)
	delete(m.named, x.name)
	if x.hidden {
		m.past.add(x.counted())
		m.rest.Remove(e)
	} else {
		m.shown.Remove(e)
	}
}

// Values returns the metrics of the groups that are shown by name and, as the last, those of the
// others together: the sums, and the greatest age.
func (m *GroupMetrics) Values(now time.Time) []GroupValues {
	m.mu.Lock()
	defer m.mu.Unlock()
	values := make([]GroupValues, 0, m.shown.Len()+1)
	for e := m.shown.Front(); e != nil; e = e.Next() {
		values = append(values, e.Value.(*GroupMetric).values(now))
	}
	rest := m.past
	rest.Topic, rest.Group = AllGroups, AllGroups
	for e := m.rest.Front(); e != nil; e = e.Next() {
		rest.add(e.Value.(*GroupMetric).values(now))
	}
	return append(values, rest)
}

// counted is what the group has counted.
func (x *GroupMetric) counted() GroupValues {
	return GroupValues{
		Topic: x.name.topic, Group: x.name.group, Delivered: x.Delivered.Load(), Redelivered: x.Redelivered.Load(),
		Acknowledged: x.Acknowledged.Load(), LeasesExpired: x.LeasesExpired.Load(), DeadLettered: x.DeadLettered.Load(),
		PushFailures: x.PushFailures.Load(),
	}
}

// values is what the group has counted, and how it is now.
func (x *GroupMetric) values(now time.Time) GroupValues {
	v := x.counted()
	v.Lag = x.lag.Load()
	if at := x.oldest.Load(); at != 0 {
		v.Oldest = max(0, now.Sub(time.Unix(0, at)))
	}
	if x.stalled.Load() {
		v.Stalled = 1
	}
	if x.PushFailing.Load() {
		v.PushFailing = 1
	}
	return v
}

// add adds the values of another group.
func (v *GroupValues) add(o GroupValues) {
	v.Lag += o.Lag
	v.Oldest = max(v.Oldest, o.Oldest)
	v.Stalled += o.Stalled
	v.Delivered += o.Delivered
	v.Redelivered += o.Redelivered
	v.Acknowledged += o.Acknowledged
	v.LeasesExpired += o.LeasesExpired
	v.DeadLettered += o.DeadLettered
	v.PushFailures += o.PushFailures
	v.PushFailing += o.PushFailing
}

// Observe says how many messages the group has to acknowledge, and when the oldest of these was stored:
// zero if the group is not active, or has none. A group without members is not stalled.
func (x *GroupMetric) Observe(lag int64, oldest time.Time, members bool) {
	x.lag.Store(lag)
	at := int64(0)
	if !oldest.IsZero() {
		at = oldest.UnixNano()
	}
	x.oldest.Store(at)
	if !members {
		x.stalled.Store(false)
	}
}
