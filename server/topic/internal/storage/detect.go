package storage

import "time"

// Silence is what a Detector sees of an active group.
type Silence struct {
	Key        string        // names topic, group and generation
	Heartbeats int64         // counts heartbeats; only whether it changes matters
	Timeout    time.Duration // of the group
	Members    bool          // some are attached: it is not silent, regardless of Heartbeats
}

// Verdict is what a cycle of a Detector found.
type Verdict struct {
	Expired []string // groups that are dead, in the order of the groups
	Near    []string // groups whose silence has lasted for four fifths of their timeout
	Braked  bool     // too many at once: it is not they that are ill
}

// The brake: of many groups that fall silent at once, what they all depend on is the
// cause.
const (
	brakeAbove = 3  // groups
	brakeShare = 30 // percent
)

type silenceSeen struct {
	heartbeats int64
	since      time.Time // by the detector's own clock
	cycle      int64     // in which it was seen last
}

// Detector times how long heartbeats have not changed, on its own clock: no two clocks
// are compared. One that is new, or was blind, can only be late.
type Detector struct {
	seen  map[string]silenceSeen
	cycle int64
}

// NewDetector makes a Detector that has seen nothing.
func NewDetector() *Detector { return &Detector{seen: map[string]silenceSeen{}} }

// Blind says that heartbeats could not be recorded: all silences restart.
func (d *Detector) Blind(now time.Time) {
	for key, s := range d.seen {
		s.since = now
		d.seen[key] = s
	}
}

// Cycle checks all active groups. Groups that it is not shown are forgotten. If the
// brake holds, nothing expires; groups that stay silent for another timeout do then.
func (d *Detector) Cycle(now time.Time, groups []Silence) Verdict {
	d.cycle++
	var v Verdict
	var certain []string // silent for twice the timeout
	for _, g := range groups {
		s, ok := d.seen[g.Key]
		if !ok || s.heartbeats != g.Heartbeats || g.Members {
			s.heartbeats, s.since = g.Heartbeats, now
		}
		s.cycle = d.cycle
		d.seen[g.Key] = s
		silent := now.Sub(s.since)
		if silent >= g.Timeout {
			v.Expired = append(v.Expired, g.Key)
		} else if silent >= g.Timeout*4/5 {
			v.Near = append(v.Near, g.Key)
		}
		if silent >= 2*g.Timeout {
			certain = append(certain, g.Key)
		}
	}
	for key, s := range d.seen {
		if s.cycle != d.cycle {
			delete(d.seen, key)
		}
	}
	if n := len(v.Expired); n > brakeAbove && n*100 > brakeShare*len(groups) {
		v.Expired, v.Braked = certain, true
	}
	return v
}
