package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Bounds of what a log repeats: a loop that fails must not fill the disk.
const (
	limitBurst  = 5
	limitWindow = 10 * time.Second
	maxLimited  = 1000 // messages that are counted; more share one count
)

// limiter is a handler that lets the first few records with the same message through, and
// after a while says how many more there were. Messages are constants, so that their number
// is small; attributes hold the differences. Records below Warn are not limited: none of
// them is written in a loop.
//
// Concurrency: it is safe for concurrent use; handlers derived from one share its
// counts.
type limiter struct {
	slog.Handler
	counts *counts
}

type counts struct {
	mu    sync.Mutex
	after func(time.Duration, func()) *time.Timer // time.AfterFunc
	seen  map[string]*repeated
}

// repeated counts the records with one message in a window.
type repeated struct{ passed, suppressed int }

func limit(h slog.Handler) slog.Handler {
	return limiter{h, &counts{after: time.AfterFunc, seen: map[string]*repeated{}}}
}

// Handle implements slog.Handler.
func (l limiter) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn || l.counts.pass(l, r.Level, r.Message) {
		return l.Handler.Handle(ctx, r)
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (l limiter) WithAttrs(attrs []slog.Attr) slog.Handler {
	return limiter{l.Handler.WithAttrs(attrs), l.counts}
}

// WithGroup implements slog.Handler.
func (l limiter) WithGroup(name string) slog.Handler {
	return limiter{l.Handler.WithGroup(name), l.counts}
}

// pass reports whether a record with a message goes through. The first one of a window
// sees to its end.
func (c *counts) pass(l limiter, level slog.Level, message string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.seen[message]
	if m == nil {
		if len(c.seen) >= maxLimited {
			message = "(others)"
			m = c.seen[message]
		}
		if m == nil {
			m = &repeated{}
			c.seen[message] = m
			c.after(limitWindow, func() { c.end(l, level, message) })
		}
	}
	if m.passed < limitBurst {
		m.passed++
		return true
	}
	m.suppressed++
	return false
}

// end ends a window and says what it kept back.
func (c *counts) end(l limiter, level slog.Level, message string) {
	c.mu.Lock()
	m := c.seen[message]
	delete(c.seen, message)
	c.mu.Unlock()
	if m.suppressed == 0 {
		return
	}
	r := slog.NewRecord(time.Now(), level, message, 0)
	r.AddAttrs(slog.Int("repeated", m.suppressed), slog.Duration("within", limitWindow))
	_ = l.Handler.Handle(context.Background(), r) // as slog does
}
