// Package linkseq numbers what one process sends to another, so that the receiver
// notices a gap.
//
// It owns numbers, epochs and what follows from a gap; it does not own the transport
// (package server/link), the routes of users (package routing), or what a hub does about a
// gap (package delivery). Both sides are state machines without goroutine or clock.
//
// # Rules
//
// Every envelope of a link with something in it has the number that follows the one
// before. An envelope with nothing in it is a keepalive, and repeats the last
// number; a sender sends one every few seconds. A receiver that sees a jump, a new
// epoch, or no sign of a sender that did not close the link, has its hub's streams
// synchronise again. So no envelope has to arrive, and none has to be sent twice; one
// that is, or that comes late, does no harm.
//
// A sender that leaves out something which nothing repairs, and cannot say for whom
// it was, starts a new epoch on all its links: streams that were sent everything
// synchronise in vain, but none misses anything.
//
// A receiver must know of a sender before it can miss it. A process that sends is
// listed where all can see it before it does anything that others must receive. A
// receiver that sees it listed and receives nothing from it has its streams synchronise
// repeatedly until it does.
//
// # Concurrency
//
// Sender and Receiver are safe for concurrent use. The order in which Next
// returns envelopes for a peer must be the order in which they are sent, or the
// receiver sees gaps where there are none.
package linkseq

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/delivery"
)

// Limits of one envelope. A transport splits what is more.
const (
	MaxDeliveries = 500
	MaxReceipts   = 500
)

// Envelope is what goes over a link at a time.
type Envelope struct {
	From       string // process that sends: another one after every start
	Generation string // of its store
	Epoch      uint64 // from 1 on
	Number     uint64 // from 1 on in each epoch; in a keepalive the last one sent, 0 for none
	Deliveries []delivery.Delivery
	Receipts   []Receipt
	Closing    bool // nothing follows, and nothing is left out
}

// Receipt is a user's own state in a chat, for the user's other streams.
type Receipt struct {
	UserID string
	ChatID string
	State  *chatv1.MemberState
}

// Keepalive reports whether the envelope only repeats the last number.
func (e *Envelope) Keepalive() bool { return len(e.Deliveries) == 0 && len(e.Receipts) == 0 }

// String describes the envelope without its content.
func (e *Envelope) String() string {
	return fmt.Sprintf("%s %d/%d (%d deliveries, %d receipts, closing %t)", e.From, e.Epoch, e.Number, len(e.Deliveries),
		len(e.Receipts), e.Closing)
}

// Errors of links.
var (
	// ErrNoLink says that there is no link to a peer.
	ErrNoLink = errors.New("link: no such link")
	// ErrEnvelope says that an envelope is not one that a Sender made.
	ErrEnvelope = errors.New("link: malformed envelope")
	// ErrGeneration says that an envelope is of another generation of the store.
	ErrGeneration = errors.New("link: another generation")
)

// Sender is the sending side of all links of one process.
type Sender struct {
	from, generation string

	mu    sync.Mutex
	epoch uint64            // the newest of any link
	links map[string]*state // by peer
	seen  map[string]bool   // peers that had a link before
}

// state is one link's.
type state struct{ epoch, number uint64 }

// maxSeen bounds the peers that a Sender remembers; a new link to any other peer gets an
// epoch of its own then.
const maxSeen = 1 << 12

// NewSender makes the sending side of a process that has sent nothing yet. from
// must be an id that no process had before.
func NewSender(from, generation string) *Sender {
	return &Sender{from: from, generation: generation, epoch: 1, links: map[string]*state{}, seen: map[string]bool{}}
}

// Open opens a link, if there is none, and returns its first keepalive. A link to a
// peer that had one before starts with a new epoch: the peer did not receive what
// happened in between.
func (s *Sender) Open(peer string) Envelope {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.links[peer]
	if l == nil {
		if s.seen[peer] || len(s.seen) >= maxSeen {
			s.epoch++
		} else {
			s.seen[peer] = true
		}
		l = &state{epoch: s.epoch}
		s.links[peer] = l
	}
	return s.envelope(l)
}

// Drop ends a link whose peer is unreachable.
func (s *Sender) Drop(peer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, peer)
}

// Peers returns the peers that have a link, in order.
func (s *Sender) Peers() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.links))
}

// Next returns the next envelope for a peer; there must be something to send. An
// envelope that is then not sent is a gap, which the next one shows. Errors:
// ErrNoLink; ErrEnvelope for nothing or more than fits.
func (s *Sender) Next(peer string, deliveries []delivery.Delivery, receipts []Receipt) (Envelope, error) {
	if len(deliveries)+len(receipts) == 0 || len(deliveries) > MaxDeliveries || len(receipts) > MaxReceipts {
		return Envelope{}, ErrEnvelope
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.links[peer]
	if l == nil {
		return Envelope{}, ErrNoLink
	}
	l.number++
	e := s.envelope(l)
	e.Deliveries, e.Receipts = deliveries, receipts
	return e, nil
}

// Keepalive returns an envelope that repeats the last number. Errors: ErrNoLink.
func (s *Sender) Keepalive(peer string) (Envelope, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.links[peer]
	if l == nil {
		return Envelope{}, ErrNoLink
	}
	return s.envelope(l), nil
}

// BumpEpoch says that something was left out which nothing repairs: all links
// start a new epoch, and so do those opened later.
func (s *Sender) BumpEpoch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch++
	for _, l := range s.links {
		*l = state{epoch: s.epoch}
	}
}

// Close ends a link in good order: it returns the last keepalive. Errors: ErrNoLink.
func (s *Sender) Close(peer string) (Envelope, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.links[peer]
	if l == nil {
		return Envelope{}, ErrNoLink
	}
	delete(s.links, peer)
	e := s.envelope(l)
	e.Closing = true
	return e, nil
}

func (s *Sender) envelope(l *state) Envelope {
	return Envelope{From: s.from, Generation: s.generation, Epoch: l.epoch, Number: l.number}
}
