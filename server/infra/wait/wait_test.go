package wait_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := wait.For(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("a minute: %v after %v", err, time.Since(began))
		}
		for _, d := range []time.Duration{0, -time.Second} {
			if err := wait.For(t.Context(), d); err != nil {
				t.Errorf("%v: %v", d, err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if err := wait.For(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("a context that ends after a second: %v after %v", err, time.Since(began))
		}
		for range 100 {
			if err := wait.For(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("a context that has ended: %v", err)
			}
		}
	})
}

func TestUntilReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy, wrong := errors.New("busy"), errors.New("wrong")
		explain := func(err error) (error, bool) { return err, errors.Is(err, wrong) }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for name, tt := range map[string]struct {
			answers []error // the last one from then on
			err     error
			final   bool
			after   time.Duration
		}{
			"at once": {[]error{nil}, nil, false, 0},
			"later":   {[]error{busy, busy, nil}, nil, false, 2 * time.Second},
			"wrong":   {[]error{busy, wrong, nil}, wrong, true, time.Second},
		} {
			began, tries := time.Now(), 0
			err, final := wait.UntilReady(ctx, time.Second, func(context.Context) error {
				tries++
				return tt.answers[min(tries, len(tt.answers))-1]
			}, explain)
			if !errors.Is(err, tt.err) || final != tt.final || time.Since(began) != tt.after {
				t.Errorf("%s: %v, %t after %v", name, err, final, time.Since(began))
			}
		}
		tries := 0
		if err, final := wait.UntilReady(ctx, 20*time.Second, func(context.Context) error {
			if tries++; tries == 1 {
				return busy
			}
			return context.DeadlineExceeded
		}, explain); !errors.Is(err, busy) || final {
			t.Errorf("until the end: %v, %t", err, final)
		}
	})
}

func TestDoubled(t *testing.T) {
	const first, last = 5 * time.Millisecond, time.Second
	for _, tt := range []struct {
		n    int
		want time.Duration
	}{
		{-1, 5 * time.Millisecond},
		{0, 5 * time.Millisecond},
		{1, 10 * time.Millisecond},
		{7, 640 * time.Millisecond},
		{8, time.Second},
		{1 << 40, time.Second},
	} {
		if got := wait.Doubled(first, last, tt.n); got != tt.want {
			t.Errorf("after %d failures: %v, want %v", tt.n, got, tt.want)
		}
	}
}

func TestJittered(t *testing.T) {
	highest := time.Duration(0)
	for range 1000 {
		d := wait.Jittered(5*time.Millisecond, time.Second, 3)
		if d < 0 || d >= 40*time.Millisecond {
			t.Fatalf("after 3 failures: %v, want at least 0 and less than 40ms", d)
		}
		highest = max(highest, d)
	}
	if highest < 20*time.Millisecond {
		t.Errorf("the longest of 1,000 pauses is %v, want more than half of 40ms", highest)
	}
}
