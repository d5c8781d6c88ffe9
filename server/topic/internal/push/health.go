package push

import (
	"sync"
	"time"
)

const (
	// slowAfter is after how many failures in a row a webhook gets one message at a time.
	slowAfter = 5
	// countEvery is which of the failures of a webhook that gets one message at a time count as an
	// attempt. If none did, a message at which the webhook always fails would hold up all others; if
	// all did, a webhook that is down for a day would take the last attempts of hundreds of messages.
	countEvery = 4

	firstPause   = time.Second
	longestPause = time.Minute
)

// health is how many messages a webhook may get at a time, and when.
type health struct {
	mu     sync.Mutex
	window int       // messages at a time
	fails  int64     // in a row
	slow   bool      // one at a time, with pauses
	step   int       // pauses since it is slow
	probes int       // failures since it is slow for which an attempt may count
	next   time.Time // when the next message may be sent, after a failure
	asked  time.Time // until when the webhook has asked for no message
}

func newHealth() *health { return &health{window: 1} }

// until is when the next message may be sent. The caller holds the lock.
func (h *health) until() time.Time {
	if h.asked.After(h.next) {
		return h.asked
	}
	return h.next
}

// room returns how many messages may be asked for while some are under way. If wait is not 0 there is
// none before that time is over.
func (h *health) room(now time.Time, inFlight int) (room int, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if next := h.until(); now.Before(next) {
		return 0, next.Sub(now)
	}
	return max(0, h.window-inFlight), 0
}

// paused reports whether nothing is to be sent now.
func (h *health) paused(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Before(h.until())
}

// works records that the webhook has checked a message. The window grows with each, so it doubles in the time of a
// request. It reports whether that ended a failure. A pause that the webhook has requested stays in force:
//
//  1. Two requests are under way. The webhook answers one with 429, and asks for an hour without messages.
//  2. It takes the other, which it got before. That does not take back what it has asked for.
func (h *health) works(now time.Time) (recovered bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now.Before(h.asked) {
		return false
	}
	recovered = h.slow
	h.window = min(h.window+1, MaxInFlight)
	h.fails, h.slow, h.step, h.probes, h.next = 0, false, 0, 0, time.Time{}
	return recovered
}

// failed records a failure, and reports whether it counts as an attempt of the message. Requests that
// were under way when the webhook became slow neither count nor make the pause longer:
//
//  1. Ten requests are under way, and five fail: the webhook is slow, and pauses until next.
//  2. The other five fail before next. They say nothing that the first five have not said.
func (h *health) failed(now time.Time, o outcome) (counts bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fails++
	was, late := h.slow, now.Before(h.until())
	h.slow = h.slow || o.verdict == unavailable || h.fails >= slowAfter
	if !h.slow {
		return true
	}
	h.window = 1
	if !late {
		h.next = now.Add(min(firstPause<<min(h.step, 10), longestPause))
		h.step++
	}
	if asked := now.Add(o.wait); asked.After(h.asked) {
		h.asked = asked
	}
	switch {
	case o.verdict == unavailable || was && late:
		return false
	case !was:
		return true
	}
	h.probes++
	return h.probes%countEvery == 0
}

// report is the health as others see it.
func (h *health) report() (slow bool, fails int64, next time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.slow, h.fails, h.until()
}
