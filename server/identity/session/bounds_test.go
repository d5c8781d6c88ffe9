package session_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/securitylog"
	"github.com/parley-chat/parley/server/identity/session"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/faulty"
)

// A user begins 60 sessions in an hour, however many callers there are: ended ones are reported
// to all processes, which must be bounded.
func TestOpeningsAreBounded(t *testing.T) {
	f := newFixture(t)
	var opened, refused atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				tokens, err := f.Open(t.Context(), "ann", "")
				switch {
				case err == nil:
					opened.Add(1)
					err = f.End(t.Context(), "ann", tokens.Session, session.SignedOut)
				case errors.Is(err, session.ErrTooMany):
					refused.Add(1)
					err = nil
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if opened.Load() != 60 || refused.Load() != 20 || len(f.revoked) != 60 {
		t.Errorf("%d sessions, %d refused, %d revoked", opened.Load(), refused.Load(), len(f.revoked))
	}
	f.open("bob")
	f.advance(time.Hour)
	f.open("ann")
}

// Sessions whose access tokens have expired end without a word to other processes; one that is used
// at the same moment does not.
func TestExpiredAccessIsNotRevoked(t *testing.T) {
	f := newFixture(t)
	old := []session.Tokens{f.open("ann"), f.open("ann"), f.open("ann"), f.open("ann")}
	f.advance(16*time.Minute + 9*time.Second) // with the leeway of clocks and the grace
	testkit.Must(t, f.End(t.Context(), "ann", old[0].Session, session.Revoked))
	testkit.Equal(t, "a second before", len(f.revoked), 1)
	f.advance(time.Second)
	testkit.Must(t, f.End(t.Context(), "ann", old[1].Session, session.Revoked))
	testkit.Equal(t, "revoked", len(f.revoked), 1)
	f.refused("ended", old[1].Refresh, session.ErrToken)
	if err := f.End(t.Context(), "ann", old[1].Session, session.Revoked); !errors.Is(err, session.ErrNotFound) {
		t.Errorf("again: %v", err)
	}
	for i, end := range []func(s *session.Service) error{
		func(s *session.Service) error { return s.End(t.Context(), "ann", old[2].Session, session.Revoked) },
		func(s *session.Service) error {
			_, err := s.EndEverything(t.Context(), "ann", "", session.Revoked)
			return err
		},
	} {
		used := false
		slow := f.service(faulty.New(f.store, faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
			if c.Method == faulty.Transact && !used {
				used = true
				f.refresh(old[2+i].Refresh)
			}
			return faulty.Fault{}
		}}), 'p')
		testkit.Must(t, end(slow))
		if f.revoked[old[2+i].Session].IsZero() {
			t.Errorf("%d: a token that was made meanwhile is good", i)
		}
	}
	testkit.Equal(t, "sessions", len(f.ids("ann")), 0)
	testkit.Equal(t, "events", f.count(securitylog.SessionEnded), 4)
}
