// Package workingset has the topics in use: it opens each on first use, with its partitions
// and the groups that members can attach to, and closes it when nobody has used it for long.
//
// It owns which topics are open, and what one is put together of. It does not know what a
// change of a subscription is for messages, nor who may do what.
//
// Concurrency: a Set may be used by many goroutines. A topic is opened and closed under its
// lock, and stays open as long as somebody holds it. Who has it from All or Opened does not:
// it may be closed meanwhile, and is not to be changed then.
package workingset

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/catalog"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/lifecycle"
	"github.com/parley-chat/parley/server/topic/live"
	"github.com/parley-chat/parley/server/topic/owner"
	"github.com/parley-chat/parley/server/topic/refusal"
	"github.com/parley-chat/parley/server/topic/session"
	"github.com/parley-chat/parley/server/topic/settings"
	"github.com/parley-chat/parley/server/topic/source"
)

// Config is what a Set stands on. All fields are required.
type Config struct {
	Store   store.Store
	Sources *source.Sources
	Flusher *owner.Flusher
	Memory  *owner.Memory
	Logger  *slog.Logger
	// Clock is that of heartbeats, Steady that of leases and retries: it does not jump when
	// the clock is set.
	Clock, Steady func() time.Time

	// Queue begins the group of a queue that has none yet; the topic's lock is held for writing.
	Queue func(context.Context, *live.Topic) error
	// Letters is called with messages that failed too often, see session.Config.
	Letters func(t *catalog.Topic, g *session.Group, part int, letters []machine.Undeliverable)
	// Watch says that there is a group more whose heartbeats count.
	Watch func()
	// Opened is called with each subscription of a topic that is being opened; the topic's lock
	// is held for writing.
	Opened func(*live.Topic, *catalog.Subscription) error
}

// Set has the topics in use.
type Set struct {
	cfg Config

	mu    sync.Mutex
	open  map[uint64]*entry // by number of the topic
	chats map[uint64]*entry // of these, topics of chats
}

// entry is a topic in use.
type entry struct {
	*live.Topic
	used time.Time // when it was opened last, by Steady
}

// New makes an empty Set.
func New(c Config) *Set {
	return &Set{cfg: c, open: map[uint64]*entry{}, chats: map[uint64]*entry{}}
}

// put adds a topic, drop takes it out. The caller holds the lock.
func (s *Set) put(e *entry) {
	s.open[e.Number] = e
	if settings.OfChats(e.View().Config) {
		s.chats[e.Number] = e
	}
}

func (s *Set) drop(number uint64) {
	delete(s.open, number)
	delete(s.chats, number)
}

// Open returns a topic in use, and opens it if it was not. The caller holds it from then on,
// until it releases it.
func (s *Set) Open(ctx context.Context, t *catalog.Topic) (*live.Topic, error) {
	if l := s.hold(t.Number, true); l != nil {
		return l, nil
	}
	t.Lock.Lock()
	defer t.Lock.Unlock()
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
	s.put(&entry{l, s.cfg.Steady()})
	return l, nil
}

// Hold is Open of a topic that is in use, and no use itself. It returns nil for another one.
func (s *Set) Hold(number uint64) *live.Topic { return s.hold(number, false) }

func (s *Set) hold(number uint64, use bool) *live.Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.open[number]
	if e == nil {
		return nil
	}
	e.Hold()
	if use {
		e.used = s.cfg.Steady()
	}
	return e.Topic
}

// load opens a topic. The caller holds its lock for writing.
func (s *Set) load(ctx context.Context, t *catalog.Topic) (*live.Topic, error) {
	l, v := live.New(t), t.View()
	var groups []owner.Group
	for _, sub := range t.Subscriptions() {
		g, err := owner.GroupOf(sub, v.Config.GetPausePins())
		if err != nil {
			return nil, fmt.Errorf("subscription %s of %s: %w", sub.Group, t.Name, err)
		}
		groups = append(groups, g)
	}
	reader, err := s.cfg.Sources.Open(ctx, t)
	if err != nil {
		return nil, err
	}
	cfg := owner.Config{
		Store: s.cfg.Store, Log: reader, Flusher: s.cfg.Flusher, Memory: s.cfg.Memory, Clock: s.cfg.Steady,
		Logger: s.cfg.Logger,
	}
	for n := range v.Config.GetPartitions() {
		p, err := owner.Open(ctx, cfg, commitlog.Partition{Topic: t.Number, Number: n}, groups)
		if err != nil {
			return nil, fmt.Errorf("opening topic %s: %w", t.Name, err)
		}
		l.Parts = append(l.Parts, p)
	}
	for _, sub := range t.Subscriptions() {
		if sub.State != lifecycle.Cancelled {
			s.Enlist(l, sub)
		}
	}
	if v.Config.GetSemantics() == settings.Queue && t.Subscription(settings.QueueGroup) == nil {
		if err := s.cfg.Queue(ctx, l); err != nil {
			return nil, err
		}
	}
	for _, sub := range t.Subscriptions() {
		if err := s.cfg.Opened(l, sub); err != nil {
			return nil, fmt.Errorf("subscription %s of %s: %w", sub.Group, t.Name, err)
		}
	}
	return l, nil
}

// Enlist makes a subscription one that members can attach to.
func (s *Set) Enlist(l *live.Topic, sub *catalog.Subscription) {
	t := l.Topic
	g := &live.Group{Generation: sub.Row.Generation}
	g.Group = session.New(session.Config{
		Topic: t.Name, Name: sub.Group, Parts: l.Parts, Flusher: s.cfg.Flusher, Clock: s.cfg.Steady,
		KeyOrder: sub.Config.GetOrdering() == topicv1.Ordering_ORDERING_KEY,
		Durable:  func() bool { return t.View().Config.GetCompletionMode() == settings.ReferenceCounting },
		Letters: func(g *session.Group, part int, letters []machine.Undeliverable) {
			s.cfg.Letters(t, g, part, letters)
		},
		Failed: func(err error) {
			s.cfg.Logger.Warn("messages cannot be read, trying again", "topic", t.Name, "group", sub.Group, "error", err)
		},
	}, sub.State)
	g.Pulse.Init(sub, s.cfg.Clock())
	l.Add(g)
	s.cfg.Watch()
	g.Arm() // also for what failed too often before the process began
}

// Opened returns a topic in use, nil if it is not.
func (s *Set) Opened(number uint64) *live.Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.open[number]; e != nil {
		return e.Topic
	}
	return nil
}

// All returns the topics in use.
func (s *Set) All() []*live.Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return list(s.open)
}

// OfChats returns the topics of chats in use.
func (s *Set) OfChats() []*live.Topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return list(s.chats)
}

func list(entries map[uint64]*entry) []*live.Topic {
	all := make([]*live.Topic, 0, len(entries))
	for _, e := range entries {
		all = append(all, e.Topic)
	}
	return all
}

// Len is the number of topics in use.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// End takes a topic out that is being removed: its sessions end with a reason, and none of
// its rows is written any more. The caller holds the topic's lock for writing.
func (s *Set) End(number uint64, why string) {
	s.mu.Lock()
	e := s.open[number]
	s.drop(number)
	s.mu.Unlock()
	if e != nil {
		shut(e.Topic, why)
	}
}

func shut(l *live.Topic, why string) {
	for _, g := range l.Groups() {
		g.Close(why)
	}
	for _, p := range l.Parts {
		p.Close()
	}
}
