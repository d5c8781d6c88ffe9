package revocation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/server/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is a server with a clock that is off.
type process struct {
	*Service
	gate     *auth.Gate
	clock    func() time.Time
	lost     atomic.Int64
	notified atomic.Int64 // revocations
}

func newProcess(t testing.TB, key *auth.Key, st store.Store, shared bool, off time.Duration) *process {
	t.Helper()
	p := &process{clock: func() time.Time { return time.Now().Add(off) }}
	var err error
	p.Service, err = New(Config{Store: st, Clock: p.clock, Shared: shared, Logger: slog.New(slog.DiscardHandler),
		Lost: func() { p.lost.Add(1) },
		Apply: func(r auth.Revocation) {
			p.notified.Add(1)
			p.gate.Apply(r)
		}})
	if err != nil {
		t.Fatal(err)
	}
	p.gate = newGate(t, key, p.clock, p.Informed)
	return p
}

func newGate(t testing.TB, key *auth.Key, clock func() time.Time, informed func(time.Time) bool) *auth.Gate {
	t.Helper()
	g, err := auth.NewGate(auth.Config{Key: key, Clock: clock, Informed: informed,
		EnsureUser: func(context.Context, string) error { return nil },
		Refuse:     func(http.ResponseWriter, *http.Request, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (p *process) run(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := p.Run(ctx, func() {}); err != nil {
			t.Error(err)
		}
	}()
	return func() { cancel(); <-done }
}

func newKey(t testing.TB) *auth.Key {
	t.Helper()
	k, err := auth.LoadKey(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// What is revoked anywhere is refused at once where it was asked for, and within five
// seconds everywhere, whoever's clock is how much off, and also by a process that starts later.
func TestRevokedEverywhere(t *testing.T) { // S-13, S-14
	key := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		var all []*process
		for _, off := range []time.Duration{0, 14 * time.Second, -14 * time.Second} {
			p := newProcess(t, key, st, true, off)
			defer p.run(t)()
			all = append(all, p)
		}
		time.Sleep(time.Minute)
		random := rand.New(rand.NewPCG(1, 2))
		for i := range 60 {
			issuer, asked := all[random.IntN(3)], all[random.IntN(3)]
			user, session := fmt.Sprint("user", i), fmt.Sprint("ses_", i)
			token, err := key.IssueThrough(auth.Principal{Service: "crm"}, user, session, issuer.clock(), time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range all {
				if _, err := p.gate.Verify(token); err != nil {
					t.Fatalf("%d: %v", i, err)
				}
			}
			until := asked.clock().Add(2 * time.Hour)
			switch i % 3 {
			case 0:
				err = asked.RevokeSession(t.Context(), session, until)
			case 1:
				err = asked.RevokeUser(t.Context(), user, asked.clock(), until)
			default:
				err = asked.RevokeService(t.Context(), "crm", asked.clock(), until)
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, err := asked.gate.Verify(token); !errors.Is(err, auth.ErrRevoked) {
				t.Fatalf("%d, where it was asked: %v", i, err)
			}
			time.Sleep(5 * time.Second)
			for n, p := range all {
				if _, err := p.gate.Verify(token); !errors.Is(err, auth.ErrRevoked) {
					t.Fatalf("%d, process %d: %v", i, n, err)
				}
			}
			time.Sleep(2 * time.Minute) // for the clock that is behind
		}
		late := newProcess(t, key, st, true, 0)
		defer late.run(t)()
		synctest.Wait()
		for _, p := range append(all, late) {
			if !p.gate.Refuses(auth.Principal{SessionID: "ses_57"}) {
				t.Error("somebody has forgotten, or does not know")
			}
			if n := p.notified.Load(); n > 2*60 { // perhaps one's own once more
				t.Errorf("60 revocations were applied %d times", n)
			}
		}
	})
}

// While the store cannot be read nobody is admitted after ten seconds, and streams end after
// thirty, once; then all is as before.
func TestStoreAway(t *testing.T) {
	key := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		var away atomic.Bool
		st := faulty.New(storetest.NewMemory(time.Now), faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
			if away.Load() && c.Method == faulty.Query {
				return faulty.Fault{When: faulty.Before, Err: store.ErrUnavailable}
			}
			return faulty.Fault{}
		}})
		p := newProcess(t, key, st, true, 0)
		token, err := key.Issue("alice", time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.gate.Verify(token); !errors.Is(err, auth.ErrUninformed) {
			t.Fatalf("before anything was read: %v", err)
		}
		defer p.run(t)()
		synctest.Wait()
		for range 2 {
			away.Store(true)
			for second := range 60 {
				_, err := p.gate.Verify(token)
				if second < 10 && err != nil || second > 11 && !errors.Is(err, auth.ErrUninformed) {
					t.Fatalf("after %d s: %v", second, err)
				}
				if n := p.lost.Load(); second < 30 && n != 0 || second > 32 && n != 1 {
					t.Fatalf("after %d s: streams ended %d times", second, n)
				}
				time.Sleep(time.Second)
			}
			away.Store(false)
			time.Sleep(2 * time.Second)
			if _, err := p.gate.Verify(token); err != nil || p.lost.Load() != 1 {
				t.Fatal(err, p.lost.Load())
			}
			p.lost.Store(0)
		}
	})
}

// A revocation that could not be stored holds here, and is said to be open.
func TestRevocationThatCannotBeStored(t *testing.T) {
	key := newKey(t)
	st := faulty.New(storetest.NewMemory(time.Now), faulty.Options{Policy: func(c faulty.Call) faulty.Fault {
		if c.Method == faulty.Transact {
			return faulty.Fault{When: faulty.Before, Err: store.ErrUnavailable}
		}
		return faulty.Fault{}
	}})
	p := newProcess(t, key, st, true, 0)
	if err := p.RevokeSession(t.Context(), "ses_1", time.Now().Add(time.Hour)); !errors.Is(err, store.ErrUnavailable) {
		t.Fatal(err)
	}
	if !p.gate.Refuses(auth.Principal{SessionID: "ses_1"}) {
		t.Fatal("it does not hold here")
	}
	for _, id := range []string{"", string(slices.Repeat([]byte("x"), 65))} {
		if err := p.RevokeSession(t.Context(), id, time.Now()); err == nil {
			t.Errorf("%q is revoked", id)
		}
	}
}

// A process that is alone reads once and is informed for good, and has its own revocations
// after a restart.
func TestAlone(t *testing.T) {
	key := newKey(t)
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewMemory(time.Now)
		p := newProcess(t, key, st, false, 0)
		stop := p.run(t)
		synctest.Wait()
		if err := p.RevokeKey(t.Context(), "key_1"); err != nil {
			t.Fatal(err)
		}
		stop()
		p = newProcess(t, key, st, false, 0)
		defer p.run(t)()
		synctest.Wait()
		time.Sleep(3 * time.Minute)
		if !p.Informed(time.Now()) || !p.gate.Refuses(auth.Principal{SessionID: "key_1"}) || p.Applied() != 1 {
			t.Fatal("forgotten")
		}
	})
}
