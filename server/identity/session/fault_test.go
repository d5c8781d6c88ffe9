package session_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/server/store/storetest"
)

// killedAt is a store of a process that is killed at a call: before it, or after it with its
// answer lost.
func killedAt(s store.Store, call int, when faulty.When) *faulty.Store {
	return faulty.New(s, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
		switch {
		case c.Number > call:
			return faulty.Fault{When: faulty.Before, Err: store.ErrClosed}
		case c.Number == call && when == faulty.After && c.Method != faulty.Transact:
			return faulty.Fault{When: faulty.After, Err: store.ErrClosed}
		case c.Number == call:
			return faulty.Fault{When: when, Err: store.ErrClosed}
		}
		return faulty.Fault{}
	}})
}

func (f *fixture) ended() (n int) {
	f.t.Helper()
	for _, err := range store.QueryAll(f.t.Context(), f.store, store.Query{Table: store.Sessions, PK: "#ended"}) {
		testkit.Must(f.t, err)
		n++
	}
	return n
}

// A process is killed before and after each call of the store while a session ends. Afterwards the
// session is whole, or ended with all that it had: another process sees to it.
func TestKilledWhileASessionEnds(t *testing.T) {
	for _, reason := range []string{"revoked", "all", "reused", "expired"} {
		outcomes := map[bool]int{}
		for call := 1; call <= 8; call++ {
			for _, when := range []faulty.When{faulty.Before, faulty.After} {
				f := newFixture(t)
				first := f.open("ann")
				tokens := f.refresh(first.Refresh)
				f.advance(time.Minute)
				killed := killedAt(f.store, call, when)
				process := f.service(killed, 'p')
				var err error
				switch reason {
				case "revoked":
					err = process.End(t.Context(), "ann", tokens.Session, session.Revoked)
				case "all":
					_, err = process.EndEverything(t.Context(), "ann", "", session.Revoked)
				case "reused":
					_, err = process.Refresh(t.Context(), first.Refresh)
				case "expired":
					// The store's clock is slow, so that the row is still there.
					f.Service = f.service(f.store, 'p')
					_, err = process.Refresh(t.Context(), tokens.Refresh)
				}
				what := fmt.Sprintf("%s, call %d, %v: %v", reason, call, when, err)
				before := len(f.revoked)
				f.advance(4 * time.Second)
				if _, err := f.Sweep(t.Context()); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if n := f.ended(); n != 0 {
					t.Errorf("%s: %d sessions are not finished", what, n)
				}
				alive := len(f.ids("ann")) == 1
				outcomes[alive]++
				if alive != (len(f.revoked) == 0) {
					t.Errorf("%s: alive %v, revoked %v, before the sweep %d", what, alive, f.revoked, before)
				}
				if !alive {
					f.refused(what, tokens.Refresh, session.ErrToken)
				}
			}
		}
		if outcomes[true] == 0 || outcomes[false] == 0 && reason != "expired" {
			t.Errorf("%s: %v", reason, outcomes)
		}
	}
}

// What cannot be revoked yet is not forgotten, and the caller learns that it is not done.
func TestRevokerFails(t *testing.T) {
	f := newFixture(t)
	tokens := f.open("ann")
	f.fail = errors.New("away")
	for range 2 {
		if err := f.End(t.Context(), "ann", tokens.Session, session.Revoked); !errors.Is(err, f.fail) {
			t.Fatal(err)
		}
	}
	f.refused("ended", tokens.Refresh, session.ErrToken)
	if err := f.End(t.Context(), "bob", tokens.Session, session.Revoked); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("by somebody else: %v", err)
	}
	f.advance(4 * time.Second)
	if n, err := f.Sweep(t.Context()); n != 0 || !errors.Is(err, f.fail) {
		t.Errorf("%d, %v", n, err)
	}
	f.fail = nil
	testkit.Equal(t, "swept", testkit.Value(f.Sweep(t.Context()))(t), 1)
	if f.ended() != 0 || f.revoked[tokens.Session].IsZero() {
		t.Errorf("%v", f.revoked)
	}
}

// While the storage is full people stay signed in, because reads work then, and sessions end when
// they are told to; a new sign-in waits.
func TestFullStorage(t *testing.T) {
	f := newFixture(t)
	kept, lost := f.open("ann"), f.open("ann")
	full := f.service(faulty.New(f.store, faulty.Options{Policy: faulty.Full}), 'p')
	for range 3 {
		f.advance(16 * time.Minute)
		kept = testkit.Value(full.Refresh(t.Context(), kept.Refresh))(t)
	}
	lost = testkit.Value(full.Refresh(t.Context(), lost.Refresh))(t)
	testkit.Must(t, full.End(t.Context(), "ann", lost.Session, session.SignedOut))
	f.refused("signed out", lost.Refresh, session.ErrToken)
	n, err := full.EndEverything(t.Context(), "ann", "", session.Operator)
	testkit.Must(t, err)
	testkit.Equal(t, "sessions that ended", n, 1)
	f.refused("ended by an operator", kept.Refresh, session.ErrToken)
	if _, err := full.Open(t.Context(), "ann", "phone", session.Proof{}); !errors.Is(err, store.ErrFull) {
		t.Errorf("a sign-in: %v", err)
	}
}

// The sweep continues by itself, also after errors.
func TestRunSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, now: time.Now(), revoked: map[string]time.Time{}}
		f.store = storetest.NewMemory(time.Now)
		f.Service = f.service(f.store, 'p')
		tokens := f.open("ann")
		f.fail = errors.New("away")
		if err := f.End(t.Context(), "ann", tokens.Session, session.Revoked); err == nil {
			t.Error("it was revoked")
		}
		f.advance(time.Minute)
		done := make(chan error, 1)
		go func() { done <- f.Run(t.Context(), func() {}) }()
		time.Sleep(12 * time.Second)
		f.mu.Lock()
		f.fail = nil
		f.mu.Unlock()
		time.Sleep(6 * time.Second)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.revoked[tokens.Session].IsZero() {
			t.Error("nobody swept")
		}
	})
}

// Answers of the store that get lost change nothing: there is one session per sign-in, one
// successor per token, and no session ends by itself.
func TestLostAnswers(t *testing.T) {
	f := newFixture(t)
	n := 0
	lossy := faulty.New(f.store, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
		if n++; c.Method == faulty.Transact && n%3 != 0 {
			return faulty.Fault{When: faulty.After}
		}
		return faulty.Fault{}
	}})
	f.Service = f.service(lossy, 'p')
	tokens := f.open("ann")
	testkit.Equal(t, "sessions", f.ids("ann"), []string{tokens.Session})
	for range 30 {
		f.advance(time.Minute)
		tokens = f.refresh(tokens.Refresh)
	}
	if lossy.Count(faulty.After) < 20 {
		t.Errorf("%d answers were lost", lossy.Count(faulty.After))
	}
	testkit.Must(t, f.End(t.Context(), "ann", tokens.Session, session.SignedOut))
	testkit.Equal(t, "ended", len(f.revoked), 1)
}

// A caller who is so slow that the token is two successors behind when its plan comes puts nothing
// back: it gets the last one, which stays good.
func TestSlowCallerPutsNothingBack(t *testing.T) {
	f := newFixture(t)
	first := f.open("ann").Refresh
	var last string
	slow := f.service(faulty.New(f.store, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
		if c.Method == faulty.Transact && last == "" {
			last = f.refresh(f.refresh(first).Refresh).Refresh
		}
		return faulty.Fault{}
	}}), 'p')
	tokens, err := slow.Refresh(t.Context(), first)
	if err != nil || tokens.Refresh != last || last == "" {
		t.Fatalf("%+v, %v", tokens, err)
	}
	f.advance(time.Minute)
	f.refresh(last)
}
