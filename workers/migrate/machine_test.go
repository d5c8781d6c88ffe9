package migrate

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/versions"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/workers/relay/slot"
)

// assign gives a slot to a new process. Its former holder may not notice.
func (w *fixture) assign(n int) {
	w.holder++
	p := &proc{slot: slot.Numbered(n, slots), holder: fmt.Sprint("wrk_", w.holder)}
	it := table.Lease{Holder: p.holder, Count: int64(w.holder), TotalSlots: slots}.Item()
	w.must(w.store.BatchWrite(w.t.Context(), []store.Write{{Op: store.OpPut, Key: table.LeaseKey("relay", n), Item: it}}))
	if w.rng.IntN(2) == 0 {
		w.procs = slices.DeleteFunc(w.procs, func(o *proc) bool { return o.slot.Number == n })
	}
	w.start(p)
	w.procs = append(w.procs, p)
}

var errUnavailable = errors.New("unavailable")

// A migration is killed, repeated, aborted and thawed at any moment, among relays that crash and
// lose their slots without noticing. No event is lost or out of order.
func TestRandomSchedules(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("random schedules take long")
	}
	var finishes, aborts int
	for seed := range uint64(schedules) {
		w := newFixture(t, seed)
		m, err := New(Config{Store: w.store, Cluster: w, Clock: w.clock, Logger: discard, Poll: time.Nanosecond})
		w.must(err)
		topic := bases()[w.rng.IntN(3)]
		if w.rng.IntN(3) > 0 {
			topic = kafka.MessagesPersisted
		}
		var stale versions.State
		r := Request{Topic: topic, Partitions: 128, By: "ann", MaxFreeze: time.Minute}
		if w.rng.IntN(4) == 0 {
			r.Partitions = 8 // fewer partitions are allowed too
		}
		for range 400 {
			if w.rng.IntN(6) == 0 {
				w.drive(m, r, &stale)
			} else {
				w.act()
			}
		}
		s, err := versions.Load(t.Context(), w.store)
		w.must(err)
		if s.Move != nil && w.rng.IntN(2) == 0 {
			if _, err := m.Abort(t.Context(), true); err == nil {
				aborts++
			}
		}
		w.finish(m, r)
		w.rest()
		if s, err = versions.Load(t.Context(), w.store); err != nil || s.Move != nil ||
			s.Current(topic).Partitions != r.Partitions {
			t.Fatalf("seed %d: the state is %+v (%v), expected a finished move to %d partitions", seed, s, err, r.Partitions)
		}
		finishes++
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if finishes < schedules/2 || aborts == 0 {
		t.Errorf("%d of %d schedules finished and %d were aborted, expected at least half and one", finishes, schedules,
			aborts)
	}
}
