package delivery_test

import (
	"testing"

	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store/table"
)

// A hub has applied a change if it has gone to all streams that must get it, and not before.
func TestApplied(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	w.send("alice", id, "one")
	is := func(what string, d delivery.Delivery, want bool) {
		t.Helper()
		d.Events = nil
		if have := w.hub.Applied(d); have != want {
			t.Errorf("%s: applied %v, expected %v", what, have, want)
		}
	}
	last := func() delivery.Delivery { return w.commits[len(w.commits)-1] }
	is("no stream", last(), true)

	w.open("carol", "")
	is("a chat of which nothing is known, beside a stream", last(), false)
	d := last()
	d.Events = nil
	w.hub.Deliver(d)
	w.performWork()
	is("a chat whose members have no stream", last(), true)

	b := w.open("bob", "", known(id, 0))
	w.send("alice", id, "two")
	is("a change that came", last(), true)
	is("one before it", w.commits[len(w.commits)-2], true)

	w.deliver = func(delivery.Delivery) {}
	w.send("alice", id, "three")
	lost := last()
	is("a change that was lost", lost, false)
	w.deliver = w.hub.Deliver
	w.send("alice", id, "four")
	is("a change behind a gap", last(), false)
	is("the gap", lost, false)
	w.performWork()
	is("a change behind a gap that was filled", last(), true)
	is("the filled gap", lost, true)

	d = last()
	d.MembershipVersion++
	is("a membership that was never seen", d, false)
	d = last()
	d.Targets = []string{"carol"}
	is("a change of the membership", d, false)
	d = last()
	d.Generation = "g0"
	is("another generation", d, false)
	b.take()
	b.agrees(id)
}
