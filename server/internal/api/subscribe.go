package api

import (
	"context"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/internal/codec"
)

const (
	maxBatch     = 256              // frames in one response
	writeTimeout = 10 * time.Second // for one response: cuts a reader that is stuck
)

type controllerKey struct{}

// withWriteDeadlines gives handlers the means to set a deadline for each write,
// which connect does not offer.
func withWriteDeadlines(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), controllerKey{}, http.NewResponseController(w))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// writeLimit bounds the time of each write of a stream. It is a timer that sets a
// deadline in the past only when a write has taken too long: a deadline that is
// left standing after a write resets an HTTP/2 stream that only waits for its next
// frame, and setting one and clearing it again would go through the loop of the
// connection twice for each write.
type writeLimit struct {
	cut   func() // nil: nothing is bounded
	timer *time.Timer

	mu    sync.Mutex
	until time.Time // zero: no write is under way
}

func (l *writeLimit) start(after time.Duration) {
	if l.cut == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Now().Add(after)
	if l.timer == nil {
		l.timer = time.AfterFunc(after, l.fire)
	} else {
		l.timer.Reset(after)
	}
}

// stop ends the time of a write. Once it has returned nothing is cut: the
// connection may be in use for something else by then.
func (l *writeLimit) stop() {
	if l.cut == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Time{}
	l.timer.Stop()
}

func (l *writeLimit) fire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.until.IsZero() && !time.Now().Before(l.until) { // not one that came late, for an earlier write
		l.cut()
	}
}

// pump sends a stream's frames to its client: first what the client missed, then new
// frames, and a heartbeat when there are none. It returns why the stream ended. A stream
// of events records its place.
func pump(ctx context.Context, s *delivery.Stream, every time.Duration, conn connect.StreamingHandlerConn, at *codec.Place) error {
	conn.ResponseHeader().Set("X-Accel-Buffering", "no") // nginx would hold frames back
	conn.ResponseHeader().Set("Cache-Control", "no-cache")
	var deadline writeLimit
	if rc, ok := ctx.Value(controllerKey{}).(*http.ResponseController); ok {
		// Not every transport can; then the queue's bound alone ends a slow reader.
		deadline.cut = func() { _ = rc.SetWriteDeadline(time.Unix(1, 0)) }
		// The status, and the end of the response, are written later by others.
		defer func() { _ = rc.SetWriteDeadline(time.Now().Add(writeTimeout)) }()
	}
	send := func() (ended bool, err error) {
		for {
			first, frames, last := s.Take(maxBatch)
			if len(frames) == 0 {
				return last, nil
			}
			deadline.start(writeTimeout)
			err := conn.Send(&codec.Batch{First: first, Frames: frames, Place: at})
			deadline.stop()
			if err != nil {
				return true, err
			}
			if last {
				return true, delivery.EndError(frames[len(frames)-1].EndCode())
			}
		}
	}
	for done := false; !done; {
		// Hello goes out before the first read: it carries the response's headers.
		if ended, err := send(); ended || err != nil {
			return err
		}
		var err error
		if done, err = s.Step(ctx); err != nil {
			return err
		}
	}
	heartbeat := time.NewTimer(every)
	defer heartbeat.Stop()
	for {
		if ended, err := send(); ended || err != nil {
			return err
		}
		heartbeat.Reset(every)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Ready():
		case <-heartbeat.C:
			s.Heartbeat()
		}
	}
}
