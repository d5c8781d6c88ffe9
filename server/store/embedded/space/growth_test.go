package space

import (
	"testing"
	"time"
)

// The time left follows from the faster growth of the last hour and the last day, beyond what
// the store takes and frees by itself.
func TestHoursLeft(t *testing.T) {
	const gb = 1 << 30
	free, now := uint64(500*gb), time.Unix(1_000_000, 0)
	w := Watch{Usage: func() (uint64, uint64) { return free, 1000 * gb }, Changed: func(State) {}}
	run := func(d time.Duration, bytesPerHour float64) {
		for range int(d / time.Minute) {
			now = now.Add(time.Minute)
			free -= uint64(bytesPerHour / 60)
			w.Full(now)
		}
	}
	expect := func(what string, fills bool, least, limit time.Duration) {
		t.Helper()
		got := w.State(now)
		if got.Fills != fills || fills && (got.Left < least || got.Left > limit) {
			t.Errorf("%s: fills %v, %s left; %d GB free", what, got.Fills, got.Left, got.Free>>30)
		}
	}
	w.Full(now)
	expect("at first", false, 0, 0)
	run(30*time.Minute, 0)
	expect("without growth", false, 0, 0)
	run(30*time.Minute, 0.3*gb)
	expect("as much as a store takes by itself", false, 0, 0)
	run(48*time.Hour, 1*gb)
	expect("1 GB an hour", true, 440*time.Hour, 500*time.Hour)
	run(time.Hour, 40*gb)
	expect("40 GB an hour", true, 9*time.Hour, 11*time.Hour)
	run(10*time.Hour, 0)
	expect("quiet since, but 40 GB within the day", true, 4*24*time.Hour, 8*24*time.Hour)
	run(25*time.Hour, 0)
	expect("quiet for a day", false, 0, 0)
	run(time.Hour, float64(free-5*gb))
	expect("nearly full", true, 0, 2*time.Minute)
	free = 3 * gb
	run(time.Minute, 0)
	if got := w.State(now); !got.Full || got.Fills || got.Left != 0 {
		t.Errorf("%+v of a full disk", got)
	}
	if n := len(w.growth.samples); n > 300 {
		t.Errorf("%d samples are kept", n)
	}
}

// A clock that is set back makes no growth of nothing.
func TestGrowthWithAClockSetBack(t *testing.T) {
	var g growth
	now := time.Unix(1_000_000, 0)
	g.add(now, 500<<30)
	g.add(now.Add(-time.Hour), 400<<30)
	g.add(now.Add(-time.Hour+20*time.Minute), 399<<30)
	if left, fills := g.left(now.Add(-time.Hour+20*time.Minute), 399<<30, 399<<30, 0); !fills || left < 100*time.Hour {
		t.Error(left, fills)
	}
}

// A State does not wait for a file system that hangs.
func TestStateDoesNotAsk(t *testing.T) {
	hangs, asked := make(chan struct{}), make(chan struct{})
	w := Watch{Usage: func() (uint64, uint64) { close(asked); <-hangs; return 1 << 30, 2 << 30 }, Changed: func(State) {}}
	done := make(chan bool)
	go func() { done <- w.Full(time.Unix(1_000, 0)) }()
	<-asked
	if got := w.State(time.Unix(2_000, 0)); got != (State{}) {
		t.Errorf("%+v", got)
	}
	close(hangs)
	if <-done {
		t.Error("full")
	}
}
