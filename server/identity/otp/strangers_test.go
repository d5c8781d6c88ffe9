package otp_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// S-09: a code that was sent stays good, whatever strangers ask for and guess meanwhile, and is used
// from wherever its owner is by then.
func TestSec_S_09_StrangersVoidNoCode(t *testing.T) {
	f := newFixture(t)
	own, right, err := f.askFrom("192.0.2.1/32")
	testkit.Must(t, err)
	for n := range 4 {
		f.advance(time.Minute)
		id, code, err := f.askFrom(fmt.Sprintf("198.51.100.%d/32", n))
		if n < 2 {
			testkit.Must(t, err)
		}
		for range 6 {
			f.refused("a stranger's", f.verify(id, other(code)))
		}
	}
	f.advance(59 * time.Second)
	testkit.Must(t, f.Verify(t.Context(), ann(t), own, right, "203.0.113.7/32", nothing))
	f.refused("again", f.verify(own, right))
}

// S-10: who has used a code in a network gets codes there, though strangers have had all of theirs;
// for thirty days, and within the limits.
func TestSec_S_10_StrangersLockNobodyOut(t *testing.T) {
	f := newFixture(t)
	const home = "2001:db8:1:2::/64"
	signIn := func() error {
		id, code, err := f.askFrom(home)
		if err != nil {
			return err
		}
		return f.verify(id, code)
	}
	testkit.Must(t, signIn())
	attack := func() (codes int) {
		for n := range 40 {
			f.advance(time.Minute)
			if id, code, err := f.askFrom(fmt.Sprintf("198.51.100.%d/32", n%4)); err == nil {
				f.refused("a guess", f.verify(id, other(code)))
				codes++
			}
		}
		return codes
	}
	testkit.Equal(t, "codes for strangers", attack(), 9) // the first one was Ann's
	if _, _, err := f.askFrom("203.0.113.7/32"); err == nil {
		t.Error("strangers have no limit")
	}
	for range 9 {
		testkit.Must(t, signIn())
		f.advance(time.Minute)
	}
	if err := signIn(); err == nil {
		t.Error("a known network has no limit")
	}
	f.advance(30 * 24 * time.Hour)
	testkit.Equal(t, "codes for strangers", attack(), 10)
	if err := signIn(); err == nil {
		t.Error("a network is known for ever")
	}
}

// S-10: one stranger leaves half of the day's codes to other networks.
func TestSec_S_10_OneStrangerTakesHalf(t *testing.T) {
	f := newFixture(t)
	start := f.clock()
	for range 5 {
		_, _, err := f.askFrom("198.51.100.1/32")
		testkit.Must(t, err)
		f.advance(time.Minute)
	}
	_, _, err := f.askFrom("198.51.100.1/32")
	f.often("the sixth", err, start.Add(24*time.Hour).Sub(f.clock()))
	for range 5 {
		id, code, err := f.askFrom("192.0.2.1/32")
		testkit.Must(t, err)
		f.refused("a slip", f.verify(id, other(code)))
		f.advance(time.Minute)
	}
	_, _, err = f.askFrom("203.0.113.7/32")
	f.often("the eleventh", err, start.Add(24*time.Hour).Sub(f.clock()))
}

// S-09: one stranger who guesses leaves codes with all their attempts to other networks.
func TestSec_S_09_OneStrangerGuesses(t *testing.T) {
	f := newFixture(t)
	guesses := 0
	for range 60 {
		if id, code, err := f.askFrom("198.51.100.1/32"); err == nil {
			for range 5 {
				f.refused("a guess", f.verify(id, other(code)))
				guesses++
			}
		}
		f.advance(time.Minute)
	}
	testkit.Equal(t, "guesses", guesses, 15)
	for n := range 2 {
		id, code, err := f.askFrom(fmt.Sprintf("192.0.2.%d/32", n))
		testkit.Must(t, err)
		for range 4 {
			f.refused("a slip", f.verify(id, other(code)))
		}
		testkit.Must(t, f.verify(id, code))
		f.advance(time.Minute * 5)
	}
}

// S-09: strangers have 25 attempts in any 24 hours together, whatever they save up and from
// wherever they guess, and every code that they were sent has its five.
func TestSec_S_09_GuessesOfStrangers(t *testing.T) {
	for seed := range uint64(8) {
		f := newFixture(t)
		r := rand.New(rand.NewPCG(seed, 1))
		var guesses []time.Time
		type open struct {
			id, code string
			left     int
			until    time.Time
		}
		var codes []open
		for range 400 {
			f.advance(time.Duration(r.IntN(90)) * time.Second * time.Duration(1+r.IntN(3)*r.IntN(20)))
			if id, code, err := f.askFrom(fmt.Sprintf("198.51.100.%d/32", r.IntN(200))); err == nil {
				codes = append(codes, open{id, code, 5, f.clock().Add(5 * time.Minute)})
			}
			for i := range codes {
				c := &codes[i]
				for range min(r.IntN(7), c.left) {
					if !f.clock().Before(c.until) {
						break
					}
					f.refused("wrong", f.verify(c.id, other(c.code)))
					c.left--
					guesses = append(guesses, f.clock())
				}
			}
		}
		for i := range guesses {
			if i >= 25 && guesses[i].Sub(guesses[i-25]) < 24*time.Hour {
				t.Fatalf("seed %d: 26 attempts in %v", seed, guesses[i].Sub(guesses[i-25]))
			}
		}
		if len(guesses) < 40 {
			t.Errorf("seed %d: %d attempts", seed, len(guesses))
		}
	}
}
