package deadletter

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/workers/consume"
	"github.com/parley-chat/parley/workers/deadletter/encoding"
)

// TopicDeadLetters finds the dead letters of durable topics, and does what is done about them:
// in this process, as *topic.DeadLetterStore does, or at the servers that have them.
type TopicDeadLetters interface {
	// Scan passes the dead letters that are meant to f, from a position on, those of one partition
	// in the order in which they failed. An error of f ends it.
	Scan(
		ctx context.Context, which topic.DeadLetterSelection, from topic.DeadLetterPosition, f func(topic.DeadLetter) error,
	) error
	// There reports of each dead letter whether the topic in which it stands is the one in which it
	// was found.
	There(ctx context.Context, list []topic.DeadLetter) ([]bool, error)
	// Taken reports whether the group of a dead letter would take its message again.
	Taken(ctx context.Context, l topic.DeadLetter) (bool, error)
	// Redrive gives a message to the group that gave it up, once however often that is
	// repeated. Discard gives it up for its group. Error: topic.ErrDeadLetterGone.
	Redrive(ctx context.Context, l topic.DeadLetter) error
	Discard(ctx context.Context, l topic.DeadLetter) error
}

var _ TopicDeadLetters = (*topic.DeadLetterStore)(nil)

// topicDeadLetters are the dead letters of durable topics.
type topicDeadLetters struct{ of TopicDeadLetters }

// topicDeadLetter is one of them, and what can be done about it.
type topicDeadLetter struct {
	topic.DeadLetter
	of TopicDeadLetters
}

func (t *topicDeadLetters) name() Source { return Topics }

// scan implements source.
func (t *topicDeadLetters) scan(ctx context.Context, filter *Filter, from Position, f func(DeadLetter) error) error {
	sel := topic.DeadLetterSelection{Topic: filter.Topic, Group: filter.Group, Logs: filter.logs}
	for _, id := range filter.IDs {
		if p, ok := topic.DeadLetterPositionOf(id); ok {
			sel.Positions = append(sel.Positions, p)
		}
	}
	if len(filter.IDs) > 0 && len(sel.Positions) == 0 {
		return nil
	}
	at := topic.DeadLetterPosition{Log: from.Log, Parked: from.Parked, Partition: from.Partition, Position: from.Offset,
		Group: from.Group}
	return t.of.Scan(ctx, sel, at, func(l topic.DeadLetter) error { return f(t.deadLetter(l)) })
}

// deadLetter is a topic's dead letter in the form of all. It keeps no message but as the
// record.
func (t *topicDeadLetters) deadLetter(l topic.DeadLetter) DeadLetter {
	p := l.LogPosition
	record := &kafka.Record{Topic: l.Topic, Partition: l.Partition, Offset: l.Position,
		Key: []byte(l.Message.GetKey()), Value: l.Message.GetPayload()}
	for _, name := range slices.Sorted(maps.Keys(l.Message.GetHeaders())) {
		record.Headers = append(record.Headers, kafka.Header{Key: name, Value: []byte(l.Message.GetHeaders()[name])})
	}
	return DeadLetter{
		DeadLetter: encoding.DeadLetter{Record: record, Group: l.Group, Reason: l.Reason, FailedAt: l.Last,
			Attempts: l.Attempts},
		Status: Open, Source: Topics, First: l.First, Parked: p.Parked, Type: l.Message.GetType(),
		position: Position{Source: Topics, Log: p.Log, Parked: p.Parked, Partition: p.Partition, Offset: p.Position,
			Group: p.Group},
		topic: &topicDeadLetter{l, t.of},
	}
}

// redrive gives the dead letter's message to its group again. It is stored once, however often
// a crash makes it be repeated.
func (t *topicDeadLetter) redrive(ctx context.Context, _ *kafka.Record) error {
	err := t.of.Redrive(ctx, t.DeadLetter)
	if errors.Is(err, topic.ErrDeadLetterGone) {
		return consume.Fail(consume.Permanent, "its group takes no messages, or it is not parked any more", err)
	}
	if err != nil {
		return consume.Fail(consume.Authoritative, "the topic did not take it", err)
	}
	return nil
}
