package operations

import (
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// HQ-P01, HQ-P12, HQ-P16: the schedules have the values that operators are shown.
func TestSchedules(t *testing.T) {
	const day = 24 * time.Hour
	for name, want := range map[string]Schedule{
		"":         {"standard", 5 * time.Minute, 10_000, 0, 5 * time.Minute, 30 * day},
		"low":      {"low", 15 * time.Minute, 5_000, 0, 5 * time.Minute, 30 * day},
		"high":     {"high", time.Minute, 50_000, 0, time.Minute, 7 * day},
		"critical": {"critical", 5 * time.Minute, 10_000, 0, 2 * time.Minute, 90 * day},
		"incremental": {
			"incremental", 10 * time.Second, 1_000, 100 * time.Millisecond, 5 * time.Minute, 30 * day,
		},
	} {
		s, ok := ScheduleOf(name, 1e6)
		testkit.Equal(t, name, s, want)
		testkit.Equal(t, name+": is there", ok, true)
	}
	if _, ok := ScheduleOf("hourly", 0); ok {
		t.Error("there is a schedule of any name")
	}
}

// HQ-P08: with the rate of publishes the trim runs the more often.
func TestScheduleByRate(t *testing.T) {
	for _, x := range []struct {
		rate  float64
		every time.Duration
		batch int64
	}{
		{0, 15 * time.Minute, 5_000}, {99.9, 15 * time.Minute, 5_000},
		{100, 5 * time.Minute, 10_000}, {999.9, 5 * time.Minute, 10_000},
		{1000, 2 * time.Minute, 20_000}, {9999.9, 2 * time.Minute, 20_000},
		{10_000, time.Minute, 50_000}, {1e6, time.Minute, 50_000},
	} {
		s, ok := ScheduleOf("auto", x.rate)
		if !ok || s.Trim != x.every || s.Batch != x.batch || s.Name != "auto" {
			t.Errorf("%g a second: %+v", x.rate, s)
		}
	}
}

// HQ-P01: subscriptions are cleaned up once a day, at 02:00 UTC.
func TestCleaningIsAtNight(t *testing.T) {
	for now, want := range map[string]string{
		"2030-01-01T00:00:00Z": "2030-01-01T02:00:00Z", "2030-01-01T02:00:00Z": "2030-01-02T02:00:00Z",
		"2030-12-31T23:59:59Z": "2031-01-01T02:00:00Z", "2030-01-01T03:30:00+02:00": "2030-01-01T02:00:00Z",
	} {
		at, err := time.Parse(time.RFC3339, now)
		if err != nil {
			t.Fatal(err)
		}
		testkit.Equal(t, now, nextClean(at).Format(time.RFC3339), want)
	}
}

// The rate is that of the last minute or so, whatever it was before.
func TestRate(t *testing.T) {
	var r rate
	at := time.Unix(0, 0)
	for i, count := range []int64{0, 600, 600, 60_600} {
		r.observe(at.Add(time.Duration(i)*time.Minute), count)
	}
	r.observe(at.Add(3*time.Minute+time.Second), 1e9) // too soon to say
	testkit.Equal(t, "a second", r.value(), 1000.0)
}
