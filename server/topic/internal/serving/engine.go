package serving

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/topic/internal/machine"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Config holds an Engine's dependencies. All fields are required but Events.
type Config struct {
	Catalog *storage.Catalog
	Log     commitlog.Log
	Events  Events // nil: there are no topics of chats
	Clock   func() time.Time
	Logger  *slog.Logger
	// Resident is how many bytes of messages are kept in memory, over all topics.
	Resident int64
	MaxBytes int64 // of the messages of a topic that has no other bound; 0: unlimited
	Counters *Counters
	Groups   *GroupMetrics
	Known    *atomic.Int64 // ids of messages that are known, see dedup.go; nil: of this Engine
}

// Observer is notified by an Engine. Its methods do not wait.
type Observer interface {
	// Undeliverable takes messages of a partition that failed too often for a group.
	Undeliverable(t *storage.Topic, g *Group, part int, messages []machine.Undeliverable)
	// GroupActive says that there is one more group with heartbeats that count.
	GroupActive()
}

// Engine is the parts that serve topics. They call each other.
type Engine struct {
	Catalog  *storage.Catalog
	Store    store.Store // refuses writes once another process owns the topics
	Log      commitlog.Log
	Logger   *slog.Logger
	Counters *Counters
	Groups   *GroupMetrics // shared with other Engines of the process
	// Clock is that of heartbeats, Steady that of leases and retries: it does not jump when
	// the clock is set.
	Clock, Steady func() time.Time
	MaxBytes      int64 // see Config
	// Began is when this process took the topics over, by Clock: it has heard of no member before.
	Began time.Time
	// Observer is set before the first topic is opened.
	Observer Observer

	Flusher       *Flusher
	Memory        *Memory
	Sources       *Sources
	Topics        *TopicCache
	Publisher     *Publisher
	Subscriptions *SubscriptionManager
	Backfills     *Backfills
	Sweep         *Sweep

	known *atomic.Int64 // see Config
}

// New makes an Engine without open topics.
func New(c Config) *Engine {
	start, begin := c.Clock(), time.Now()
	e := &Engine{
		Catalog: c.Catalog, Store: c.Catalog.Store(), Log: c.Log, Logger: c.Logger, Counters: c.Counters, Clock: c.Clock,
		Groups:   c.Groups,
		known:    cmp.Or(c.Known, new(atomic.Int64)),
		Steady:   func() time.Time { return start.Add(time.Since(begin)) },
		Began:    start,
		MaxBytes: c.MaxBytes,
		Memory:   NewMemory(c.Resident),
		Sources:  &Sources{Log: c.Log, Events: c.Events, Logger: c.Logger, MaxBytes: c.MaxBytes},
	}
	e.Flusher = NewFlusher(e.Store, c.Catalog.Epoch(), c.Clock, c.Logger)
	e.Flusher.Show(c.Log)
	e.Topics = newTopicCache(e)
	e.Publisher = &Publisher{e}
	e.Subscriptions = &SubscriptionManager{e}
	e.Backfills = newBackfills(e)
	e.Sweep = &Sweep{engine: e}
	return e
}

// Stored returns once what a group has changed in a topic is stored.
func (e *Engine) Stored(ctx context.Context, l *OpenTopic, group string) error {
	return e.Flusher.Wait(ctx, group, l.Parts...)
}

// CreateTopic makes a topic. Only operators make topics of chats. admin, if not empty, is the
// topic's first administrator.
func (e *Engine) CreateTopic(
	ctx context.Context, name string, set storage.Settings, operator bool, admin string,
) (*storage.Topic, bool, error) {
	if err := storage.CheckTopicName(name); err != nil {
		return nil, false, err
	}
	if err := e.Sources.Check(ctx, operator, name, set.Config); err != nil {
		return nil, false, err
	}
	return e.Catalog.Create(ctx, name, set, admin)
}

// FinishRemoval removes a topic that is marked, unless that has been done.
func (e *Engine) FinishRemoval(ctx context.Context, t *storage.Topic) error {
	defer t.Changing().End()
	if e.Catalog.Topic(t.Name) != t {
		return nil
	}
	return e.remove(ctx, t)
}

// reclaimAfter is how many bytes are removed before space is given back.
const reclaimAfter = 32 << 20

// Reclaim gives the space of what was trimmed and removed back to the disk, if the log is on one:
// once it is worth a merge, or the disk is short.
func (e *Engine) Reclaim(ctx context.Context) error {
	if disk, ok := e.Log.(commitlog.Reclaimer); ok {
		return disk.Reclaim(ctx, reclaimAfter)
	}
	return nil
}

// DiskShort reports whether the log is on a disk that is nearly full.
func (e *Engine) DiskShort() bool {
	disk, ok := e.Log.(commitlog.Reclaimer)
	return ok && disk.Short()
}

const topicDeleted = "TOPIC_DELETED"

// remove ends a topic that is being deleted, and before it that of its dead letters. It may be
// repeated.
func (e *Engine) remove(ctx context.Context, t *storage.Topic) error {
	if d := e.Catalog.Topic(t.Name + storage.DeadLetterSuffix); d != nil {
		if err := e.removeDeadLetters(ctx, d); err != nil {
			return err
		}
	}
	e.Topics.End(t.Number, topicDeleted)
	e.Groups.forget(e, t.Name, "")
	if err := e.Log.Delete(ctx, t.Number); err != nil {
		return err
	}
	return e.Catalog.Remove(ctx, t)
}

// EndGroup ends a group of a topic in use: its sessions, and its metrics.
func (e *Engine) EndGroup(l *OpenTopic, g *Group) {
	l.Remove(g.Name())
	g.Close(GoneReason)
	e.Groups.forget(e, l.Name, g.Name())
}

// ForgetGroups ends the metrics of all groups, when the process does not have their topics any more.
func (e *Engine) ForgetGroups() { e.Groups.forget(e, "", "") }

// removeDeadLetters ends a topic of dead letters, within the change of the topic they are of.
func (e *Engine) removeDeadLetters(ctx context.Context, d *storage.Topic) error {
	defer d.Changing().End()
	if !d.View().Deleting {
		if err := e.Catalog.Deleting(ctx, d); err != nil {
			return err
		}
	}
	return e.remove(ctx, d)
}

// OpenDeadLetters returns the topic of a topic's dead letters, and makes it when it is needed
// first, unless the topic is being deleted. The caller releases it.
func (e *Engine) OpenDeadLetters(ctx context.Context, l *OpenTopic) (*OpenTopic, error) {
	defer l.Reading().End()
	if l.View().Deleting {
		return nil, refusal.Forbidden(l.Name)
	}
	name := l.Name + storage.DeadLetterSuffix
	t := e.Catalog.Topic(name)
	if t == nil {
		config, err := storage.DeadLetterConfig(len(l.Parts))
		if err != nil {
			return nil, err
		}
		var created bool
		if t, created, err = e.CreateTopic(ctx, name, storage.Settings{Config: config}, true, ""); err != nil {
			return nil, err
		}
		if created {
			e.Logger.Info("topic made", "topic", name, "semantics", config.GetSemantics().String(), "by", "server")
		}
	}
	return e.Topics.Open(ctx, t)
}
