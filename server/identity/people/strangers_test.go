package people_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

func (w *fixture) whoAdds(user string, who rows.WhoAdds) {
	w.Helper()
	testkit.Value(w.people.SetSettings(w.Context(), user, &who, nil))(w)
}

// Whoever begins a direct chat with somebody shares a chat once that one takes part in it.
func TestStrangersShareNothing(t *testing.T) {
	engines(t, func(w *fixture) {
		w.whoAdds("ann", rows.SharedChat)
		id := testkit.Value(w.group("bob", "cat"))(t)
		refused(t, "before", w.add(id, "bob", "ann"), "INVITATION_REQUIRED")
		pair := testkit.Value(w.direct("bob", "ann"))(t)
		testkit.Must(t, w.send(pair, "bob", "add me"))
		refused(t, "after a chat that she did not answer", w.add(id, "bob", "ann"), "INVITATION_REQUIRED")
		_, err := w.group("bob", "cat", "ann")
		refused(t, "creation", err, "INVITATION_REQUIRED")
		testkit.Must(t, w.send(pair, "ann", "well"))
		testkit.Must(t, w.add(id, "bob", "ann"))

		testkit.Value(w.direct("ann", "dan"))(t) // which she begins
		dans := testkit.Value(w.group("dan", "cat"))(t)
		testkit.Must(t, w.add(dans, "dan", "ann"))
	})
}

// Of a direct chat so many messages are checked, the last ones.
func TestSharingIsBounded(t *testing.T) {
	w := memory(t)
	w.whoAdds("ann", rows.SharedChat)
	id := testkit.Value(w.group("bob", "cat"))(t)
	pair := testkit.Value(w.direct("bob", "ann"))(t)
	testkit.Must(t, w.send(pair, "ann", "well"))
	for i := range 101 {
		if i > 98 {
			c := &counter{Store: w.spy.Store}
			w.spy.Store = c
			err := w.add(id, "bob", "ann")
			if w.spy.Store = c.Store; c.n > 110 {
				t.Errorf("%d rows are read", c.n)
			}
			if i == 99 {
				testkit.Must(t, err)
				_, err = w.chats.Change(w.Context(), chat.OpRemove,
					chat.MemberChange{Caller: "bob", ChatID: id, UserID: "ann"})
				testkit.Must(t, err)
			} else {
				refused(t, "long ago", err, "INVITATION_REQUIRED")
			}
		}
		testkit.Must(t, w.send(pair, "bob", "and?"))
	}
}

// counter counts the rows that queries of a store read.
type counter struct {
	store.Store
	n int
}

func (c *counter) Query(ctx context.Context, q store.Query) (store.Page, error) {
	p, err := c.Store.Query(ctx, q)
	c.n += len(p.Rows)
	return p, err
}

// Whoever is blocked does not get at somebody by way of a friend who adds both: that takes an
// invitation.
func TestBlocksHoldForFriends(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		testkit.Must(t, w.people.Block(ctx, "ann", "bob"))
		id := testkit.Value(w.group("bob", "cat"))(t)
		_, err := w.chats.Change(ctx, chat.OpRole, chat.MemberChange{Caller: "bob", ChatID: id, UserID: "cat",
			Role: table.Admin})
		testkit.Must(t, err)
		refused(t, "addition by a friend of his", w.add(id, "cat", "ann"), "INVITATION_REQUIRED")
		_, err = w.group("cat", "bob", "ann")
		refused(t, "creation by a friend of his", err, "INVITATION_REQUIRED")
		cats := testkit.Value(w.group("cat", "dan"))(t)
		testkit.Must(t, w.add(cats, "cat", "ann")) // he is not there

		testkit.Value(w.people.Invite(ctx, "cat", id, "ann"))(t)
		testkit.Must(t, w.people.Accept(ctx, "ann", id))
		if w.role(id, "ann") != table.Member {
			t.Error("her own wish does not count")
		}
		testkit.Must(t, w.people.Unblock(ctx, "ann", "bob"))
		testkit.Value(w.group("cat", "bob", "ann"))(t)
	})
}

// hook runs something once before the first transaction.
type hook struct {
	store.Store
	before func()
}

func (h *hook) Transact(ctx context.Context, p store.Plan) error {
	if f := h.before; f != nil {
		h.before = nil
		f()
	}
	return h.Store.Transact(ctx, p)
}

// Somebody whose block is answered before a group is created does not become a member of it.
func TestBlockDuringCreation(t *testing.T) {
	engines(t, func(w *fixture) {
		h := &hook{Store: w.spy.Store}
		w.spy.Store = h
		h.before = func() { testkit.Must(t, w.people.Block(w.Context(), "ann", "bob")) }
		id := testkit.Value(w.group("bob", "ann", "cat"))(t)
		row := table.ChatFrom(id, testkit.Value(w.spy.Get(w.Context(), table.ChatKey(id), store.Strong))(t))
		if w.role(id, "ann") != "" || w.role(id, "cat") != table.Member || row.MemberCount != 2 {
			t.Errorf("ann is %q and cat %q of %d", w.role(id, "ann"), w.role(id, "cat"), row.MemberCount)
		}
	})
}

// The list of a creator is read once, however many people ask whether they share a chat.
func TestSharingReadsOnce(t *testing.T) {
	w := memory(t)
	ctx := w.Context()
	hub := testkit.Value(w.group("bob", "cat"))(t)
	for range 200 {
		testkit.Value(w.group("bob", "cat"))(t)
	}
	var members []string
	for i := range 50 {
		u := fmt.Sprint("m", i)
		testkit.Must(t, w.chats.EnsureUser(ctx, u))
		testkit.Must(t, w.add(hub, "bob", u))
		w.whoAdds(u, rows.SharedChat)
		members = append(members, u)
	}
	c := &counter{Store: w.spy.Store}
	w.spy.Store = c
	testkit.Value(w.group("bob", members...))(t)
	if c.n > 300 {
		t.Errorf("%d rows are read", c.n)
	}
}

// One who invites again and again has ten invitations open with a person, the last ones.
func TestInvitationsOfOneInviter(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		of := func(inviter string) (list []rows.Invitation) {
			for _, i := range testkit.Value(w.people.Invitations(ctx, "ann"))(t) {
				if i.By == inviter {
					list = append(list, i)
				}
			}
			return list
		}
		var first string
		for i := range 12 {
			id := testkit.Value(w.group("bob", "cat"))(t)
			if testkit.Value(w.people.Invite(ctx, "bob", id, "ann"))(t); i == 0 {
				first = id
				testkit.Value(w.people.Invite(ctx, "bob", id, "ann"))(t)
			}
			w.pass(time.Second)
		}
		testkit.Equal(t, "of one inviter", len(of("bob")), 10)
		for _, i := range of("bob") {
			if i.ChatID == first {
				t.Error("the oldest is open")
			}
		}
		id := testkit.Value(w.group("dan", "cat"))(t)
		testkit.Value(w.people.Invite(ctx, "dan", id, "ann"))(t)
		testkit.Equal(t, "of another one", len(of("dan")), 1)
	})
}

// A list that many have filled keeps taking invitations; whoever has the most loses the
// oldest, so that a friend's one stays.
func TestInvitationsAreBounded(t *testing.T) {
	w := memory(t)
	ctx := w.Context()
	invite := func(inviter string) string {
		id := testkit.Value(w.group(inviter, "cat"))(t)
		testkit.Value(w.people.Invite(ctx, inviter, id, "ann"))(t)
		w.pass(time.Second)
		return id
	}
	friends := invite("dan")
	for i := range 22 {
		u := fmt.Sprint("u", i)
		testkit.Must(t, w.chats.EnsureUser(ctx, u))
		for range 10 {
			invite(u)
		}
	}
	list := testkit.Value(w.people.Invitations(ctx, "ann"))(t)
	testkit.Equal(t, "open", len(list), 200)
	testkit.Equal(t, "limit", people.MaxInvitations, 200)
	for _, i := range list {
		if i.ChatID == friends {
			return
		}
	}
	t.Error("the friend's invitation is gone")
}
