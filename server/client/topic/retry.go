package topic

import (
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/infra/wait"
)

// Pauses between tries: half of it is random, so that clients that fail together do not
// come again together.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 30 * time.Second
)

// retry counts failures in a row and says what follows on the next one.
type retry struct {
	random   func() float64 // in [0, 1)
	failures int
	refused  int // tokens
}

func newRetry() *retry { return &retry{random: rand.Float64} }

// verdict is what to do after a failure.
type verdict struct {
	final bool
	renew bool          // get another token first
	pause time.Duration // before the next try
}

// succeeded resets the counts.
func (r *retry) succeeded() { r.failures, r.refused = 0, 0 }

// failed takes a failure. Errors that the same call would get again are final.
func (r *retry) failed(err error) verdict {
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		r.refused++
		// The first may have expired; if its successor is refused too, so are all.
		return verdict{final: r.refused > 1, renew: true}
	}
	pause := wait.Doubled(firstPause, lastPause, r.failures)
	r.failures++
	_, wanted := details(err)
	pause = pause/2 + time.Duration(r.random()*float64(pause/2))
	return verdict{final: isFinal(err), pause: max(pause, wanted)}
}

// isFinal reports whether the same call would fail again. Codes that say nothing about the
// request are those of a network, a proxy or a server that restarts.
func isFinal(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeAlreadyExists, connect.CodePermissionDenied,
		connect.CodeFailedPrecondition, connect.CodeOutOfRange, connect.CodeUnimplemented:
		return true
	case connect.CodeResourceExhausted: // what has a limit, or a server that is busy
		reason := Reason(err)
		return reason == "TOO_LARGE" || reason == "TOO_MANY"
	}
	return false
}
