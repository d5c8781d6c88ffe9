package machine

// catchUp is how far a backfill is. The zero catchUp is that of no backfill.
type catchUp struct {
	Number  int64 // of the backfill; 0 without one, or after the group has moved
	Set     Set   // is delivered, too; it shares no position with what the group reads
	Ready   Set   // of Set, what was not come to
	Allowed int64 // how many of these may be come to
	Over    bool  // nothing more is begun: returned messages go with the others

	floor int64 // no position below is in Set and not acknowledged
}

// Begin adds what a backfill is to have, in a log that begins with start.
func (p *catchUp) Begin(number, start int64, want *Set) {
	p.Number, p.floor, p.Allowed, p.Over = number, start, 0, false
	p.Set.Union(want)
}

// Behind is the lowest position that is not acknowledged, NoEnd if there is none.
func (p *catchUp) Behind(acked *Set) int64 {
	p.floor = p.Set.NextWithout(acked, p.floor)
	return p.floor
}

// Trim forgets what lies before the start of the log.
func (p *catchUp) Trim(start int64) {
	p.Set.Remove(0, start)
	p.Ready.Remove(0, start)
	p.floor = max(p.floor, start)
}

// Count counts, below end, what is acknowledged and what is not.
func (p *catchUp) Count(acked *Set, end int64) (left, done int64) {
	rest := p.Set.Clone()
	rest.Subtract(acked)
	left = rest.Count(0, end)
	return left, p.Set.Count(0, end) - left
}

// Rebuild makes what is neither acknowledged nor away ready again, as far as it was never tried.
// It returns what goes with the others.
func (p *catchUp) Rebuild(acked, away *Set, fails *failureTable, suspects *Set) (others Set) {
	p.Ready = p.Set.Clone()
	p.Ready.Subtract(acked)
	p.Ready.Subtract(away)
	if p.Over {
		others, p.Ready = p.Ready, Set{}
		return others
	}
	others = p.Ready.Clone()
	others.Intersect(suspects)
	for at := range fails.All() {
		if p.Ready.Contains(at) {
			others.Add(at, at+1)
		}
	}
	p.Ready.Subtract(&others)
	return others
}

// PutBack takes what was never tried out of what comes back; below end it is allowed once more. It
// returns how much that was.
func (p *catchUp) PutBack(back *Set, fails *failureTable, suspects *Set, end int64) int64 {
	if p.Set.Empty() || p.Over {
		return 0
	}
	untried := back.Clone()
	untried.Intersect(&p.Set)
	untried.Subtract(suspects)
	for at := range fails.All() {
		untried.Remove(at, at+1)
	}
	back.Subtract(&untried)
	p.Ready.Union(&untried)
	p.Allowed += untried.Count(0, end)
	return untried.Count(0, NoEnd)
}

// Drop takes what is not in kept out of it, and returns it. Nothing more is begun.
func (p *catchUp) Drop(kept *Set) Set {
	p.Allowed, p.Over = 0, true
	dropped := p.Set.Clone()
	dropped.Subtract(kept)
	p.Set.Subtract(&dropped)
	return dropped
}
