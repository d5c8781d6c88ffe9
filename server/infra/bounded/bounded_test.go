package bounded_test

import (
	"testing"

	"github.com/parley-chat/parley/server/infra/bounded"
)

// A cache that is driven far past its bound never has more entries, always has the last one, and
// keeps most of the others with their own values.
func TestPut(t *testing.T) {
	for _, bound := range []int{1, 2, 15, 16, 1000} {
		type cache map[int]int
		m := cache{}
		for i := range 5 * bound {
			bounded.Put(m, i, 10*i, bound)
			if len(m) > bound || i >= bound && len(m) < bound-max(1, bound/16) {
				t.Fatalf("bound %d: %d entries after %d", bound, len(m), i+1)
			}
			if v, ok := m[i]; !ok || v != 10*i {
				t.Fatalf("bound %d: entry %d is %d, %v", bound, i, v, ok)
			}
		}
		for k, v := range m {
			if v != 10*k {
				t.Errorf("bound %d: entry %d is %d", bound, k, v)
			}
		}
	}
}

// An entry that is changed makes no other leave, however full the cache is.
func TestPutOfAKnownEntry(t *testing.T) {
	m := map[string]int{}
	for _, k := range []string{"a", "b", "c"} {
		bounded.Put(m, k, 1, 3)
	}
	bounded.Put(m, "b", 2, 3)
	if len(m) != 3 || m["b"] != 2 {
		t.Errorf("%v, want three entries, and 2 for b", m)
	}
}

// A cache that has more entries than its bound, because the bound was lowered, shrinks to it.
func TestPutIntoACacheBeyondItsBound(t *testing.T) {
	m := map[int]bool{}
	for i := range 100 {
		m[i] = true
	}
	if bounded.Put(m, 100, true, 10); len(m) > 10 || !m[100] {
		t.Errorf("%d entries, want at most 10 with the new one", len(m))
	}
}
