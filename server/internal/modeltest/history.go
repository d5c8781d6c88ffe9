package modeltest

import (
	"sync"
	"time"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
)

// stamp is a moment of a run: seq orders all that the clients did, at measures how long it took.
type stamp struct {
	seq int64
	at  time.Time
}

func (a stamp) before(b stamp) bool { return a.seq < b.seq }

// span is a call: it took effect between its two moments, if it did.
type span struct{ call, ret stamp }

// meets reports whether a span has a moment between two others.
func (s span) meets(from, to stamp) bool { return !to.before(s.call) && !s.ret.before(from) }

// position is where a message stands.
type position struct {
	partition int32
	position  int64
}

// publication is a message that a publisher gave to the server. Publishers repeat a request until
// its outcome is known, so each message of an ended run has a position.
type publication struct {
	span
	message    *topicv1.TopicMessage
	position   position
	stored     bool
	deadLetter *deadLetter // that was put back; nil: a publisher gave it
}

// expires says when a message ends, at the earliest and at the latest; ok is false if it does not in a
// run. The server counts from publish_time, which is cut to milliseconds, and rounds up to a second.
func (p *publication) expires() (earliest, latest time.Time, ok bool) {
	if p == nil {
		return earliest, latest, false // it was never published
	}
	ttl := p.message.GetTtl().AsDuration()
	return p.call.at.Add(ttl - time.Millisecond), p.ret.at.Add(ttl + time.Second), ttl > 0 && ttl < time.Hour
}

// session is a session of a member. It began between start and opened. It may have ended at any moment after
// end, which is zero as long as nothing says that it ended: a detach that was called, a stream that broke, or the
// last answer before the server said that it is gone. It had ended for certain at gone, if that is known.
type session struct {
	id            string
	start, opened stamp
	end, gone     stamp
	last          stamp         // the last moment at which it was there for certain
	talk          *conversation // nil: each statement of the member is a call of its own
}

// endedBefore reports whether the session may have ended before a moment.
func (s *session) endedBefore(at stamp) bool { return s.end.seq > 0 && s.end.before(at) }

// delivery is one message of a response. The server gave it away between from and at.
type delivery struct {
	*session
	from, at stamp
	position position
	message  *topicv1.TopicMessage
	attempt  int
}

type outcome int

const (
	unknown outcome = iota // the call was not answered: it was done, or not
	done
	refused
)

type settleKind int

const (
	ack settleKind = iota
	nack
	extend
)

// settlement is what a member said of a message.
type settlement struct {
	span
	*session
	kind    settleKind
	outcome outcome
	delay   time.Duration // of a nack
}

type controlKind int

const (
	pause controlKind = iota
	resume
	seek
	absence // no member of the group is there, so that it may die
	cancel
	update   // of settings that end sessions
	quota    // of max_in_flight alone
	backfill // a backfill begins, or continues
	unpark
)

// control is what was done to a group. A call whose answer was lost is repeated until it has one,
// so its effect is certain at ret, and possible from call on.
type control struct {
	span
	kind   controlKind
	to     *topicv1.Position           // of a seek
	config *topicv1.SubscriptionConfig // of an update: the settings from then on
	most   int                         // messages of a backfill, negative for all
	open   bool                        // a backfill has the scope PENDING: what is not complete
}

// purging is the removal of messages of a topic. They may go from call on, and are gone at ret.
type purging struct {
	span
	before *topicv1.Position
	ends   map[int32]int64 // by partition, the oldest message behind it
}

// flipping is a change of a topic's completion mode.
type flipping struct {
	span
	mode topicv1.CompletionMode
}

// probe is what the server said of groups at a moment between call and ret.
type probe struct {
	span
	floors       map[int32]int64 // of a group
	watermarks   map[int32]int64 // of the topic
	message      *publication    // whose status it is
	completed    bool
	acknowledged []string
}

// history is everything that was seen. It is safe for concurrent use.
type history struct {
	mu       sync.Mutex
	seq      int64
	moment   stamp // the first stamp at the newest time
	outages  []span
	findings []string
}

// now returns the next moment, and the first moment that has the same time: in simulated time all
// that happens without a pause happens at once.
func (h *history) now() (now, first stamp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	now = stamp{h.seq, time.Now()}
	if now.at.After(h.moment.at) {
		h.moment = now
	}
	return now, h.moment
}

func (h *history) stamp() stamp {
	now, _ := h.now()
	return now
}

// outage reports whether the server was killed between two moments. Its memory was lost then: the
// holders of messages, and acknowledgements that were answered before they were stored.
func (h *history) outage(from, to stamp) bool {
	for _, o := range h.outages {
		if o.meets(from, to) {
			return true
		}
	}
	return false
}
