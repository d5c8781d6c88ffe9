package deadletter

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/workers/consume"
)

// A call that selects a later dead letter of a key, by its id, time or reason, does not redrive
// it before the earlier ones, which other calls may still redrive.
func TestRedriveKeepsOrderAcrossCalls(t *testing.T) {
	r := newFixture(t)
	for n := range 4 {
		r.add("fanout", "chat1", n)
		r.add("fanout", "chat22", 10+n)
	}
	id := func(n int) string { return fmt.Sprint("fanout/messages.persisted/5/", n) }
	var seen []int64
	handlers := map[string]consume.Handler{"fanout": func(_ context.Context, rec *kafka.Record) error {
		seen = append(seen, rec.Offset)
		return nil
	}}
	outcomes := map[string]string{}
	redrive := func(f Filter, dry bool) Report {
		t.Helper()
		clear(outcomes)
		rep, err := r.manager.Redrive(t.Context(), f,
			Redrive{Actor: "ops", Rate: maxRate, Handlers: handlers, DryRun: dry,
				OnOutcome: func(id string, what Outcome, reason string) error {
					outcomes[id] = string(what) + " " + reason
					return nil
				}})
		testkit.Must(t, err)
		return rep
	}
	for name, f := range map[string]Filter{
		"id": {IDs: []string{id(2)}}, "time": {After: r.now.Add(2 * time.Second), Before: r.now.Add(3 * time.Second)},
		"reason": {Reason: "reason 2", Key: "chat1"},
	} {
		for _, dry := range []bool{true, false} {
			if rep := redrive(f, dry); rep != (Report{Matched: 1, Behind: 1}) || outcomes[id(2)] != "behind "+id(0) ||
				len(seen) > 0 {
				t.Fatalf("%s: %+v %v, handled: %v", name, rep, outcomes, seen)
			}
		}
	}
	if rep := redrive(Filter{IDs: []string{id(0), id(2)}}, false); rep != (Report{Matched: 2, Done: 1, Behind: 1}) ||
		outcomes[id(2)] != "behind "+id(1) || !slices.Equal(seen, []int64{0}) {
		t.Fatalf("%+v %v %v", rep, outcomes, seen)
	}
	if _, err := r.manager.Discard(t.Context(), Filter{IDs: []string{id(1)}},
		Discard{Actor: "ops", Reason: "not wanted"}); err != nil {
		t.Fatal(err)
	}
	if rep := redrive(Filter{IDs: []string{id(2)}}, false); rep.Done != 1 || !slices.Equal(seen, []int64{0, 2}) {
		t.Fatalf("%+v %v %v", rep, outcomes, seen)
	}
}

// Two operators redrive the same key at once: the second does not pass the dead letter that the
// first is handling.
func TestRedrivesOfTwoOperators(t *testing.T) {
	r := newFixture(t)
	for n := range 3 {
		r.add("fanout", "chat1", n)
	}
	r.add("fanout", "chat22", 10)
	var seen []string
	second := func(ctx context.Context) {
		rep, err := r.manager.Redrive(ctx, Filter{},
			Redrive{Actor: "b", Rate: maxRate,
				Handlers: map[string]consume.Handler{"fanout": func(_ context.Context, rec *kafka.Record) error {
					seen = append(seen, fmt.Sprint("b", rec.Offset))
					return nil
				}}})
		if want := (Report{Matched: 4, Done: 1, Behind: 2, Taken: 1}); err != nil || rep != want {
			t.Errorf("%+v, not %+v, %v", rep, want, err)
		}
	}
	rep, err := r.manager.Redrive(t.Context(), Filter{Key: "chat1"},
		Redrive{Actor: "a", Rate: maxRate,
			Handlers: map[string]consume.Handler{"fanout": func(ctx context.Context, rec *kafka.Record) error {
				if rec.Offset == 0 {
					second(ctx)
				}
				seen = append(seen, fmt.Sprint("a", rec.Offset))
				return nil
			}}})
	if err != nil || rep != (Report{Matched: 3, Done: 3}) || !slices.Equal(seen, []string{"b10", "a0", "a1", "a2"}) {
		t.Fatalf("%+v %v %v", rep, seen, err)
	}
}

// The order of a key holds across the versions of its topic. The declared name chooses the
// dead letters of all versions, that of a later version its own.
func TestRedriveKeepsOrderAcrossVersions(t *testing.T) {
	r := newFixture(t)
	for n, topic := range []string{"messages.persisted", "messages.persisted.v2", "chats.created"} {
		rec := &kafka.Record{Topic: topic, Partition: 5, Offset: 7, Timestamp: r.now, Key: []byte("chat1")}
		if err := r.write(t.Context(), consume.DeadLetter{Record: rec, Group: "fanout", Consumer: "c", Reason: "permanent: x",
			FailedAt: r.now.Add(time.Duration(n) * time.Second), Attempts: 1}); err != nil {
			t.Fatal(err)
		}
	}
	const first, second = "fanout/messages.persisted/5/7", "fanout/messages.persisted.v2/5/7"
	for topic, want := range map[string][]string{"messages.persisted": {first, second}, "messages.persisted.v2": {second},
		"messages.persisted.v3": nil} {
		if ids := r.list(Filter{Topic: topic}); !slices.Equal(ids, want) {
			t.Errorf("%s: %v", topic, ids)
		}
	}
	for name, f := range map[string]Filter{"id": {IDs: []string{second}}, "topic": {Topic: "messages.persisted.v2"},
		"time": {After: r.now.Add(time.Second), Before: r.now.Add(2 * time.Second)}} {
		var reason string
		rep, err := r.manager.Redrive(t.Context(), f,
			Redrive{Actor: "ops", Rate: maxRate,
				Handlers: map[string]consume.Handler{"fanout": func(context.Context, *kafka.Record) error {
					t.Errorf("%s: handled", name)
					return nil
				}}, OnOutcome: func(_ string, _ Outcome, why string) error { reason = why; return nil }})
		if err != nil || rep != (Report{Matched: 1, Behind: 1}) || reason != first {
			t.Errorf("%s: %+v %q %v", name, rep, reason, err)
		}
	}
}

// gets counts the rows that are read.
type gets struct {
	store.Store
	keys int
}

func (g *gets) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) ([]store.Item, error) {
	g.keys += len(keys)
	return g.Store.BatchGet(ctx, keys, c)
}

// To redrive a dead letter by its id, only the outcomes of its key's dead letters are read.
func TestRedriveByIDReadsLittle(t *testing.T) {
	r := newFixture(t)
	for n := range 40 {
		r.add("fanout", fmt.Sprint("chat", n%20), n)
	}
	reads := &gets{Store: r.store}
	r.manager.cfg.Store = reads
	rep, err := r.manager.Redrive(t.Context(), Filter{IDs: []string{"fanout/messages.persisted/5/3"}},
		Redrive{Actor: "ops", Rate: maxRate, Handlers: map[string]consume.Handler{
			"fanout": func(context.Context, *kafka.Record) error { return nil },
		}})
	// The dead letter itself to find its key, then the two dead letters of the key.
	if err != nil || rep != (Report{Matched: 1, Done: 1}) || reads.keys != 3 {
		t.Errorf("%+v, %d outcomes are read: %v", rep, reads.keys, err)
	}
}
