package people_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store/storetest"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

func memory(t *testing.T) *fixture {
	w := &fixture{T: t, now: epoch}
	w.open(storetest.NewMemory(w.clock))
	return w
}

// refused fails unless an error is the refusal of a rule.
func refused(t *testing.T, what string, err error, rule string) {
	t.Helper()
	var r *chat.Refusal
	if !errors.As(err, &r) || r.Rule != rule {
		t.Errorf("%s: %v, expected %s", what, err, rule)
	}
}

// A block holds at the creation of a direct chat, at additions to groups and at sends in a
// direct chat that was there before; groups that both are in are not concerned (S-26).
func TestSec_S_26_BlocksHold(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		pair := testkit.Value(w.direct("ann", "bob"))(t)
		both := testkit.Value(w.group("cat", "ann", "bob"))(t)
		bobs := testkit.Value(w.group("bob", "cat"))(t)
		for _, u := range []string{"ann", "bob"} { // who is known as a sender is no less refused
			testkit.Must(t, w.send(pair, u, "before"))
		}
		testkit.Must(t, w.people.Block(ctx, "ann", "bob"))
		testkit.Must(t, w.people.Block(ctx, "ann", "bob"))
		for range 2 { // from the cache of senders, and not
			refused(t, "the blocked one sends", w.send(pair, "bob", "x"), "NOT_REACHABLE")
			refused(t, "who blocks sends", w.send(pair, "ann", "x"), "CALLER_BLOCKS")
		}
		refused(t, "addition", w.add(bobs, "bob", "ann"), "NOT_REACHABLE")
		_, err := w.group("bob", "cat", "ann")
		refused(t, "creation with her", err, "NOT_REACHABLE")
		testkit.Must(t, w.send(both, "ann", "in the group"))
		testkit.Must(t, w.send(both, "bob", "in the group"))
		if again := testkit.Value(w.direct("bob", "ann"))(t); again != pair {
			t.Errorf("another direct chat: %s", again)
		}
		testkit.Must(t, w.people.Block(ctx, "dan", "bob"))
		_, err = w.direct("bob", "dan")
		refused(t, "the blocked one begins", err, "NOT_REACHABLE")
		_, err = w.direct("dan", "bob")
		refused(t, "who blocks begins", err, "CALLER_BLOCKS")

		// Both block: one end is not enough.
		testkit.Must(t, w.people.Block(ctx, "bob", "ann"))
		testkit.Must(t, w.people.Unblock(ctx, "ann", "bob"))
		refused(t, "still blocked", w.send(pair, "ann", "x"), "NOT_REACHABLE")
		testkit.Must(t, w.people.Unblock(ctx, "bob", "ann"))
		testkit.Must(t, w.people.Unblock(ctx, "bob", "ann"))
		testkit.Must(t, w.people.Unblock(ctx, "dan", "bob"))
		testkit.Must(t, w.send(pair, "ann", "again"))
		testkit.Must(t, w.send(pair, "bob", "again"))
		testkit.Must(t, w.add(bobs, "bob", "ann"))
		testkit.Value(w.direct("bob", "dan"))(t)
	})
}

// A send makes one call of the store, in a group and in a direct chat, with blocks or without.
func TestBlocksCostNoRead(t *testing.T) {
	w := memory(t)
	group := testkit.Value(w.group("ann", "bob"))(t)
	pair := testkit.Value(w.direct("ann", "bob"))(t)
	testkit.Must(t, w.people.Block(w.Context(), "ann", "cat"))
	for _, id := range []string{group, pair} {
		testkit.Must(t, w.send(id, "ann", "x"))
		reads, plans := w.spy.count(func() { testkit.Must(t, w.send(id, "ann", "y")) })
		if reads != 0 || plans != 1 {
			t.Errorf("%d reads and %d plans, expected 0 and 1", reads, plans)
		}
	}
}

func TestBlockLists(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		if err := w.people.Block(ctx, "ann", "ann"); !errors.Is(err, people.ErrSelf) {
			t.Error(err)
		}
		if err := w.people.Block(ctx, "ann", "nobody"); !errors.Is(err, people.ErrUnknown) {
			t.Error(err)
		}
		for _, u := range []string{"dan", "bob", "cat"} {
			testkit.Must(t, w.people.Block(ctx, "ann", u))
		}
		var got []string
		after := ""
		for more := true; more; {
			var page []rows.Block
			var err error
			page, more, err = w.people.Blocked(ctx, "ann", after, 2)
			testkit.Must(t, err)
			for _, b := range page {
				got = append(got, b.Other)
				after = b.Other
			}
		}
		testkit.Equal(t, "list", fmt.Sprint(got), "[bob cat dan]")
		if page, more, err := w.people.Blocked(ctx, "bob", "", 2); len(page) > 0 || more || err != nil {
			t.Error(page, more, err)
		}
		if _, _, err := w.people.Blocked(ctx, "ann", "a#b", 2); !errors.Is(err, people.ErrCursor) {
			t.Error(err)
		}
	})
}

func TestBlockListsHaveAnEnd(t *testing.T) {
	w := memory(t)
	ctx := w.Context()
	for i := range 1001 {
		u := fmt.Sprint("u", i)
		testkit.Must(t, w.chats.EnsureUser(ctx, u))
		if err := w.people.Block(ctx, "ann", u); (i < 1000) != (err == nil) || i == 1000 &&
			!errors.Is(err, people.ErrTooManyBlocked) {
			t.Fatal(i, err)
		}
	}
}

// Who may add me: everybody, people I share a chat with, nobody; others invite.
func TestWhoMayAdd(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		id := testkit.Value(w.group("ann", "bob"))(t)
		set := func(who rows.WhoAdds) {
			t.Helper()
			got := testkit.Value(w.people.SetSettings(ctx, "cat", &who, nil))(t)
			if got.WhoAdds != who || testkit.Value(w.people.Settings(ctx, "cat"))(t) != got {
				t.Errorf("%+v", got)
			}
		}
		out := func() {
			t.Helper()
			_, err := w.chats.Change(ctx, chat.OpRemove, chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat"})
			testkit.Must(t, err)
		}
		set(rows.Nobody)
		refused(t, "addition", w.add(id, "ann", "cat"), "INVITATION_REQUIRED")
		_, err := w.group("ann", "cat")
		refused(t, "creation", err, "INVITATION_REQUIRED")
		pair := testkit.Value(w.direct("ann", "cat"))(t) // which is no group

		set(rows.SharedChat)
		refused(t, "by a direct chat in which she wrote nothing", w.add(id, "ann", "cat"), "INVITATION_REQUIRED")
		testkit.Must(t, w.send(pair, "cat", "hello"))
		testkit.Must(t, w.add(id, "ann", "cat"))
		out()
		set(rows.Everybody)
		other := testkit.Value(w.group("dan", "cat"))(t)
		set(rows.SharedChat)
		bobs := testkit.Value(w.group("bob", "ann"))(t)
		refused(t, "no chat in common", w.add(bobs, "bob", "cat"), "INVITATION_REQUIRED")
		testkit.Must(t, w.add(other, "dan", "bob"))
		testkit.Must(t, w.add(bobs, "bob", "cat")) // by the other group
		set(rows.Everybody)
		testkit.Must(t, w.add(id, "ann", "cat"))
		out()
	})
}

func TestInvitations(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		nobody := rows.Nobody
		testkit.Value(w.people.SetSettings(ctx, "cat", &nobody, nil))(t)
		id := testkit.Value(w.group("ann", "bob"))(t)
		accept := func(want error) {
			t.Helper()
			if err := w.people.Accept(ctx, "cat", id); !errors.Is(err, want) {
				t.Errorf("%v, expected %v", err, want)
			}
		}
		accept(people.ErrNoInvitation)
		_, err := w.people.Invite(ctx, "bob", id, "cat")
		refused(t, "a member invites", err, "MEMBERS_CANNOT_ADD")
		if _, err := w.people.Invite(ctx, "dan", id, "cat"); !errors.Is(err, chat.ErrNotAMember) {
			t.Error(err)
		}
		if _, err := w.people.Invite(ctx, "ann", id, "bob"); !errors.Is(err, chat.ErrAlreadyMember) {
			t.Error(err)
		}
		testkit.Value(w.people.Invite(ctx, "ann", id, "cat"))(t)
		list := testkit.Value(w.people.Invitations(ctx, "cat"))(t)
		if len(list) != 1 || list[0].ChatID != id || list[0].By != "ann" || list[0].ChatName != "Tea" {
			t.Fatalf("%+v", list)
		}
		testkit.Must(t, w.people.Decline(ctx, "cat", id))
		accept(people.ErrNoInvitation)

		testkit.Value(w.people.Invite(ctx, "ann", id, "cat"))(t)
		testkit.Must(t, w.people.Block(ctx, "cat", "ann"))
		refused(t, "who invited is blocked", w.people.Accept(ctx, "cat", id), "NOT_REACHABLE")
		_, err = w.people.Invite(ctx, "ann", id, "cat")
		refused(t, "the blocked one invites", err, "NOT_REACHABLE")
		testkit.Must(t, w.people.Unblock(ctx, "cat", "ann"))
		accept(nil)
		if w.role(id, "cat") != "member" || len(testkit.Value(w.people.Invitations(ctx, "cat"))(t)) > 0 {
			t.Error("not a member, or invited still")
		}
		accept(people.ErrNoInvitation)
	})
}

// An invitation of somebody who may not add people any more, and one that has lapsed, make
// nobody a member.
func TestInvitationsEnd(t *testing.T) {
	w := memory(t)
	ctx := w.Context()
	id := testkit.Value(w.group("ann", "bob"))(t)
	role := func(r chat.MemberChange) {
		t.Helper()
		_, err := w.chats.Change(ctx, chat.OpRole, r)
		testkit.Must(t, err)
	}
	role(chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob", Role: "admin"})
	testkit.Value(w.people.Invite(ctx, "bob", id, "cat"))(t)
	role(chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob", Role: "member"})
	refused(t, "the inviter is no admin", w.people.Accept(ctx, "cat", id), command.MembersCannotAdd.Rule)
	testkit.Value(w.people.Invite(ctx, "ann", id, "cat"))(t)
	w.pass(31 * 24 * time.Hour)
	if err := w.people.Accept(ctx, "cat", id); !errors.Is(err, people.ErrNoInvitation) || w.role(id, "cat") != "" {
		t.Error(err)
	}
}
