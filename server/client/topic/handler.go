package topic

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Received is a message owned by a handler. Handlers must not change the message.
type Received struct {
	*Message

	Topic, Group string
	ID           string // of the message
	Partition    int32
	Position     int64
	Attempt      int32 // 1 when it is delivered for the first time
}

// Handler handles a message. After nil it is acknowledged, after an error delivered again,
// unless it was tried as often as the subscription allows. Its context ends when the message
// is not the consumer's any more, with ErrLeaseLost or ErrRestored as the cause, and when a stop
// takes too long.
type Handler func(ctx context.Context, m *Received) error

// BatchHandler handles messages at once: those of a key in order, and no others of their
// keys meanwhile. After an error all of them are delivered again, after [Failures] those
// that it names. Its context ends when one of the messages is lost.
type BatchHandler func(ctx context.Context, batch []*Received) error

// Failures are the errors of a batch by the number of the message in it.
type Failures map[int]error

// Error names the number of failures, and one of them.
func (f Failures) Error() string {
	for i, err := range f {
		return fmt.Sprintf("%d messages failed, number %d: %v", len(f), i, err)
	}
	return "no message failed"
}

// After has a message delivered again after a pause of 0 to 24 hours, instead of that of the
// subscription.
func After(pause time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return &delayedError{err, min(max(pause, 0), 24*time.Hour)}
}

type delayedError struct {
	error
	pause time.Duration
}

func (e *delayedError) Unwrap() error { return e.error }

// maxReason is how many bytes of an error the server keeps.
const maxReason = 1000

// failureOf says how a message is returned; nil: it was handled.
func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{reason: strings.ToValidUTF8(err.Error(), "?")}
	if len(f.reason) > maxReason {
		n := maxReason
		for !utf8.RuneStart(f.reason[n]) {
			n--
		}
		f.reason = f.reason[:n]
	}
	var delayed *delayedError
	if errors.As(err, &delayed) {
		f.delay = &delayed.pause
	}
	return f
}

// received writes items as handlers see them.
func (c *Consumer) received(items []*item) []*Received {
	batch := make([]*Received, len(items))
	for i, it := range items {
		batch[i] = &Received{Message: it.message, Topic: c.topic, Group: c.group,
			ID: fmt.Sprintf("%d-%d", it.partition, it.position), Partition: it.partition, Position: it.position,
			Attempt: it.attempt}
	}
	return batch
}

// handle calls the handler for a batch and returns what became of each message.
func (c *Consumer) handle(ctx context.Context, batch []*Received) []*failure {
	out := make([]*failure, len(batch))
	if c.cfg.Handler != nil {
		out[0] = failureOf(c.cfg.Handler(ctx, batch[0]))
		return out
	}
	err := c.cfg.BatchHandler(ctx, batch)
	var some Failures
	isSome := errors.As(err, &some)
	for i := range out {
		if isSome {
			out[i] = failureOf(some[i])
		} else {
			out[i] = failureOf(err)
		}
	}
	return out
}
