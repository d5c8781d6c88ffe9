package relay

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/kafka"
)

// Nudges beyond the inbox's capacity are not dropped: their chats are marked, and their
// outbox rows are read, without a sweep.
func TestNudgesBeyondCapacityMarkTheirChats(t *testing.T) {
	r := newFixture(t)
	r.room = 10
	ids := []string{r.group(), r.group(), r.group(), r.group()}
	re := r.relay()
	r.must(re.Cycle(r.ctx)) // the first sweep
	r.commits = nil
	for i := range 200 {
		r.send(ids[i%len(ids)])
	}
	for _, c := range r.commits {
		re.Nudge(c)
	}
	if n := re.inbox.events; n > 10 {
		t.Errorf("%d events are kept, expected up to 10", n)
	}
	swept := re.lastSweep
	for n := 0; n == 0 || len(re.inbox.order) > 0; n++ {
		r.must(re.Cycle(r.ctx))
	}
	// Eight events are those of the four creations.
	if s := re.Stats(); s.Dropped != 0 || s.Published != 208 || !re.lastSweep.Equal(swept) {
		t.Fatalf("%+v, swept at %v; expected 208 published, none dropped, no sweep after %v", s, re.lastSweep, swept)
	}
	r.check(false)
}

// A nudge beyond the capacity is as good as one within it, even if it is the last.
func TestLastNudgeBeyondCapacity(t *testing.T) {
	r := newFixture(t)
	r.room = 1
	re := r.relay()
	r.must(re.Cycle(r.ctx))
	r.group()
	for _, c := range r.commits { // two, of one event each
		re.Nudge(c)
	}
	r.must(re.Cycle(r.ctx))
	if s := re.Stats(); s.Published != 2 || s.Dropped != 0 {
		t.Fatalf("%+v, expected 2 published and none dropped", s)
	}
}

// When there is no room even for marks, the relay sweeps at once.
func TestNudgesWithoutRoomForAMarkCauseASweep(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	r.must(re.Cycle(r.ctx))
	for i := range 65_536 { // of chats that the store does not have
		re.Nudge(chat.Commit{ChatID: fmt.Sprint("chat_", i)})
	}
	if n := re.Stats().Dropped; n != 0 {
		t.Fatalf("%d nudges are dropped, expected none yet", n)
	}
	id := r.group()
	re.Nudge(r.commits[len(r.commits)-1])
	if n := re.Stats().Dropped; n != 1 {
		t.Fatalf("%d nudges are dropped, expected the last one", n)
	}
	re.inbox.dequeue(1 << 20) // reading all these chats would be slow
	before := len(r.log)
	r.must(re.pass(r.ctx)) // no time has passed
	if len(r.log) != before+2 || r.log[before].GetChatId() != id {
		t.Fatalf("%d new records, expected the 2 of %s", len(r.log)-before, id)
	}
}

// Nudges in memory are bounded in bytes too.
func TestNudgesOfLargeMessages(t *testing.T) {
	r := newFixture(t)
	re := r.relay()
	text := strings.Repeat("x", 1<<20)
	for i := range 100 {
		m := &eventv1.MessagePersisted{Content: text}
		re.Nudge(chat.Commit{ChatID: fmt.Sprint("chat_", i), Events: []event.Event{m}})
	}
	kept := 0
	for _, w := range re.inbox.chats {
		kept += len(w.commits)
	}
	if kept == 0 || kept > 32 || len(re.inbox.order) != 100 || re.Stats().Dropped != 0 {
		t.Fatalf("%d events of 1 MiB are kept for %d chats, expected 1 to 32 for 100", kept, len(re.inbox.order))
	}
	re.inbox.dequeue(1 << 20)
	if re.inbox.bytes != 0 || re.inbox.events != 0 {
		t.Fatalf("the empty inbox counts %d bytes and %d events, expected 0", re.inbox.bytes, re.inbox.events)
	}
}

// A regular sweep leaves to nudges the events that they bring, and does not read them again.
func TestSweepLeavesNudgesTheirChats(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	re := r.relay()
	reads := &counted{Store: r.store}
	re.cfg.Store = reads
	r.must(re.Cycle(r.ctx))
	*reads = counted{Store: r.store}
	r.send(id)
	re.Nudge(r.commits[len(r.commits)-1])
	r.now = r.now.Add(3 * time.Second)
	r.must(re.Cycle(r.ctx))
	if reads.rows != 0 || len(r.log) != 3 || re.Stats().Backlog != 1 {
		t.Fatalf("%d events were read, expected none; %d records, expected 3; %+v, expected a backlog of 1", reads.rows,
			len(r.log), re.Stats())
	}
}

// The age of the oldest unpublished row is right while a nudge waits, while its transaction
// hangs or has failed, and zero as soon as it is published.
func TestAgeOfTheOldestRow(t *testing.T) {
	r := newFixture(t)
	id := r.group()
	re := r.relay()
	want := func(when string, d time.Duration) {
		t.Helper()
		if got := re.Stats().Oldest; got != d {
			t.Errorf("%s the oldest row is %v old, not %v", when, got, d)
		}
	}
	r.must(re.Cycle(r.ctx))
	r.now = r.now.Add(time.Second)
	want("after a sweep", 0)
	r.send(id)
	re.Nudge(r.commits[len(r.commits)-1])
	r.now = r.now.Add(300 * time.Millisecond)
	want("with a nudge", 300*time.Millisecond)
	publish := re.cfg.Publish
	re.cfg.Publish = Flatten(func(ctx context.Context, records []*kafka.Record) error {
		r.now = r.now.Add(200 * time.Millisecond)
		want("in the transaction", 500*time.Millisecond)
		return context.DeadlineExceeded
	})
	if err := re.Cycle(r.ctx); err == nil {
		t.Fatal("the cycle succeeded, expected the publisher's error")
	}
	r.now = r.now.Add(500 * time.Millisecond)
	want("after a failure", time.Second)
	re.cfg.Publish, re.lastSweep = publish, time.Time{} // as Run does
	r.must(re.Cycle(r.ctx))
	r.now = r.now.Add(time.Second)
	want("once it is published", 0)
}

// The relay is woken by the first nudge and by the one that fills a transaction, not by each
// one that comes while it rests: that would cost as much as a delivery.
func TestWhichNudgesWake(t *testing.T) {
	b := newInbox(100, 5)
	woken := func() bool {
		select {
		case <-b.wake:
			return true
		default:
			return false
		}
	}
	nudge := func(chatID string) {
		if !b.add(chat.Commit{ChatID: chatID, Events: []event.Event{&eventv1.MessagePersisted{}}}, time.Now()) {
			t.Fatal("there is no room")
		}
	}
	for i, want := range []bool{true, false, false, false, true, false, false} {
		if nudge("a"); woken() != want {
			t.Errorf("nudge %d: woken %v, want %v", i+1, !want, want)
		}
	}
	b.dequeue(100)
	for i, want := range []bool{true, false} { // of streams that are read from the outbox
		if !b.wakeUp("b", time.Now()) || woken() != want {
			t.Errorf("stream %d: woken %v, want %v", i+1, !want, want)
		}
	}
	b.dequeue(100)
	if nudge("c"); !woken() {
		t.Error("the first nudge after the inbox was emptied wakes nobody")
	}
}
