package limit_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/limit"
)

// Of several costs all are charged or none, whichever refuses.
func TestChargeIsAllOrNothing(t *testing.T) {
	both(t, "invite=1/h:4,send=1/h:20,otp_ip=1/h:2", func(t *testing.T, in *fixture) {
		charge := func(i int, costs ...limit.Cost) error { return in.nodes[i%len(in.nodes)].Charge(t.Context(), costs...) }
		invite, send := limit.Cost{Rule: limit.Invite, Key: "u", Cost: 1}, limit.Cost{Rule: limit.Send, Key: "u", Cost: 10}
		code := limit.Cost{Rule: limit.OTPAddress, Key: "u", Cost: 1}
		testkit.Must(t, charge(0, invite, send, code))
		testkit.Must(t, charge(0, invite, send, code))
		for i := range 10 {
			over := new(limit.Refused)
			if err := charge(i, invite, code, send); !errors.As(err, &over) || over.Rule != limit.OTPAddress {
				t.Fatalf("a third: %v", err)
			}
		}
		for i := range 2 {
			if d := in.allow(t, i, limit.Invite, "u", 1); !d.Allowed {
				t.Fatalf("refusals of others took %d of two invitations that are left", 2-i)
			}
		}
		if in.allow(t, 0, limit.Invite, "u", 1).Allowed || in.allow(t, 0, limit.Send, "u", 1).Allowed {
			t.Fatal("what was refunded is there twice")
		}
	})
}

// What others refuse costs no bucket anything in Redis either, however often it is tried.
func TestRefusedChargesLeaveSharedBuckets(t *testing.T) {
	in := together(t, "otp_ip=1/h:3,otp_global=1/h:1")
	in.allow(t, 0, limit.OTPGlobal, "all", 1)
	for range 100 {
		if err := in.nodes[0].Charge(t.Context(), limit.Cost{Rule: limit.OTPAddress, Key: "u", Cost: 1},
			limit.Cost{Rule: limit.OTPGlobal, Key: "all", Cost: 1}); err == nil {
			t.Fatal("let through")
		}
	}
	for i := range 2 { // the third is what the first process has back and Redis learns of later
		if !in.allow(t, 1, limit.OTPAddress, "u", 1).Allowed {
			t.Fatalf("%d of 3 are left to the other process", i)
		}
	}
	if !in.allow(t, 0, limit.OTPAddress, "u", 1).Allowed || in.allow(t, 0, limit.OTPAddress, "u", 1).Allowed {
		t.Fatal("together they have another number than 3")
	}
}

// Charges that are made at once let through as much as there is, and take no more.
func TestChargesAtOnce(t *testing.T) {
	both(t, "lookup_identifier=1/h:400,invite=1/h:50", func(t *testing.T, in *fixture) {
		var wg sync.WaitGroup
		var through atomic.Int64
		for g := range 8 {
			wg.Go(func() {
				for range 50 {
					if in.nodes[g%len(in.nodes)].Charge(t.Context(), limit.Cost{Rule: limit.Lookup, Key: "u", Cost: 3},
						limit.Cost{Rule: limit.Invite, Key: "u", Cost: 1}) == nil {
						through.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if n := through.Load(); n != 50 {
			t.Errorf("%d of 50 were let through", n)
		}
		left := 0
		for _, l := range in.nodes {
			d, err := l.Peek(t.Context(), limit.Lookup, "u")
			testkit.Must(t, err)
			left = max(left, d.Remaining)
		}
		if left > 250 || left < 250-8*3 { // one process has some back of which the other does not know
			t.Errorf("%d of 400 are left after 50 of 3", left)
		}
	})
}

// What is refunded may be had by the other processes, too, once something else is charged.
func TestReturn(t *testing.T) {
	in := together(t, "send=1/h:60")
	in.allow(t, 0, limit.Send, "u", 50)
	in.nodes[0].Return(limit.Cost{Rule: limit.Send, Key: "u", Cost: 40})
	in.allow(t, 0, limit.Send, "u", 7) // 33 that Redis has too much
	in.allow(t, 0, limit.Send, "u", 40)
	if d := in.allow(t, 1, limit.Send, "u", 7); d.Allowed {
		t.Fatalf("57 of 60 were let through: %+v", d)
	}
	if d := in.allow(t, 1, limit.Send, "u", 3); !d.Allowed {
		t.Fatalf("57 of 60 were let through: %+v", d)
	}
	in.nodes[0].Return(limit.Cost{Rule: "made up", Key: "u", Cost: 1}) // is nothing
}

// A caller that reads a limit sees what all processes have let through, and takes nothing.
func TestPeek(t *testing.T) {
	both(t, "invite=1/h:4,send=1/h:60,subscribe=off", func(t *testing.T, in *fixture) {
		peek := func(i int, name limit.Name) limit.Decision {
			t.Helper()
			d, err := in.nodes[i%len(in.nodes)].Peek(t.Context(), name, "u")
			testkit.Must(t, err)
			return d
		}
		for range 3 {
			in.allow(t, 0, limit.Invite, "u", 1)
		}
		for i := range 100 {
			if d := peek(i, limit.Invite); !d.Allowed || d.Remaining != 1 || d.RetryAfter != 0 {
				t.Fatalf("%d: %+v", i, d)
			}
		}
		if !in.allow(t, 1, limit.Invite, "u", 1).Allowed {
			t.Fatal("to look has taken what was left")
		}
		if d := peek(0, limit.Invite); d.Allowed || d.Remaining != 0 || d.RetryAfter != time.Hour {
			t.Fatalf("nothing is left: %+v", d)
		}
		in.allow(t, 0, limit.Send, "u", 5) // which Redis does not know of
		if d := peek(0, limit.Send); d.Remaining != 55 {
			t.Fatalf("of a process's own: %+v", d)
		}
		if d := peek(0, limit.Subscribe); !d.Allowed {
			t.Fatalf("a rule that is off: %+v", d)
		}
		before := in.nodes[0].Keys()
		if _, err := in.nodes[0].Peek(t.Context(), limit.Send, "nobody"); err != nil || in.nodes[0].Keys() != before {
			t.Errorf("to look makes keys: %v", err)
		}
		if _, err := in.nodes[0].Peek(t.Context(), "made up", "u"); !errors.Is(err, limit.ErrNoRule) {
			t.Error(err)
		}
	})
	in := together(t, "invite=1/h:4,send=1/h:60")
	in.allow(t, 0, limit.Send, "u", 5)
	in.redis.SetError("ERR away")
	if d, err := in.nodes[0].Peek(t.Context(), limit.Send, "u"); err != nil || d.Remaining != 55 {
		t.Errorf("an open rule without Redis: %+v, %v", d, err)
	}
	if _, err := in.nodes[0].Peek(t.Context(), limit.Invite, "u"); !errors.Is(err, limit.ErrUnavailable) {
		t.Errorf("a closed one: %v", err)
	}
}

// What a closed rule refuses while Redis is away costs nothing when it is back.
func TestRefusedWhileAwayCostsNothing(t *testing.T) {
	in := together(t, "invite=1/h:4")
	in.redis.SetError("ERR away")
	for range 100 {
		if _, err := in.nodes[0].Allow(t.Context(), limit.Invite, "u", 1); !errors.Is(err, limit.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	in.redis.SetError("")
	in.pass(2 * time.Second)
	for i := range 4 {
		if !in.allow(t, i, limit.Invite, "u", 1).Allowed {
			t.Fatalf("%d invitations are gone", 4-i)
		}
	}
}

// silent is a store of buckets that swallows calls, until it answers.
type silent struct {
	calls   atomic.Int64
	answers chan struct{} // closed: it does
}

func (s *silent) Take(ctx context.Context, _ string, _ limit.Bucket, _, _ int) (bool, time.Duration, error) {
	s.calls.Add(1)
	select {
	case <-s.answers:
		return true, 0, nil
	case <-ctx.Done():
		return false, 0, ctx.Err()
	}
}

// While Redis swallows everything one request at a time waits for it, and when it is back all
// ask it again.
func TestOneRequestAsksWhetherRedisIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &silent{answers: make(chan struct{})}
		l := node(t, limit.Config{Clock: time.Now, Shared: s}, "")
		testkit.Must(t, l.Check(t.Context(), limit.Send, "first", 10)) // notices
		for round := range 5 {
			time.Sleep(1500 * time.Millisecond)
			before := s.calls.Load()
			var wg sync.WaitGroup
			var late atomic.Int64
			for i := range 1_000 {
				wg.Go(func() {
					began := time.Now()
					_ = l.Check(t.Context(), limit.Send, fmt.Sprint(round, i), 10)
					if time.Since(began) > 100*time.Millisecond {
						late.Add(1)
					}
				})
			}
			wg.Wait()
			if n := s.calls.Load() - before; n != 1 || late.Load() != 1 || !l.SharedAway() {
				t.Errorf("%d calls of Redis at once, %d of 1000 callers waited", n, late.Load())
			}
		}
		// Who asks and goes leaves the turn to the next one.
		time.Sleep(1500 * time.Millisecond)
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, context.Canceled)
		_ = l.Check(ctx, limit.Send, "gone", 10)
		cancel()
		close(s.answers)
		testkit.Must(t, l.Check(t.Context(), limit.Send, "next", 10))
		if l.SharedAway() {
			t.Error("Redis is back, and nobody sees it")
		}
	})
}

// That Redis is away is no news when nobody has asked it for long.
func TestAwayIsForgotten(t *testing.T) {
	in := together(t, "invite=1/s:60")
	in.redis.SetError("ERR away")
	_, _ = in.nodes[0].Allow(t.Context(), limit.Invite, "u", 1)
	in.redis.SetError("")
	for _, away := range []bool{true, false} {
		if in.nodes[0].SharedAway() != away {
			t.Errorf("away is not %t", away)
		}
		in.pass(10 * time.Minute)
	}
	if !in.allow(t, 0, limit.Invite, "u", 1).Allowed || in.nodes[0].SharedAway() {
		t.Error("Redis was not asked again")
	}
}

// late is a store of buckets that answers the first call when it is asked to, and fails.
type late struct {
	calls atomic.Int64
	first chan struct{}
}

func (s *late) Take(context.Context, string, limit.Bucket, int, int) (bool, time.Duration, error) {
	if s.calls.Add(1) == 1 {
		<-s.first
		return true, 0, nil
	}
	return false, 0, errors.New("away")
}

// An answer to what was asked before Redis went away does not say that it is back.
func TestLateAnswerIsNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &late{first: make(chan struct{})}
		l := node(t, limit.Config{Clock: time.Now, Shared: s}, "")
		done := make(chan error)
		go func() { done <- l.Check(t.Context(), limit.Send, "before", 10) }()
		synctest.Wait()
		testkit.Must(t, l.Check(t.Context(), limit.Send, "after", 10)) // notices
		close(s.first)
		testkit.Must(t, <-done)
		if !l.SharedAway() {
			t.Error("an answer from before hides that Redis is away")
		}
		calls := s.calls.Load()
		for i := range 100 {
			_ = l.Check(t.Context(), limit.Send, fmt.Sprint(i), 10)
		}
		if n := s.calls.Load() - calls; n != 0 {
			t.Errorf("it was asked %d times", n)
		}
	})
}

// Many keys of open rules take no room of closed ones, and the keys that go are those that lose
// least.
func TestManyKeys(t *testing.T) {
	c := newClock()
	l := node(t, limit.Config{Clock: c.now, Keys: 1_024}, "otp_ip=1/h:3,address_requests=1/m:1000")
	for range 3 {
		testkit.Must(t, l.Check(t.Context(), limit.OTPAddress, "one", 1))
	}
	testkit.Must(t, l.Check(t.Context(), limit.AddressRequests, "much", 1_000))
	for i := range 20_000 {
		testkit.Must(t, l.Check(t.Context(), limit.AddressRequests, fmt.Sprint(i), 1))
	}
	if err := l.Check(t.Context(), limit.OTPAddress, "one", 1); err == nil {
		t.Error("keys of an open rule made a closed one forget")
	}
	if err := l.Check(t.Context(), limit.AddressRequests, "much", 1); err == nil {
		t.Error("the fullest of many was forgotten")
	}
	if n := l.Keys(); n > 1_024 {
		t.Errorf("%d keys", n)
	}
}
