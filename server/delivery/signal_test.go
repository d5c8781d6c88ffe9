package delivery_test

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store/table"
)

// woken takes what a stream has if it was woken for it, and fails if there is something
// that it was not woken for.
func (d *device) woken(what string) {
	d.w.t.Helper()
	before := len(d.frames)
	select {
	case <-d.s.Ready():
		d.take()
		select { // what take has taken already
		case <-d.s.Ready():
		default:
		}
	default:
		if d.take(); len(d.frames) > before {
			d.w.t.Errorf("%s: nobody is woken for %v", what, d.frames[before:])
		}
		return
	}
	if len(d.frames) == before {
		d.w.t.Errorf("%s: woken for nothing", what)
	}
}

// Whatever brings a stream frames wakes it: deliveries, gaps that are filled, memberships,
// the user's own state, synchronisations, heartbeats, the end.
func TestStreamsAreWoken(t *testing.T) {
	w := newFixture(t, shortSpread)
	id := w.group(table.All, "alice", "bob")
	b := w.register("bob", "")
	b.woken("hello")
	for done := false; !done; {
		var err error
		done, err = b.s.Step(w.ctx)
		w.must(err)
		b.woken("a step")
	}
	step := func(what string, f func()) {
		t.Helper()
		before := len(b.frames)
		f()
		b.woken(what)
		if len(b.frames) == before {
			t.Errorf("%s: no frames", what)
		}
	}
	step("a message", func() { w.send("alice", id, "one") })
	step("a message after a gap", func() {
		w.deliver = func(delivery.Delivery) {}
		w.send("alice", id, "two")
		w.deliver = w.hub.Deliver
		w.send("alice", id, "three")
		w.performWork()
	})
	step("a removal", func() {
		w.change(chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob"})
	})
	step("an addition", func() {
		w.change(chat.OpAdd, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob", Role: table.Member})
		w.performWork()
	})
	step("the user's own state", func() { w.hub.Receipt("bob", id, nil) })
	step("a synchronisation", func() {
		w.hub.InvalidateAll()
		w.performWork()
	})
	step("a heartbeat", b.s.Heartbeat)
	step("the end", func() { w.hub.Drain(time.Second) })
}

// All that one delivery brings a stream is there when it is woken.
func TestOneDeliveryIsOneResponse(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	b := w.open("bob", "")
	w.performWork()
	b.take()
	var lost []delivery.Delivery
	w.deliver = func(d delivery.Delivery) { lost = append(lost, d) }
	for range 24 {
		w.send("alice", id, "x")
	}
	all := lost[0]
	for _, d := range lost[1:] {
		all.Events = append(all.Events, d.Events...)
		all.Version, all.MembershipVersion = d.Version, d.MembershipVersion
	}
	sizes := make(chan int)
	for len(b.s.Ready()) > 0 {
		<-b.s.Ready()
	}
	go func() {
		<-b.s.Ready()
		_, frames, _ := b.s.Take(256)
		sizes <- len(frames)
	}()
	w.hub.Deliver(all)
	if n := <-sizes; n != 24 {
		t.Errorf("the first response has %d frames", n)
	}
}
