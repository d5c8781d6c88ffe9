package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// watched reports every read before it is made, and after it.
type watched struct {
	delivery.Source
	before, after func(read string) error
}

func (s *watched) call(read string, run func() error) error {
	if s.before != nil {
		if err := s.before(read); err != nil {
			return err
		}
	}
	err := run()
	if s.after != nil && err == nil {
		err = s.after(read)
	}
	return err
}

func (s *watched) UserChats(ctx context.Context, user string) (rows []table.UserChat, err error) {
	err = s.call("UserChats", func() error { rows, err = s.Source.UserChats(ctx, user); return err })
	return rows, err
}

func (s *watched) UserChatsOf(ctx context.Context, user string, ids []string) (rows []*table.UserChat, err error) {
	err = s.call("UserChatsOf", func() error { rows, err = s.Source.UserChatsOf(ctx, user, ids); return err })
	return rows, err
}

func (s *watched) Heads(ctx context.Context, ids []string) (heads []*table.Head, err error) {
	err = s.call("Heads", func() error { heads, err = s.Source.Heads(ctx, ids); return err })
	return heads, err
}

func (s *watched) Events(ctx context.Context, id string, after int64, limit int) (events []event.Event, err error) {
	err = s.call("Events", func() error { events, err = s.Source.Events(ctx, id, after, limit); return err })
	return events, err
}

func (s *watched) Overviews(ctx context.Context, user string, ids []string) (list []*chatv1.ChatOverview, err error) {
	err = s.call("Overviews", func() error { list, err = s.Source.Overviews(ctx, user, ids); return err })
	return list, err
}

func watch(s *watched) func(*delivery.Config) {
	return func(c *delivery.Config) {
		shortSpread(c)
		s.Source = c.Source
		c.Source = s
	}
}

// What was read goes out only once it is on stable storage: in every part of an opening,
// in reads of gaps, in synchronisations.
func TestNothingGoesOutBeforeItIsDurable(t *testing.T) {
	source, waits, read := &watched{}, 0, false
	var d *device
	w := newFixture(t, func(c *delivery.Config) {
		watch(source)(c)
		c.Durable = func(context.Context) error {
			if _, frames, _ := d.s.Take(100); len(frames) > 0 {
				t.Errorf("%v is out before it is durable", frames[0].Proto())
			}
			read = false
			waits++
			return nil
		}
	})
	take := func() {
		_, frames, _ := d.s.Take(100)
		if read && len(frames) > 0 {
			t.Errorf("%v is out, nobody has waited until it is durable", frames[0].Proto())
		}
	}
	source.before = func(string) error { take(); return nil }
	source.after = func(string) error { read = true; return nil }
	work := func() {
		for range 1000 {
			item, wait, ok := w.hub.Work(w.now)
			if !ok {
				if w.now = w.now.Add(wait); wait == 0 {
					return
				}
				continue
			}
			w.must(w.hub.Do(w.ctx, item))
			take()
			read = false
		}
	}
	mine, others := w.group(table.All, "alice", "bob"), w.group(table.All, "alice", "bob")
	left := w.group(table.All, "alice", "bob")
	w.change(chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: left, UserID: "bob"})
	ahead := w.group(table.All, "alice", "bob")
	d = w.register("bob", "", known(mine, 1), known(left, 1), known(ahead, 99))
	late := ""
	for done := false; !done; {
		var err error
		done, err = d.s.Step(w.ctx)
		w.must(err)
		take()
		read = false
		if late == "" {
			late = w.group(table.All, "alice", "bob")
		}
	}
	opening := waits
	w.lose()
	w.send("alice", mine, "lost")
	w.deliver = w.hub.Deliver
	w.send("alice", mine, "found")
	w.send("alice", others, "x")
	work()
	gap := waits
	w.lose()
	brief := w.group(table.All, "alice", "bob")
	w.change(chat.OpRemove, chat.MemberChange{Caller: "alice", ChatID: brief, UserID: "bob"})
	repair := w.commits[len(w.commits)-1]
	repair.Events = nil
	w.hub.Deliver(repair)
	work()
	w.send("alice", mine, "lost")
	_, err := w.chats.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: others, Sequence: 1})
	w.must(err)
	w.hub.InvalidateAll()
	work()
	if opening < 5 || gap == opening || waits == gap {
		t.Errorf("%d, %d and %d waits", opening, gap, waits)
	}
}

// Another user's stream cannot be found, though it is open.
func TestStreamOfAnotherUser(t *testing.T) {
	w := newFixture(t, nil)
	d := w.open("bob", "")
	if s, err := w.hub.Stream("bob", d.s.ID()); err != nil || s != d.s {
		t.Errorf("the own stream: %v", err)
	}
	if _, err := w.hub.Stream("alice", d.s.ID()); !errors.Is(err, delivery.ErrStreamGone) {
		t.Errorf("another's open stream: %v", err)
	}
}

// A mute elsewhere changes the user's row alone: a stream with a token shows the chat,
// whether or not the client names it.
func TestOwnRowAloneChanged(t *testing.T) {
	w := newFixture(t, nil)
	id, quiet := w.group(table.All, "alice", "bob"), w.group(table.All, "alice", "bob")
	w.now = w.now.Add(time.Hour)
	first := w.open("bob", "")
	w.hub.Close(first.s)
	w.now = w.now.Add(time.Hour)
	archived := true
	_, err := w.chats.SetMemberSettings(w.ctx,
		chat.MemberSettings{Caller: "bob", ChatID: id, Archived: &archived, Procedure: "archive"})
	w.must(err)
	d := w.open("bob", first.token)
	shown := 0
	for _, f := range d.frames {
		if f.GetHead() != nil {
			shown++
			if f.GetChatId() != id || !f.GetHead().GetOverview().GetState().GetArchived() {
				t.Errorf("shows %v (%s is quiet)", f, quiet)
			}
		}
	}
	if shown != 1 {
		t.Errorf("%d heads", shown)
	}
}

// The time of a token is before the first of the reads that it stands for, however long
// they take.
func TestTokenIsOlderThanTheFirstRead(t *testing.T) {
	source := &watched{}
	w := newFixture(t, watch(source))
	w.group(table.All, "alice", "bob")
	at := func(d *device) time.Time {
		d.take()
		tok, err := w.view.Token(w.ctx, "bob", d.token)
		w.must(err)
		return tok.At
	}
	slow := func(read string) error {
		if read == "UserChats" {
			w.now = w.now.Add(time.Hour)
		}
		return nil
	}
	began := w.now
	source.after = slow
	d := w.open("bob", "")
	if got := at(d); !got.Before(began) || began.Sub(got) > 2*time.Minute {
		t.Errorf("an opening that began at %s has a token of %s", began, got)
	}
	source.after = nil
	w.now = w.now.Add(time.Hour)
	source.after, began = slow, w.now
	w.hub.InvalidateAll()
	w.performWork()
	if got := at(d); !got.Before(began.Add(time.Second)) || began.Sub(got) > 2*time.Minute {
		t.Errorf("a synchronisation that began at %s has a token of %s", began, got)
	}
}

// A receipt that was lost is found by the next synchronisation, however long ago that was,
// and though the clock that stamped it is slow.
func TestOldReceiptsAreFound(t *testing.T) {
	for name, c := range map[string]struct{ slow, since time.Duration }{
		"an hour ago":        {0, time.Hour},
		"by a slow clock":    {75 * time.Second, 0},
		"both at the limits": {80 * time.Second, 20 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, shortSpread)
			id := w.group(table.All, "alice", "bob")
			w.send("alice", id, "x")
			w.now = w.now.Add(time.Hour)
			d := w.open("bob", "")
			w.must(w.hub.Extend("bob", "s", d.s.ID(), w.now.Add(24*time.Hour)))
			w.performWork()
			d.take()
			d.frames = nil
			w.now = w.now.Add(-c.slow)
			archived := true
			_, err := w.chats.SetMemberSettings(w.ctx,
				chat.MemberSettings{Caller: "bob", ChatID: id, Archived: &archived, Procedure: "archive"})
			w.must(err) // its receipt is lost
			w.now = w.now.Add(c.slow + c.since)
			w.hub.InvalidateAll()
			w.performWork()
			d.take()
			for _, f := range d.frames {
				if f.GetMemberState().GetArchived() {
					return
				}
			}
			t.Errorf("frames %v", d.frames)
		})
	}
}

// More changes come while a stream opens than are kept for it, the end of the user's
// membership and a new one among them: what lies in between is not shown.
func TestManyChangesDuringAnOpening(t *testing.T) {
	for _, again := range []bool{true, false} {
		source := &watched{}
		w := newFixture(t, watch(source))
		id := w.group(table.SinceJoined, "alice", "bob")
		w.send("alice", id, "first")
		w.open("alice", "", known(id, 0)) // who has the hub walk the chat
		change := chat.MemberChange{Caller: "alice", ChatID: id, UserID: "bob", Role: table.Member}
		source.before = func(read string) error {
			if read != "Events" { // of the replay: the head was read
				return nil
			}
			source.before = nil
			w.change(chat.OpRemove, change)
			for range 40 {
				w.send("alice", id, "not for bob")
			}
			if again {
				_, err := w.chats.Change(w.ctx, chat.OpAdd, change)
				w.must(err)
			}
			return nil
		}
		d := w.open("bob", "", known(id, 2))
		w.performWork()
		d.take()
		for _, f := range d.frames {
			if f.GetMessage().GetContent() == "not for bob" {
				t.Fatalf("again %t: bob got version %d", again, f.GetVersion())
			}
		}
		if d.left[id] == again || source.before != nil {
			t.Errorf("again %t: left %t", again, d.left[id])
		}
		w.send("alice", id, "live")
		w.performWork()
		if d.take(); (d.newest[id] == 46) != again { // 2 members, 1 + 40 messages, removal, addition, message
			t.Errorf("again %t: newest is %d", again, d.newest[id])
		}
	}
}

// A stream that opens may be ahead of its hub: what the hub catches up with is new for
// the others only.
func TestStreamAheadOfItsHub(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	a := w.open("alice", "", known(id, 0))
	w.lose()
	for i := range 5 {
		w.send("alice", id, fmt.Sprint(i))
	}
	w.deliver = w.hub.Deliver
	b := w.open("bob", "", known(id, 0))
	shown := len(b.texts[id])
	w.send("alice", id, "live")
	w.performWork()
	a.showsAll(id)
	b.showsAll(id)
	if shown != 5 || len(b.texts[id]) != 6 {
		t.Errorf("bob was shown %d, then %d messages", shown, len(b.texts[id]))
	}
}

// A failed read of a stream's part in a chat is repeated, whichever of its reads it
// was.
func TestJoinIsTriedAgain(t *testing.T) {
	for _, which := range []string{"UserChatsOf", "Heads", "Overviews"} {
		source := &watched{}
		w := newFixture(t, watch(source))
		d := w.open("bob", "")
		failures := 0
		source.before = func(read string) error {
			if read == which && failures < 2 {
				failures++
				return store.ErrUnavailable
			}
			return nil
		}
		id := w.group(table.All, "alice", "bob")
		for range 100 {
			item, wait, ok := w.hub.Work(w.now)
			if !ok {
				if w.now = w.now.Add(wait); wait == 0 {
					break
				}
				continue
			}
			if err := w.hub.Do(w.ctx, item); err != nil && !errors.Is(err, store.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		w.send("alice", id, "x")
		if d.take(); failures != 2 || d.newest[id] != 3 {
			t.Errorf("%s failed %d times, bob knows version %d", which, failures, d.newest[id])
		}
	}
}

// What is missing may come by itself for 20 ms.
func TestGapWaits(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	d := w.open("bob", "", known(id, 0))
	w.performWork()
	w.lose()
	w.send("alice", id, "late")
	w.deliver = w.hub.Deliver
	w.send("alice", id, "in time")
	reads := func() int64 {
		if item, _, ok := w.hub.Work(w.now); ok {
			w.must(w.hub.Do(w.ctx, item))
		}
		return w.hub.Stats().GapFills
	}
	if reads() != 0 {
		t.Error("the gap was read at once")
	}
	w.now = w.now.Add(19 * time.Millisecond)
	if reads() != 0 {
		t.Error("the gap was read after 19 ms")
	}
	w.now = w.now.Add(time.Millisecond)
	if reads() != 1 {
		t.Error("the gap was not read after 20 ms")
	}
	d.showsAll(id)
}

// What was shown is not shown again: an older delivery, with content or without, changes
// nothing and costs nothing.
func TestOlderDeliveryChangesNothing(t *testing.T) {
	w := newFixture(t, nil)
	id := w.group(table.All, "alice", "bob")
	d := w.open("bob", "", known(id, 0))
	for i := range 5 {
		w.send("alice", id, fmt.Sprint(i))
	}
	w.performWork()
	d.take()
	before, frames := w.hub.Stats(), len(d.frames)
	for _, c := range w.commits {
		w.hub.Deliver(c)
		c.Events = nil
		w.hub.Deliver(c)
	}
	w.performWork()
	d.take()
	after := w.hub.Stats()
	if len(d.frames) != frames || after.GapFills != before.GapFills || after.MembershipReads != before.MembershipReads ||
		after.Frames != before.Frames {
		t.Errorf("%d frames more, %+v became %+v", len(d.frames)-frames, before, after)
	}
	if after.Duplicates-before.Duplicates != 7 {
		t.Errorf("%d changes are known to be old", after.Duplicates-before.Duplicates)
	}
}

// A stream lives a day, however often it is extended.
func TestLifetime(t *testing.T) {
	w := newFixture(t, nil)
	d := w.open("bob", "")
	w.must(w.hub.Extend("bob", "s", d.s.ID(), w.now.Add(48*time.Hour)))
	w.now = w.now.Add(24*time.Hour - time.Second)
	w.hub.Tick()
	if d.take(); d.end != 0 {
		t.Fatalf("ended with %v before its time", d.end)
	}
	w.now = w.now.Add(time.Second)
	w.hub.Tick()
	if d.take(); d.end != deliveryv1.EndCode_END_CODE_RESYNC {
		t.Errorf("ended with %v after 24 hours", d.end)
	}
}
