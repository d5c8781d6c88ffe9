package gates

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// searched is what a search tried.
type searched struct {
	claimed float64
	tries   []held
}

// search tries the claimed rate, doubles it until it breaks or halves it until it holds, and
// then looks between, in so many tries at most.
func search(claimed float64, limit int, try func(rate float64) held) searched {
	s := searched{claimed: claimed}
	rate, good, bad := claimed, 0.0, math.Inf(1)
	for len(s.tries) < limit && rate >= leastRate {
		h := try(rate)
		s.tries = append(s.tries, h)
		if len(h.broken) == 0 {
			good = max(good, rate)
		} else {
			bad = min(bad, rate)
		}
		switch {
		case math.IsInf(bad, 1):
			rate = 2 * good
		case good == 0:
			rate = bad / 2
		case bad/good <= searchRatio:
			return s
		default:
			rate = math.Round(math.Sqrt(good*bad)/10) * 10
		}
	}
	return s
}

// rates lists the rates in ascending order.
func (s searched) rates() string {
	list := slices.Clone(s.tries)
	slices.SortFunc(list, func(a, b held) int { return int(a.rate - b.rate) })
	var text []string
	for _, h := range list {
		text = append(text, fmt.Sprintf("%.0f", h.rate))
	}
	return strings.Join(text, ", ")
}

// atClaim says what became of the claimed rate.
func (s searched) atClaim() string {
	if h := s.tries[0]; len(h.broken) == 0 {
		return "holds: " + h.String()
	}
	return "does not hold here: " + strings.Join(s.tries[0].broken, "; ")
}

// limit is the highest rate that held, and what broke the next one.
func (s searched) limit() string {
	var best, worst *held
	for i := range s.tries {
		h := &s.tries[i]
		if len(h.broken) == 0 && (best == nil || h.rate > best.rate) {
			best = h
		}
		if len(h.broken) > 0 && (worst == nil || h.rate < worst.rate) {
			worst = h
		}
	}
	switch {
	case best == nil:
		return fmt.Sprintf("below %.0f/s: %s", worst.rate, strings.Join(worst.broken, "; "))
	case worst == nil:
		return fmt.Sprintf("above %v", best)
	}
	return fmt.Sprintf("%v; at %.0f/s %s", best, worst.rate, strings.Join(worst.broken, "; "))
}
