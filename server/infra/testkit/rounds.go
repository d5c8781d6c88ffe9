package testkit

import (
	"iter"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Budget limits the rounds of a test, by a number or by time. It is safe for concurrent use.
type Budget struct {
	count int           // of rounds, or 0
	limit time.Duration // from start on, if count is 0
	start time.Time

	mu     sync.Mutex
	rounds int       // that were given
	end    time.Time // the last refusal of a round, or zero
}

// Rounds returns the numbers of a test's rounds, from 0 on. The variable of the environment has the number of rounds
// ("300") or the time for them ("60s"); without it there are usual rounds. See Budget.Rounds.
func Rounds(t testing.TB, variable string, usual int) iter.Seq[int] {
	t.Helper()
	return NewBudget(t, variable, usual, 1).Rounds()
}

// NewBudget returns the budget of a test whose rounds are larger than the unit that the variable counts: a number in
// the variable is divided by each, and rounded up. Without the variable there are usual rounds. A time starts at once.
// The test ends if the variable has neither a number nor a time above zero.
//
// When the test is over, the budget logs "rounds: VARIABLE TEST ROUNDS in TIME", which CI prints: it shows a budget
// that was spent on nearly nothing.
func NewBudget(t testing.TB, variable string, usual, each int) *Budget {
	t.Helper()
	b := &Budget{start: time.Now()}
	b.count, b.limit = read(t, variable, usual, each)
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.end.IsZero() { // the test left its loop
			b.end = time.Now()
		}
		t.Logf("rounds: %s %s %d in %s", variable, t.Name(), b.rounds, b.end.Sub(b.start).Round(100*time.Millisecond))
	})
	return b
}

// Times returns a budget of n rounds, which logs nothing.
func Times(n int) *Budget { return &Budget{count: n} }

// Most returns the number of rounds that Rounds will give or, if time limits them, atMost. It is for a test that must
// prepare all rounds and ends its loop after so many.
func Most(t testing.TB, variable string, usual, atMost int) int {
	t.Helper()
	if n, _ := read(t, variable, usual, 1); n > 0 {
		return n
	}
	return atMost
}

// read returns the number of rounds, or 0 and the time for them.
func read(t testing.TB, variable string, usual, each int) (count int, limit time.Duration) {
	t.Helper()
	s := os.Getenv(variable)
	if s == "" {
		return usual, 0
	}
	if n, err := strconv.Atoi(s); err == nil && n > 0 {
		return (n-1)/each + 1, 0
	}
	limit, err := time.ParseDuration(s)
	if err != nil || limit <= 0 {
		t.Fatalf(`%s is %q, expected a number of rounds ("300") or a time ("60s"), above zero`, variable, s)
	}
	return 0, limit
}

// Rounds returns the numbers of the rounds, from 0 on. The last round starts before the time is over; there is always
// one. Goroutines that range over it at the same time share the rounds: each number is given once.
func (b *Budget) Rounds() iter.Seq[int] {
	return func(yield func(int) bool) {
		for n, ok := b.next(); ok && yield(n); n, ok = b.next() {
		}
	}
}

func (b *Budget) next() (n int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.rounds > 0 && (b.count > 0 && b.rounds >= b.count || b.count == 0 && now.Sub(b.start) >= b.limit) {
		b.end = now
		return 0, false
	}
	b.rounds++
	return b.rounds - 1, true
}

// Seed returns the seed of a test's random choices: PARLEY_EXPLORE_SEED or, without it, usual. It logs the seed, and
// ends the test if the variable has no number.
func Seed(t testing.TB, usual uint64) uint64 {
	t.Helper()
	const variable = "PARLEY_EXPLORE_SEED"
	if s := os.Getenv(variable); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("%s is %q, expected a number", variable, s)
		}
		usual = n
	}
	t.Logf("%s=%d", variable, usual)
	return usual
}
