package delivery

import (
	"fmt"
	"testing"
)

func TestDepartedSet(t *testing.T) {
	s := departureSet{}
	is := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %t", what, got)
		}
	}
	is("nothing is known", s.Covers("c", 0, 0, 0), false)
	is("first", s.Add("c", 5, 7), true)
	is("again", s.Add("c", 5, 7), false)
	is("an older one", s.Add("c", 4, 7), false)
	is("the removal", s.Covers("c", 5, 0, 0), true)
	is("something newer", s.Covers("c", 6, 0, 0), false)
	is("something newer that was walked", s.Covers("c", 6, 7, 6), true)
	is("something newer that was not", s.Covers("c", 6, 7, 5), false)
	is("walked by another", s.Covers("c", 6, 8, 6), false)
	s.Confirm("c", 9)
	is("what a read confirmed", s.Covers("c", 9, 8, 0), true)
	is("a newer one", s.Add("c", 12, 0), true)
	is("before it", s.Covers("c", 12, 0, 99), true)
	is("after it, walked by nobody", s.Covers("c", 13, 0, 99), false)
	for i := range 5000 {
		s.Add(fmt.Sprint(i), 1, 0)
	}
	if len(s) > 1000 {
		t.Errorf("%d are remembered", len(s))
	}
}
