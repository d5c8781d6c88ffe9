package link

import (
	"errors"
	"sync"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/delivery"
)

// Hub is where a Receiver hands over to; *delivery.Hub is one.
type Hub interface {
	Deliver(d delivery.Delivery)
	Receipt(user, chatID string, state *chatv1.MemberState)
	// MarkDirty has all open streams synchronise anew.
	MarkDirty()
}

// ReceiverConfig sets a Receiver up.
type ReceiverConfig struct {
	Generation string // of the store; envelopes of other generations are refused
	Hub        Hub
	// Silence is how long a sender may not be heard of before it counts as lost with
	// whatever it had on the way; 15 s.
	Silence time.Duration
	// MaxSenders bounds the senders at a time; the one not heard of for longest
	// counts as lost; 4,096.
	MaxSenders int
}

// Receiver is the receiving side of all links to one process.
type Receiver struct {
	cfg ReceiverConfig

	mu       sync.Mutex
	senders  map[string]*heard
	expected map[string]*expectation
	stats    Stats
}

// expectation is what is known of a process that is listed.
type expectation struct {
	since  time.Time // when it was heard of, listed, or last counted as missed
	silent bool      // nothing was heard for too long
	bye    bool      // it has said that nothing follows
}

// heard is what is known of a sender.
type heard struct {
	state
	at time.Time
}

// Stats counts what a Receiver saw.
type Stats struct {
	Senders   int   // now
	Envelopes int64 // accepted, keepalives included
	Late      int64 // of them, those that were not newer
	Foreign   int64 // refused, of other generations
	Gaps      int64 // jumps and new epochs
	Lost      int64 // senders that fell silent
	Unheard   int   // processes that are listed now and have not been heard of for too long
	Missed    int64 // times that streams were marked because of such a process
}

// NewReceiver makes a Receiver that has heard of nobody.
func NewReceiver(cfg ReceiverConfig) (*Receiver, error) {
	if cfg.Generation == "" || cfg.Hub == nil {
		return nil, errors.New("link: generation and hub are required")
	}
	if cfg.Silence == 0 {
		cfg.Silence = 15 * time.Second
	}
	if cfg.MaxSenders == 0 {
		cfg.MaxSenders = 1 << 12
	}
	return &Receiver{cfg: cfg, senders: map[string]*heard{}, expected: map[string]*expectation{}}, nil
}

// Stats returns the counters.
func (r *Receiver) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Senders = len(r.senders)
	for _, x := range r.expected {
		if x.silent {
			s.Unheard++
		}
	}
	return s
}

// Receive hands an envelope over to the hub; where something before it is missing,
// the hub's streams are marked first. Once it returns nil, the sender need not
// send the envelope again. Errors: ErrEnvelope, ErrGeneration.
func (r *Receiver) Receive(e Envelope, now time.Time) error {
	if e.From == "" || e.Epoch == 0 || (e.Number == 0 && !e.Keepalive()) || len(e.Deliveries) > MaxDeliveries || len(e.Receipts) > MaxReceipts {
		return ErrEnvelope
	}
	gap, err := r.note(&e, now)
	if err != nil {
		return err
	}
	if gap {
		r.cfg.Hub.MarkDirty()
	}
	for _, d := range e.Deliveries {
		r.cfg.Hub.Deliver(d)
	}
	for _, p := range e.Receipts {
		r.cfg.Hub.Receipt(p.UserID, p.ChatID, p.State)
	}
	return nil
}

// note takes in an envelope's number and reports whether anything is missing.
func (r *Receiver) note(e *Envelope, now time.Time) (gap bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Generation != r.cfg.Generation {
		r.stats.Foreign++
		return false, ErrGeneration
	}
	r.stats.Envelopes++
	h := r.senders[e.From]
	if h == nil {
		gap = r.makeRoom()
		// A sender that is in its first epoch, with nothing sent before, has left
		// nothing out. Anything else is the continuation of something missed.
		h = &heard{state: state{epoch: 1}}
		r.senders[e.From] = h
	}
	if now.After(h.at) {
		h.at = now
	}
	last := e.Number
	if !e.Keepalive() {
		last-- // the number that must have been seen before
	}
	switch {
	case e.Epoch < h.epoch, e.Epoch == h.epoch && last < h.number:
		r.stats.Late++
	case e.Epoch > h.epoch, last > h.number:
		r.stats.Gaps++
		gap = true
		fallthrough
	default:
		h.epoch, h.number = e.Epoch, e.Number
	}
	bye := e.Bye && e.Epoch == h.epoch && e.Number == h.number
	if bye {
		delete(r.senders, e.From)
	}
	if x := r.expected[e.From]; x != nil {
		*x = expectation{since: now, bye: bye}
	}
	return gap, nil
}

// makeRoom forgets the sender not heard of for longest, if there are too many, and
// reports whether it did.
func (r *Receiver) makeRoom() bool {
	if len(r.senders) < r.cfg.MaxSenders {
		return false
	}
	oldest := ""
	for from, h := range r.senders {
		if o := r.senders[oldest]; o == nil || h.at.Before(o.at) || h.at.Equal(o.at) && from < oldest {
			oldest = from
		}
	}
	delete(r.senders, oldest)
	r.stats.Lost++
	return true
}

// Tick takes note of the time: senders that were not heard of for too long, and did
// not say goodbye, may have been lost with something on the way. It is to be
// called about once a second.
func (r *Receiver) Tick(now time.Time) {
	if r.silent(now) {
		r.cfg.Hub.MarkDirty()
	}
}

func (r *Receiver) silent(now time.Time) (any bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for from, h := range r.senders {
		if now.Sub(h.at) >= r.cfg.Silence {
			delete(r.senders, from)
			r.stats.Lost++
			any = true
		}
	}
	return any
}

// Expect takes note of the processes that are listed. One that is, and is not heard of,
// may be sending what never comes: as long as that lasts the hub's streams are marked
// once in each time of silence, and once more when it is listed no longer. It is to be
// called with each look at the list.
func (r *Receiver) Expect(listed []string, now time.Time) {
	if r.missed(listed, now) {
		r.cfg.Hub.MarkDirty()
	}
}

func (r *Receiver) missed(listed []string, now time.Time) (any bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	present := make(map[string]bool, len(listed))
	for _, id := range listed {
		present[id] = true
		x := r.expected[id]
		switch {
		case x == nil:
			r.expected[id] = &expectation{since: now}
		case r.senders[id] != nil || x.bye:
			x.since, x.silent = now, false
		case now.Sub(x.since) >= r.cfg.Silence:
			x.since, x.silent, any = now, true, true
			r.stats.Missed++
		}
	}
	for id, x := range r.expected {
		if present[id] {
			continue
		}
		delete(r.expected, id)
		// What was heard of and falls silent is noticed by Tick.
		if r.senders[id] == nil && !x.bye {
			any = true
			r.stats.Missed++
		}
	}
	return any
}
