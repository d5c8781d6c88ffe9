package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store/table"
)

func shortSpread(c *delivery.Config) { c.Spread = 100 * time.Millisecond }

// lose has all deliveries lost from now on.
func (w *fixture) lose() { w.deliver = func(delivery.Delivery) {} }

// showsAll demands that the stream alone brought the device up to date.
func (d *device) showsAll(chatID string) {
	d.w.t.Helper()
	d.take()
	if d.version[chatID] < d.newest[chatID] {
		d.w.t.Fatalf("the stream brought version %d of %d", d.version[chatID], d.newest[chatID])
	}
	d.agrees(chatID)
}

func TestMarkedStreamsFindWhatWasLost(t *testing.T) {
	w := newFixture(t, shortSpread)
	id := w.group(table.All, "alice", "bob")
	a, b := w.open("alice", "", known(id, 0)), w.open("bob", "", known(id, 0))
	w.performWork()
	a.take()
	b.take()
	before := b.token
	w.now = w.now.Add(time.Hour)
	w.lose()
	for i := range 20 {
		w.send("alice", id, fmt.Sprint(i))
	}
	w.performWork()
	b.take()
	if len(b.texts[id]) > 0 {
		t.Fatal("nothing was lost")
	}
	w.hub.InvalidateAll()
	w.performWork()
	a.showsAll(id)
	b.showsAll(id)
	old, err := w.view.Token(w.ctx, "bob", before)
	w.must(err)
	now, err := w.view.Token(w.ctx, "bob", b.token)
	w.must(err)
	if now.At.Sub(old.At) < time.Hour {
		t.Error("the token stayed where it was")
	}
	if s := w.hub.Stats(); s.Invalidations != 1 || s.Resyncs != 2 || s.GapFills != 1 {
		t.Errorf("%d invalidations, %d synchronisations, %d reads of events", s.Invalidations, s.Resyncs, s.GapFills)
	}
}

func TestMarkedStreamsFindLostMemberships(t *testing.T) {
	w := newFixture(t, shortSpread)
	kept, left, again := w.group(table.All, "alice", "bob"), w.group(table.All, "alice", "bob"),
		w.group(table.SinceJoined, "alice", "bob")
	d := w.open("bob", "", known(kept, 0), known(left, 0), known(again, 0))
	w.open("alice", "")
	w.performWork()
	w.lose()
	change := func(id string) chat.MemberChange {
		return chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob", Role: table.Member}
	}
	w.change(chat.OpRemove, change(left))
	w.send("alice", left, "not for bob")
	w.change(chat.OpRemove, change(again))
	w.send("alice", again, "not for bob")
	_, err := w.chats.Change(w.ctx, chat.OpAdd, change(again))
	w.must(err)
	w.send("alice", again, "for bob")
	added := w.group(table.All, "alice", "bob")
	w.hub.InvalidateAll()
	w.performWork()
	d.take()
	for _, f := range d.frames {
		if f.GetMessage().GetContent() == "not for bob" {
			t.Fatal("a message was delivered that was committed while bob was not a member")
		}
	}
	if !d.left[left] || d.left[again] || d.newest[added] == 0 {
		t.Fatalf("left: %v, the new chat at %d", d.left, d.newest[added])
	}
	d.agrees(again)
	d.agrees(added)
	w.deliver = w.hub.Deliver
	for _, id := range []string{kept, again, added} {
		w.send("alice", id, "live again")
		w.performWork()
		d.agrees(id)
	}
}

func TestMarkedStreamsFindLostReceipts(t *testing.T) {
	w := newFixture(t, shortSpread)
	id := w.group(table.All, "alice", "bob")
	w.send("alice", id, "x")
	d := w.open("bob", "")
	w.performWork()
	w.now = w.now.Add(time.Hour)
	// another device's; its echo is lost
	_, err := w.chats.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: id, Sequence: 1})
	w.must(err)
	w.hub.InvalidateAll()
	w.performWork()
	d.take()
	var read int64
	for _, f := range d.frames {
		read = max(read, f.GetMemberState().GetReadSequence())
	}
	if read != 1 {
		t.Error("bob's stream does not learn what bob has read")
	}
}

func TestMarkedWhileOpening(t *testing.T) {
	w := newFixture(t, shortSpread)
	id := w.group(table.All, "alice", "bob")
	d := w.register("bob", "", known(id, 0))
	_, err := d.s.Step(w.ctx)
	w.must(err)
	w.lose()
	added := w.group(table.All, "alice", "bob")
	w.hub.InvalidateAll()
	for done := false; !done; {
		done, err = d.s.Step(w.ctx)
		w.must(err)
	}
	w.performWork()
	d.take()
	if d.newest[added] == 0 {
		t.Error("the opening had read bob's chats before, and nobody looked again")
	}
}

// interrupted has something happen after a read of a user's rows.
type interrupted struct {
	delivery.Source
	after func()
}

func (s *interrupted) UserChats(ctx context.Context, user string) ([]table.UserChat, error) {
	rows, err := s.Source.UserChats(ctx, user)
	if s.after != nil {
		s.after()
	}
	return rows, err
}

// A stream that is marked again starts over: what it has read may be older.
func TestMarkedAgainMeanwhile(t *testing.T) {
	source := &interrupted{}
	w := newFixture(t, func(c *delivery.Config) {
		shortSpread(c)
		source.Source = c.Source
		c.Source = source
	})
	first := w.group(table.All, "alice", "bob")
	d := w.open("bob", "", known(first, 0))
	w.performWork()
	w.lose()
	w.hub.InvalidateAll()
	var added string
	source.after = func() {
		source.after = nil
		added = w.group(table.All, "alice", "bob")
		w.hub.InvalidateAll()
	}
	w.performWork()
	d.take()
	if added == "" || d.newest[added] == 0 {
		t.Error("the second mark was not answered")
	}
	if s := w.hub.Stats(); s.Invalidations != 2 || s.Resyncs != 2 {
		t.Errorf("%d invalidations, %d synchronisations", s.Invalidations, s.Resyncs)
	}
}

// A token must not be given before what it covers.
func TestTokenOfASynchronisationComesLast(t *testing.T) {
	w := newFixture(t, shortSpread)
	id := w.group(table.All, "alice", "bob")
	d := w.open("bob", "", known(id, 0))
	w.performWork()
	d.take()
	w.lose()
	w.send("alice", id, "x")
	added := w.group(table.All, "alice", "bob")
	w.hub.InvalidateAll()
	for range 1000 {
		work, wait, ok := w.hub.Work(w.now)
		if !ok {
			w.now = w.now.Add(max(wait, time.Millisecond))
			continue
		}
		seen := len(d.frames)
		w.must(w.hub.Do(w.ctx, work))
		d.take()
		for _, f := range d.frames[seen:] {
			if f.GetHeartbeat() == nil {
				continue
			}
			if d.version[id] != 3 || d.newest[added] == 0 { // created, bob added, message
				t.Fatalf("the token came at version %d, the new chat at %d", d.version[id], d.newest[added])
			}
			return
		}
	}
	t.Fatal("no token came")
}

// Revoke finds what is open; what is being opened asks after it was registered.
func TestSessionRevokedWhileAStreamOpens(t *testing.T) {
	revoked := false
	var hub *delivery.Hub
	w := newFixture(t, func(c *delivery.Config) {
		c.Revoked = func(p auth.Principal) bool {
			if p.SessionID == "s" && hub.Stats().Streams != 1 {
				t.Error("asked before the stream was registered")
			}
			return revoked
		}
	})
	hub = w.hub
	s, err := hub.Open(w.ctx, delivery.OpenParams{
		Principal: auth.Principal{UserID: "bob", SessionID: "s", ExpiresAt: w.now.Add(time.Hour)},
	})
	w.must(err)
	hub.Close(s)
	revoked = true // just before: Revoke has come and gone
	hub.EndRevoked(func(p auth.Principal) bool { return p.SessionID == "s" })
	if _, err := hub.Open(w.ctx, delivery.OpenParams{
		Principal: auth.Principal{UserID: "bob", SessionID: "s", ExpiresAt: w.now.Add(time.Hour)},
	}); !errors.Is(err, delivery.ErrSessionRevoked) {
		t.Errorf("%v", err)
	}
	if n := hub.Stats().Streams; n != 0 {
		t.Errorf("%d streams are open", n)
	}
}
