package machine

// rememberedFilters is how many batches a filter's results are kept of: groups read the same
// ones at about the same time.
const rememberedFilters = 8

// Batch is messages that a filter is evaluated for once.
type Batch interface {
	Messages
	// End tells batches of one log apart; it is not 0.
	End() int64
}

// sharedFilter is a filter with what it made of the last batches, for all that have the same.
type sharedFilter struct {
	filter *Filter
	users  int
	ends   [rememberedFilters]int64 // of the batches, 0: none
	bits   [rememberedFilters]Bits
	next   int
}

// filterCache holds the filters that are in use with one log. It is used by one goroutine at
// a time, as what it returns.
type filterCache map[string]*sharedFilter

// Use returns the shared form of a filter, nil for none. Each is to be released.
func (c filterCache) Use(f *Filter) *sharedFilter {
	if f == nil {
		return nil
	}
	s := c[f.Key()]
	if s == nil {
		s = &sharedFilter{filter: f}
		c[f.Key()] = s
	}
	s.users++
	return s
}

// Release ends a use of one.
func (c filterCache) Release(s *sharedFilter) {
	if s == nil {
		return
	}
	if s.users--; s.users == 0 {
		delete(c, s.filter.Key())
	}
}

// Accepts reports whether message i of a batch is accepted; without a filter it is.
func (s *sharedFilter) Accepts(b Batch, i int) bool {
	if s == nil {
		return true
	}
	for k := range s.ends { // the last one is that of the call before, mostly
		if at := (s.next + rememberedFilters - 1 - k) % rememberedFilters; s.ends[at] == b.End() {
			return s.bits[at].Has(i)
		}
	}
	at := s.next
	s.ends[at], s.bits[at] = b.End(), s.filter.Evaluate(b, s.bits[at])
	s.next = (s.next + 1) % rememberedFilters
	return s.bits[at].Has(i)
}
