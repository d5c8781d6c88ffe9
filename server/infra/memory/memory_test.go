package memory

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
)

// The machine that tests run on says how much memory it has.
func TestTotal(t *testing.T) {
	if n := Total(); n < 1<<28 {
		t.Errorf("%d bytes of memory", n)
	}
}

func TestMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "meminfo")
	if err := os.WriteFile(path, []byte("MemFree:  12 kB\nMemTotal:     2048 kB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := machine(path); n != 2<<20 {
		t.Errorf("%d bytes, not 2 MiB", n)
	}
	if n := machine(path + ".none"); n != 0 {
		t.Errorf("%d bytes of a machine that says nothing", n)
	}
}

// HQ-Q12: how much of its memory the process uses is known.
func TestUsed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "statm")
	if err := os.WriteFile(path, []byte("9000 512 300 1 0 200 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, want := resident(path), int64(512*os.Getpagesize()); n != want {
		t.Errorf("%d bytes, not %d", n, want)
	}
	if n := resident(path + ".none"); n != 0 {
		t.Errorf("%d bytes of a process that says nothing", n)
	}
	if v := percent(3<<20, 4<<20); v != 75 {
		t.Errorf("%g %%, not 75", v)
	}
	if v := percent(1, 0); v != 0 {
		t.Errorf("%g %% of what is not known", v)
	}
	if v := UsedPercent(); v <= 0 || v >= 100 {
		t.Errorf("this process uses %g %%", v)
	}
}

func TestLimit(t *testing.T) {
	for _, c := range []struct {
		total int64
		share int
		want  int64
	}{
		{1000, 60, 600},
		{1000, 0, 0},
		{0, 60, 0}, // not known: no bound
	} {
		if got := limitOf(c.total, c.share); got != c.want {
			t.Errorf("%d %% of %d are %d, not %d", c.share, c.total, got, c.want)
		}
	}
}

// Tune sets what the environment leaves open.
func TestTune(t *testing.T) {
	growth := debug.SetGCPercent(100)
	limit := debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() {
		debug.SetGCPercent(growth)
		debug.SetMemoryLimit(limit)
	})
	total := Total()
	for _, c := range []struct {
		name    string
		environ []string
		share   int
		growth  int
		limit   int64
	}{
		{"settings", nil, 50, 300, total / 100 * 50},
		{"empty variables say nothing", []string{"GOGC=", "GOMEMLIMIT="}, 50, 300, total / 100 * 50},
		{"no bound", nil, 0, 300, math.MaxInt64},
		{"GOGC", []string{"GOGC=100"}, 50, 100, total / 100 * 50},
		{"GOMEMLIMIT", []string{"GOMEMLIMIT=1GiB"}, 50, 300, math.MaxInt64},
	} {
		debug.SetGCPercent(100)
		debug.SetMemoryLimit(math.MaxInt64)
		Tune(300, c.share, c.environ)
		if got := debug.SetGCPercent(100); got != c.growth {
			t.Errorf("%s: the heap grows by %d %%, not %d", c.name, got, c.growth)
		}
		if got := debug.SetMemoryLimit(-1); got != c.limit {
			t.Errorf("%s: the limit is %d, not %d", c.name, got, c.limit)
		}
	}
}
