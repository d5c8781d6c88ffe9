package filter

// remembered is how many batches a filter's results are kept of: groups read the same
// ones at about the same time.
const remembered = 8

// Batch is messages that a filter is evaluated for once.
type Batch interface {
	Messages
	// End tells batches of one log apart; it is not 0.
	End() int64
}

// Shared is a filter with what it made of the last batches, for all that have the same.
type Shared struct {
	filter *Filter
	users  int
	ends   [remembered]int64 // of the batches, 0: none
	bits   [remembered]Bits
	next   int
}

// Cache holds the filters that are in use with one log. It is used by one goroutine at
// a time, as what it returns.
type Cache map[string]*Shared

// Use returns the shared form of a filter, nil for none. Each is to be released.
func (c Cache) Use(f *Filter) *Shared {
	if f == nil {
		return nil
	}
	s := c[f.Key()]
	if s == nil {
		s = &Shared{filter: f}
		c[f.Key()] = s
	}
	s.users++
	return s
}

// Release ends a use of one.
func (c Cache) Release(s *Shared) {
	if s == nil {
		return
	}
	if s.users--; s.users == 0 {
		delete(c, s.filter.Key())
	}
}

// Accepts reports whether message i of a batch is accepted; without a filter it is.
func (s *Shared) Accepts(b Batch, i int) bool {
	if s == nil {
		return true
	}
	for k := range s.ends { // the last one is that of the call before, mostly
		if at := (s.next + remembered - 1 - k) % remembered; s.ends[at] == b.End() {
			return s.bits[at].Has(i)
		}
	}
	at := s.next
	s.ends[at], s.bits[at] = b.End(), s.filter.Evaluate(b, s.bits[at])
	s.next = (s.next + 1) % remembered
	return s.bits[at].Has(i)
}
