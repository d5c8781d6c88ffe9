// Package outcome says why a member's call did nothing for positions that it named: it had them
// and has lost them, or never had them.
//
// It owns which positions a member has lost, as far as that is kept. Who has what is package
// lease's. Concurrency: a Losses belongs to its member.
package outcome

import "github.com/parley-chat/parley/server/topic/positions"

// Outcome is what became of a position in a call, with the numbers that the contract gives
// them.
type Outcome int

// Outcomes of Ack, Nack and Extend.
const (
	OK           Outcome = 1
	LeaseLost    Outcome = 2
	NotActive    Outcome = 3
	NotDelivered Outcome = 4
)

// Refusal says why something was not done for the positions from From to To.
type Refusal struct {
	From, To int64
	Outcome  Outcome
}

// Refuse appends a refusal, or makes the last one longer.
func Refuse(dst []Refusal, from, to int64, o Outcome) []Refusal {
	if n := len(dst); n > 0 && dst[n-1].To == from && dst[n-1].Outcome == o {
		dst[n-1].To = to
		return dst
	}
	return append(dst, Refusal{from, to, o})
}

// Losses are positions that a member had and has not any more.
type Losses struct{ set positions.Set }

// maxRuns is how many runs are kept before those are forgotten that the group is done with.
const maxRuns = 4096

// Add notes positions. floor is below what the group is not done with.
func (l *Losses) Add(from, to int64, floor func() int64) {
	if l.set.Add(from, to); l.set.Len() > maxRuns {
		l.set.Remove(0, floor())
	}
}

// Len is how many runs are kept.
func (l *Losses) Len() int { return l.set.Len() }

// Trim forgets what lies before the start of the log.
func (l *Losses) Trim(start int64) { l.set.Remove(0, start) }

// Explain appends why nothing is done for positions that the member does not have, in a log
// that begins with start. What is acknowledged is not refused.
func (l *Losses) Explain(p, to, start int64, acked *positions.Set, dst []Refusal) []Refusal {
	p = max(p, min(to, start))
	for p < to {
		end := min(to, acked.NextAbsent(p))
		if end > p { // done already
			p = end
			continue
		}
		if next, ok := acked.Next(p); ok {
			end = min(to, next)
		} else {
			end = to
		}
		for p < end {
			until, why := min(end, l.set.NextAbsent(p)), LeaseLost
			if until == p {
				until, why = end, NotDelivered
				if next, ok := l.set.Next(p); ok {
					until = min(end, next)
				}
			}
			dst = Refuse(dst, p, until, why)
			p = until
		}
	}
	return dst
}
