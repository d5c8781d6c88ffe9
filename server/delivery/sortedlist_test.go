package delivery

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

type thing struct{ key string }

func (t *thing) Key() string { return t.key }

// Whatever is added and removed, the list holds what a map would, in order.
func TestSameAsAMap(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var l sortedList[*thing]
		m := map[string]*thing{}
		for range 300 {
			key := fmt.Sprint(rnd.IntN(40))
			switch x := m[key]; {
			case x == nil:
				m[key] = &thing{key}
				l.Add(m[key])
			case rnd.IntN(2) == 0:
				if l.Remove(&thing{key}) {
					t.Fatal("something else with the key was removed")
				}
				if !l.Remove(x) || l.Remove(x) {
					t.Fatal("it was not there once")
				}
				delete(m, key)
			}
			if l.Of(key) != m[key] || len(l) != len(m) {
				t.Fatalf("seed %d: %q is %v, not %v; %d of %d", seed, key, l.Of(key), m[key], len(l), len(m))
			}
		}
		if !slices.IsSortedFunc(l, func(a, b *thing) int { return slices.Compare([]byte(a.key), []byte(b.key)) }) {
			t.Fatalf("seed %d: not in order", seed)
		}
	}
}
