package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
	if err != nil {
		f.t.Fatal(err)
	}
	return e
}

func (f *fixture) end(e *Entry, code string) {
	f.t.Helper()
	if err := e.End(f.t.Context(), code, "result of "+code); err != nil {
		f.t.Fatal(err)
	}
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

// Calls come newest first over the ends of months, with both halves, on pages of any size.
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
			if c.ID != want[i] || c.Actor != []string{"ada", "bob"}[n%2] || c.Name != []string{"Replay", "Redrive", "Drop"}[n%3] || c.Request != fmt.Sprintf(`{"at":%q}`, c.Began.UTC().Format(time.RFC3339)) {
				t.Fatalf("call %d: %+v", n, c)
			}
			if ended := n%5 != 0; ended == c.Ended.IsZero() || ended && (c.Ended.Sub(c.Began) != time.Second || c.Result != "result of "+c.Code) {
				t.Fatalf("call %d: %+v", n, c)
			}
		}
	}
	first := f.all(Filter{}, 1000)[49].Began
	for name, tt := range map[string]struct {
		f    Filter
		want int
	}{
		"operator": {Filter{Actor: "ada"}, 25}, "call": {Filter{Name: "Drop"}, 16}, "both": {Filter{Actor: "bob", Name: "Redrive"}, 9},
		"nobody": {Filter{Actor: "eve"}, 0}, "after": {Filter{After: first.Add(time.Hour)}, 48}, "before": {Filter{Before: first.Add(time.Hour)}, 2}, "none": {Filter{Before: first}, 0},
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

// A long request is cut, and rows are never written a second time.
func TestRows(t *testing.T) {
	f := newFixture(t)
	e, err := f.Begin(t.Context(), "ada", "Replay", strings.Repeat("é", 4000))
	if err != nil {
		t.Fatal(err)
	}
	f.end(e, "ok")
	f.end(e, "internal")
	calls := f.all(Filter{}, 10)
	if len(calls) != 1 || calls[0].Code != "ok" || len(calls[0].Request) > 4096 || len(calls[0].Request) < 4090 || !strings.HasSuffix(calls[0].Request, "é…") {
		t.Fatalf("%+v", calls)
	}
	if err := f.store.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Begin(t.Context(), "ada", "Replay", "{}"); !errors.Is(err, store.ErrClosed) {
		t.Fatal(err)
	}
}
