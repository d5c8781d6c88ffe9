package people_test

import (
	"errors"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/infra/testkit"
)

func ptr[T any](v T) *T { return &v }

func name(text string) people.ProfileChange { return people.ProfileChange{DisplayName: &text} }

func TestProfiles(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		if _, err := w.people.Get(ctx, "nobody"); !errors.Is(err, people.ErrUnknown) {
			t.Fatal(err)
		}
		fresh := testkit.Value(w.people.Get(ctx, "ann"))(t)
		if fresh != (people.Profile{UserID: "ann"}) || people.Etag(fresh) != "v0" {
			t.Errorf("%+v", fresh)
		}
		one := testkit.Value(w.people.Update(ctx, "ann", people.ProfileChange{DisplayName: ptr("Ann"), Avatar: ptr("a.png"),
			Etag: "v0"}))(t)
		if one.DisplayName != "Ann" || one.Avatar != "a.png" || one.Version != 1 || one.UpdatedAt != w.clock().UnixMilli() {
			t.Errorf("%+v", one)
		}
		if _, err := w.people.Update(ctx, "ann", people.ProfileChange{About: ptr("x"), Etag: "v0"}); !errors.Is(err,
			people.ErrEtag) {
			t.Error(err)
		}
		same := testkit.Value(w.people.Update(ctx, "ann", name("Ann")))(t)
		if same != one {
			t.Errorf("what changes nothing leaves %+v", same)
		}
		two := testkit.Value(w.people.Update(ctx, "ann", people.ProfileChange{About: ptr("tea"), Etag: "v1"}))(t)
		if two.Version != 2 || two.DisplayName != "Ann" || two.About != "tea" {
			t.Errorf("%+v", two)
		}
		found := testkit.Value(w.people.Batch(ctx, []people.Known{{"bob", 0}, {"nobody", -1}, {"ann", 1}, {"ann", 2},
			{"cat", -1}}))(t)
		if len(found) != 2 || found[0] != two || found[1].UserID != "cat" {
			t.Errorf("%+v", found)
		}
	})
}

// A change whose answer is lost is made once, also with an etag.
func TestAnswersThatAreLost(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		w.spy.lose.Store(1)
		p := testkit.Value(w.people.Update(ctx, "ann", people.ProfileChange{About: ptr("tea"), Etag: "v0"}))(t)
		testkit.Equal(t, "version", p.Version, 1)
		w.spy.lose.Store(1)
		if p := testkit.Value(w.people.SetHandle(ctx, "ann", "ann.tea"))(t); p.Version != 2 || p.Handle != "ann.tea" {
			t.Errorf("%+v", p)
		}
		for _, do := range []func() error{
			func() error { return w.people.Block(ctx, "ann", "bob") },
			func() error { return w.people.Unblock(ctx, "ann", "bob") },
			func() error { return w.people.Suspend(ctx, "ann") },
			func() error { return w.people.Restore(ctx, "ann") },
			func() error { return w.people.Delete(ctx, "ann", "ann") },
		} {
			w.spy.lose.Store(1)
			testkit.Must(t, do())
		}
		if p := testkit.Value(w.people.Get(ctx, "ann"))(t); p.Version != 3 || !p.Deleted {
			t.Errorf("%+v", p)
		}
	})
}

func TestHandles(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		set := func(user, handle string, want error) {
			t.Helper()
			p, err := w.people.SetHandle(ctx, user, handle)
			if !errors.Is(err, want) || err == nil && p.UserID != user {
				t.Errorf("%s takes %s: %+v, %v; expected %v", user, handle, p, err, want)
			}
		}
		finds := func(handle, want string) {
			t.Helper()
			p, err := w.people.FindByHandle(ctx, "dan", handle)
			if p.UserID != want || (want == "") != errors.Is(err, people.ErrUnknown) {
				t.Errorf("%s is %+v, %v", handle, p, err)
			}
		}
		for _, word := range []string{"admin", "Support", "parley", "_root_", "no.reply", "__parley"} {
			set("ann", word, people.ErrHandleReserved)
		}
		set("ann", "TeaTime", nil)
		set("ann", "teatime", nil) // the same
		set("bob", "TEATIME", people.ErrHandleTaken)
		finds("TeaTime", "ann")
		set("ann", "coffee", people.ErrHandleTooSoon)
		w.pass(24 * time.Hour)
		set("ann", "coffee", nil)
		finds("coffee", "ann")
		finds("teatime", "") // given up, and held
		set("bob", "teatime", people.ErrHandleTaken)
		w.pass(24 * time.Hour)
		set("ann", "teatime", nil) // who held it takes it back
		finds("teatime", "ann")
		set("bob", "coffee", people.ErrHandleTaken)
		testkit.Must(t, w.people.Block(ctx, "ann", "dan"))
		finds("teatime", "")
	})
}

// Handles that would seem to speak for the service are nobody's, however they are spelled, and
// ordinary ones are not among them.
func TestReservedHandles(t *testing.T) {
	w := memory(t)
	for _, h := range []string{"parley.support", "parley_official", "the_admin", "supp0rt", "support_", "s.u.p.p.o.r.t",
		"admin1", "adm.in", "m0derator", "par1ey", "theparley", "he1p", "staff2026"} {
		if _, err := w.people.SetHandle(w.Context(), "ann", h); !errors.Is(err, people.ErrHandleReserved) {
			t.Errorf("%s: %v", h, err)
		}
	}
	for _, h := range []string{"badminton", "you.tea", "helpful", "rooted", "me2", "modest", "anna1"} {
		testkit.Value(w.people.SetHandle(w.Context(), "ann", h))(t)
		w.pass(24 * time.Hour)
	}
}

// Handles that look alike are one person's, who may change from one to another. Only the exact
// one is found.
func TestHandlesThatLookAlike(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		testkit.Value(w.people.SetHandle(ctx, "ann", "lily.tea0"))(t)
		for _, h := range []string{"lily_tea0", "lily..tea0", "lilytea0", "li1y.tea0", "lily.teao"} {
			if _, err := w.people.SetHandle(ctx, "bob", h); !errors.Is(err, people.ErrHandleTaken) {
				t.Errorf("%s beside lily.tea0: %v", h, err)
			}
			if p, err := w.people.FindByHandle(ctx, "bob", h); !errors.Is(err, people.ErrUnknown) {
				t.Errorf("%s finds %+v, %v", h, p, err)
			}
		}
		w.pass(24 * time.Hour)
		testkit.Value(w.people.SetHandle(ctx, "ann", "lily_tea0"))(t)
		if p := testkit.Value(w.people.FindByHandle(ctx, "bob", "Lily_tea0"))(t); p.UserID != "ann" {
			t.Errorf("%+v", p)
		}
		if _, err := w.people.SetHandle(ctx, "bob", "lily.tea0"); !errors.Is(err, people.ErrHandleTaken) {
			t.Error(err)
		}
	})
}

// A handle that was given up is anybody's after 30 days, and not before.
func TestHeldHandlesLapse(t *testing.T) {
	w := memory(t)
	ctx := w.Context()
	testkit.Value(w.people.SetHandle(ctx, "ann", "teatime"))(t)
	w.pass(24 * time.Hour)
	testkit.Value(w.people.SetHandle(ctx, "ann", "coffee"))(t)
	w.pass(30*24*time.Hour - 2*time.Second)
	if _, err := w.people.SetHandle(ctx, "bob", "teatime"); !errors.Is(err, people.ErrHandleTaken) {
		t.Error(err)
	}
	w.pass(3 * time.Second)
	testkit.Value(w.people.SetHandle(ctx, "bob", "teatime"))(t)
}

// Two who want a handle at once: one has it.
func TestRaceForAHandle(t *testing.T) {
	engines(t, func(w *fixture) {
		users := []string{"ann", "bob", "cat", "dan"}
		errs := make(chan error, len(users))
		for _, u := range users {
			go func() {
				_, err := w.service().SetHandle(w.Context(), u, "teatime")
				errs <- err
			}()
		}
		got := 0
		for range users {
			switch err := <-errs; {
			case err == nil:
				got++
			case !errors.Is(err, people.ErrHandleTaken):
				t.Error(err)
			}
		}
		if got != 1 {
			t.Errorf("%d people have the handle", got)
		}
	})
}

// Who is not found is one answer with the same calls of the store, whatever the reason.
func TestFindByIdentifier(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		w.found["ann@example.com"], w.found["bob@example.com"], w.found["cat@example.com"] = "ann", "bob", "cat"
		for _, u := range []string{"ann", "cat"} {
			testkit.Value(w.people.SetSettings(ctx, u, nil, ptr(true)))(t)
		}
		testkit.Must(t, w.people.Block(ctx, "cat", "dan"))
		var calls []int64
		for identifier, want := range map[string]string{"ann@example.com": "ann", "bob@example.com": "",
			"cat@example.com": "", "nobody@example.com": ""} {
			reads, _ := w.spy.count(func() {
				p, err := w.people.FindByIdentifier(ctx, "dan", identifier)
				if p.UserID != want || (want == "") != errors.Is(err, people.ErrUnknown) {
					t.Errorf("%s: %+v, %v", identifier, p, err)
				}
			})
			calls = append(calls, reads)
		}
		for _, n := range calls {
			if n != calls[0] {
				t.Errorf("calls of the store: %v", calls)
			}
		}
		without := w.service(func(c *people.Config) { c.Identifiers = nil })
		if _, err := without.FindByIdentifier(ctx, "dan", "ann@example.com"); !errors.Is(err, people.ErrNoIdentifiers) {
			t.Error(err)
		}
	})
}

// Streams are notified of a change once, in each process, and nothing is written for a chat.
func TestChangesAreAnnounced(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		for range 5 {
			testkit.Value(w.group("ann", "bob"))(t)
		}
		_, plans := w.spy.count(func() { testkit.Value(w.people.Update(ctx, "ann", name("Ann")))(t) })
		if len(w.notified) != 1 || w.notified[0] != (notification{"ann", 1, 5}) || plans != 1 {
			t.Fatalf("%+v with %d plans", w.notified, plans)
		}
		testkit.Value(w.people.Update(ctx, "ann", name("Ann")))(t) // nothing changes
		if len(w.notified) != 1 {
			t.Errorf("%+v", w.notified)
		}
		other := w.service()
		since := w.clock().Add(-time.Second).UnixMilli()
		for range 3 {
			testkit.Must(t, other.PollChanges(ctx, since))
			testkit.Must(t, w.people.PollChanges(ctx, since))
		}
		if len(w.notified) != 2 || w.notified[1] != w.notified[0] {
			t.Errorf("%+v", w.notified)
		}
	})
}

func TestStatus(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		is := func(want string) {
			t.Helper()
			if s := testkit.Value(w.people.Status(ctx, "ann"))(t); string(s) != want {
				t.Errorf("%s, expected %s", s, want)
			}
		}
		is("active")
		testkit.Must(t, w.people.Suspend(ctx, "ann"))
		testkit.Must(t, w.people.Suspend(ctx, "ann"))
		is("suspended")
		testkit.Must(t, w.people.Restore(ctx, "ann"))
		is("active")
		testkit.Must(t, w.people.Suspend(ctx, "ann"))
		testkit.Must(t, w.people.Delete(ctx, "ann", "ann"))
		is("deleted")
		if err := w.people.Restore(ctx, "ann"); !errors.Is(err, people.ErrUnknown) {
			t.Error(err)
		}
		is("deleted")
		if _, err := w.people.Status(ctx, "nobody"); !errors.Is(err, people.ErrUnknown) {
			t.Error(err)
		}
	})
}
