package serving

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// ending is a context that ends when it is checked for the first time, after a call of last.
type ending struct {
	context.Context
	last func()
}

func (e *ending) Err() error {
	if last := e.last; last != nil {
		e.last = nil
		last()
	}
	return context.DeadlineExceeded
}

func (x *fixture) poll(s *Session, limit int) Event {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(x.t.Context(), time.Second)
	defer cancel()
	e, err := s.Receive(ctx, limit)
	testkit.Must(x.t, err)
	return e
}

// count is how many messages an event delivers, all of which it wants to be delivered for the
// first time.
func (x *fixture) count(e Event) (n int) {
	x.t.Helper()
	for _, d := range e.Deliveries {
		if n += d.Count; d.Attempts != nil {
			x.t.Errorf("delivered again: %+v", d)
		}
	}
	return n
}

// A poll whose time ends while another poll delivers messages to it leaves them to others. The next
// poll gets no more than it asks for, and the messages are delivered before their leases end.
func TestPollThatEndsKeepsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFixture(t, 3, time.Now)
		a := x.attach(SessionOptions{Member: "a", Bytes: 1 << 20, Polled: true})
		b := x.attach(SessionOptions{Member: "b", Bytes: 1 << 20, Polled: true})
		got := 0
		_, err := a.Receive(&ending{t.Context(), func() {
			x.publish(12)
			got = x.count(x.poll(b, 6))
		}}, 6)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		testkit.Equal(t, "messages with a after its poll", a.members[0].InFlight(), int64(0))
		if n := x.count(x.poll(a, 1)); n != 1 {
			t.Errorf("%d messages for a limit of 1", n)
		}
		for got < 11 {
			got += x.count(x.poll(b, 6))
		}
		testkit.Equal(t, "messages with b", got, 11)
		a.End("DETACHED")
		b.End("DETACHED")
		x.group.Close("")
	})
}

// Deliveries that could not be sent come to another member at once, for the first time.
func TestReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newFixture(t, 3, time.Now)
		a := x.attach(SessionOptions{Member: "a", Bytes: 1 << 20, Polled: true})
		b := x.attach(SessionOptions{Member: "b", Bytes: 1 << 20, Polled: true})
		x.publish(3)
		a.Return(x.poll(a, 10).Deliveries)
		testkit.Equal(t, "messages with b", x.count(x.poll(b, 10)), 3)
		a.End("DETACHED")
		b.End("DETACHED")
		x.group.Close("")
	})
}
