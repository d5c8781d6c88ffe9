package storage

import (
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// State is a state of a subscription.
type State = topicv1.SubscriptionState

// The states. One that was removed has none.
const (
	None      = topicv1.SubscriptionState_SUBSCRIPTION_STATE_UNSPECIFIED
	Active    = topicv1.SubscriptionState_SUBSCRIPTION_STATE_ACTIVE
	Paused    = topicv1.SubscriptionState_SUBSCRIPTION_STATE_PAUSED
	Dead      = topicv1.SubscriptionState_SUBSCRIPTION_STATE_DEAD
	Cancelled = topicv1.SubscriptionState_SUBSCRIPTION_STATE_CANCELLED
)

// Transition is what may change a state.
type Transition int

// The transitions.
const (
	Subscribe Transition = iota + 1 // a new generation begins
	Pause                           // asked for
	Resume                          // asked for
	Cancel                          // asked for
	Leave                           // the last member closed, and asked for it
	Expire                          // no heartbeat for the timeout
	Heartbeat                       // a heartbeat
	Remove                          // it has been over for long enough
	Resurrect                       // asked for, with what it missed
	Continue                        // asked for, with what is published from now on
)

// String returns the name, for logs.
func (t Transition) String() string {
	if t < Subscribe || t > Continue {
		return "unknown"
	}
	return [...]string{"subscribe", "pause", "resume", "cancel", "leave", "expire", "beat", "remove",
		"be resurrected", "be resurrected"}[t-Subscribe]
}

// NextState returns the state that a transition leads to. ok is false where the transition is
// not legal. A transition to the state that it is in is legal and changes nothing, so
// that a call may be repeated.
func NextState(s State, t Transition) (next State, ok bool) {
	switch t {
	case Subscribe:
		return Active, s == None || s == Cancelled
	case Pause:
		return Paused, s == Active || s == Paused
	case Resume:
		return Active, s == Paused || s == Active
	case Cancel, Leave:
		return Cancelled, s != None
	case Expire:
		return Dead, s == Active
	case Heartbeat:
		if s == Paused { // it does not time out, and a heartbeat does not resume it
			return Paused, true
		}
		return Active, s == Active || s == Dead
	case Resurrect, Continue:
		return Active, s == Dead
	case Remove:
		return None, s == Cancelled || s == Dead
	}
	return s, false
}

// Receives reports whether messages that are published now are for a group in a state.
func Receives(s State) bool { return s == Active || s == Paused }

// Limits of heartbeats.
const (
	DefaultHeartbeatInterval = 60 * time.Second
	DefaultHeartbeatTimeout  = 300 * time.Second
	minRatio                 = 3 // of timeout and interval
	wiseRatio                = 4
	wiseTimeout              = 30 * time.Second
)

// CheckHeartbeats checks interval and timeout. problem is why they cannot be, warning why they
// are not wise.
func CheckHeartbeats(interval, timeout time.Duration) (problem, warning string) {
	switch {
	case timeout < minRatio*interval:
		return "heartbeat_interval must be at most a third of heartbeat_timeout: one lost heartbeat would end the group", ""
	case timeout < wiseRatio*interval || timeout < wiseTimeout:
		return "", "a short pause of the members, or two lost heartbeats, make this group dead; 60 s and 300 s are usual"
	}
	return "", ""
}

// DetectEvery is how often groups with a timeout are checked: each fifth of it, which is a
// minute by default, at least each 5 minutes and at most once a second.
func DetectEvery(timeout time.Duration) time.Duration {
	return max(min(timeout/5, 5*time.Minute), time.Second)
}

// FlapsAfter is the number of times in a row that members came back without having
// acknowledged anything which makes a group flapping.
const FlapsAfter = 3

// Flaps reports whether a group comes and goes without doing anything.
func Flaps(restarts int64) bool { return restarts >= FlapsAfter }
