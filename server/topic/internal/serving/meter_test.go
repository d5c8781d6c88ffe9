package serving

import (
	"testing"
	"time"
)

// A meter finds the rate, and how long a message takes, soon and after a change; a group
// that rests is slow.
func TestMeter(t *testing.T) {
	var m Meter
	now := time.Unix(0, 0)
	if v, d := m.Speed(); v != 0 || d != 0 {
		t.Error(v, d)
	}
	var done int64
	run := func(seconds, perSecond, away int) {
		for range seconds {
			m.Sample(now, done, done, int64(away))
			done += int64(perSecond)
			now = now.Add(time.Second)
		}
	}
	check := func(rate float64, processing time.Duration) {
		t.Helper()
		v, d := m.Speed()
		if v < rate*0.95 || v > rate*1.05 || d < processing*95/100 || d > processing*105/100 {
			t.Errorf("%g a second, %s each; want %g and %s", v, d, rate, processing)
		}
	}
	run(5, 100, 50)
	check(100, 500*time.Millisecond)
	run(600, 10, 20)
	check(10, 2*time.Second)
	for range 1200 {
		now = now.Add(time.Second)
		m.Rest(now)
	}
	if v, _ := m.Speed(); v > 0.001 {
		t.Errorf("%g a second after a rest", v)
	}
}
