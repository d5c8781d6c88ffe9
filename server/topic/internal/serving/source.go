package serving

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/topic/internal/storage"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Events are the topics in which the events of all chats are. Others write to them, and
// this package is not notified.
type Events interface {
	commitlog.Reader
	// Named reports whether a name is that of a topic of events, one that is to come too.
	Named(topic string) bool
	// Partitions returns how many partitions a topic has, 0 if there is none.
	Partitions(ctx context.Context, topic string) (int32, error)
	// Add makes a topic readable by a number. It may be repeated.
	Add(number uint64, topic string)
	// AllBounds returns the bounds of all partitions of a topic.
	AllBounds(ctx context.Context, number uint64) (starts, ends []int64, err error)
}

// Sources are the log of topics, and the events of chats.
type Sources struct {
	Log      commitlog.Log
	Events   Events // nil: there are no topics of chats
	Logger   *slog.Logger
	MaxBytes int64 // see Config
}

const (
	followEvery   = 250 * time.Millisecond // while a group consumes
	followTimeout = 5 * time.Second
)

// Reader returns what a topic's messages are read from.
func (s *Sources) Reader(t *storage.Topic) commitlog.Reader {
	if storage.OfChats(t.View().Config) {
		return s.Events
	}
	return s.Log
}

// Open returns what the messages of a topic that is opened are read from.
func (s *Sources) Open(ctx context.Context, t *storage.Topic) (commitlog.Reader, error) {
	if storage.OfChats(t.View().Config) {
		if s.Events == nil {
			return nil, fmt.Errorf("opening topic %s: there are no events of chats", t.Name)
		}
		s.Events.Add(t.Number, t.Name)
	}
	return s.Reader(t), s.Prepare(ctx, t)
}

// ShowChats reports whether a name is that of a topic of events, or of its dead letters:
// they show all chats, so that operators alone grant access to them.
func (s *Sources) ShowChats(name string) bool {
	return s.Events != nil && s.Events.Named(strings.TrimSuffix(name, storage.DeadLetterSuffix))
}

// Check checks where the messages of a new topic come from, and sets what follows.
func (s *Sources) Check(ctx context.Context, operator bool, name string, config *topicv1.TopicConfig) error {
	named := s.Events != nil && s.Events.Named(name)
	if !storage.OfChats(config) {
		if named {
			return refusal.New(refusal.InvalidArgument, "%q is the name of a topic of chats: its source is SOURCE_CHAT_EVENTS",
				name)
		}
		if _, follows := s.Log.(commitlog.Follower); storage.Shared(config) && !follows {
			return refusal.New(refusal.InvalidArgument, "a topic can be shared where topics are kept in Apache Kafka only")
		}
		return nil
	}
	if !operator {
		return refusal.Forbidden(name)
	}
	var err error
	if config.Partitions = 0; named {
		config.Partitions, err = s.Events.Partitions(ctx, name)
	}
	if err != nil {
		return err
	}
	if n := config.GetPartitions(); n < 1 || n > storage.MaxPartitions {
		return refusal.New(refusal.InvalidArgument, "there is no topic %.255q of events of chats with 1 to %d partitions",
			name, storage.MaxPartitions)
	}
	return nil
}

// Follow finds what has come to a topic of events, and what is gone.
func (s *Sources) Follow(ctx context.Context, l *OpenTopic) error {
	if !storage.OfChats(l.View().Config) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	starts, ends, err := s.Events.AllBounds(ctx, l.Number)
	if err != nil {
		return err
	}
	for n, p := range l.Parts[:min(len(l.Parts), len(ends))] {
		start, end := p.Bounds()
		if ends[n] > end {
			p.Durable(ends[n])
			l.Wake(n)
		}
		if starts[n] > start {
			p.Trimmed(starts[n])
		}
	}
	return nil
}

// Run follows the topics of events that a group consumes, among those of chats in use, until
// the context ends. hold returns the topic of a number, which Run releases, if it is still in
// use.
func (s *Sources) Run(ctx context.Context, ofChats func() []*OpenTopic, hold func(number uint64) *OpenTopic) {
	if s.Events == nil {
		return
	}
	wait.Every(ctx, followEvery, func() {
		for _, l := range ofChats() {
			if !consumed(l) {
				continue
			}
			if l = hold(l.Number); l == nil {
				continue
			}
			if err := s.Follow(ctx, l); err != nil && ctx.Err() == nil {
				s.Logger.Warn("events of chats cannot be followed, trying again", "topic", l.Name, "error", err)
			}
			l.Release()
		}
	})
}

// consumed reports whether a topic of events has members.
func consumed(l *OpenTopic) bool {
	for _, g := range l.Groups() {
		if g.Members() > 0 {
			return true
		}
	}
	return false
}
