package machine

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

// appendRefusal appends a refusal, or makes the last one longer.
func appendRefusal(dst []Refusal, from, to int64, o Outcome) []Refusal {
	if n := len(dst); n > 0 && dst[n-1].To == from && dst[n-1].Outcome == o {
		dst[n-1].To = to
		return dst
	}
	return append(dst, Refusal{from, to, o})
}

// losses are positions that a member had and has lost, as far as that is kept: they explain why a
// call did nothing for positions that it named.
type losses struct {
	set  Set
	most int // runs; 0: maxLostRuns
}

// maxLostRuns is how many runs are kept before those are forgotten that the group is done with.
// The remaining runs are open.
const maxLostRuns = 4096

// Add notes positions. acked are those that the group is done with: forgotten positions do not
// follow from its floor, behind which one message can keep a million others.
func (l *losses) Add(from, to int64, acked *Set) {
	if l.set.Add(from, to); l.set.Len() > max(l.most, maxLostRuns) {
		l.set.Subtract(acked)
		l.most = 2 * l.set.Len()
	}
}

// Len is how many runs are kept.
func (l *losses) Len() int { return l.set.Len() }

// Trim forgets what lies before the start of the log.
func (l *losses) Trim(start int64) { l.set.Remove(0, start) }

// Explain appends why nothing is done for positions that the member does not have, in a log
// that begins with start. Acknowledged positions are not refused.
func (l *losses) Explain(p, to, start int64, acked *Set, dst []Refusal) []Refusal {
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
			dst = appendRefusal(dst, p, until, why)
			p = until
		}
	}
	return dst
}
