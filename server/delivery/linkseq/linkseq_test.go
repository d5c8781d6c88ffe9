package linkseq

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/infra/testkit"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// fakeHub counts what it receives.
type fakeHub struct {
	delivered []int64 // versions
	receipts  int
	dirty     int
}

func (h *fakeHub) Deliver(d delivery.Delivery)                { h.delivered = append(h.delivered, d.Version) }
func (h *fakeHub) Receipt(_, _ string, _ *chatv1.MemberState) { h.receipts++ }
func (h *fakeHub) InvalidateAll()                             { h.dirty++ }
func one(version int64) []delivery.Delivery {
	return []delivery.Delivery{{ChatID: "c", Version: version}}
}
func pair(t *testing.T) (*Sender, *Receiver, *fakeHub) {
	t.Helper()
	h := &fakeHub{}
	r, err := NewReceiver(ReceiverConfig{Generation: "g1", Hub: h})
	testkit.Must(t, err)
	return NewSender("p1", "g1"), r, h
}

func TestGaps(t *testing.T) {
	next := func(t *testing.T, s *Sender, v int64) Envelope {
		t.Helper()
		return testkit.Value(s.Next("r", one(v), nil))(t)
	}
	keepalive := func(t *testing.T, s *Sender) Envelope { t.Helper(); return testkit.Value(s.Keepalive("r"))(t) }
	for _, c := range []struct {
		name  string
		run   func(t *testing.T, s *Sender, got func(Envelope))
		dirty int
	}{
		{"in order", func(t *testing.T, s *Sender, got func(Envelope)) {
			got(keepalive(t, s))
			for v := range int64(3) {
				got(next(t, s, v))
				got(keepalive(t, s))
			}
		}, 0},
		{"first of all is the first", func(t *testing.T, s *Sender, got func(Envelope)) { got(next(t, s, 1)) }, 0},
		{"first of all is not the first", func(t *testing.T, s *Sender, got func(Envelope)) {
			next(t, s, 1)
			got(next(t, s, 2))
		}, 1},
		{"one is lost, the next shows it", func(t *testing.T, s *Sender, got func(Envelope)) {
			got(next(t, s, 1))
			next(t, s, 2)
			got(next(t, s, 3))
			got(next(t, s, 4))
		}, 1},
		{"the last is lost, the keepalive shows it once", func(t *testing.T, s *Sender, got func(Envelope)) {
			got(next(t, s, 1))
			next(t, s, 2)
			got(keepalive(t, s))
			got(keepalive(t, s))
			got(next(t, s, 3))
		}, 1},
		{"a keepalive that comes late says nothing", func(t *testing.T, s *Sender, got func(Envelope)) {
			got(next(t, s, 1))
			late := keepalive(t, s)
			got(next(t, s, 2))
			got(late)
			got(next(t, s, 3))
		}, 0},
		{"one comes twice", func(t *testing.T, s *Sender, got func(Envelope)) {
			e := next(t, s, 1)
			got(e)
			got(e)
			got(next(t, s, 2))
			got(e)
		}, 0},
		{"a sender that skips something starts a new epoch", func(t *testing.T, s *Sender, got func(Envelope)) {
			got(next(t, s, 1))
			s.BumpEpoch()
			got(next(t, s, 2))
			got(next(t, s, 3))
		}, 1},
		{"a skip before the first contact", func(t *testing.T, s *Sender, got func(Envelope)) {
			s.BumpEpoch()
			got(keepalive(t, s))
			got(next(t, s, 1))
		}, 1},
		{"an envelope of the epoch before comes late", func(t *testing.T, s *Sender, got func(Envelope)) {
			late := next(t, s, 1)
			s.BumpEpoch()
			got(keepalive(t, s))
			got(late)
			got(next(t, s, 2))
		}, 1},
		{"a link that was closed meanwhile", func(t *testing.T, s *Sender, got func(Envelope)) {
			got(next(t, s, 1))
			s.Drop("r")
			got(s.Open("r"))
			got(next(t, s, 2))
		}, 1},
		{"an open link stays as it is", func(t *testing.T, s *Sender, got func(Envelope)) {
			got(next(t, s, 1))
			got(s.Open("r"))
			got(next(t, s, 2))
		}, 0},
		{"goodbye after something was lost", func(t *testing.T, s *Sender, got func(Envelope)) {
			got(next(t, s, 1))
			next(t, s, 2)
			got(testkit.Value(s.Close("r"))(t))
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, r, h := pair(t)
			s.Open("r")
			c.run(t, s, func(e Envelope) { t.Helper(); testkit.Must(t, r.Receive(e, start)) })
			if h.dirty != c.dirty {
				t.Errorf("marked dirty %d times, want %d", h.dirty, c.dirty)
			}
		})
	}
}

func TestEverythingIsDelivered(t *testing.T) {
	s, r, h := pair(t)
	s.Open("r")
	a := testkit.Value(s.Next("r", one(1), nil))(t)
	b := testkit.Value(s.Next("r", one(2), []Receipt{{UserID: "u", ChatID: "c"}}))(t)
	for _, e := range []Envelope{b, a} {
		testkit.Must(t, r.Receive(e, start))
	}
	if fmt.Sprint(h.delivered) != "[2 1]" || h.receipts != 1 || h.dirty != 1 {
		t.Errorf("delivered %v, %d receipts, %d marks", h.delivered, h.receipts, h.dirty)
	}
	if got, want := r.Stats(), (Stats{Senders: 1, Envelopes: 2, Stale: 1, Gaps: 1}); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
}

func TestSilence(t *testing.T) {
	s, r, h := pair(t)
	other := NewSender("p2", "g1")
	testkit.Must(t, r.Receive(s.Open("r"), start))
	testkit.Must(t, r.Receive(other.Open("r"), start.Add(10*time.Second)))
	r.Tick(start.Add(14 * time.Second))
	if h.dirty != 0 {
		t.Fatal("lost before its time")
	}
	r.Tick(start.Add(15 * time.Second))
	if h.dirty != 1 || r.Stats().Senders != 1 || r.Stats().Lost != 1 {
		t.Fatalf("%d marks, %+v", h.dirty, r.Stats())
	}
	testkit.Must(t, r.Receive(testkit.Value(other.Close("r"))(t), start.Add(16*time.Second)))
	r.Tick(start.Add(time.Hour))
	if h.dirty != 1 || r.Stats().Senders != 0 {
		t.Fatalf("after a goodbye: %d marks, %+v", h.dirty, r.Stats())
	}
	// It was only slow, and sends on where it was.
	testkit.Must(t, r.Receive(testkit.Value(s.Next("r", one(1), nil))(t), start.Add(time.Hour)))
	if h.dirty != 1 {
		t.Fatal("marked although nothing is missing")
	}
}

func TestTooManySenders(t *testing.T) {
	h := &fakeHub{}
	r, err := NewReceiver(ReceiverConfig{Generation: "g1", Hub: h, MaxSenders: 2})
	testkit.Must(t, err)
	for i := range 3 {
		testkit.Must(t, r.Receive(NewSender(fmt.Sprint("p", i), "g1").Open("r"), start.Add(time.Duration(i))))
	}
	if h.dirty != 1 || r.Stats().Senders != 2 || r.senders["p0"] != nil {
		t.Errorf("%d marks, %+v", h.dirty, r.Stats())
	}
}

func TestRefused(t *testing.T) {
	_, r, h := pair(t)
	for _, c := range []struct {
		e    Envelope
		want error
	}{
		{Envelope{}, ErrEnvelope},
		{Envelope{From: "p", Generation: "g1"}, ErrEnvelope},
		{Envelope{From: "p", Generation: "g1", Epoch: 1, Deliveries: one(1)}, ErrEnvelope},
		{Envelope{From: "p", Generation: "g1", Epoch: 1, Number: 1, Deliveries: make([]delivery.Delivery, MaxDeliveries+1)},
			ErrEnvelope},
		{Envelope{From: "p", Generation: "g1", Epoch: 1, Number: 1, Receipts: make([]Receipt, MaxReceipts+1)}, ErrEnvelope},
		{Envelope{From: "p", Generation: "g0", Epoch: 7, Number: 7, Deliveries: one(1)}, ErrGeneration},
	} {
		if err := r.Receive(c.e, start); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", &c.e, err, c.want)
		}
	}
	if h.dirty != 0 || len(h.delivered) != 0 || r.Stats().Senders != 0 || r.Stats().OtherGeneration != 1 {
		t.Errorf("refused envelopes did something: %+v, %+v", h, r.Stats())
	}
	s := NewSender("p", "g1")
	if _, err := s.Next("r", one(1), nil); !errors.Is(err, ErrNoLink) {
		t.Errorf("no link: %v", err)
	}
	s.Open("r")
	if _, err := s.Next("r", nil, nil); !errors.Is(err, ErrEnvelope) {
		t.Errorf("nothing to send: %v", err)
	}
	if _, err := NewReceiver(ReceiverConfig{Generation: "g1"}); err == nil {
		t.Error("a receiver without a hub")
	}
}

// Whatever is lost, repeated or late: once a keepalive arrives, every delivery has
// arrived or the streams were marked after it was sent.
func TestNothingIsMissedUnnoticed(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		s, r, h := pair(t)
		testkit.Must(t, r.Receive(s.Open("r"), start))
		var way []Envelope
		missing := map[int64]bool{}
		dirty, version := 0, int64(0)
		receive := func(e Envelope) {
			testkit.Must(t, r.Receive(e, start))
			for _, d := range e.Deliveries {
				delete(missing, d.Version)
			}
			if h.dirty > dirty { // a synchronisation reads what was sent by now
				dirty = h.dirty
				clear(missing)
			}
		}
		for range 40 {
			switch n := rnd.IntN(10); {
			case n < 4:
				version++
				missing[version] = true
				way = append(way, testkit.Value(s.Next("r", one(version), nil))(t))
			case n < 5:
				way = append(way, testkit.Value(s.Keepalive("r"))(t))
			case n < 6:
				version++
				missing[version] = true
				s.BumpEpoch()
			case n < 7:
				s.Drop("r")
				way = append(way, s.Open("r"))
			case len(way) > 0:
				i := rnd.IntN(len(way))
				if rnd.IntN(3) > 0 {
					receive(way[i])
				}
				if rnd.IntN(4) > 0 {
					way = append(way[:i], way[i+1:]...)
				}
			}
		}
		receive(testkit.Value(s.Keepalive("r"))(t))
		if len(missing) > 0 {
			t.Fatalf("seed %d: %v never arrived, and nobody noticed", seed, missing)
		}
	}
}

// A process that is listed and not heard of may be sending what never comes.
func TestExpect(t *testing.T) {
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	for _, c := range []struct {
		name  string
		run   func(t *testing.T, s *Sender, r *Receiver)
		dirty int
	}{
		{"heard of as soon as it is listed", func(t *testing.T, s *Sender, r *Receiver) {
			r.Expect([]string{"p1"}, at(0))
			testkit.Must(t, r.Receive(s.Open("r"), at(1)))
			for i := 2; i < 60; i += 2 {
				testkit.Must(t, r.Receive(testkit.Value(s.Keepalive("r"))(t), at(i)))
				r.Expect([]string{"p1"}, at(i))
			}
		}, 0},
		{"never heard of: once in each time of silence", func(_ *testing.T, _ *Sender, r *Receiver) {
			for i := 0; i <= 61; i += 2 {
				r.Expect([]string{"p1"}, at(i))
			}
		}, 3},
		{"gone without a word", func(_ *testing.T, _ *Sender, r *Receiver) {
			r.Expect([]string{"p1"}, at(0))
			r.Expect(nil, at(2))
			r.Expect(nil, at(60))
		}, 1},
		{"gone in good order", func(t *testing.T, s *Sender, r *Receiver) {
			r.Expect([]string{"p1"}, at(0))
			s.Open("r")
			testkit.Must(t, r.Receive(testkit.Value(s.Close("r"))(t), at(1)))
			r.Expect([]string{"p1"}, at(2)) // its lease is given up later
			r.Expect([]string{"p1"}, at(40))
			r.Expect(nil, at(41))
		}, 0},
		{"falls silent while it is listed: noticed at once, and as long as it lasts",
			func(t *testing.T, s *Sender, r *Receiver) {
				testkit.Must(t, r.Receive(s.Open("r"), at(0)))
				for i := 1; i <= 46; i++ {
					r.Tick(at(i))
					r.Expect([]string{"p1"}, at(i))
				}
			}, 3},
		{"one that falls silent and is gone counts once", func(t *testing.T, s *Sender, r *Receiver) {
			testkit.Must(t, r.Receive(s.Open("r"), at(0)))
			r.Expect([]string{"p1"}, at(1))
			r.Expect(nil, at(10))
			r.Tick(at(15))
			r.Expect(nil, at(16))
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, r, h := pair(t)
			c.run(t, s, r)
			if h.dirty != c.dirty {
				t.Errorf("%d marks, want %d; %+v", h.dirty, c.dirty, r.Stats())
			}
		})
	}
}
