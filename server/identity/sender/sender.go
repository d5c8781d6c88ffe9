// Package sender takes codes to people: into the process's log, by mail, or to a webhook of the
// installation, which knows how text messages are sent.
//
// It owns the ways and a queue before them, so that a caller that asks for a code does not wait
// for it and cannot infer its outcome from the time. Codes are kept in memory only, a bounded
// number and for no longer than they are good; those that could not be sent are counted and
// forgotten: their owner asks for another.
//
// Concurrency: everything is safe for concurrent use.
package sender

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/identity/identifier"
	"github.com/parley-chat/parley/server/identity/otp"
)

// Bounds of the queue.
const (
	waiting  = 1024 // codes
	workers  = 8
	sendTime = 45 * time.Second // in all, retries included
)

// errLate says that a code was not sent because it was good no more when its turn came.
var errLate = errors.New("sender: the code has expired before it could be sent")

// Way is a way to people.
type Way interface {
	// Kinds are the identifiers that it leads to.
	Kinds() []identifier.Kind
	// Send takes a message there. Its errors say nothing of the message.
	Send(ctx context.Context, m otp.Message) error
}

// Queue sends messages in the background.
type Queue struct {
	way    Way
	failed func(err error)
	queue  chan otp.Message
	sent   atomic.Int64
}

var _ otp.Outbox = (*Queue)(nil)

// NewQueue makes a queue before a way; failed is called with what could not be sent.
func NewQueue(way Way, failed func(err error)) *Queue {
	return &Queue{way: way, failed: failed, queue: make(chan otp.Message, waiting)}
}

// Takes implements otp.Outbox.
func (q *Queue) Takes(kind identifier.Kind) bool { return slices.Contains(q.way.Kinds(), kind) }

// Room implements otp.Outbox.
func (q *Queue) Room() bool { return len(q.queue) < cap(q.queue) }

// Send implements otp.Outbox.
func (q *Queue) Send(m otp.Message) {
	select {
	case q.queue <- m:
	default:
		q.failed(otp.ErrBusy)
	}
}

// Sent is how many messages were sent.
func (q *Queue) Sent() int64 { return q.sent.Load() }

// Run sends until ctx ends. A message that is being sent then is sent, waiting ones are
// not.
func (q *Queue) Run(ctx context.Context, ready func()) error {
	ready()
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case m := <-q.queue:
					q.send(context.WithoutCancel(ctx), m)
				}
			}
		})
	}
	wg.Wait()
	return nil
}

// send sends a message, unless its code has expired: after an outage of a way, the codes
// that are still valid go first.
func (q *Queue) send(ctx context.Context, m otp.Message) {
	ctx, cancel := context.WithDeadline(ctx, m.Expires)
	defer cancel()
	if ctx.Err() != nil {
		q.failed(errLate)
		return
	}
	ctx, cancel = context.WithTimeout(ctx, sendTime)
	defer cancel()
	if err := q.way.Send(ctx, m); err != nil {
		q.failed(err)
		return
	}
	q.sent.Add(1)
}

// Log is the way into the process's log, for those who can read it: developers on their own
// machine.
type Log struct{ Log *slog.Logger }

var _ Way = Log{}

// Kinds implements Way.
func (Log) Kinds() []identifier.Kind { return []identifier.Kind{identifier.Email, identifier.Phone} }

// Send implements Way.
func (l Log) Send(_ context.Context, m otp.Message) error {
	l.Log.Info("a code to sign in with", "identifier", m.To.Value(), "code", m.Code,
		"expires", m.Expires.UTC().Format(time.RFC3339))
	return nil
}
