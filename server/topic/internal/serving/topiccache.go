package serving

import (
	"context"
	"fmt"
	"sync"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// TopicCache has the topics in use.
type TopicCache struct {
	engine *Engine

	mu    sync.Mutex
	open  map[uint64]*entry // by number of the topic
	chats map[uint64]*entry // of these, topics of chats
}

// entry is a topic in use.
type entry struct {
	*OpenTopic
	used time.Time // when it was opened last, by Steady
}

func newTopicCache(e *Engine) *TopicCache {
	return &TopicCache{engine: e, open: map[uint64]*entry{}, chats: map[uint64]*entry{}}
}

// put adds a topic, drop takes it out. The caller holds the lock.
func (s *TopicCache) put(e *entry) {
	s.open[e.Number] = e
	if storage.OfChats(e.View().Config) {
		s.chats[e.Number] = e
	}
}

func (s *TopicCache) drop(number uint64) {
	delete(s.open, number)
	delete(s.chats, number)
}

// Open returns a topic in use, and opens it if it was not. The caller holds it from then on,
// until it releases it.
func (s *TopicCache) Open(ctx context.Context, t *storage.Topic) (*OpenTopic, error) {
	if l := s.hold(t.Number, true); l != nil {
		return l, nil
	}
	defer t.Changing().End()
	if l := s.hold(t.Number, true); l != nil {
		return l, nil
	}
	if t.View().Deleting {
		return nil, refusal.Forbidden(t.Name)
	}
	l, err := s.load(ctx, t)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.Hold()
	s.put(&entry{l, s.engine.Steady()})
	return l, nil
}

// Hold is Open of a topic that is in use, and no use itself. It returns nil for another one.
func (s *TopicCache) Hold(number uint64) *OpenTopic { return s.hold(number, false) }

func (s *TopicCache) hold(number uint64, use bool) *OpenTopic {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.open[number]
	if e == nil {
		return nil
	}
	e.Hold()
	if use {
		e.used = s.engine.Steady()
	}
	return e.OpenTopic
}

// load opens a topic. The caller holds its lock for writing.
func (s *TopicCache) load(ctx context.Context, t *storage.Topic) (*OpenTopic, error) {
	l, v := newOpenTopic(t), t.View()
	var groups []StoredGroup
	for _, sub := range t.Subscriptions() {
		g, err := StoredGroupOf(sub, v.Config.GetPausePins())
		if err != nil {
			return nil, fmt.Errorf("subscription %s of %s: %w", sub.Group, t.Name, err)
		}
		groups = append(groups, g)
	}
	reader, err := s.engine.Sources.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	cfg := PartitionConfig{
		Store: s.engine.Store, Log: reader, Flusher: s.engine.Flusher, Memory: s.engine.Memory, Clock: s.engine.Steady,
		Wall: s.engine.Clock, Known: s.engine.known, Logger: s.engine.Logger,
		Released: func(c machine.Cause, n int64) { s.engine.Counters.Ledger[c].Add(n) },
	}
	for n := range v.Config.GetPartitions() {
		p, err := OpenPartition(ctx, cfg, commitlog.Partition{Topic: t.Number, Number: n}, groups)
		if err != nil {
			return nil, fmt.Errorf("opening topic %s: %w", t.Name, err)
		}
		l.Parts = append(l.Parts, p)
	}
	reconcile(l)
	if err := s.finishPurge(ctx, l); err != nil {
		return nil, fmt.Errorf("purge of topic %s: %w", t.Name, err)
	}
	for _, sub := range t.Subscriptions() {
		if sub.State != storage.Cancelled {
			s.Register(l, sub)
		}
	}
	if v.Config.GetSemantics() == storage.Queue && t.Subscription(storage.QueueGroup) == nil {
		if err := s.engine.Subscriptions.BeginQueue(ctx, l); err != nil {
			return nil, err
		}
	}
	for _, sub := range t.Subscriptions() {
		if err := s.engine.Backfills.Resume(l, sub); err != nil {
			return nil, fmt.Errorf("subscription %s of %s: %w", sub.Group, t.Name, err)
		}
	}
	return l, nil
}

// reconcile gives groups what they missed that a crash left with a row that says that they live again, and cursors that
// do not. If it came between two cursors, the group's bound is that of the partitions that are left.
func reconcile(l *OpenTopic) {
	shares := map[string][]int64{}
	for n, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			for _, g := range m.Returning() {
				if shares[g.Config().Name] == nil {
					shares[g.Config().Name] = make([]int64, len(l.Parts))
				}
				shares[g.Config().Name][n] = g.Missed()
			}
		})
	}
	for name, missed := range shares {
		shares[name] = split(l.Topic.Subscription(name).Config.GetMaxBackfillMessages(), missed)
	}
	for n, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			m.Reconcile(func(g *machine.GroupState) int64 { return shares[g.Config().Name][n] })
		})
	}
}

// Register makes a subscription one that members can attach to.
func (s *TopicCache) Register(l *OpenTopic, sub *storage.Subscription) {
	t := l.Topic
	g := NewGroup(GroupConfig{
		Topic: t.Name, Name: sub.Group, Parts: l.Parts, Flusher: s.engine.Flusher, Clock: s.engine.Steady,
		KeyOrder:    sub.Config.GetOrdering() == topicv1.Ordering_ORDERING_KEY,
		MaxInFlight: int64(sub.Config.GetMaxInFlight()),
		Durable:     func() bool { return t.View().Config.GetCompletionMode() == storage.ReferenceCounting },
		Undeliverable: func(g *Group, part int, deadLetters []machine.Undeliverable) {
			s.engine.Observer.Undeliverable(t, g, part, deadLetters)
		},
		Failed: func(err error) {
			s.engine.Logger.Warn("messages cannot be read, trying again", "topic", t.Name, "group", sub.Group, "error", err)
		},
	}, sub.State)
	g.Generation, g.Metric = sub.Row.Generation, s.engine.Groups.of(s.engine, t.Name, sub.Group)
	for _, p := range l.Parts {
		p.Do(func(m *machine.Machine) {
			if h := m.Group(sub.Group); h != nil {
				h.CountIn(&g.Metric.Counts)
			}
		})
	}
	g.Heartbeats.Init(sub, s.engine.Clock())
	l.Add(g)
	s.engine.Observer.GroupActive()
	g.Arm() // also for what failed too often before the process began
}

// Opened returns a topic in use, nil if it is not.
func (s *TopicCache) Opened(number uint64) *OpenTopic {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.open[number]; e != nil {
		return e.OpenTopic
	}
	return nil
}

// All returns the topics in use.
func (s *TopicCache) All() []*OpenTopic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return openTopics(s.open)
}

// OfChats returns the topics of chats in use.
func (s *TopicCache) OfChats() []*OpenTopic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return openTopics(s.chats)
}

func openTopics(entries map[uint64]*entry) []*OpenTopic {
	all := make([]*OpenTopic, 0, len(entries))
	for _, e := range entries {
		all = append(all, e.OpenTopic)
	}
	return all
}

// Len is the number of topics in use.
func (s *TopicCache) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// End takes a topic out that is being removed: its sessions end with a reason, and none of
// its rows is written any more. The caller holds the topic's lock for writing.
func (s *TopicCache) End(number uint64, why string) {
	s.mu.Lock()
	e := s.open[number]
	s.drop(number)
	s.mu.Unlock()
	if e != nil {
		shut(e.OpenTopic, why)
	}
}

func shut(l *OpenTopic, why string) {
	for _, g := range l.Groups() {
		g.Close(why)
	}
	for _, p := range l.Parts {
		p.Close()
	}
}
