package people_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
)

// Whoever changes a profile again and again causes one notification of streams every five seconds
// in each process, and one of the last change in the end.
func TestChangesAreJoined(t *testing.T) {
	engines(t, changesAreJoined)
	for n := range 50 { // changes share a row by the clock: each place of the first in its row
		w := memory(t)
		w.pass(time.Duration(n) * 100 * time.Millisecond)
		changesAreJoined(w)
	}
}

func changesAreJoined(w *fixture) {
	ctx := w.Context()
	testkit.Value(w.group("bob", "ann"))(w)
	other := w.service()
	poll := func() {
		w.Helper()
		for _, s := range []*people.Service{w.people, other} {
			testkit.Must(w, s.PollChanges(ctx, w.clock().Add(-10*time.Second).UnixMilli()))
		}
	}
	var last people.Profile
	for i := range 60 { // twelve seconds
		last = testkit.Value(w.people.Update(ctx, "ann", name(fmt.Sprint("A", i))))(w)
		if w.pass(200 * time.Millisecond); i%5 == 0 {
			poll()
		}
	}
	if n := len(w.notified); n < 4 || n > 6 {
		w.Errorf("two processes tell %d times in twelve seconds", n)
	}
	for range 5 {
		w.pass(time.Second)
		poll()
	}
	newest := w.notified[len(w.notified)-2:]
	if newest[0].version != last.Version || newest[1].version != last.Version {
		w.Errorf("in the end streams are notified of %+v, not of version %d", newest, last.Version)
	}
	before := len(w.notified)
	for range 10 {
		w.pass(time.Second)
		poll()
	}
	testkit.Equal(w, "notified without a change", len(w.notified)-before, 0)
}

// What changes of one profile cost a process does not grow with their number.
func TestCostOfChanges(t *testing.T) {
	w := memory(t)
	ctx := w.Context()
	for range 100 {
		testkit.Value(w.group("bob", "ann"))(t)
	}
	c := &counter{Store: w.spy.Store}
	w.spy.Store = c
	for i := range 300 { // ten seconds of one session at its limit of requests
		testkit.Value(w.people.Update(ctx, "ann", name(fmt.Sprint("A", i%2))))(t)
		w.pass(33 * time.Millisecond)
	}
	if c.n > 300 {
		t.Errorf("300 changes: %d rows are read", c.n)
	}
	other := w.service()
	c.n, w.notified = 0, nil
	for range 10 {
		testkit.Must(t, other.PollChanges(ctx, w.clock().UnixMilli()-40_000))
	}
	if c.n > 150 || len(w.notified) != 1 {
		t.Errorf("another process: %d rows are read, streams are notified %d times", c.n, len(w.notified))
	}
}

// What could not be announced is found again, and not at once.
func TestAnnouncementFails(t *testing.T) {
	w := memory(t)
	ctx := w.Context()
	testkit.Value(w.group("bob", "ann"))(t)
	bad := &failing{Store: w.spy.Store}
	failed := 0
	w.spy.Store = bad
	w.people = w.service(func(c *people.Config) { c.Failed = func(string, error) { failed++ } })
	testkit.Value(w.people.Update(ctx, "ann", name("Ann")))(t)
	for range 3 {
		w.pass(time.Second)
		testkit.Must(t, w.people.PollChanges(ctx, w.clock().UnixMilli()-10_000))
	}
	if failed != 1 || len(w.notified) != 0 {
		t.Errorf("%d failures, notified of %v", failed, w.notified)
	}
	bad.well = true
	w.pass(2 * time.Second)
	testkit.Must(t, w.people.PollChanges(ctx, w.clock().UnixMilli()-10_000))
	testkit.Equal(t, "notified", fmt.Sprint(w.notified), "[{ann 1 1}]")
}

// failing is a store that reads no lists of chats.
type failing struct {
	store.Store
	well bool
}

func (f *failing) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if q.Table == store.DeliveryState && !f.well {
		return store.Page{}, errors.New("damaged")
	}
	return f.Store.Query(ctx, q)
}
