package testkit_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

const variable = "PARLEY_TESTKIT_ROUNDS"

// spend runs a test that uses up a budget, with a pause before the first round and in each, and works for a day after
// its rounds. It returns the numbers of the rounds, the log, and why the test ended early.
func spend(each int, pause time.Duration) (numbers []int, log, said string) {
	r := &recorder{name: "TestSpend"}
	said = r.run(func(t testing.TB) {
		b := testkit.NewBudget(t, variable, 3, each)
		time.Sleep(pause)
		for n := range b.Rounds() {
			numbers = append(numbers, n)
			time.Sleep(pause)
		}
		time.Sleep(24 * time.Hour)
	})
	return numbers, strings.Join(r.log, "\n"), said
}

func TestRounds(t *testing.T) {
	for name, tt := range map[string]struct {
		value  string
		each   int
		pause  time.Duration
		rounds int
		log    string
	}{
		"unset":                  {"", 1, 0, 3, "3 in 0s"},
		"unset, long rounds":     {"", 10, 0, 3, "3 in 0s"},
		"number":                 {"7", 1, time.Second, 7, "7 in 8s"},
		"number, long rounds":    {"70", 10, 0, 7, "7 in 0s"},
		"number, rounded up":     {"71", 10, 0, 8, "8 in 0s"},
		"number below one round": {"1", 10, 0, 1, "1 in 0s"},
		"time":                   {"1m", 1, time.Second, 59, "59 in 1m0s"},
		"time, long rounds":      {"1m", 10, time.Second, 59, "59 in 1m0s"},
		"time, ends in a round":  {"90s", 1, time.Minute, 1, "1 in 2m0s"},
		"time below one round":   {"1ns", 1, time.Hour, 1, "1 in 2h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(variable, tt.value)
			synctest.Test(t, func(t *testing.T) {
				numbers, log, said := spend(tt.each, tt.pause)
				if want := "rounds: " + variable + " TestSpend " + tt.log; log != want || said != "" {
					t.Errorf("logged %q and ended with %q, expected %q and no failure", log, said, want)
				}
				if len(numbers) != tt.rounds {
					t.Errorf("%d rounds, expected %d", len(numbers), tt.rounds)
				}
				for i, n := range numbers {
					if n != i {
						t.Errorf("round %d has number %d", i, n)
					}
				}
			})
		})
	}
}

func TestRoundsOfNothing(t *testing.T) {
	for _, value := range []string{"0", "-1", "0s", "-60s", "sixty", "1.5", "60 s", " ", "9999999999999999999"} {
		t.Setenv(variable, value)
		var numbers []int
		var said string
		synctest.Test(t, func(*testing.T) { numbers, _, said = spend(1, 0) })
		if len(numbers) > 0 || !strings.Contains(said, variable) || !strings.Contains(said, `"`+value+`"`) {
			t.Errorf("%q: %d rounds, ended with %q; expected a failure that names variable and value", value, len(numbers), said)
		}
	}
}

func TestMost(t *testing.T) {
	for value, want := range map[string]int{"": 3, "70": 70, "60s": 100} {
		t.Setenv(variable, value)
		if got := testkit.Most(t, variable, 3, 100); got != want {
			t.Errorf("%q: at most %d rounds, expected %d", value, got, want)
		}
	}
}

func TestTimes(t *testing.T) {
	if got := slices.Collect(testkit.Times(3).Rounds()); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("three times: %v", got)
	}
}

// A test that leaves its loop has the time until its end.
func TestRoundsLeft(t *testing.T) {
	t.Setenv(variable, "1m")
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{name: "TestLeft"}
		r.run(func(t testing.TB) {
			for n := range testkit.Rounds(t, variable, 3) {
				if time.Sleep(time.Second); n == 4 {
					break
				}
			}
			time.Sleep(time.Second)
		})
		if want := "rounds: " + variable + " TestLeft 5 in 6s"; !slices.Equal(r.log, []string{want}) {
			t.Errorf("logged %q, expected %q", r.log, want)
		}
	})
}

// Goroutines share the rounds, by number and by time.
func TestSharedRounds(t *testing.T) {
	for value, want := range map[string]int{"1000": 1000, "10s": 80} {
		t.Setenv(variable, value)
		synctest.Test(t, func(t *testing.T) {
			r, given, mu := &recorder{}, map[int]int{}, sync.Mutex{}
			r.run(func(t testing.TB) {
				b := testkit.NewBudget(t, variable, 3, 1)
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() {
						for n := range b.Rounds() {
							mu.Lock()
							given[n]++
							mu.Unlock()
							time.Sleep(time.Second)
						}
					})
				}
				wg.Wait()
			})
			if r.said != "" {
				t.Error(r.said)
			}
			for n := range want {
				if given[n] != 1 {
					t.Errorf("%q: round %d was given %d times", value, n, given[n])
				}
			}
			if len(given) != want {
				t.Errorf("%q: %d rounds, expected %d", value, len(given), want)
			}
		})
	}
}

func TestSeed(t *testing.T) {
	for value, want := range map[string]uint64{"": 36, "0": 0, "18446744073709551615": 1<<64 - 1} {
		t.Setenv("PARLEY_EXPLORE_SEED", value)
		r, seed := &recorder{}, uint64(0)
		if said := r.run(func(t testing.TB) { seed = testkit.Seed(t, 36) }); said != "" || seed != want || len(r.log) != 1 {
			t.Errorf("%q: the seed is %d, logged as %q, ended with %q; expected %d", value, seed, r.log, said, want)
		}
	}
	t.Setenv("PARLEY_EXPLORE_SEED", "60s")
	if said := ended(func(t testing.TB) { testkit.Seed(t, 36) }); !strings.Contains(said, "60s") {
		t.Errorf("a seed that is no number: ended with %q", said)
	}
}
