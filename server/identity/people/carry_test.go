package people_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/identity/people"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
	rows "github.com/parley-chat/parley/server/store/table/people"
)

// departures stand before the chats of a world.
type departures struct {
	people.Chats
	before func(id string) error
}

func (d *departures) Depart(ctx context.Context, user, id string) error {
	if err := d.before(id); err != nil {
		return err
	}
	return d.Chats.Depart(ctx, user, id)
}

// A chat that cannot be left keeps neither the account in the others nor its sessions alive.
// It is tried again, less and less often, until it is left.
func TestOneBadChat(t *testing.T) {
	w := memory(t)
	ctx := w.Context()
	var ids []string
	for range 4 {
		ids = append(ids, testkit.Value(w.group("bob", "ann"))(t))
	}
	erased, tries := 0, 0
	bad := &departures{w.chats, func(id string) error {
		if id != min(ids[0], ids[1], ids[2], ids[3]) {
			return nil
		}
		tries++
		return errors.New("this chat's rows are damaged")
	}}
	w.people = w.service(func(c *people.Config) {
		c.Chats = bad
		c.Erase = []func(context.Context, string) error{
			func(context.Context, string) error { return errors.New("away") },
			func(context.Context, string) error { erased++; return nil }}
	})
	testkit.Must(t, w.people.Block(ctx, "ann", "dan"))
	testkit.Must(t, w.people.Delete(ctx, "ann", "ann"))
	in := func() (n int) {
		for _, id := range ids {
			if w.role(id, "ann") != "" {
				n++
			}
		}
		return n
	}
	if w.people.Sweep(ctx) == nil {
		t.Error("a chat that cannot be left is not reported")
	}
	if in() != 1 || erased != 1 || ofAccount(w, "ann") != "[profile]" {
		t.Errorf("still in %d of 4 groups, erased %d times, rows %s", in(), erased, ofAccount(w, "ann"))
	}
	for range 24 * 60 { // a day
		w.pass(time.Minute)
		_ = w.people.Sweep(ctx)
	}
	if tries < 8 || tries > 14 {
		t.Errorf("tried %d times in a day", tries)
	}
	other := w.service()
	for _, s := range []*people.Service{w.people, other} {
		_ = s.Sweep(ctx)
		testkit.Equal(t, "deletions that fail", s.FailingDeletions(), 1)
	}
	bad.before = func(string) error { return nil }
	w.people = w.service()
	w.pass(6 * time.Hour)
	testkit.Must(t, w.people.Sweep(ctx))
	page := testkit.Value(w.spy.Query(ctx, rows.Deletions()))(t)
	if in() != 0 || len(page.Rows) != 0 || w.people.FailingDeletions() != 0 {
		t.Errorf("in %d groups, %d deletions are open, %d fail", in(), len(page.Rows), w.people.FailingDeletions())
	}
}

// A group that says it has members whom it has not holds no deletion: the count is corrected,
// and the last member stays.
func TestDepartureOfAWrongCount(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		id := testkit.Value(w.group("ann", "bob"))(t)
		testkit.Must(t, w.spy.Transact(ctx, store.Plan{Writes: []store.Write{
			{Op: store.OpDelete, Key: table.MembershipKey(id, "bob"), Name: "damage"}}}))
		testkit.Must(t, w.people.Delete(ctx, "ann", "ann"))
		testkit.Must(t, w.chats.Depart(ctx, "ann", id))
		row := table.ChatFrom(id, testkit.Value(w.spy.Get(ctx, table.ChatKey(id), store.Strong))(t))
		if w.role(id, "ann") != table.Owner || row.MemberCount != 1 {
			t.Errorf("ann is %q of %d", w.role(id, "ann"), row.MemberCount)
		}
	})
}

// Two processes do not carry out one deletion at once, however long it takes; one that was
// away for too long leaves it to the other.
func TestDeletionIsOneProcesss(t *testing.T) {
	for name, c := range map[string]struct {
		step   time.Duration // that each departure takes
		others int           // departures by the other process
	}{"slow": {40 * time.Second, 0}, "away": {2 * time.Minute, 5}} {
		w := memory(t)
		ctx := w.Context()
		for range 5 {
			testkit.Value(w.group("bob", "ann"))(t)
		}
		others, inside := 0, false
		other := w.service(func(p *people.Config) {
			p.Chats = &departures{w.chats, func(string) error { others++; return nil }}
		})
		w.people = w.service(func(p *people.Config) {
			p.Chats = &departures{w.chats, func(string) error {
				if inside {
					t.Errorf("%s: it runs beside the other", name)
				}
				w.pass(c.step)
				_, plans := w.spy.count(func() { testkit.Must(t, other.Sweep(ctx)) })
				if inside = c.others > 0; !inside && plans != 0 {
					t.Errorf("%s: the other makes %d plans", name, plans)
				}
				return nil
			}}
		})
		testkit.Must(t, w.people.Delete(ctx, "ann", "ann"))
		testkit.Must(t, w.people.Sweep(ctx))
		testkit.Equal(t, name+": departures by the other", others, c.others)
	}
}

// Answers that are lost while a deletion is taken, or completed, change nothing.
func TestDeletionsAndLostAnswers(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		id := testkit.Value(w.group("bob", "ann", "cat"))(t)
		testkit.Must(t, w.people.Delete(ctx, "ann", "ann"))
		for _, after := range []time.Duration{0, 16 * time.Minute} {
			w.pass(after)
			w.spy.lose.Store(4)
			testkit.Must(t, w.people.Sweep(ctx))
		}
		page := testkit.Value(w.spy.Query(ctx, rows.Deletions()))(t)
		if w.role(id, "ann") != "" || len(page.Rows) != 0 {
			t.Errorf("ann is %q, %d deletions are open", w.role(id, "ann"), len(page.Rows))
		}
	})
}

// Neither of the two of a direct chat sends once one has deleted the account, whatever the
// tokens say, and no end of a block opens it again.
func TestDirectChatsAreClosed(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		pair := testkit.Value(w.direct("ann", "bob"))(t)
		for _, u := range []string{"ann", "bob"} {
			testkit.Must(t, w.send(pair, u, "hello"))
		}
		testkit.Must(t, w.people.Block(ctx, "bob", "ann"))
		testkit.Must(t, w.people.Delete(ctx, "ann", "ann"))
		testkit.Must(t, w.people.Sweep(ctx))
		refused(t, "a deleted account", w.send(pair, "ann", "I am gone"), "NOT_REACHABLE")
		testkit.Must(t, w.people.Unblock(ctx, "bob", "ann"))
		for range 2 {
			refused(t, "a deleted account", w.send(pair, "ann", "I am gone"), "NOT_REACHABLE")
			refused(t, "to a deleted account", w.send(pair, "bob", "are you?"), "NOT_REACHABLE")
			if err := w.people.Block(ctx, "ann", "bob"); !errors.Is(err, people.ErrUnknown) {
				t.Errorf("a deleted account blocks: %v", err)
			}
		}
		w.pass(16 * time.Minute)
		_, plans := w.spy.count(func() { testkit.Must(t, w.people.Sweep(ctx)) })
		testkit.Equal(t, "plans of the last sweep", plans, 2)
	})
}

// What cannot be undone wants a sign-in of the last ten minutes: of the session, however new
// its token is, or of a token without one here.
func TestRecentSignIn(t *testing.T) {
	engines(t, func(w *fixture) {
		ctx := w.Context()
		now := w.clock()
		session := rows.Session{UserID: "ann", SessionID: "ses_1", CreatedAt: now.UnixMilli(), UsedAt: now.UnixMilli(),
			ExpiresAt: now.Add(time.Hour).Unix()}
		testkit.Must(t, w.spy.BatchWrite(ctx, []store.Write{
			{Op: store.OpPut, Key: rows.SessionKey("ann", "ses_1"), Item: session.Item()}}))
		for _, c := range []struct {
			session string
			issued  time.Duration // ago
			after   time.Duration
			want    error
		}{
			{"ses_1", 0, 0, nil}, {"ses_2", 10 * time.Minute, 0, nil}, {"", 0, 0, nil},
			{"ses_2", 10*time.Minute + time.Second, 0, people.ErrSignInTooOld},
			{"", 10*time.Minute + time.Second, 0, people.ErrSignInTooOld},
			{"ses_1", 0, 10 * time.Minute, nil}, {"ses_1", 0, time.Second, people.ErrSignInTooOld},
			{"ses_2", 0, 0, nil},
		} {
			w.pass(c.after)
			if err := w.people.Recent(ctx, "ann", c.session, w.clock().Add(-c.issued)); !errors.Is(err, c.want) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	})
}
