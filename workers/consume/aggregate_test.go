package consume

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	storefaults "github.com/parley-chat/parley/server/store/faulty"
	"github.com/parley-chat/parley/server/store/storetest"
)

// The one table of errors and classes: what passes is retried, what never passes becomes a dead
// letter, and so does, after three attempts, what nobody knows (EV30, EV31, EV32, EV33).
func TestClasses(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Class
	}{
		{store.ErrUnavailable, Authoritative},
		{store.ErrThrottled, Authoritative},
		{store.ErrConflict, Authoritative},
		{store.ErrAmbiguous, Authoritative},
		{store.ErrFull, Authoritative},
		{store.ErrClosed, Authoritative},
		{&store.ConditionError{}, Authoritative},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, Authoritative},
		{event.ErrSchema, Permanent},
		{store.ErrInvalid, Permanent},
		{event.ErrForeign, Ignored},
		{store.ErrCorrupt, Unknown},
		{errors.New("something"), Unknown},
		{context.DeadlineExceeded, Unknown},
		{nil, Unknown},
		{Fail(Downstream, "away", store.ErrInvalid), Downstream},
		{Fail(Fatal, "start again", nil), Fatal},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			if c.err == nil {
				err = nil
			}
			if got := ClassOf(err); got != c.want {
				t.Errorf("%v is %s, expected %s", err, got, c.want)
			}
		}
	}
	// A reason has no content, whatever the class.
	if got := Reason(fmt.Errorf("secret: %w", store.ErrInvalid)); got != "permanent: *fmt.wrapError" {
		t.Errorf("the reason is %q, expected only the type of the error", got)
	}
}

// Batches that come again, whole or in parts, leave the same state as once (EV21).
func TestBatchesComeAgain(t *testing.T) {
	all := recordsOf("a", 1, 2, 3, 4, 5, 6, 7, 8, 9)
	l := newLedger(t, storetest.NewMemory(time.Now))
	for _, batch := range [][]*kafka.Record{all[:4], all[:4], all[:4], all[2:5], all[2:6], all[5:], all, all, all} {
		n, err := Apply(t.Context(), l.store, l.handle, batch)
		if err != nil || n != len(batch) {
			t.Fatalf("%d of %d records are finished, %v; expected all", n, len(batch), err)
		}
	}
	testkit.Must(t, l.check(t.Context(), "a", 9))
}

// An error is about the first record that is left; what is before it is committed, and what is
// behind it has no effect (EV40). The effect of one call is one plan (EV23).
func TestEffectBeforeAFailure(t *testing.T) {
	l := newLedger(t, storetest.NewMemory(time.Now))
	l.fail = func(_ context.Context, _ string, n int64) error {
		if n == 3 {
			return event.ErrSchema
		}
		return nil
	}
	n, err := Apply(t.Context(), l.store, l.handle, recordsOf("a", 1, 2, 3, 4, 5))
	if n != 2 || !errors.Is(err, event.ErrSchema) {
		t.Fatalf("%d records are finished, %v; expected 2 and %v", n, err, event.ErrSchema)
	}
	testkit.Must(t, l.check(t.Context(), "a", 2))
	plans := 0
	st := storefaults.New(l.store, storefaults.Options{Policy: func(c storefaults.Call) storefaults.Fault {
		if c.Method == storefaults.Transact {
			plans++
		}
		return storefaults.Fault{}
	}})
	l.fail = nil
	if _, err := Apply(t.Context(), st, l.handle, recordsOf("a", 3, 4, 5, 6)); err != nil || plans != 1 {
		t.Fatalf("%d plans, %v; expected one", plans, err)
	}
	testkit.Must(t, l.check(t.Context(), "a", 6))
}

// The store fails in every way at every step: nothing is finished that has no effect, and what
// is retried has its effect once (EV20, EV31).
func TestEffectsOverAFaultyStore(t *testing.T) {
	for _, when := range []storefaults.When{storefaults.Before, storefaults.After} {
		for step := 1; step <= 2; step++ {
			l := newLedger(t, storetest.NewMemory(time.Now))
			st := storefaults.New(l.store, storefaults.Options{Policy: func(c storefaults.Call) storefaults.Fault {
				if c.Number == step {
					return storefaults.Fault{When: when}
				}
				return storefaults.Fault{}
			}})
			through := &ledger{store: st, wrong: t.Errorf}
			n, err := Apply(t.Context(), st, through.handle, recordsOf("a", 1, 2))
			if n != 0 || ClassOf(err) != Authoritative {
				t.Fatalf("step %d, fault %d: %d records are finished, %v; expected none, and a failure that passes", step, when, n,
					err)
			}
			if n, err := Apply(t.Context(), st, through.handle, recordsOf("a", 1, 2)); n != 2 || err != nil {
				t.Fatalf("step %d, fault %d: %d records are finished, %v; expected both", step, when, n, err)
			}
			testkit.Must(t, l.check(t.Context(), "a", 2))
		}
	}
}

// Somebody else changes the aggregate after it was read: the stale effect is not committed, and
// the handler reads again. If that never ends, the records wait (EV22).
func TestStaleEffectIsNotCommitted(t *testing.T) {
	l := newLedger(t, storetest.NewMemory(time.Now))
	other := newLedger(t, l.store)
	stale, calls := int64(2), 0
	handle := func(ctx context.Context, records []*kafka.Record) (Effect, error) {
		e, err := l.handle(ctx, records)
		if calls++; stale > 0 { // the other one is faster
			stale--
			if _, failed := Apply(ctx, other.store, other.handle, records[:2-stale]); failed != nil {
				t.Fatal(failed)
			}
		}
		return e, err
	}
	n, err := Apply(t.Context(), l.store, handle, recordsOf("a", 1, 2, 3))
	if n != 3 || err != nil || calls != 3 {
		t.Fatalf("%d records are finished in %d calls, %v; expected 3 in 3", n, calls, err)
	}
	testkit.Must(t, l.check(t.Context(), "a", 3))

	calls = 0
	never := func(context.Context, []*kafka.Record) (Effect, error) {
		calls++
		return Effect{Finished: 1, Writes: []store.Write{{Op: store.OpPut, Key: ledgerKey("a"), Cond: store.Absent(),
			Name: "ledger", Item: store.NewItem()}}}, nil
	}
	n, err = Apply(t.Context(), l.store, never, recordsOf("a", 4))
	if n != 0 || ClassOf(err) != Authoritative || calls != 4 {
		t.Fatalf("%d records are finished in %d calls, %v; expected none in 4, and a failure that passes", n, calls, err)
	}
	testkit.Must(t, l.check(t.Context(), "a", 3))
}

// A handler may finish a part; one that finishes nothing without an error, or more than there
// is, is not called forever.
func TestFinishedByParts(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	var sizes []int
	parts := func(_ context.Context, records []*kafka.Record) (Effect, error) {
		sizes = append(sizes, len(records))
		return Effect{Finished: min(2, len(records))}, nil
	}
	if n, err := Apply(t.Context(), st, parts, recordsOf("a", 1, 2, 3, 4, 5)); n != 5 || err != nil ||
		!slices.Equal(sizes, []int{5, 3, 1}) {
		t.Fatalf("%d records, %v, in calls of %v; expected 5 in calls of 5, 3 and 1", n, err, sizes)
	}
	for _, finished := range []int{0, -1, 6} {
		lies := func(context.Context, []*kafka.Record) (Effect, error) { return Effect{Finished: finished}, nil }
		if n, err := Apply(t.Context(), st, lies, recordsOf("a", 1, 2, 3, 4, 5)); n != 0 || ClassOf(err) != Unknown ||
			!strings.Contains(Reason(err), "of 5 records") {
			t.Fatalf("%d records, %v; expected none, and an unknown failure that says why", n, err)
		}
	}
}

// A plan that the store refuses as it stands never passes: its first record is tried alone and
// then given up (EV32).
func TestEffectThatIsTooLarge(t *testing.T) {
	st := storetest.NewMemory(time.Now)
	large := func(_ context.Context, records []*kafka.Record) (Effect, error) {
		e := Effect{Finished: len(records)}
		for i := range store.MaxPlanWrites + 1 {
			e.Writes = append(e.Writes, store.Write{Op: store.OpPut, Key: ledgerKey(fmt.Sprint(i)), Item: store.NewItem()})
		}
		return e, nil
	}
	if n, err := Apply(t.Context(), st, large, recordsOf("a", 1)); n != 0 || ClassOf(err) != Permanent {
		t.Fatalf("%d records, %v; expected none, and a permanent failure", n, err)
	}
}

// An engine has exactly one mode (EV28).
func TestOneMode(t *testing.T) {
	l := newLedger(t, storetest.NewMemory(time.Now))
	one := func(context.Context, *kafka.Record) error { return nil }
	for modes := range 8 {
		c := Config{Addr: "-", Group: "g", Topics: []string{topic}, Store: l.store, Clock: time.Now,
			Logger: nopLogger, WriteDeadLetter: func(context.Context, DeadLetter) error { return nil }}
		n := 0
		if modes&1 > 0 {
			c.Handle, n = one, n+1
		}
		if modes&2 > 0 {
			c.Batch, n = together(one), n+1
		}
		if modes&4 > 0 {
			c.Aggregate, n = l.handle, n+1
		}
		if _, err := New(c); (err == nil) != (n == 1) {
			t.Errorf("%d handlers: %v, expected an error unless there is one", n, err)
		}
	}
}
