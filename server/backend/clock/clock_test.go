package clock_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/backend/clock"
)

// machine is one whose wall clock can be set.
type machine struct {
	mu    sync.Mutex
	began time.Time
	set   time.Duration
	said  bytes.Buffer
}

func (m *machine) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.said.Write(b)
}

func (m *machine) by(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set += d
}

func (m *machine) clocks() clock.Clocks {
	return clock.Clocks{
		Wall: func() time.Time {
			m.mu.Lock()
			defer m.mu.Unlock()
			return time.Now().Add(m.set)
		},
		Steady: func() time.Duration { return time.Since(m.began) },
	}
}

func (m *machine) lines(text string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Count(m.said.String(), text)
}

func watched(t *testing.T, f func(m *machine, w *clock.Watch)) {
	synctest.Test(t, func(t *testing.T) {
		m := &machine{began: time.Now()}
		w := clock.New(m.clocks(), slog.New(slog.NewTextHandler(m, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { w.Run(ctx) })
		f(m, w)
		cancel()
		running.Wait()
	})
}

// A clock that is set is noticed at once, logged once, and forgotten when it is back.
func TestJump(t *testing.T) {
	watched(t, func(m *machine, w *clock.Watch) {
		time.Sleep(time.Hour)
		if w.Skew() != 0 || m.lines("clock") != 0 {
			t.Errorf("%v without a jump", w.Skew())
		}
		for _, by := range []time.Duration{365 * 24 * time.Hour, -30 * time.Second} {
			m.by(by)
			if w.Skew() != by {
				t.Errorf("%v, set by %v", w.Skew(), by)
			}
			time.Sleep(time.Minute)
			if n := m.lines("was set"); n != 1 {
				t.Errorf("%d lines about %v", n, by)
			}
			m.by(-by)
			time.Sleep(2 * time.Second)
			if w.Skew() != 0 || m.lines("is back") != 1 {
				t.Errorf("%v when it is back", w.Skew())
			}
			m.mu.Lock()
			m.said.Reset()
			m.mu.Unlock()
		}
	})
}

// A small step, as time services make them, is not logged.
func TestSmallStep(t *testing.T) {
	watched(t, func(m *machine, w *clock.Watch) {
		m.by(4 * time.Second)
		time.Sleep(time.Minute)
		if m.lines("clock") != 0 || w.Skew() != 4*time.Second {
			t.Errorf("%v", w.Skew())
		}
	})
}

// A clock that was set right counts as right when it has stayed so for five minutes; one
// that is set again and again does not.
func TestCorrection(t *testing.T) {
	watched(t, func(m *machine, w *clock.Watch) {
		m.by(time.Hour)
		time.Sleep(4 * time.Minute)
		m.by(time.Minute)
		time.Sleep(4 * time.Minute)
		if w.Skew() != time.Hour+time.Minute {
			t.Errorf("%v while it is not settled", w.Skew())
		}
		time.Sleep(2 * time.Minute)
		if w.Skew() != 0 || m.lines("counts as right") != 1 {
			t.Errorf("%v after it has settled", w.Skew())
		}
	})
}

// The clocks of this machine agree.
func TestSystem(t *testing.T) {
	w := clock.New(clock.System(), slog.New(slog.DiscardHandler))
	if skew := w.Skew(); skew.Abs() > time.Second {
		t.Errorf("%v", skew)
	}
}
