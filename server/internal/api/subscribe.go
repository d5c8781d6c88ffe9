package api

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/delivery"
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

// pump carries a stream's frames to its client: first what it missed, then
// everything as it comes, with a heartbeat where nothing does. It returns why the
// stream ended.
func pump(ctx context.Context, s *delivery.Stream, every time.Duration, conn connect.StreamingHandlerConn) error {
	conn.ResponseHeader().Set("X-Accel-Buffering", "no") // nginx would hold frames back
	conn.ResponseHeader().Set("Cache-Control", "no-cache")
	rc, _ := ctx.Value(controllerKey{}).(*http.ResponseController)
	send := func() (ended bool, err error) {
		for {
			first, frames, last := s.Take(maxBatch)
			if len(frames) == 0 {
				return last, nil
			}
			if rc != nil {
				// Not every transport can; then the queue's bound alone ends a slow reader.
				_ = rc.SetWriteDeadline(time.Now().Add(writeTimeout))
			}
			if err := conn.Send(&batch{first: first, frames: frames}); err != nil {
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
	beat := time.NewTimer(every)
	defer beat.Stop()
	for {
		if ended, err := send(); ended || err != nil {
			return err
		}
		beat.Reset(every)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Ready():
		case <-beat.C:
			s.Heartbeat()
		}
	}
}
