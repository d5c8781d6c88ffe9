package delivery

import (
	"context"
	"time"
)

// Work is something that needs the store: missing events, a member list, one stream's
// subscription to a chat, a watermark, or a stream's synchronisation. Hub.Do performs it.
type Work struct {
	kind   workKind
	chat   *chatState // workFillGap
	chatID string     // workMembershipSync, workReconcile, workWatermark
	stream *Stream    // workReconcile, workResync
	user   string     // workWatermark
}

type workKind uint8

const (
	workFillGap workKind = iota + 1
	workMembershipSync
	workReconcile
	workWatermark
	workResync
)

// retryAfter is the pause after a read that failed.
const retryAfter = 100 * time.Millisecond

// schedule queues work. Callers hold mu.
func (h *Hub) schedule(at time.Time, w Work) {
	h.work.Push(at, w)
	h.signal()
}

// Work returns the next piece of work that is due. Without any, ok is false and
// wait says how long there will be none, unless something new comes up; zero
// means for good.
func (h *Hub) Work(now time.Time) (w Work, wait time.Duration, ok bool) {
	h.mu.Lock()
	defer h.unlock()
	return h.work.Pop(now)
}

// Do performs a piece of work: it reads, and applies what it read. Failed work is retried
// later.
func (h *Hub) Do(ctx context.Context, w Work) error {
	switch w.kind {
	case workFillGap:
		return h.fillGap(ctx, w)
	case workMembershipSync:
		return h.syncMembership(ctx, w)
	case workReconcile:
		return h.reconcileSubscription(ctx, w)
	case workWatermark:
		return h.flushWatermark(ctx, w)
	case workResync:
		return h.doResync(ctx, w)
	}
	return nil
}

// signal wakes a goroutine that performs the hub's work.
func (h *Hub) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}
