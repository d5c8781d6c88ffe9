package embedded

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
)

// shown is what a client was shown: rows, and the commit that it then keeps.
type shown struct {
	generation string
	commit     int64
	rows       []int
}

// line is one line of history: what was shown in it.
type line struct {
	rows  []int
	shown []shown
}

func (l line) clone() line { return line{slices.Clone(l.rows), slices.Clone(l.shown)} }

// historian writes rows to a store that is copied, killed, and replaced by copies.
type historian struct {
	t   *testing.T
	rng *rand.Rand
	mem *vfs.MemFS
	s   *Store
	now line
	all []shown // in any line
	n   int
}

func historyRow(n int) store.Key {
	return store.Key{Table: store.Users, PK: fmt.Sprint("row", n)}
}

func (h *historian) write() {
	h.n++
	err := h.s.BatchWrite(h.t.Context(), []store.Write{{Op: store.OpPut, Key: historyRow(h.n), Item: number(int64(h.n))}})
	testkit.Must(h.t, err)
	h.now.rows = append(h.now.rows, h.n)
	seen := shown{h.s.Generation(), h.s.Shown(), slices.Clone(h.now.rows)}
	h.now.shown = append(h.now.shown, seen)
	h.all = append(h.all, seen)
}

// copy is the disk as it is while others write.
func (h *historian) copy() *vfs.MemFS {
	return h.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: h.rng.IntN(2) * h.rng.IntN(101), RNG: h.rng})
}

// reopen opens what the disk has, and checks what the store says of all that was ever shown.
func (h *historian) reopen(mem *vfs.MemFS, now line) {
	h.t.Helper()
	testkit.Must(h.t, h.s.Close())
	h.mem, h.now = mem, now.clone()
	var err error
	h.s, err = Open(Options{Dir: "/data", FS: mem})
	testkit.Must(h.t, err)
	for _, seen := range h.now.shown {
		if !h.s.Holds(seen.generation, seen.commit) {
			h.t.Fatalf("%d rows that are there are held to be gone: %s %d", len(seen.rows), seen.generation, seen.commit)
		}
	}
	for _, seen := range h.all {
		if !h.s.Holds(seen.generation, seen.commit) {
			continue
		}
		for _, n := range seen.rows {
			it, err := h.s.Get(h.t.Context(), historyRow(n), store.Strong)
			testkit.Must(h.t, err)
			if it == nil {
				h.t.Fatalf("row %d is gone, but commit %d of %s is held", n, seen.commit, seen.generation)
			}
		}
	}
}

// beside writes rows that nobody is shown, until the function that it returns is called.
func (h *historian) beside() (stop func()) {
	s, done := h.s, make(chan struct{})
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				key := store.Key{Table: store.Users, PK: fmt.Sprint("beside", w, i%50)}
				_ = s.BatchWrite(h.t.Context(), []store.Write{{Op: store.OpPut, Key: key, Item: number(int64(i))}})
			}
		})
	}
	return func() { close(done); wg.Wait() }
}

// However a store is killed, copied and put back: it holds what a client was shown if and only if
// that is there. (A copy that is made while others write may lack what nobody was shown; then the
// store may deny what it has, which costs a client a synchronisation.)
func TestHistory(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			h := &historian{t: t, rng: rng, mem: vfs.NewCrashableMem()}
			h.s = open1(t, Options{Dir: "/data", FS: h.mem})
			defer func() { testkit.Must(t, h.s.Close()) }()
			type kept struct {
				mem *vfs.MemFS
				line
			}
			var copies []kept
			for range 40 {
				stop := h.beside()
				for range rng.IntN(8) {
					h.write()
				}
				switch rng.IntN(5) {
				case 0:
					testkit.Must(t, h.s.db.Flush())
				case 1:
					testkit.Must(t, h.s.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false))
				}
				was := h.now.clone()
				mem := h.copy()
				if rng.IntN(3) == 0 {
					copies = append(copies, kept{mem, was})
				}
				for range rng.IntN(4) { // which the copy lacks
					h.write()
				}
				stop()
				switch {
				case rng.IntN(4) == 0 && len(copies) > 0:
					c := copies[rng.IntN(len(copies))]
					h.reopen(c.mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0, RNG: rng}), c.line)
				case rng.IntN(2) == 0: // killed
					h.reopen(h.copy(), h.now)
				default:
					h.reopen(h.mem, h.now)
				}
			}
		})
	}
}

// A store that an earlier release renewed follows on nothing, too.
func TestEarlierRenewal(t *testing.T) {
	row := store.NewItem(store.Attr{Name: "before", Value: store.String("old")},
		store.Attr{Name: "id", Value: store.String("new")})
	generation, ancestors, err := historyFrom(row)
	if err != nil || generation != "new" || len(ancestors) != 1 || ancestors[0] != (ancestor{Generation: "old", Last: none}) {
		t.Errorf("%q %v, %v", generation, ancestors, err)
	}
}

// A store forgets its oldest generations, and all when it is renewed.
func TestGenerationsAreForgotten(t *testing.T) {
	mem := vfs.NewMem()
	s := open1(t, Options{Dir: "/data", FS: mem})
	first := s.Generation()
	var second string
	for i := range maxAncestors + 1 {
		testkit.Must(t, s.proceed(0))
		if i == 0 {
			second = s.Generation()
		}
	}
	if s.Holds(first, 0) || !s.Holds(second, 0) || len(s.ancestors) != maxAncestors {
		t.Errorf("%d ancestors; the first: %v, the second: %v", len(s.ancestors), s.Holds(first, 0), s.Holds(second, 0))
	}
	before, commit := s.Generation(), s.Shown()
	if !s.Holds(before, commit) || s.Holds(before, commit+1) || s.Holds("another", 0) {
		t.Error("the present generation")
	}
	testkit.Must(t, s.Renew())
	if s.Holds(before, 0) || s.Holds(second, 0) || s.Generation() == before {
		t.Error("a renewed store holds what was before")
	}
	testkit.Must(t, s.Close())
	renewed := s.Generation()
	if s = open1(t, Options{Dir: "/data", FS: mem}); !s.Holds(renewed, 0) || s.Holds(before, 0) {
		t.Error("after a start")
	}
	if other := open1(t, Options{Dir: "/other", FS: mem}); other.Holds(renewed, 0) {
		t.Error("two stores have one history")
	}
}
