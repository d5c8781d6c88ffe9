package session_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/parley-chat/parley/server/identity/session"
)

// model is what a session must do, in the words of the rules: the tokens of the family in
// their order, and when each was exchanged.
type model struct {
	tokens    []string
	exchanged []time.Time // of each token but the last
	used      time.Time
	ended     bool
}

// expects says what a token is answered with: the error, or the index of the next one.
func (m *model) expects(token int, now time.Time) (successor int, err error) {
	last := len(m.tokens) - 1
	switch {
	case m.ended:
		return 0, session.ErrToken
	case !now.Before(m.used.Add(30*24*time.Hour)) || !now.Before(begin.Add(90*24*time.Hour)):
		m.ended = true
		return 0, session.ErrToken
	case token < last && now.Sub(m.exchanged[token]) <= 10*time.Second:
		return last, nil
	case token < last:
		m.ended = true
		return 0, session.ErrReused
	}
	recent := 0
	for _, at := range m.exchanged {
		if now.Sub(at) <= 10*time.Second {
			recent++
		}
	}
	if recent >= 8 {
		return 0, session.ErrTooFast
	}
	m.exchanged, m.used = append(m.exchanged, now), now
	return last + 1, nil
}

var begin = time.Unix(1_900_000_000, 0)

// S-12: any tokens of a family, by any number of callers at a time, at any times, are answered as the
// rules say: parallel callers get the one token that is good, one after its grace ends the family.
func TestSec_S_12_Model(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFixture(t)
		first := f.open("ann")
		m := &model{tokens: []string{first.Refresh}, used: begin}
		rt.Repeat(map[string]func(*rapid.T){
			"wait": func(rt *rapid.T) {
				f.advance(rapid.SampledFrom([]time.Duration{time.Second, 4 * time.Second, 10 * time.Second,
					11 * time.Second, 15 * time.Minute, 29 * 24 * time.Hour, 31 * 24 * time.Hour}).Draw(rt, "time"))
			},
			"refresh": func(rt *rapid.T) {
				back := rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, 1, 2, 5}).Draw(rt, "tokens back")
				token := max(len(m.tokens)-1-back, 0)
				callers := rapid.IntRange(1, 6).Draw(rt, "callers")
				wasEnded := m.ended
				successor, want := m.expects(token, f.clock())
				answers, errs := f.together(callers, m.tokens[token])
				if want == nil && successor == len(m.tokens) {
					m.tokens = append(m.tokens, answers[0])
				}
				for i := range callers {
					switch {
					case want == nil && (errs[i] != nil || answers[i] != m.tokens[successor]):
						rt.Fatalf("token %d of %d: %v", token, len(m.tokens), errs[i])
					case errors.Is(want, session.ErrReused) && !errors.Is(errs[i], session.ErrToken),
						!errors.Is(want, session.ErrReused) && !errors.Is(errs[i], want):
						rt.Fatalf("token %d of %d: %v, expected %v", token, len(m.tokens), errs[i], want)
					}
				}
				if errors.Is(want, session.ErrReused) && !wasEnded && !some(errs, session.ErrReused) {
					rt.Fatal("the theft was not reported")
				}
			},
			"": func(rt *rapid.T) {
				if revoked := !f.revoked[first.Session].IsZero(); revoked && !m.ended {
					rt.Fatal("the session was ended")
				}
			},
		})
	})
}

func some(errs []error, is error) bool {
	for _, err := range errs {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// together refreshes with one token by several callers at the same time.
func (f *fixture) together(callers int, token string) (answers []string, errs []error) {
	answers, errs = make([]string, callers), make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			tokens, err := f.Refresh(f.t.Context(), token)
			answers[i], errs[i] = tokens.Refresh, err
		})
	}
	wg.Wait()
	return answers, errs
}

// A successor follows from the token alone, so that no two processes disagree on it.
func TestSuccessorsAreTheSameEverywhere(t *testing.T) {
	f := newFixture(t)
	other := f.service(f.store, 'p')
	token := f.open("ann").Refresh
	for n := range 5 {
		one := f.refresh(token)
		two, err := other.Refresh(t.Context(), token)
		if err != nil || two.Refresh != one.Refresh {
			t.Fatal(fmt.Sprint("round ", n), err)
		}
		token = one.Refresh
		f.advance(time.Minute)
	}
}
