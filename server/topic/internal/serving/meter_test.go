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
			m.Sample(now, done, done, int64(away), 0, 0)
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

// A member that takes messages and never answers does not make the others slow: once the leases have
// ended, the time for which it had them does not count.
func TestMeterOfAbandonedMessages(t *testing.T) {
	var m Meter
	now := time.Unix(0, 0)
	var done, expired int64
	const lease = 30 * time.Second
	sample := func(away int) time.Duration {
		m.Sample(now, done, done, int64(away), expired, lease)
		done += 500
		now = now.Add(5 * time.Second)
		_, d := m.Speed()
		return d
	}
	for range 60 {
		sample(10) // 100 a second, 100 ms each
	}
	before := sample(10)
	for range 6 {
		sample(10 + 500) // and 500 that nobody works on
	}
	expired += 500
	if after := sample(10); before < 95*time.Millisecond || after > 150*time.Millisecond {
		t.Errorf("%s before, and %s after the leases of messages that were abandoned", before, after)
	}
}
