package delivery

import "testing"

func TestSet(t *testing.T) {
	s, k := watermarkSet{}, watermarkKey{"ann", "c"}
	if !s.Raise(k, 3) || s.Raise(k, 2) {
		t.Fatal("only the first is fresh")
	}
	if n, ok := s.Next(k); !ok || n != 3 {
		t.Fatalf("to write: %d, %t", n, ok)
	}
	s.Raise(k, 5) // while 3 is written
	s.Written(k, 3)
	if n, ok := s.Next(k); !ok || n != 5 {
		t.Fatalf("to write: %d, %t", n, ok)
	}
	s.Written(k, 5)
	if _, ok := s.Next(k); ok || len(s) != 0 {
		t.Fatal("nothing is left to write, but something is kept")
	}
	s.Written(k, 6)
	if _, ok := s.Next(k); ok || len(s) != 0 {
		t.Fatal("what was forgotten came back")
	}
}
