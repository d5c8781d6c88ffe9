package producers

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// A window remembers the highest 64 numbers in 64 slots, also when it is loaded again.
func TestWindow(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	var w Window
	var all []int64 // that are remembered, ascending
	slots := map[byte]Published{}
	for range 2000 {
		p := Published{Number: rng.Int64N(1000), Base: rng.Int64(), Time: rng.Int64(), Count: rng.Int32()}
		old, found := w.Find(p.Number)
		if found != slices.Contains(all, p.Number) {
			t.Fatalf("number %d is found: %v", p.Number, found)
		}
		if found {
			if !slices.ContainsFunc(slices.Collect(values(slots)), func(q Published) bool { return q == old }) {
				t.Fatalf("%+v was never added", old)
			}
			continue
		}
		slot, err := w.Add(p)
		if tooOld := len(all) == 64 && p.Number < all[0]; tooOld != errors.Is(err, ErrTooOld) {
			t.Fatalf("number %d: %v, the lowest is %d", p.Number, err, all[0])
		}
		if err != nil {
			continue
		}
		if slot >= 64 {
			t.Fatalf("slot %d", slot)
		}
		slots[slot] = p
		all = append(all, p.Number)
		if slices.Sort(all); len(all) > 64 {
			all = all[1:]
		}
		if rng.IntN(20) == 0 {
			w = Window{}
			for slot, p := range slots {
				read, err := Parse(p.Append(nil))
				if err != nil || read != p {
					t.Fatalf("%+v reads as %+v, %v", p, read, err)
				}
				w.Load(slot, read)
			}
		}
	}
	if len(all) != 64 || len(slots) != 64 {
		t.Errorf("%d numbers in %d slots", len(all), len(slots))
	}
}

func values(m map[byte]Published) func(func(Published) bool) {
	return func(yield func(Published) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

// A cache forgets what was not used for longest, and what it is asked to.
func TestCache(t *testing.T) {
	var c Cache[int]
	for n := range MaxWindows {
		c.Put(n, &Window{})
	}
	c.Get(0)
	c.Put(MaxWindows, &Window{})
	if c.Get(0) == nil || c.Get(1) != nil || c.Get(2) == nil || c.Get(MaxWindows) == nil {
		t.Error("it is not the one that was not used for longest that is forgotten")
	}
	c.Drop(2)
	c.Drop(2)
	c.DropAll(func(n int) bool { return n < 10 })
	if c.Get(2) != nil || c.Get(0) != nil || c.Get(10) == nil {
		t.Error("what is dropped stays, or more goes")
	}
}

func TestParseRefuses(t *testing.T) {
	good := Published{Number: 1}.Append(nil)
	for _, bad := range [][]byte{nil, good[1:], append(slices.Clone(good), 0), append([]byte{9}, good[1:]...)} {
		if p, err := Parse(bad); !errors.Is(err, ErrFormat) {
			t.Errorf("%x reads as %+v, %v", bad, p, err)
		}
	}
}
