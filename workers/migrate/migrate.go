// Package migrate moves a declared topic to another number of partitions while the
// installation runs.
//
// The package owns the steps of a migration and the conditions that end them. Package
// versions says where events go in each step; relays and consumers follow by themselves.
//
// # Steps
//
//	planned   the name and the partitions of the new topic are recorded
//	created   it exists on all brokers, its schemas are registered, consumers subscribe
//	frozen    relays leave the topic's events in the outbox; other topics are published
//	quiet     the relay of every slot has reported that, and none of their transactions is open
//	drained   every group has read the old topic to its end
//	switched  the new topic is the current one: relays publish to it
//	(done)    every relay has reported that
//
// No event is on the new topic before every group has read all earlier events. So a consumer
// that reads both topics, in any order, never sees a later event of a chat first. Clients
// send and receive as always: the outbox keeps what is committed meanwhile, and servers
// deliver without the log.
//
// Each step is one conditional write. A process that is killed leaves a step done or not
// done, and the same call resumes there. Until the switch a migration can be undone. A
// freeze ends at a recorded time: if no process drives the migration any more, any process
// that runs a [Guard] thaws the topic.
//
// Concurrency: a Migrator is safe for concurrent use, also by many processes at once.
package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
)

// Cluster is what a migration needs of the brokers, the relays and the groups.
type Cluster interface {
	// Create creates a topic with the settings of another one, and registers the schemas of
	// the declared topic for it. The topic may exist already.
	Create(ctx context.Context, base string, t kafka.Topic, like string) error
	// Empty reports whether a topic has never had a record.
	Empty(ctx context.Context, topic string) (bool, error)
	// Relays lists, as sentences for operators, the relays that have not reported a revision
	// of the topics yet.
	Relays(ctx context.Context, revision int64) ([]string, error)
	// Unread counts the records of a topic that groups have not read: those that must read it,
	// and all others that do.
	Unread(ctx context.Context, topic string) ([]lag.Unread, error)
	// Subscribed lists, as sentences for operators, the groups that must read everything and
	// do not read a topic yet.
	Subscribed(ctx context.Context, topic string) ([]string, error)
	// Flush returns when the offsets that groups have committed are durable.
	Flush(ctx context.Context) error
}

// Config sets a Migrator up; all of it is required.
type Config struct {
	Store   store.Store
	Cluster Cluster
	Clock   func() time.Time
	Logger  *slog.Logger
	// Poll is the period in which the condition of a step is checked; 0: 500 ms.
	Poll time.Duration
}

// Migrator runs migrations.
type Migrator struct{ cfg Config }

// New makes a Migrator.
func New(cfg Config) (*Migrator, error) {
	if cfg.Store == nil || cfg.Cluster == nil || cfg.Clock == nil || cfg.Logger == nil {
		return nil, errors.New("migrate: store, cluster, clock and logger are required")
	}
	cfg.Poll = cmp.Or(cfg.Poll, 500*time.Millisecond)
	return &Migrator{cfg}, nil
}

// Limits of a request.
const (
	MaxPartitions    = 1024
	MaxIgnored       = 100
	DefaultMaxFreeze = 5 * time.Minute
	LongestFreeze    = time.Hour

	// A freeze starts once all groups are at most so many records behind: it lasts until they
	// have read them.
	maxBehind = 10_000
)

// Request says what to migrate.
type Request struct {
	Topic      string // declared name
	Partitions int32  // a power of two, so that it divides the virtual buckets
	By         string // operator
	// Ignore are groups that need not read the old topic, because they are unused.
	Ignore []string
	// MaxFreeze bounds the freeze. After it the topic is thawed, and the migration ends with
	// ErrTooSlow; 0: DefaultMaxFreeze.
	MaxFreeze time.Duration
}

// Progress is how far a migration is.
type Progress struct {
	Phase      versions.Phase // present one; "" before the first and after the last
	From, To   string         // topics
	Partitions int32          // of the new topic
	Waiting    []string       // what the phase waits for, as sentences; at most maxWaiting
	Unread     int64          // records of the old topic that groups have not read
	Frozen     time.Duration  // how long the relays have waited; 0 if they do not
	Done       bool
}

const maxWaiting = 20

// Errors. The text that follows them is for operators.
var (
	ErrInvalid      = errors.New("migrate: invalid request")
	ErrBusy         = errors.New("migrate: another migration is under way")
	ErrTopicInUse   = errors.New("migrate: the new topic is in use")
	ErrTooSlow      = errors.New("migrate: the groups or relays took too long")
	ErrAborted      = errors.New("migrate: an operator has aborted the migration")
	ErrCannotAbort  = errors.New("migrate: nothing can be aborted")
	ErrCannotRetire = errors.New("migrate: the topic cannot be retired")
)

func (r Request) validate() error {
	topics := kafka.Topics()
	declared := slices.ContainsFunc(topics,
		func(t kafka.Topic) bool { return t.Name == r.Topic && t.Kind == kafka.Chats })
	switch {
	case !declared:
		return fmt.Errorf("%w: %.80q is no declared topic of events", ErrInvalid, r.Topic)
	case r.Partitions < 1 || r.Partitions > MaxPartitions || r.Partitions&(r.Partitions-1) != 0:
		return fmt.Errorf("%w: the partitions must be a power of two up to %d, not %d", ErrInvalid, MaxPartitions,
			r.Partitions)
	case len(r.Ignore) > MaxIgnored:
		return fmt.Errorf("%w: at most %d groups can be ignored", ErrInvalid, MaxIgnored)
	case r.MaxFreeze < 0 || r.MaxFreeze > LongestFreeze:
		return fmt.Errorf("%w: a freeze lasts at most %v", ErrInvalid, LongestFreeze)
	}
	return nil
}

// Status returns where a migration is, or where it would start. It changes nothing.
func (m *Migrator) Status(ctx context.Context, r Request) (Progress, error) {
	if err := r.validate(); err != nil {
		return Progress{}, err
	}
	s, err := versions.Load(ctx, m.cfg.Store)
	if err != nil {
		return Progress{}, err
	}
	if finished(s, r) {
		return m.progress(s, r), nil
	}
	if s.Move == nil {
		if s, err = startMigration(s, r, m.cfg.Clock()); err != nil {
			return Progress{}, err
		}
		s.Move.Phase = ""
	} else if err := sameMigration(s, r); err != nil {
		return Progress{}, err
	}
	p := m.progress(s, r)
	p.Unread, p.Waiting, err = m.unread(ctx, p.From, r)
	return p, err
}

// Run migrates a topic. It resumes where the last call has ended. It calls onProgress after
// every step, and at most twice a second while a step waits; an error of it ends the call.
func (m *Migrator) Run(ctx context.Context, r Request, onProgress func(Progress) error) (err error) {
	if err := r.validate(); err != nil {
		return err
	}
	r.MaxFreeze = cmp.Or(r.MaxFreeze, DefaultMaxFreeze)
	defer func() {
		if err != nil {
			m.thawOnError(ctx, r)
		}
	}()
	started := false
	for {
		s, err := versions.Load(ctx, m.cfg.Store)
		if err != nil && !m.retryAfter(ctx, err) {
			return err
		} else if err != nil {
			continue
		}
		if finished(s, r) {
			return onProgress(m.progress(s, r))
		}
		if started && s.Move == nil {
			return ErrAborted
		}
		moved, p, err := m.step(ctx, s, r)
		started = started || s.Move != nil || moved
		switch {
		case errors.Is(err, versions.ErrChanged):
			continue // another call has made a step
		case err != nil && (!s.Frozen(r.Topic) || ctx.Err() != nil || errors.Is(err, ErrTooSlow)):
			return err
		case err != nil: // retried until the freeze has lasted too long
			m.cfg.Logger.Warn("migrate: step failed; retrying", "topic", r.Topic, "phase", s.Move.Phase, "error", err)
			p.Waiting = []string{"an answer: the last one was an error, which the log has"}
		}
		if err := onProgress(p); err != nil {
			return err
		}
		if !moved && !m.pause(ctx) {
			return ctx.Err()
		}
	}
}

// retryAfter waits after a transient error of the store, and reports whether to retry.
func (m *Migrator) retryAfter(ctx context.Context, err error) bool {
	transient := errors.Is(err, store.ErrThrottled) || errors.Is(err, store.ErrConflict) ||
		errors.Is(err, store.ErrUnavailable)
	return transient && m.pause(ctx)
}

// pause waits for the period of checks, and reports whether ctx is not done.
func (m *Migrator) pause(ctx context.Context) bool {
	return wait.For(ctx, m.cfg.Poll) == nil
}

// finished reports whether the topic is as requested.
func finished(s versions.State, r Request) bool {
	return (s.Move == nil || s.Move.Topic != r.Topic) && s.Current(r.Topic).Partitions == r.Partitions
}

// step makes the next step, or finds what it waits for.
func (m *Migrator) step(ctx context.Context, s versions.State, r Request) (moved bool, p Progress, err error) {
	if s.Move != nil {
		if err := sameMigration(s, r); err != nil {
			return false, p, err
		}
	}
	p = m.progress(s, r)
	to, err := m.next(ctx, s, r, &p)
	if err != nil || to == nil {
		if err == nil && s.Frozen(r.Topic) && m.cfg.Clock().UnixMilli() > s.Move.ThawAfter {
			err = fmt.Errorf("%w: nothing is frozen any more, repeat it later; it waited for %s", ErrTooSlow,
				strings.Join(p.Waiting, ", "))
		}
		return false, p, err
	}
	saved, err := versions.Save(ctx, m.cfg.Store, *to)
	if err != nil {
		return false, p, err
	}
	p = m.progress(saved, r)
	m.cfg.Logger.Info("migrate: topic", "topic", r.Topic, "phase", p.Phase, "from", p.From, "to", p.To, "by", r.By)
	return true, p, nil
}

// next returns the state of the next phase; nil while the present one waits.
func (m *Migrator) next(ctx context.Context, s versions.State, r Request, p *Progress) (*versions.State, error) {
	now := m.cfg.Clock()
	if s.Move == nil {
		to, err := startMigration(s, r, now)
		return &to, err
	}
	var err error
	switch s.Move.Phase {
	case versions.Planned:
		if err := m.create(ctx, s, r.Topic); err != nil {
			return nil, err
		}
		return inPhase(s, versions.Created), nil
	case versions.Created:
		if p.Waiting, err = m.cfg.Cluster.Subscribed(ctx, p.To); err != nil || len(p.Waiting) > 0 {
			return nil, err
		}
		if p.Unread, p.Waiting, err = m.unread(ctx, p.From, r); err != nil || p.Unread > maxBehind {
			return nil, err
		}
		return freeze(s, now, r.MaxFreeze), nil
	case versions.Frozen:
		if err := m.relays(ctx, s, p); err != nil || len(p.Waiting) > 0 {
			return nil, err
		}
		return inPhase(s, versions.Quiet), nil
	case versions.Quiet:
		if p.Unread, p.Waiting, err = m.unread(ctx, p.From, r); err != nil || p.Unread > 0 {
			return nil, err
		}
		// A crash must not lose the offsets of groups: they would read records again after
		// later ones of the new topic.
		if err := m.cfg.Cluster.Flush(ctx); err != nil {
			return nil, err
		}
		return inPhase(s, versions.Drained), nil
	case versions.Drained:
		return switchTopics(s, now), nil
	case versions.Switched:
		if err := m.relays(ctx, s, p); err != nil || len(p.Waiting) > 0 {
			return nil, err
		}
		to := s.Clone()
		to.Move = nil
		return &to, nil
	}
	return nil, fmt.Errorf("%w: phase %.40q is one of a later version of this program", ErrBusy, s.Move.Phase)
}

// create creates the new topic, which must be unused.
func (m *Migrator) create(ctx context.Context, s versions.State, base string) error {
	from, to := topicNames(s, base)
	for _, t := range s.All() {
		if t.Name != to {
			continue
		}
		if err := m.cfg.Cluster.Create(ctx, base, t, from); err != nil {
			return err
		}
	}
	empty, err := m.cfg.Cluster.Empty(ctx, to)
	if err == nil && !empty {
		err = fmt.Errorf("%w: %s has records that the relays have not written; abort, and migrate again", ErrTopicInUse, to)
	}
	return err
}

func (m *Migrator) relays(ctx context.Context, s versions.State, p *Progress) error {
	waiting, err := m.cfg.Cluster.Relays(ctx, s.Move.Revision)
	p.Waiting = waiting[:min(len(waiting), maxWaiting)]
	return err
}

// unread counts the records of the old topic that groups have not read.
func (m *Migrator) unread(ctx context.Context, topic string, r Request) (n int64, waiting []string, err error) {
	groups, err := m.cfg.Cluster.Unread(ctx, topic)
	for _, g := range groups {
		if g.Records == 0 || slices.Contains(r.Ignore, g.Group) {
			continue
		}
		n += g.Records
		if len(waiting) < maxWaiting {
			waiting = append(waiting, fmt.Sprintf("group %s has not read %d records of %s", g.Group, g.Records, topic))
		}
	}
	return n, waiting, err
}

func (m *Migrator) progress(s versions.State, r Request) Progress {
	p := Progress{Partitions: r.Partitions, Done: finished(s, r)}
	p.From, p.To = topicNames(s, r.Topic)
	if s.Move != nil && s.Move.Topic == r.Topic {
		p.Phase = s.Move.Phase
		if s.Frozen(r.Topic) {
			p.Frozen = max(0, m.cfg.Clock().Sub(time.UnixMilli(s.Move.FrozenAt)))
		}
	}
	return p
}

// thawOnError thaws a topic whose migration has ended with an error. The Guard thaws it if
// that fails.
func (m *Migrator) thawOnError(ctx context.Context, r Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	s, err := versions.Load(ctx, m.cfg.Store)
	if err == nil && s.Frozen(r.Topic) && sameMigration(s, r) == nil {
		_, err = versions.Save(ctx, m.cfg.Store, *inPhase(s, versions.Created))
	}
	if err != nil {
		m.cfg.Logger.Warn("migrate: cannot thaw the topic; it stays frozen until its time is over", "error", err)
	}
}

// Abort ends a migration; the old topic stays the current one. It returns the topic. Without
// execute it only checks.
func (m *Migrator) Abort(ctx context.Context, execute bool) (topic string, err error) {
	s, err := versions.Load(ctx, m.cfg.Store)
	if err != nil {
		return "", err
	}
	to, err := abort(s)
	if err != nil || !execute {
		return topicOf(s), err
	}
	_, err = versions.Save(ctx, m.cfg.Store, to)
	return topicOf(s), err
}

func topicOf(s versions.State) string {
	if s.Move == nil {
		return ""
	}
	return s.Move.Topic
}

// Retire ends the reading of a past version once its retention is over. Operators may delete
// the topic afterwards. Without execute it only checks.
func (m *Migrator) Retire(ctx context.Context, topic string, execute bool) error {
	s, err := versions.Load(ctx, m.cfg.Store)
	if err != nil {
		return err
	}
	to, err := retire(s, topic, m.cfg.Clock())
	if err != nil || !execute {
		return err
	}
	_, err = versions.Save(ctx, m.cfg.Store, to)
	return err
}

// guardEvery is the period of the Guard, guardGrace the time that it leaves to the process
// that drives the migration.
const (
	guardEvery = 5 * time.Second
	guardGrace = 10 * time.Second
)

// Guard thaws topics that are frozen for too long.
type Guard struct{ migrator *Migrator }

// Guard makes a Guard.
func (m *Migrator) Guard() *Guard { return &Guard{migrator: m} }

// Run looks for such topics until ctx ends.
func (g *Guard) Run(ctx context.Context, ready func()) error {
	ready()
	m := g.migrator
	t := time.NewTicker(guardEvery)
	defer t.Stop()
	for {
		if err := m.thaw(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, versions.ErrChanged) {
			m.cfg.Logger.Warn("migrate: cannot check whether a topic is frozen for too long", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

func (m *Migrator) thaw(ctx context.Context) error {
	s, err := versions.Load(ctx, m.cfg.Store)
	if err != nil || s.Move == nil || !s.Frozen(s.Move.Topic) {
		return err
	}
	if m.cfg.Clock().Add(-guardGrace).UnixMilli() <= s.Move.ThawAfter {
		return nil
	}
	m.cfg.Logger.Warn("migrate: a topic was frozen for too long; publishing its events again", "topic", s.Move.Topic, "by",
		s.Move.By)
	_, err = versions.Save(ctx, m.cfg.Store, *inPhase(s, versions.Created))
	return err
}
