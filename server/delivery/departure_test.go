package delivery_test

import (
	"context"
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store/table"
)

// counted counts the reads of users' rows of single chats.
type counted struct {
	delivery.Source
	rows int
}

func (s *counted) UserChatsOf(ctx context.Context, user string, ids []string) ([]*table.UserChat, error) {
	s.rows++
	return s.Source.UserChatsOf(ctx, user, ids)
}

// removals counts the frames that say that the device's user has left a chat.
func (d *device) removals(chatID string) (n int) {
	d.take()
	for _, f := range d.frames {
		if m := f.GetMembershipChange(); f.GetChatId() == chatID && m.GetUserId() == d.user() &&
			m.GetKind() == messagev1.MembershipChange_KIND_REMOVED {
			n++
		}
	}
	return n
}

// A removal is shown once, however often it is delivered, by whatever path, and however
// often the stream synchronises; and it is read at most once.
func TestRemovalIsShownOnce(t *testing.T) {
	for name, c := range map[string]struct {
		neighbour bool // the chat has another stream
		live      bool // the removal comes with its event
	}{"walked": {true, true}, "alone": {false, true}, "by repair": {true, false}, "by repair, alone": {false, false}} {
		t.Run(name, func(t *testing.T) {
			source := &counted{}
			w := newFixture(t, func(cfg *delivery.Config) {
				shortSpread(cfg)
				source.Source = cfg.Source
				cfg.Source = source
			})
			id := w.group(table.All, "alice", "bob")
			d := w.open("bob", "", known(id, 0))
			if c.neighbour {
				w.open("alice", "", known(id, 0))
			}
			w.performWork()
			if !c.live {
				w.lose()
			}
			w.change(chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob"})
			for range 3 {
				w.send("alice", id, "x")
			}
			repair := w.commits[len(w.commits)-1]
			repair.Events, repair.Targets = nil, []string{"alice", "bob"}
			log := w.commits // read again from its beginning
			for i := range log {
				log[i].Events = nil
			}
			w.hub.Deliver(repair)
			w.performWork()
			if n := d.removals(id); n != 1 {
				t.Fatalf("%d frames of the removal", n)
			}
			source.rows = 0
			for range 100 {
				w.hub.Deliver(repair)
				w.performWork()
				for _, again := range log {
					w.hub.Deliver(again)
					w.performWork()
				}
			}
			if n := d.removals(id); n != 1 || source.rows > 1 {
				t.Errorf("%d frames of the removal, %d reads, after 100 repetitions", n, source.rows)
			}
			source.rows = 0
			for range 20 {
				w.hub.InvalidateAll()
				w.performWork()
				w.now = w.now.Add(time.Second)
			}
			if n := d.removals(id); n != 1 || source.rows > 0 && !c.neighbour {
				t.Errorf("%d frames of the removal, %d reads, after 20 synchronisations", n, source.rows)
			}
		})
	}
}

// Whoever was notified of a removal is notified of the next addition and the next removal,
// whichever of their deliveries are lost.
func TestRemovalAfterRemoval(t *testing.T) {
	for lost := range 8 {
		w := newFixture(t, nil)
		id := w.group(table.All, "alice", "bob")
		d := w.open("bob", "", known(id, 0))
		w.open("alice", "", known(id, 0))
		w.performWork()
		change := chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob", Role: table.Member}
		n := 0
		w.deliver = func(c delivery.Delivery) {
			if lost&(1<<n) == 0 {
				w.hub.Deliver(c)
			}
			n++
		}
		repair := func() {
			c := w.commits[len(w.commits)-1]
			c.Events = nil
			w.hub.Deliver(c)
			w.performWork()
			d.take()
		}
		w.change(chat.OpRemove, change)
		repair()
		if !d.left[id] {
			t.Fatalf("lost %b: the first removal was not shown", lost)
		}
		_, err := w.chats.Change(w.ctx, chat.OpAdd, change)
		w.must(err)
		repair()
		if d.left[id] {
			t.Fatalf("lost %b: the addition was not shown", lost)
		}
		d.agrees(id)
		w.change(chat.OpRemove, change)
		repair()
		if !d.left[id] {
			t.Fatalf("lost %b: the second removal was not shown", lost)
		}
	}
}

// A removal that finds no room ends the stream like any other frame: whoever was to be
// notified must come again.
func TestRemovalThatFindsNoRoomEndsTheStream(t *testing.T) {
	w := newFixture(t, func(c *delivery.Config) { c.Limits.Frames = 5 })
	id := w.group(table.All, "alice", "bob")
	d := w.open("bob", "", known(id, 2))
	a := w.open("alice", "", known(id, 2))
	for range 5 {
		w.send("alice", id, "x")
		a.take()
	}
	w.change(chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob"})
	w.performWork()
	if d.take(); d.end != deliveryv1.EndCode_END_CODE_SLOW || d.left[id] {
		t.Errorf("ended with %v, notified of the removal: %t", d.end, d.left[id])
	}
}

// The hub walks the chat again, from a version on that lies beyond an addition that never
// came: it knows nothing of what the removed user's stream has missed.
func TestAdditionBeforeTheHubWalks(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	d := w.open("bob", "", known(id, 0))
	change := chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob", Role: table.Member}
	w.change(chat.OpRemove, change)
	w.performWork()
	d.take()
	w.lose()
	_, err := w.chats.Change(w.ctx, chat.OpAdd, change)
	w.must(err)
	repair := w.commits[len(w.commits)-1]
	repair.Events, repair.MembershipVersion = nil, 0 // nor does the member list help
	w.open("alice", "", known(id, 0))
	w.hub.Deliver(repair)
	w.performWork()
	if d.take(); d.left[id] {
		t.Error("bob does not learn of the addition")
	}
	d.agrees(id)
}
