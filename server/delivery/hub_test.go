package delivery_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/store/table"
)

func TestLiveToTwoDevices(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	one, two, own := w.open("bob", "", known(id, 0)), w.open("bob", "", known(id, 0)), w.open("alice", "", known(id, 0))
	for i := range 20 {
		w.send("alice", id, fmt.Sprint(i))
	}
	for _, d := range []*device{one, two, own} {
		d.take()
		if d.version[id] != d.newest[id] {
			t.Fatalf("live frames do not follow each other: at %d of %d", d.version[id], d.newest[id])
		}
		d.agrees(id)
	}
}

func TestAdditionReachesOpenStream(t *testing.T) {
	w := newFixture(t, nil)
	d := w.open("bob", "")
	id := w.group(table.All, "alice", "bob")
	w.performWork()
	w.send("alice", id, "hello")
	d.take()
	if d.newest[id] == 0 {
		t.Fatal("bob's stream does not know of the chat")
	}
	d.agrees(id)
}

func TestAdditionToChatWithStreams(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.SinceJoined, "alice", "bob")
	w.open("alice", "", known(id, 0))
	w.send("alice", id, "before")
	d := w.open("carol", "")
	_, err := w.chats.Change(w.ctx, chat.OpAdd,
		chat.MemberChange{Caller: "alice", ChatID: id, UserID: "carol", Role: table.Member})
	w.must(err)
	w.send("alice", id, "after")
	d.take()
	for _, f := range d.frames {
		if f.GetMessage().GetContent() == "before" {
			t.Fatal("a message from before the addition was delivered")
		}
	}
	d.agrees(id)
}

func TestRemovedMemberSeesTheRemovalAndNothingAfter(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob", "carol")
	d := w.open("bob", "", known(id, 0))
	c := w.open("carol", "", known(id, 0))
	w.send("alice", id, "one")
	w.change(chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob"})
	w.send("alice", id, "two")
	w.performWork()
	d.take()
	if !d.left[id] || fmt.Sprint(d.texts[id]) != "[one]" || d.newest[id] != d.version[id] {
		t.Fatalf("left %v, texts %v, newest %d, version %d", d.left[id], d.texts[id], d.newest[id], d.version[id])
	}
	c.agrees(id)
	if _, err := w.chats.Change(w.ctx, chat.OpAdd,
		chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob", Role: table.Member}); err != nil {
		t.Fatal(err)
	}
	w.performWork()
	w.send("alice", id, "three")
	d.agrees(id)
}

// The removal's delivery is lost; the repair brings it although it carries no
// event, because it names the target.
func TestLostRemovalIsRepaired(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	w.deliver = func(delivery.Delivery) {}
	_, err := w.chats.Change(w.ctx, chat.OpAdd,
		chat.MemberChange{Caller: "alice", ChatID: id, UserID: "carol", Role: table.Member})
	w.must(err)
	d := w.open("carol", "", known(id, 0))
	w.change(chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "carol"})
	lost := w.commits[len(w.commits)-1]
	w.send("alice", id, "secret")
	for _, c := range append(w.commits, lost) {
		c.Events = nil
		w.hub.Deliver(c)
	}
	w.performWork()
	d.take()
	if !d.left[id] || len(d.texts[id]) != 0 {
		t.Fatalf("left %v, texts %v", d.left[id], d.texts[id])
	}
}

// A repair announces many changes at once. Those that lie before the chat's first stream
// are not walked, though the last one is: their targets are checked all the same.
func TestRepairOfManyChanges(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	d := w.open("carol", "", known(id, 0)) // who has the chat by other means
	d.left[id] = false
	w.deliver = func(delivery.Delivery) {}
	w.commits = nil
	_, err := w.chats.Change(w.ctx, chat.OpAdd,
		chat.MemberChange{Caller: "alice", ChatID: id, UserID: "carol", Role: table.Member})
	w.must(err)
	w.change(chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "carol"})
	a := w.open("alice", "", known(id, 0))
	w.change(chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob"})
	repair := w.commits[len(w.commits)-1]
	repair.Events = nil
	repair.Targets = []string{"carol", "bob"}
	w.hub.Deliver(repair)
	w.performWork()
	d.take()
	if !d.left[id] {
		t.Fatal("a removed member was sent nothing")
	}
	a.agrees(id)
}

// A hole is made by dropping a delivery that another follows.
func TestHoleIsReadOnce(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	a, b := w.open("alice", "", known(id, 0)), w.open("bob", "", known(id, 0))
	n := 0
	w.deliver = func(d delivery.Delivery) {
		if n++; n%2 == 0 {
			w.hub.Deliver(d)
		}
	}
	for i := range 10 {
		w.send("alice", id, fmt.Sprint(i))
		w.performWork()
	}
	if reads := w.hub.Stats().GapFills; reads != 5 {
		t.Fatalf("%d reads for 5 holes and two streams", reads)
	}
	a.agrees(id)
	b.agrees(id)
}

func TestOrderAndRepetitionDoNotMatter(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	b := w.open("bob", "", known(id, 0))
	var late []delivery.Delivery
	w.deliver = func(d delivery.Delivery) { late = append(late, d) }
	for i := range 200 {
		w.send("alice", id, fmt.Sprint(i))
	}
	for i := len(late) - 1; i >= 0; i-- {
		w.hub.Deliver(late[i])
		w.hub.Deliver(late[i/2])
	}
	w.performWork()
	b.take()
	if b.version[id] != b.newest[id] {
		t.Fatalf("at %d of %d", b.version[id], b.newest[id])
	}
	b.agrees(id)
}

func TestForeignGenerationIsDropped(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	b := w.open("bob", "", known(id, 0))
	w.deliver = func(d delivery.Delivery) { d.Generation = "g0"; w.hub.Deliver(d) }
	w.send("alice", id, "lost")
	w.performWork()
	if b.take(); len(b.texts[id]) != 0 || w.hub.Stats().OtherGeneration != 1 {
		t.Fatalf("texts %v, stats %+v", b.texts[id], w.hub.Stats())
	}
}

func TestSlowStreamEndsWithoutItsNeighbour(t *testing.T) {
	w := newFixture(t, func(c *delivery.Config) { c.Limits.Frames = 50 })
	id := w.group(table.All, "alice", "bob")
	slow, fast := w.open("bob", "", known(id, 0)), w.open("alice", "", known(id, 0))
	for i := range 60 {
		w.send("alice", id, fmt.Sprint(i))
		fast.take()
	}
	slow.take()
	if slow.end != deliveryv1.EndCode_END_CODE_SLOW {
		t.Fatalf("ended with %v", slow.end)
	}
	fast.agrees(id)
	again := w.open("bob", slow.token, known(id, slow.version[id]))
	again.after(slow)
	again.agrees(id)
}

func TestResumeReplaysKnownChats(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	first := w.open("bob", "", known(id, 0))
	w.send("alice", id, "one")
	first.agrees(id)
	w.hub.Close(first.s)
	for i := range 250 {
		w.send("alice", id, fmt.Sprint("missed ", i))
	}
	again := w.open("bob", first.token, known(id, first.version[id]))
	again.after(first)
	w.send("alice", id, "live")
	if again.take(); again.version[id] != again.newest[id] {
		t.Fatalf("at %d of %d", again.version[id], again.newest[id])
	}
	again.agrees(id)
}

func TestTooFarBehindIsReset(t *testing.T) {
	w := newFixture(t, func(c *delivery.Config) { c.MaxReplay = 10 })
	id := w.group(table.All, "alice", "bob")
	for i := range 20 {
		w.send("alice", id, fmt.Sprint(i))
	}
	d := w.open("bob", "", known(id, 1))
	if d.version[id] != 23-1 { // created, added, 20 messages
		t.Fatalf("reset to version %d", d.version[id])
	}
	w.send("alice", id, "live")
	if d.take(); fmt.Sprint(d.texts[id]) != "[live]" {
		t.Fatalf("texts %v", d.texts[id])
	}
}

// Commits fall between each two steps of an opening.
func TestOpeningMissesNothing(t *testing.T) {
	for _, asKnown := range []bool{true, false} {
		w := newFixture(t, nil)
		id := w.group(table.All, "alice", "bob")
		var kn []*deliveryv1.KnownChat
		if asKnown {
			kn = append(kn, known(id, 0))
		}
		d := w.register("bob", "", kn...)
		for done := false; !done; {
			w.send("alice", id, "x")
			var err error
			done, err = d.s.Step(w.ctx)
			w.must(err)
			w.send("alice", id, "y")
			d.take()
		}
		w.performWork()
		d.take()
		d.agrees(id)
	}
}

func TestManyChatsOfOneUser(t *testing.T) {
	w := newFixture(t, nil)
	var ids []string
	for range 1000 {
		ids = append(ids, w.group(table.All, "alice", "bob"))
	}
	w.now = w.now.Add(time.Hour) // more than the overlap of synchronisations
	d := w.open("bob", "")
	for _, id := range ids {
		if d.newest[id] != 2 {
			t.Fatalf("chat %s listed at version %d", id, d.newest[id])
		}
	}
	w.hub.Close(d.s)
	w.send("alice", ids[7], "new")
	d = w.open("bob", d.token)
	heads := 0
	for _, f := range d.frames {
		if f.GetHead() != nil {
			heads++
		}
	}
	if heads != 1 || d.newest[ids[7]] != 3 {
		t.Fatalf("%d heads, newest %d", heads, d.newest[ids[7]])
	}
	for _, id := range ids[:50] {
		w.send("alice", id, "live")
		d.agrees(id)
	}
}

func TestStrangersChatAnswersLeft(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	d := w.open("carol", "", known(id, 0), known("chat_00000000000000000000000000", 5))
	if !d.left[id] || !d.left["chat_00000000000000000000000000"] {
		t.Fatalf("left %v", d.left)
	}
	w.send("alice", id, "secret")
	w.performWork()
	if d.take(); len(d.texts[id]) != 0 {
		t.Fatal("a stranger got a message")
	}
}

// A user has ten streams; the oldest goes for a new one (S-29).
func TestSec_S_29_StreamsOfAUserAreBounded(t *testing.T) {
	w := newFixture(t, nil)
	var all []*device
	for range 11 {
		all = append(all, w.open("bob", ""))
	}
	for i, d := range all {
		d.take()
		if want := i == 0; (d.end == deliveryv1.EndCode_END_CODE_REPLACED) != want {
			t.Fatalf("stream %d ended with %v", i, d.end)
		}
	}
}

func TestAckExtendAndLease(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	d := w.open("bob", "", known(id, 0))
	w.send("alice", id, "one")
	d.take()
	if err := d.s.Ack(d.next); !errors.Is(err, delivery.ErrPosition) {
		t.Fatalf("acknowledging what was not sent: %v", err)
	}
	w.must(d.s.Ack(d.next - 1))
	w.must(d.s.Ack(1))
	w.performWork()
	if rows, err := w.view.UserChatsOf(w.ctx, "bob", []string{id}); err != nil || rows[0].DeliveredSequence != 1 {
		t.Fatalf("delivered %+v, %v", rows[0], err)
	}
	if err := w.hub.Extend("bob", "other session", d.s.ID(), w.now); !errors.Is(err, delivery.ErrNotYours) {
		t.Fatal(err)
	}
	for _, session := range []string{"s", "other session"} {
		if err := w.hub.Extend("alice", session, d.s.ID(), w.now); !errors.Is(err, delivery.ErrStreamGone) {
			t.Fatal(err)
		}
	}
	w.must(w.hub.Extend("bob", "s", d.s.ID(), w.now.Add(2*time.Hour)))
	w.send("alice", id, "two")
	d.take()
	w.now = w.now.Add(80 * time.Second)
	if w.hub.Tick(); d.end != 0 {
		t.Fatal("ended within the lease")
	}
	w.now = w.now.Add(time.Minute)
	w.hub.Tick()
	if d.take(); d.end != deliveryv1.EndCode_END_CODE_SLOW {
		t.Fatalf("ended with %v", d.end)
	}
	if _, err := w.hub.Stream("bob", d.s.ID()); !errors.Is(err, delivery.ErrStreamGone) {
		t.Fatal(err)
	}
}

// Who asks which streams are to be ended does not hold up the others, and those that end
// meanwhile are left alone.
func TestEndRevokedBesideOthers(t *testing.T) {
	w := newFixture(t, nil)
	d, other := w.open("bob", ""), w.open("ann", "")
	w.hub.EndRevoked(func(p auth.Principal) bool {
		w.hub.Close(d.s) // takes the hub's lock
		return p.UserID == "bob"
	})
	if n := w.hub.Stats().Streams; n != 1 {
		t.Errorf("%d streams are open", n)
	}
	other.take()
	if other.end != deliveryv1.EndCode_END_CODE_UNSPECIFIED {
		t.Errorf("another's ended with %v", other.end)
	}
}

// Streams end with their token, with its session, and with the server (S-14).

func TestSec_S_14_ExpiryRevocationDrain(t *testing.T) {
	w := newFixture(t, nil)
	ends := map[deliveryv1.EndCode]func(){
		deliveryv1.EndCode_END_CODE_TOKEN_EXPIRED: func() { w.now = w.now.Add(time.Hour); w.hub.Tick() },
		deliveryv1.EndCode_END_CODE_SESSION_REVOKED: func() {
			w.hub.EndRevoked(func(p auth.Principal) bool { return p.SessionID == "s" })
		},
	}
	for code, end := range ends {
		d := w.open("bob", "")
		end()
		if d.take(); d.end != code {
			t.Fatalf("ended with %v, not %v", d.end, code)
		}
	}
	var all []*device // to be reopened, and not all at once
	for i := range 10 {
		all = append(all, w.open(fmt.Sprint("user", i), ""))
	}
	w.hub.EndAll()
	waits := map[time.Duration]bool{}
	for _, d := range all {
		d.take()
		wait := d.frames[len(d.frames)-1].GetEnd().GetReconnectAfter().AsDuration()
		if waits[wait] = true; d.end != deliveryv1.EndCode_END_CODE_RESYNC || wait >= 10*time.Second {
			t.Errorf("ended with %v, to come back after %v", d.end, wait)
		}
	}
	if len(waits) != len(all) || !waits[0] {
		t.Errorf("they come back after %v", waits)
	}
	d := w.open("bob", "")
	w.hub.Drain(time.Second)
	if d.take(); d.end != deliveryv1.EndCode_END_CODE_DRAIN {
		t.Fatalf("ended with %v", d.end)
	}
	_, err := w.hub.Open(w.ctx, delivery.OpenParams{Principal: auth.Principal{UserID: "bob"}})
	if !errors.Is(err, delivery.ErrDraining) {
		t.Fatal(err)
	}
	if n := w.hub.Stats().Streams; n != 0 {
		t.Fatalf("%d streams are left", n)
	}
}

// A mark set by another device while the stream was closed comes with the opening,
// although no event shows it.
func TestOwnStateOfKnownChat(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	w.send("alice", id, "one")
	w.now = w.now.Add(time.Hour)
	first := w.open("bob", "", known(id, 0))
	w.hub.Close(first.s)
	if _, err := w.chats.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: id, Sequence: 1}); err != nil {
		t.Fatal(err)
	}
	again := w.open("bob", first.token, known(id, first.version[id]))
	for _, f := range again.frames {
		if f.GetMemberState().GetReadSequence() == 1 && f.GetChatId() == id {
			return
		}
	}
	t.Fatalf("frames %v", again.frames)
}
