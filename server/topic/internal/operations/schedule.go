package operations

import "time"

// Schedule is when jobs run, and how much they do at a time.
type Schedule struct {
	Name string
	Trim time.Duration // from the beginning of a trim to that of the next one
	// Batch is how many messages a trim removes, about, before it checks whether it has to
	// stop. All removable messages of a partition are removed at once, regardless of their
	// number.
	Batch int64
	Pause time.Duration // after a full batch, before the next one
	// Detection is the longest time from one check of the groups to the next one; groups with
	// short timeouts are checked sooner.
	Detection time.Duration
	Keep      time.Duration // of subscriptions that have ended
}

// StandardSchedule is the schedule of a server that configures none.
const StandardSchedule = "standard"

// autoSchedule is the name of the schedule that goes by the rate of publishes.
const autoSchedule = "auto"

const keepEnded = 30 * 24 * time.Hour

// schedules are those with fixed values, by name.
var schedules = map[string]Schedule{
	StandardSchedule: {Trim: 5 * time.Minute, Batch: 10_000, Detection: 5 * time.Minute, Keep: keepEnded},
	"low":            {Trim: 15 * time.Minute, Batch: 5_000, Detection: 5 * time.Minute, Keep: keepEnded},
	"high":           {Trim: time.Minute, Batch: 50_000, Detection: time.Minute, Keep: 7 * 24 * time.Hour},
	"critical": {
		Trim: 5 * time.Minute, Batch: 10_000, Detection: 2 * time.Minute, Keep: 90 * 24 * time.Hour,
	},
	"incremental": {
		Trim: 10 * time.Second, Batch: 1_000, Pause: 100 * time.Millisecond, Detection: 5 * time.Minute, Keep: keepEnded,
	},
}

// ScheduleOf returns a schedule by its name, StandardSchedule if that is empty, for a
// rate of publishes in messages a second. ok is false for a name that there is not.
func ScheduleOf(name string, rate float64) (s Schedule, ok bool) {
	if name == "" {
		name = StandardSchedule
	}
	if name == autoSchedule {
		s, ok = byRate(rate), true
	} else {
		s, ok = schedules[name]
	}
	s.Name = name
	return s, ok
}

// byRate trims the more often, and the more at a time, the more is published.
func byRate(rate float64) Schedule {
	s := schedules[StandardSchedule]
	switch {
	case rate < 100:
		s.Trim, s.Batch = 15*time.Minute, 5_000
	case rate < 1_000:
		s.Trim, s.Batch = 5*time.Minute, 10_000
	case rate < 10_000:
		s.Trim, s.Batch = 2*time.Minute, 20_000
	default:
		s.Trim, s.Batch = time.Minute, 50_000
	}
	return s
}

// cleanHour is the hour, UTC, at which subscriptions are cleaned up, once a day.
const cleanHour = 2

// nextClean returns when subscriptions are cleaned up next.
func nextClean(now time.Time) time.Time {
	now = now.UTC()
	at := time.Date(now.Year(), now.Month(), now.Day(), cleanHour, 0, 0, 0, time.UTC)
	if !at.After(now) {
		at = at.AddDate(0, 0, 1)
	}
	return at
}
