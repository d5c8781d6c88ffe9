package deadletter

import (
	"context"
	"fmt"
	"strings"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/lag"
	"github.com/parley-chat/parley/workers/deadletter/encoding"
)

// eventDeadLetters are the dead letters in the event log's topic of dead letters.
type eventDeadLetters struct{ cfg Config }

func (e *eventDeadLetters) name() Source { return Events }

// scan implements source. It skips records of other producers.
func (e *eventDeadLetters) scan(ctx context.Context, filter *Filter, from Position, f func(DeadLetter) error) error {
	if filter.logs != nil && !filter.logs[""] || filter.onlyTopics() {
		return nil
	}
	spans, err := lag.Spans(ctx, e.cfg.Addr, kafka.DeadLetters, e.cfg.Kafka...)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	for i := range spans {
		switch s := &spans[i]; {
		case s.Partition.ID < from.Partition:
			s.From = s.To
		case s.Partition.ID == from.Partition:
			s.From = max(s.From, from.Offset)
		}
	}
	var own error // of f, as opposed to Kafka
	err = lag.Read(ctx, e.cfg.Addr, spans, func(r *kafka.Record) error {
		l, err := deadLetterFrom(r)
		if err != nil {
			e.cfg.Logger.Warn("deadletter: a record is no dead letter", "partition", r.Partition, "offset", r.Offset)
			return nil //nolint:nilerr // another producer wrote to the topic
		}
		own = f(l)
		return own
	}, e.cfg.Kafka...)
	switch {
	case own != nil:
		return own
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// onlyTopics reports whether a filter names dead letters, and none of them is an event's.
func (f *Filter) onlyTopics() bool {
	for _, id := range f.IDs {
		if strings.Count(id, "/") >= 3 {
			return false
		}
	}
	return len(f.IDs) > 0
}

func deadLetterFrom(r *kafka.Record) (DeadLetter, error) {
	_, payload, err := event.Unframe(r.Value)
	if err != nil {
		return DeadLetter{}, err
	}
	l, err := encoding.Decode(payload)
	return DeadLetter{
		DeadLetter: l, Status: Open, Source: Events, First: l.FailedAt,
		position: Position{Source: Events, Partition: r.Partition, Offset: r.Offset},
	}, err
}
