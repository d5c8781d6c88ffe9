package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
)

type fixture struct {
	*Log
	t   *testing.T
	now time.Time
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, now: time.Date(2030, 3, 1, 0, 30, 0, 0, time.UTC)}
	clock := func() time.Time { return f.now }
	f.Log = New(dynamotest.Store(t, clock), clock)
	return f
}

func (f *fixture) begin(by, call string) *Entry {
	f.t.Helper()
	e, err := f.Begin(f.t.Context(), by, call, fmt.Sprintf(`{"at":%q}`, f.now.Format(time.RFC3339)))
	testkit.Must(f.t, err)
	return e
}

func (f *fixture) end(e *Entry, code string) {
	f.t.Helper()
	testkit.Must(f.t, e.End(f.t.Context(), code, "result of "+code))
}

func (f *fixture) all(by Filter, limit int) (list []Call) {
	f.t.Helper()
	for token := ""; ; {
		calls, next, err := f.List(f.t.Context(), by, limit, token)
		if err != nil || len(calls) > limit {
			f.t.Fatal(len(calls), err)
		}
		list = append(list, calls...)
		if token = next; token == "" {
			return list
		}
	}
}

// Calls are listed newest first, across months, each with its start and end, on pages of any
// size.
func TestList(t *testing.T) {
	f := newFixture(t)
	var want []string
	for n := range 50 {
		e := f.begin([]string{"ada", "bob"}[n%2], []string{"Replay", "Redrive", "Drop"}[n%3])
		f.now = f.now.Add(time.Second)
		if n%5 != 0 {
			f.end(e, []string{"ok", "aborted"}[n%4/2])
		}
		want = append(want, e.id)
		if n%7 != 0 { // some begin in the same second
			f.now = f.now.Add(36 * time.Hour)
		}
	}
	slices.Reverse(want)
	for _, limit := range []int{1, 3, 1000} {
		calls := f.all(Filter{}, limit)
		if len(calls) != 50 {
			t.Fatalf("%d calls on pages of %d", len(calls), limit)
		}
		for i, c := range calls {
			n := 49 - i
			if c.ID != want[i] || c.Actor != []string{"ada", "bob"}[n%2] ||
				c.Name != []string{"Replay", "Redrive", "Drop"}[n%3] ||
				c.Request != fmt.Sprintf(`{"at":%q}`, c.Began.UTC().Format(time.RFC3339)) {
				t.Fatalf("call %d: %+v", n, c)
			}
			if ended := n%5 != 0; ended == c.Ended.IsZero() || ended &&
				(c.Ended.Sub(c.Began) != time.Second || c.Result != "result of "+c.Code) {
				t.Fatalf("call %d: %+v", n, c)
			}
		}
	}
	first := f.all(Filter{}, 1000)[49].Began
	for name, tt := range map[string]struct {
		f    Filter
		want int
	}{
		"operator": {Filter{Actor: "ada"}, 25}, "call": {Filter{Name: "Drop"}, 16},
		"both":   {Filter{Actor: "bob", Name: "Redrive"}, 9},
		"nobody": {Filter{Actor: "eve"}, 0}, "after": {Filter{After: first.Add(time.Hour)}, 48},
		"before": {Filter{Before: first.Add(time.Hour)}, 2}, "none": {Filter{Before: first}, 0},
	} {
		if got := f.all(tt.f, 7); len(got) != tt.want {
			t.Errorf("%s: %d calls, not %d", name, len(got), tt.want)
		}
	}
	f.now = f.now.Add(396 * 24 * time.Hour)
	if got := f.all(Filter{}, 100); len(got) != 0 {
		t.Errorf("%d calls after 396 days", len(got))
	}
	for _, token := range []string{"x", "2030-03", "2030-13/1", "/"} {
		if _, _, err := f.List(t.Context(), Filter{}, 1, token); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", token, err)
		}
	}
	for _, limit := range []int{0, 1001} {
		if _, _, err := f.List(t.Context(), Filter{}, limit, ""); !errors.Is(err, ErrInvalid) {
			t.Errorf("limit %d: %v", limit, err)
		}
	}
}

// A long request is truncated, and rows are never written a second time.
func TestRows(t *testing.T) {
	f := newFixture(t)
	e, err := f.Begin(t.Context(), "ada", "Replay", strings.Repeat("é", 4000))
	testkit.Must(t, err)
	f.end(e, "ok")
	f.end(e, "internal")
	calls := f.all(Filter{}, 10)
	if len(calls) != 1 || calls[0].Code != "ok" || len(calls[0].Request) > 4096 || len(calls[0].Request) < 4090 ||
		!strings.HasSuffix(calls[0].Request, "é…") {
		t.Fatalf("%+v", calls)
	}
	testkit.Must(t, f.store.Close())
	if _, err := f.Begin(t.Context(), "ada", "Replay", "{}"); !errors.Is(err, store.ErrClosed) {
		t.Fatal(err)
	}
}

// Events and calls are kept apart and listed together, by who did what to whom, on pages of
// any size.
func TestEvents(t *testing.T) {
	f := newFixture(t)
	record := func(e Event) {
		testkit.Must(t, f.Record(t.Context(), e))
		f.now = f.now.Add(12 * time.Hour)
	}
	for range 10 {
		record(Event{Actor: "user/alice", Action: "signed_in", Target: "user/alice", Outcome: "ok"})
		record(Event{Actor: "user/eve", Action: "signed_in", Target: "user/alice", Outcome: "code_wrong", Detail: "x"})
		f.begin("ada", "GetUser")
		e, err := f.BeginOn(t.Context(), "ada", "SuspendUser", "user/eve", "{}")
		testkit.Must(t, err)
		f.end(e, "ok")
	}
	for name, tt := range map[string]struct {
		f    Filter
		want int
	}{
		"calls": {Filter{}, 20}, "events": {Filter{Kind: Events}, 20}, "both": {Filter{Kind: All}, 40},
		"actor":                {Filter{Kind: All, Actor: "user/eve"}, 10},
		"actor of calls":       {Filter{Kind: All, Actor: "ada"}, 20},
		"actor of events":      {Filter{Kind: Events, Actor: "user/alice"}, 10},
		"target":               {Filter{Kind: All, Target: "user/alice"}, 20},
		"target of calls":      {Filter{Target: "user/eve"}, 10},
		"target and actor":     {Filter{Kind: All, Target: "user/alice", Actor: "user/eve"}, 10},
		"action":               {Filter{Kind: All, Name: "signed_in", Actor: "user/alice"}, 10},
		"nobody":               {Filter{Kind: All, Target: "user/al"}, 0},
		"only calls are ada's": {Filter{Kind: Events, Actor: "ada"}, 0},
	} {
		for _, limit := range []int{1, 7, 1000} {
			got := f.all(tt.f, limit)
			if len(got) != tt.want {
				t.Errorf("%s: %d records on pages of %d, not %d", name, len(got), limit, tt.want)
			}
			for i, c := range got {
				if i > 0 && c.Began.After(got[i-1].Began) {
					t.Errorf("%s: record %d is newer than the one before", name, i)
				}
			}
		}
	}
	failed := f.all(Filter{Kind: Events, Target: "user/alice", Actor: "user/eve"}, 100)[0]
	if failed.Code != "code_wrong" || failed.Result != "x" || !failed.Event || !failed.Ended.Equal(failed.Began) {
		t.Errorf("%+v", failed)
	}
	suspended := f.all(Filter{Target: "user/eve"}, 100)[0]
	if suspended.Code != "ok" || suspended.Target != "user/eve" || suspended.Actor != "ada" || suspended.Ended.IsZero() {
		t.Errorf("%+v", suspended)
	}
	self, err := f.BeginOn(t.Context(), "bob", "SuspendUser", "bob", "{}") // stands in both partitions of bob
	testkit.Must(t, err)
	f.end(self, "ok")
	if got := f.all(Filter{Kind: All, Actor: "bob"}, 100); len(got) != 1 || got[0].Code != "ok" {
		t.Errorf("%+v", got)
	}
	for _, bad := range []string{strings.Repeat("x", 321), "a\x00b"} {
		if _, _, err := f.List(t.Context(), Filter{Target: bad}, 1, ""); !errors.Is(err, ErrInvalid) {
			t.Errorf("%.10q: %v", bad, err)
		}
	}
}

// While the storage is full operators' calls are recorded, because what frees space waits
// for that; events are not.
func TestOnlyCallsFree(t *testing.T) {
	f := newFixture(t)
	full := &plans{Store: f.store}
	f.Log = New(full, func() time.Time { return f.now })
	f.end(f.begin("ada", "DiscardDeadLetters"), "ok")
	testkit.Must(t, f.Record(t.Context(), Event{Actor: "user/eve", Action: "signed_in", Target: "user/eve"}))
	if want := []bool{true, true, false, false}; !slices.Equal(full.frees, want) {
		t.Errorf("%v, not %v", full.frees, want)
	}
}

// plans notes whether writes free space.
type plans struct {
	store.Store
	frees []bool
}

func (p *plans) Transact(ctx context.Context, plan store.Plan) error {
	for _, w := range plan.Writes {
		p.frees = append(p.frees, w.Frees)
	}
	return p.Store.Transact(ctx, plan)
}
