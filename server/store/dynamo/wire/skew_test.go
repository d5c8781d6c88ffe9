package wire

import (
	"net/http"
	"testing"
	"time"
)

type answers struct{ do func() *http.Response }

func (a answers) Do(*http.Request) (*http.Response, error) { return a.do(), nil }

// Processes compare their times through the store, so a clock is judged by the store's.
func TestSkew(t *testing.T) {
	base := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		service string
		local   time.Duration // after base, when the request is sent
		took    time.Duration
		want    time.Duration
	}{
		{service: "Sat, 21 Nov 2026 12:00:00 GMT", local: 500 * time.Millisecond, took: 10 * time.Millisecond},
		{service: "Sat, 21 Nov 2026 12:00:00 GMT", local: -5 * time.Millisecond, took: 10 * time.Millisecond},
		{service: "Sat, 21 Nov 2026 12:00:00 GMT", local: 7 * time.Second, took: 10 * time.Millisecond,
			want: 6 * time.Second},
		{service: "Sat, 21 Nov 2026 12:00:30 GMT", local: 0, took: 100 * time.Millisecond, want: -29900 * time.Millisecond},
		{service: "Sat, 21 Nov 2026 12:00:30 GMT", local: 0, took: 2 * time.Second}, // says too little
		{service: "soon", local: time.Hour},
		{service: "", local: time.Hour},
	} {
		now := base.Add(c.local)
		clock := &clocks{now: func() time.Time { return now }, next: answers{func() *http.Response {
			now = now.Add(c.took)
			return &http.Response{Header: http.Header{"Date": {c.service}}}
		}}}
		if _, err := clock.Do(nil); err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(clock.skew.Load()); got != c.want {
			t.Errorf("%q at %v, in %v: %v, %v wanted", c.service, c.local, c.took, got, c.want)
		}
	}
}
