package space

import (
	"testing"
	"time"
)

// The reserve is 5 % of a large disk and 4 GiB of a very large one, what the store needs of a
// small one, and never more than a quarter.
func TestReserve(t *testing.T) {
	const mb, gb = 1 << 20, 1 << 30
	for total, want := range map[uint64][2]uint64{ // memtable, reserve
		0: {64 * mb, 0}, 64 * mb: {4 * mb, 16 * mb}, 256 * mb: {4 * mb, 64 * mb}, 1 * gb: {16 * mb, 112 * mb},
		4 * gb: {64 * mb, 256 * mb}, 60 * gb: {64 * mb, 3 * gb}, 100 * gb: {64 * mb, 4 * gb}, 4000 * gb: {64 * mb, 4 * gb},
	} {
		if got := Memtable(total); got != want[0] {
			t.Errorf("a memtable on %d MB is %d", total>>20, got)
		}
		if got := Reserve(total, 0); got > want[1] || got+100 < want[1] {
			t.Errorf("the reserve of %d MB is %d, not %d", total>>20, got, want[1])
		}
	}
	// What an operator asks for counts, but for what the store needs itself.
	for _, tt := range []struct{ total, asked, want uint64 }{
		{1000 * gb, 1 * gb, 1 * gb}, {1000 * gb, 50 * gb, 50 * gb}, {1000 * gb, 2000 * gb, 2000 * gb},
		{1000 * gb, 1 * mb, 256 * mb}, {64 * mb, 1 * mb, 16 * mb}, {0, 50 * gb, 0},
	} {
		if got := Reserve(tt.total, tt.asked); got != tt.want {
			t.Errorf("the reserve of %d MB is %d, not %d, with %d asked for", tt.total>>20, got, tt.want, tt.asked)
		}
	}
}

// A watch asks after two seconds, or after much writing, and believes a failure more
// than the file system.
func TestWatch(t *testing.T) {
	const mb = 1 << 20
	now, free, asked, changes := time.Unix(1_000, 0), uint64(500*mb), 0, 0
	w := Watch{
		Usage:   func() (uint64, uint64) { asked++; return free, 1 << 30 },
		Changed: func(State) { changes++ },
	}
	expect := func(what string, full bool, questions int) {
		t.Helper()
		if got := w.Full(now); got != full || asked != questions || w.Refusing() != full {
			t.Errorf("%s: full is %v, %d questions", what, got, asked)
		}
	}
	expect("at first", false, 1)
	free = 100 * mb
	expect("at once", false, 1)
	w.Wrote(6 * mb)
	expect("after a little", false, 1)
	w.Wrote(2 * mb)
	expect("after much", true, 2)
	if w.Crowded(now) {
		t.Error("more than half of the reserve is left")
	}
	free = 50 * mb
	now = now.Add(2 * time.Second)
	expect("after two seconds", true, 3)
	if !w.Crowded(now) {
		t.Error("less than half of the reserve is left")
	}
	free = 500 * mb
	now = now.Add(2 * time.Second)
	expect("with room", false, 4)
	w.Failed(now)
	expect("after a failure", true, 5)
	now = now.Add(9 * time.Second)
	expect("9 s after it", true, 6)
	now = now.Add(2 * time.Second)
	expect("11 s after it", false, 7)
	if changes != 4 {
		t.Errorf("%d changes", changes)
	}
}

// A clock that is set back by hours makes neither what was seen nor a failure last longer.
func TestClockSetBack(t *testing.T) {
	now, free := time.Unix(100_000, 0), uint64(50<<20)
	w := Watch{Usage: func() (uint64, uint64) { return free, 1 << 30 }, Changed: func(State) {}}
	if !w.Full(now) {
		t.Fatal("a full disk is not full")
	}
	w.Failed(now)
	free = 500 << 20
	if !w.Full(now) {
		t.Fatal("a failure does not count")
	}
	if now = now.Add(-5 * time.Hour); w.Full(now) {
		t.Error("full after the clock was set back")
	}
	free = 50 << 20
	if now = now.Add(time.Second); w.Full(now) {
		t.Error("asked again after a second")
	}
	if now = now.Add(time.Second); !w.Full(now) {
		t.Error("not asked again after two seconds")
	}
}
