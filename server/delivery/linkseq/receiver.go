package linkseq

import (
	"cmp"
	"errors"
	"sync"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/delivery"
)

// Hub is where a Receiver delivers to; *delivery.Hub is one.
type Hub interface {
	Deliver(d delivery.Delivery)
	Receipt(user, chatID string, state *chatv1.MemberState)
	// InvalidateAll has all open streams synchronise again.
	InvalidateAll()
}

// ReceiverConfig sets a Receiver up.
type ReceiverConfig struct {
	Generation string // of the store; envelopes of other generations are refused
	Hub        Hub
	// DeadAfter is the longest time without an envelope from a sender before it counts as
	// lost, with all its envelopes on the way; 15 s.
	DeadAfter time.Duration
	// MaxSenders bounds the senders at a time; the one that sent nothing for longest
	// counts as lost; 4,096.
	MaxSenders int
}

// Receiver is the receiving side of all links to one process.
type Receiver struct {
	cfg ReceiverConfig

	mu       sync.Mutex
	senders  map[string]*sender
	expected map[string]*expectation
	stats    Stats
}

// expectation is the state of a process that is listed.
type expectation struct {
	since       time.Time // when it last sent, was listed, or counted as missed
	unreachable bool      // nothing came for too long
	closed      bool      // it has closed its link
}

// sender is the state of a link from a process that has sent something.
type sender struct {
	state
	lastSeen time.Time
}

// Stats counts what a Receiver saw.
type Stats struct {
	Senders   int   // now
	Envelopes int64 // accepted, keepalives included
	Stale     int64 // of them, those that were not newer
	// OtherGeneration counts those that were refused.
	OtherGeneration int64
	Gaps            int64 // jumps and new epochs
	Lost            int64 // senders from which nothing came any more
	// Unreachable counts the processes that are listed now and sent nothing for too long.
	Unreachable int
	Missed      int64 // times that streams were invalidated because of such a process
}

// NewReceiver makes a Receiver without senders.
func NewReceiver(cfg ReceiverConfig) (*Receiver, error) {
	if cfg.Generation == "" || cfg.Hub == nil {
		return nil, errors.New("link: generation and hub are required")
	}
	cfg.DeadAfter = cmp.Or(cfg.DeadAfter, 15*time.Second)
	cfg.MaxSenders = cmp.Or(cfg.MaxSenders, 1<<12)
	return &Receiver{cfg: cfg, senders: map[string]*sender{}, expected: map[string]*expectation{}}, nil
}

// Stats returns the counters.
func (r *Receiver) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Senders = len(r.senders)
	for _, x := range r.expected {
		if x.unreachable {
			s.Unreachable++
		}
	}
	return s
}

// Receive passes an envelope to the hub; where something before it is missing,
// the hub's streams are invalidated first. Once it returns nil, the sender need not
// send the envelope again. Errors: ErrEnvelope, ErrGeneration.
func (r *Receiver) Receive(e Envelope, now time.Time) error {
	if e.From == "" || e.Epoch == 0 || (e.Number == 0 && !e.Keepalive()) || len(e.Deliveries) > MaxDeliveries ||
		len(e.Receipts) > MaxReceipts {
		return ErrEnvelope
	}
	gap, err := r.accept(&e, now)
	if err != nil {
		return err
	}
	if gap {
		r.cfg.Hub.InvalidateAll()
	}
	for _, d := range e.Deliveries {
		r.cfg.Hub.Deliver(d)
	}
	for _, p := range e.Receipts {
		r.cfg.Hub.Receipt(p.UserID, p.ChatID, p.State)
	}
	return nil
}

// accept records an envelope's number and reports whether anything is missing.
func (r *Receiver) accept(e *Envelope, now time.Time) (gap bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Generation != r.cfg.Generation {
		r.stats.OtherGeneration++
		return false, ErrGeneration
	}
	r.stats.Envelopes++
	h := r.senders[e.From]
	if h == nil {
		gap = r.makeRoom()
		// A sender that is in its first epoch, with nothing sent before, has left
		// nothing out. Anything else is the continuation of something missed.
		h = &sender{state: state{epoch: 1}}
		r.senders[e.From] = h
	}
	if now.After(h.lastSeen) {
		h.lastSeen = now
	}
	last := e.Number
	if !e.Keepalive() {
		last-- // the number that must have been seen before
	}
	switch {
	case e.Epoch < h.epoch, e.Epoch == h.epoch && last < h.number:
		r.stats.Stale++
	case e.Epoch > h.epoch, last > h.number:
		r.stats.Gaps++
		gap = true
		fallthrough
	default:
		h.epoch, h.number = e.Epoch, e.Number
	}
	closed := e.Closing && e.Epoch == h.epoch && e.Number == h.number
	if closed {
		delete(r.senders, e.From)
	}
	if x := r.expected[e.From]; x != nil {
		*x = expectation{since: now, closed: closed}
	}
	return gap, nil
}

// makeRoom drops the sender that sent nothing for longest, if there are too many, and
// reports whether it did.
func (r *Receiver) makeRoom() bool {
	if len(r.senders) < r.cfg.MaxSenders {
		return false
	}
	oldest := ""
	for from, h := range r.senders {
		if o := r.senders[oldest]; o == nil || h.lastSeen.Before(o.lastSeen) || h.lastSeen.Equal(o.lastSeen) &&
			from < oldest {
			oldest = from
		}
	}
	delete(r.senders, oldest)
	r.stats.Lost++
	return true
}

// Tick drops the senders that sent nothing for too long and did not close their links:
// they may have been lost with something on the way. It is to be called about once a
// second.
func (r *Receiver) Tick(now time.Time) {
	if r.dropDead(now) {
		r.cfg.Hub.InvalidateAll()
	}
}

func (r *Receiver) dropDead(now time.Time) (any bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for from, h := range r.senders {
		if now.Sub(h.lastSeen) >= r.cfg.DeadAfter {
			delete(r.senders, from)
			r.stats.Lost++
			any = true
		}
	}
	return any
}

// Expect takes the processes that are listed. One that is, and from which nothing comes,
// may be sending what never arrives: as long as that lasts the hub's streams are
// invalidated every DeadAfter, and once more when it is listed no longer. It is to be
// called with each reading of the list.
func (r *Receiver) Expect(listed []string, now time.Time) {
	if r.missed(listed, now) {
		r.cfg.Hub.InvalidateAll()
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
		case r.senders[id] != nil || x.closed:
			x.since, x.unreachable = now, false
		case now.Sub(x.since) >= r.cfg.DeadAfter:
			x.since, x.unreachable, any = now, true, true
			r.stats.Missed++
		}
	}
	for id, x := range r.expected {
		if present[id] {
			continue
		}
		delete(r.expected, id)
		// Tick notices a sender that stops sending.
		if r.senders[id] == nil && !x.closed {
			any = true
			r.stats.Missed++
		}
	}
	return any
}
