package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// S-39: each event is recorded once with actor, target and outcome; who fails again and again
// leaves a number.
func TestSec_S_39_SecurityEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := New(storetest.NewMemory(time.Now), time.Now)
		r := NewRecorder(log, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx, func() {}) }()
		record := func(e Event) {
			t.Helper()
			testkit.Must(t, r.Record(t.Context(), e))
			time.Sleep(time.Millisecond) // rows of one time are in no order
		}
		list := func(f Filter) []Call {
			t.Helper()
			f.Kind = Events
			calls, _, err := log.List(t.Context(), f, 1000, "")
			testkit.Must(t, err)
			return calls
		}
		actions := []Action{CodeRequested, SignedIn, RefreshReused, SessionEnded, UserDeleted, RoleChanged, TokenIssued,
			ServiceRefused, RoleRequired, GroupDied}
		for _, a := range actions {
			record(Event{Action: a, Actor: "ada", Target: User("alice"), Outcome: OK, Detail: "why"})
		}
		for _, a := range actions {
			got := list(Filter{Name: string(a)})
			if len(got) != 1 || got[0].Actor != "ada" || got[0].Target != "user/alice" || got[0].Code != "ok" ||
				got[0].Result != "why" {
				t.Errorf("%s: %+v", a, got)
			}
		}

		for n := range 117 {
			record(Event{Action: SignedIn, Actor: fmt.Sprintf("address/%d", n), Target: User("bob"), Outcome: "code_wrong"})
		}
		record(Event{Action: SignedIn, Actor: User("bob"), Target: User("bob"), Outcome: OK})
		if got := list(Filter{Target: User("bob")}); len(got) != 6 || got[0].Code != "ok" {
			t.Fatalf("%d records of 117 failures and a success: %+v", len(got), got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := list(Filter{Target: User("bob")}); len(got) != 7 ||
			got[0].Result != "112 more within 1m0s, by others too" || got[0].Code != "code_wrong" {
			t.Fatalf("%+v", got)
		}

		// Failures at many fill neither the table nor memory.
		before := len(list(Filter{Name: string(CodeRequested)}))
		for n := range maxWindows + 1000 {
			testkit.Must(t, r.Record(t.Context(), Event{Action: CodeRequested, Target: User(fmt.Sprint(n)), Outcome: "limited"}))
		}
		if n := len(list(Filter{Name: string(CodeRequested)})) - before; n != inAll {
			t.Errorf("%d records of failures at many", n)
		}
		if n := len(r.windows); n > maxWindows+1 {
			t.Errorf("%d windows are remembered", n)
		}
		cancel()
		testkit.Must(t, <-ended)
		if n := len(r.windows); n != 0 {
			t.Errorf("%d windows are left", n)
		}
		got := list(Filter{Name: string(CodeRequested)})
		if n := len(got) - before; n != 2*inAll+1 || !slices.ContainsFunc(got, func(c Call) bool {
			return c.Target == "" && strings.HasSuffix(c.Result, " more at others within 1m0s")
		}) {
			t.Errorf("%d records of failures at many, and none of others", n)
		}
	})
}

// refusing is a store that cannot be written to.
type refusing struct {
	store.Store
	error
}

func (s refusing) Transact(context.Context, store.Plan) error { return s.error }

// A caller that must not proceed without a record gets the error of the store.
func TestRecorderReportsErrors(t *testing.T) {
	broken := errors.New("broken")
	r := NewRecorder(New(refusing{error: broken}, time.Now), slog.New(slog.DiscardHandler))
	if err := r.Record(t.Context(), Event{Action: UserDeleted, Outcome: OK}); !errors.Is(err, broken) {
		t.Error(err)
	}
}
