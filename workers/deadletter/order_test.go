package deadletter

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/workers/consume"
)

// A call that chooses a later letter of a key, by its id, time or reason, does not drive
// it before the earlier ones, which other calls may still drive.
func TestRedriveKeepsOrderAcrossCalls(t *testing.T) {
	r := newRig(t)
	for n := range 4 {
		r.letter("fanout", "chat1", n)
		r.letter("fanout", "chat22", 10+n)
	}
	id := func(n int) string { return fmt.Sprint("fanout/messages.persisted/5/", n) }
	var seen []int64
	handlers := map[string]consume.Handler{"fanout": func(_ context.Context, rec *kafka.Record) error {
		seen = append(seen, rec.Offset)
		return nil
	}}
	told := map[string]string{}
	redrive := func(f Filter, dry bool) Report {
		t.Helper()
		clear(told)
		rep, err := r.office.Redrive(t.Context(), f, Redrive{By: "ops", Rate: MaxRate, Handlers: handlers, DryRun: dry, Each: func(id string, what Result, reason string) error {
			told[id] = string(what) + " " + reason
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		return rep
	}
	for name, f := range map[string]Filter{
		"id": {IDs: []string{id(2)}}, "time": {After: r.now.Add(2 * time.Second), Before: r.now.Add(3 * time.Second)}, "reason": {Reason: "reason 2", Key: "chat1"},
	} {
		for _, dry := range []bool{true, false} {
			if rep := redrive(f, dry); rep != (Report{Matched: 1, Behind: 1}) || told[id(2)] != "behind "+id(0) || len(seen) > 0 {
				t.Fatalf("%s: %+v %v, handled: %v", name, rep, told, seen)
			}
		}
	}
	if rep := redrive(Filter{IDs: []string{id(0), id(2)}}, false); rep != (Report{Matched: 2, Done: 1, Behind: 1}) || told[id(2)] != "behind "+id(1) || !slices.Equal(seen, []int64{0}) {
		t.Fatalf("%+v %v %v", rep, told, seen)
	}
	if _, err := r.office.Discard(t.Context(), Filter{IDs: []string{id(1)}}, Discard{By: "ops", Reason: "not wanted"}); err != nil {
		t.Fatal(err)
	}
	if rep := redrive(Filter{IDs: []string{id(2)}}, false); rep.Done != 1 || !slices.Equal(seen, []int64{0, 2}) {
		t.Fatalf("%+v %v %v", rep, told, seen)
	}
}

// Two operators begin with the same key at once: the second does not go past the letter
// that the first is at.
func TestRedrivesOfTwoOperators(t *testing.T) {
	r := newRig(t)
	for n := range 3 {
		r.letter("fanout", "chat1", n)
	}
	r.letter("fanout", "chat22", 10)
	var seen []string
	second := func(ctx context.Context) {
		rep, err := r.office.Redrive(ctx, Filter{}, Redrive{By: "b", Rate: MaxRate, Handlers: map[string]consume.Handler{"fanout": func(_ context.Context, rec *kafka.Record) error {
			seen = append(seen, fmt.Sprint("b", rec.Offset))
			return nil
		}}})
		if want := (Report{Matched: 4, Done: 1, Behind: 2, Taken: 1}); err != nil || rep != want {
			t.Errorf("%+v, not %+v, %v", rep, want, err)
		}
	}
	rep, err := r.office.Redrive(t.Context(), Filter{Key: "chat1"}, Redrive{By: "a", Rate: MaxRate, Handlers: map[string]consume.Handler{"fanout": func(ctx context.Context, rec *kafka.Record) error {
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
