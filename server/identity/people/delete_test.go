package people_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// A deleted account is a tombstone at once: nobody adds or finds it. Its memberships end, its
// groups have an owner, its direct chats are closed, and what it has written stays (S-46).
func TestSec_S_46_Deletion(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		var erased []string
		w.people = w.service(func(c *people.Config) {
			c.Erase = []func(context.Context, string) error{func(_ context.Context, user string) error {
				erased = append(erased, user)
				return nil
			}}
		})
		owned := testkit.Value(w.group("ann", "bob", "cat"))(t)
		_, err := w.chats.Change(ctx, chat.OpRole, chat.MemberChange{Caller: "ann", ChatID: owned, UserID: "cat",
			Role: table.Admin})
		testkit.Must(t, err)
		plain := testkit.Value(w.group("bob", "ann"))(t)
		pair := testkit.Value(w.direct("ann", "bob"))(t)
		testkit.Must(t, w.send(pair, "ann", "hello"))
		testkit.Value(w.people.SetHandle(ctx, "ann", "teatime"))(t)
		testkit.Value(w.people.Update(ctx, "ann", name("Ann")))(t)
		testkit.Must(t, w.people.Block(ctx, "ann", "dan"))
		testkit.Must(t, w.people.Block(ctx, "ann", "cat"))

		if err := w.people.Delete(ctx, "ann", "bob"); !errors.Is(err, people.ErrNotConfirmed) {
			t.Fatal(err)
		}
		testkit.Must(t, w.people.Delete(ctx, "ann", "ann"))
		testkit.Must(t, w.people.Delete(ctx, "ann", "ann"))
		want := people.Profile{UserID: "ann", Version: 3, UpdatedAt: w.clock().UnixMilli(), Deleted: true}
		if p := testkit.Value(w.people.Get(ctx, "ann"))(t); p != want {
			t.Errorf("%+v", p)
		}
		if _, err := w.people.FindByHandle(ctx, "bob", "teatime"); !errors.Is(err, people.ErrUnknown) {
			t.Error(err)
		}
		if _, err := w.people.SetHandle(ctx, "bob", "teatime"); !errors.Is(err, people.ErrHandleTaken) {
			t.Error(err)
		}
		for what, err := range map[string]error{"addition": w.add(plain, "bob", "ann"),
			"update":   second(w.people.Update(ctx, "ann", name("x"))),
			"settings": second(w.people.SetSettings(ctx, "ann", nil, ptr(true))),
			"creation": second(w.group("dan", "ann")), "direct": second(w.direct("dan", "ann")),
			"own chat": second(w.direct("ann", "dan")), "own group": second(w.group("ann", "dan"))} {
			if err == nil {
				t.Errorf("%s of a deleted account", what)
			}
		}

		testkit.Must(t, w.people.Sweep(ctx))
		for id, want := range map[string]string{owned: "cat owner", plain: "bob owner"} {
			if w.role(id, "ann") != "" {
				t.Errorf("still a member of %s", id)
			}
			user, role, _ := strings.Cut(want, " ")
			if got := w.role(id, user); string(got) != role {
				t.Errorf("%s is %q in %s", user, got, id)
			}
		}
		testkit.Must(t, w.add(owned, "cat", "dan"))
		refused(t, "send to a deleted account", w.send(pair, "bob", "x"), "NOT_REACHABLE")
		m := testkit.Value(w.spy.Get(ctx, table.MessageKey(pair, 1), store.Strong))(t)
		if m.Get("content").Str() != "hello" {
			t.Errorf("the message is %v", m)
		}
		testkit.Equal(t, "rows of the account", ofAccount(w, "ann"), "[profile]")
		testkit.Equal(t, "erased", fmt.Sprint(erased), "[ann]")
	})
}

func second[T any](_ T, err error) error { return err }

// ofAccount lists the rows of a user in the table.
func ofAccount(w *fixture, user string) string {
	w.Helper()
	page, err := w.spy.Query(w.Context(), store.Query{Table: store.People, PK: user, Consistency: store.Strong})
	testkit.Must(w, err)
	var list []string
	for _, r := range page.Rows {
		list = append(list, r.Key.SK)
	}
	return fmt.Sprint(list)
}

// Whatever ends a process in the middle of a deletion that it has taken, another one completes
// it: from a minute on, and whoever came in meanwhile is taken out by the last sweep.
func TestDeletionsAreCompleted(t *testing.T) {
	for plans := int64(1); ; plans++ {
		w := memory(t)
		ctx := w.Context()
		owned := testkit.Value(w.group("ann", "bob", "cat"))(t)
		pair := testkit.Value(w.direct("ann", "bob"))(t)
		testkit.Must(t, w.people.Delete(ctx, "ann", "ann"))
		w.spy.refuse.Store(plans)
		died := w.people.Sweep(ctx) != nil
		other := w.service()
		w.pass(59 * time.Second)
		_, early := w.spy.count(func() { testkit.Must(t, other.Sweep(ctx)) })
		if plans == 1 { // which was to take it
			early = 0
		}
		w.pass(2 * time.Second)
		testkit.Must(t, other.Sweep(ctx))
		if w.role(owned, "ann") != "" || w.send(pair, "bob", "x") == nil || early != 0 {
			t.Fatalf("died at plan %d: %d plans within a minute", plans, early)
		}
		if w.pass(15 * time.Minute); !died {
			w.ghost(owned, "ann")
		}
		testkit.Must(t, other.Sweep(ctx))
		if w.role(owned, "ann") != "" {
			t.Error("who came in after the first sweep is there")
		}
		if _, plans := w.spy.count(func() { testkit.Must(t, other.Sweep(ctx)) }); plans != 0 {
			t.Errorf("a deletion that is complete takes %d plans", plans)
		}
		if !died {
			if plans < 4 {
				t.Errorf("a deletion of %d plans", plans)
			}
			return
		}
	}
}

// ghost makes a deleted user a member, as a group does whose creation was checked before.
func (w *fixture) ghost(id, user string) {
	w.Helper()
	ctx := w.Context()
	undo := func(cond store.Condition, u store.Update) {
		w.Helper()
		testkit.Must(w, w.spy.Transact(ctx, store.Plan{Writes: []store.Write{{Op: store.OpUpdate, Name: "x", Cond: cond,
			Key: table.UserKey(user), Update: u}}}))
	}
	undo(store.Exists(), store.Update{Remove: []string{rows.AttrDeletedAt}})
	owner := "bob"
	if w.role(id, owner) != table.Owner {
		owner = "cat"
	}
	testkit.Must(w, w.add(id, owner, user))
	undo(store.Exists(), store.Update{Set: []store.Attr{{Name: rows.AttrDeletedAt, Value: store.Int(1)}}})
}

// A group of which only the deleted account is left stays, as nobody's.
func TestLastMemberDeparts(t *testing.T) {
	w := memory(t)
	ctx := w.Context()
	id := testkit.Value(w.group("ann", "bob"))(t)
	_, err := w.chats.Change(ctx, chat.OpLeave, chat.MemberChange{Caller: "bob", ChatID: id})
	testkit.Must(t, err)
	testkit.Must(t, w.people.Delete(ctx, "ann", "ann"))
	testkit.Must(t, w.people.Sweep(ctx))
	if w.role(id, "ann") != table.Owner {
		t.Error("the last member left")
	}
}

// export collects an export, with cursors.
func export(w *fixture, user, cursor string) (list, cursors []string) {
	w.Helper()
	testkit.Must(w, w.people.Export(w.Context(), user, cursor, func(r people.Record) error {
		text := "identifier " + r.Identifier
		switch {
		case r.Profile != nil:
			text = "profile " + r.Profile.DisplayName
		case r.Settings != nil:
			text = fmt.Sprint("settings ", *r.Settings)
		case r.Blocked != nil:
			text = "blocked " + r.Blocked.Other
		case r.Invitation != nil:
			text = "invited by " + r.Invitation.By
		case r.Chat != nil:
			text = "chat " + r.Chat.Chat.Name
		case r.Message != nil:
			text = "message " + r.Message.Content
		case r.End != nil:
			text = "end"
		}
		list, cursors = append(list, text), append(cursors, r.Cursor)
		return nil
	}))
	return list, cursors
}

// An export has all that is the user's and nothing that others wrote, and resumes after
// each of its records (S-46).
func TestSec_S_46_Export(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		w.found["+491234"], w.found["ann@example.com"], w.found["bob@example.com"] = "ann", "ann", "bob"
		testkit.Value(w.people.Update(ctx, "ann", name("Ann")))(t)
		testkit.Must(t, w.people.Block(ctx, "ann", "dan"))
		tea := testkit.Value(w.group("ann", "bob"))(t)
		w.pass(time.Second)
		left := testkit.Value(w.group("bob", "ann"))(t)
		invited := testkit.Value(w.group("bob", "cat"))(t)
		for i := range 3 {
			testkit.Must(t, w.send(tea, "ann", fmt.Sprint("tea ", i)))
			testkit.Must(t, w.send(tea, "bob", "canary"))
			testkit.Must(t, w.send(left, "ann", fmt.Sprint("left ", i)))
		}
		_, err := w.chats.Change(ctx, chat.OpLeave, chat.MemberChange{Caller: "ann", ChatID: left})
		testkit.Must(t, err)
		testkit.Value(w.people.Invite(ctx, "bob", invited, "ann"))(t)
		list, cursors := export(w, "ann", "")
		teas := []string{"chat Tea", "message tea 0", "message tea 1", "message tea 2"}
		lefts := []string{"message left 0", "message left 1", "message left 2"}
		if left < tea {
			teas, lefts = lefts, teas
		}
		want := slices.Concat([]string{"profile Ann", "settings { false}", "identifier +491234",
			"identifier ann@example.com", "blocked dan", "invited by bob"}, teas, lefts, []string{"end"})
		if !slices.Equal(list, want) {
			t.Fatalf("got %q\nwant %q", list, want)
		}
		for i, c := range cursors {
			if rest, _ := export(w, "ann", c); i < len(list)-1 && !slices.Equal(rest, list[i+1:]) {
				t.Errorf("after %q comes %q", list[i], rest)
			}
		}
		for _, bad := range []string{"x", "1", "1/2", "9/0/x", "6/-1/x", "6/y/x"} {
			if err := w.people.Export(ctx, "ann", bad, nil); !errors.Is(err, people.ErrCursor) {
				t.Errorf("%q: %v", bad, err)
			}
		}
		err = w.people.Export(ctx, "ann", "", func(people.Record) error {
			return w.people.Export(ctx, "ann", "", nil)
		})
		if !errors.Is(err, people.ErrBusy) {
			t.Error(err)
		}
	})
}
