package chat_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// 128 callers on one chat: sequence and version have no gaps, and the hook is called
// for every version once and in order.
func TestSendsShareTheQueue(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob", "cat")
		id := w.group(s, "ann", "bob", "cat")
		var wg sync.WaitGroup
		for i := range 128 {
			wg.Go(func() {
				for j := range 4 {
					user := []string{"ann", "bob", "cat"}[(i+j)%3]
					sent, err := s.Send(w.ctx, chat.Send{Caller: user, ChatID: id, Content: fmt.Sprint(i, j)})
					if err != nil || sent.Replayed || sent.ClientMessageID == "" {
						t.Error(sent, err)
					}
				}
			})
		}
		wg.Wait()
		if h := w.head(id); h.Sequence != 512 || h.Version != 515 {
			t.Errorf("head %+v", h)
		}
		w.check()
		w.checkCommits(true)
	})
}

func TestSendAnswersAndStores(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob", "eve")
		id := w.group(s, "ann", "bob")
		text := strings.Repeat("ü", 100)
		sent, err := s.Send(w.ctx, chat.Send{Caller: "bob", ChatID: id, ClientMessageID: "c-1", Content: text,
			ContentType: 1})
		if err != nil || sent.Sequence != 1 || sent.Version != 3 || !strings.HasPrefix(sent.MessageID, "msg_") ||
			sent.ClientMessageID != "c-1" {
			t.Fatal(sent, err)
		}
		h := w.head(id)
		if h.LastSender != "bob" || h.LastSequence != 1 || h.LastPreview != strings.Repeat("ü", 64) ||
			h.ChangedAt != sent.CreatedAt {
			t.Errorf("head %+v", h)
		}
		row := w.userChat("bob", id)
		if row.ReadSequence != 0 || row.OwnCount != 1 || row.OwnLast != 1 || row.ChangedAt != sent.CreatedAt {
			t.Errorf("sender's row %+v", row)
		}
		if row := w.userChat("ann", id); row.ReadSequence != 0 {
			t.Errorf("reader's row %+v", row)
		}
		for name, c := range map[string]struct {
			req  chat.Send
			want error
		}{
			"L-141 non-member":   {chat.Send{Caller: "eve", ChatID: id, Content: "x"}, chat.ErrNotAMember},
			"L-146 no such chat": {chat.Send{Caller: "ann", ChatID: chat.NewID("chat_"), Content: "x"}, chat.ErrNotAMember},
			"no content":         {chat.Send{Caller: "ann", ChatID: id}, chat.ErrInvalidArgument},
			"too much content": {chat.Send{Caller: "ann", ChatID: id, Content: strings.Repeat("x", 16<<10+1)},
				chat.ErrInvalidArgument},
			"no UTF-8":          {chat.Send{Caller: "ann", ChatID: id, Content: "\xff"}, chat.ErrInvalidArgument},
			"separator in user": {chat.Send{Caller: "a#b", ChatID: id, Content: "x"}, chat.ErrInvalidArgument},
			"separator in request": {chat.Send{Caller: "ann", ChatID: id, Content: "x", ClientMessageID: "a#b"},
				chat.ErrInvalidArgument},
			"no chat": {chat.Send{Caller: "ann", Content: "x"}, chat.ErrInvalidArgument},
		} {
			if _, err := s.Send(w.ctx, c.req); !errors.Is(err, c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		w.check()
		w.checkCommits(true)
	})
}

func TestSendReplays(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s, other := w.service("p", st), w.service("q", st)
		w.users(s, "ann", "bob")
		id := w.group(s, "ann", "bob")
		req := chat.Send{Caller: "ann", ChatID: id, ClientMessageID: uuid.NewString(), Content: "hello"}
		first, err := s.Send(w.ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		for _, svc := range []*chat.Service{s, other} {
			again, err := svc.Send(w.ctx, req)
			first.Replayed = true
			if err != nil || again != first {
				t.Errorf("%+v, %v; first %+v", again, err, first)
			}
		}
		req.Content = "other"
		if _, err := s.Send(w.ctx, req); !errors.Is(err, chat.ErrKeyReused) {
			t.Error(err)
		}
		// A member who is gone still gets the answer to what was sent before.
		req.Content, req.Caller = "hello", "bob"
		if first, err = s.Send(w.ctx, req); err != nil || first.Replayed {
			t.Error(first, err)
		}
		if err := changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "bob", ChatID: id}); err != nil {
			t.Fatal(err)
		}
		if again, err := s.Send(w.ctx, req); err != nil || !again.Replayed || again.MessageID != first.MessageID {
			t.Error(again, err)
		}
		req.ClientMessageID = ""
		if _, err := s.Send(w.ctx, req); !errors.Is(err, chat.ErrNotAMember) {
			t.Error(err)
		}
		w.check()
		w.checkCommits(true)
	})
}

// Concurrent repetitions, in two processes, with one of other content: each request
// is stored once and all get the same answer.
func TestConcurrentReplays(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		services := []*chat.Service{w.service("p", st), w.service("q", st)}
		w.users(services[0], "ann", "bob")
		id := w.group(services[0], "ann", "bob")
		const requests, repetitions = 20, 8
		var mu sync.Mutex
		answers := map[string][]chat.Sent{}
		reused := 0
		var wg sync.WaitGroup
		for r := range requests {
			for n := range repetitions {
				wg.Go(func() {
					key, content := fmt.Sprint("r", r), "same"
					if r%4 == 0 && n == 0 {
						content = "other"
					}
					sent, err := services[n%2].Send(w.ctx,
						chat.Send{Caller: "ann", ChatID: id, ClientMessageID: key, Content: content})
					mu.Lock()
					defer mu.Unlock()
					if errors.Is(err, chat.ErrKeyReused) {
						reused++
						return
					}
					if err != nil {
						t.Error(err)
					}
					answers[key] = append(answers[key], sent)
				})
			}
		}
		wg.Wait()
		if reused < requests/4 || w.head(id).Sequence != requests {
			t.Errorf("%d refused, head %+v", reused, w.head(id))
		}
		for key, all := range answers {
			fresh := 0
			for _, a := range all {
				if !a.Replayed {
					fresh++
				}
				if a.MessageID != all[0].MessageID || a.Sequence != all[0].Sequence || a.Version != all[0].Version ||
					a.CreatedAt != all[0].CreatedAt {
					t.Errorf("%s: %+v and %+v", key, a, all[0])
				}
			}
			if fresh != 1 {
				t.Errorf("%s: %d first answers", key, fresh)
			}
		}
		w.check()
		w.checkCommits(true)
	})
}

// A group drops only what failed by itself: members' sends go through beside those
// of strangers and repetitions.
func TestGroupDropsOnlyWhatFailed(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		hold := newGate(st)
		s := w.service("p", hold)
		w.users(s, "ann", "bob", "eve")
		id := w.group(s, "ann", "bob")
		if _, err := s.Send(w.ctx, chat.Send{Caller: "ann", ChatID: id, ClientMessageID: "old", Content: "x"}); err != nil {
			t.Fatal(err)
		}
		hold.close()
		var wg sync.WaitGroup
		send := func(user, key, content string, want error, replayed bool) {
			wg.Go(func() {
				sent, err := s.Send(w.ctx, chat.Send{Caller: user, ChatID: id, ClientMessageID: key, Content: content})
				if !errors.Is(err, want) || (err == nil && sent.Replayed != replayed) {
					t.Errorf("%s %s: %+v, %v", user, key, sent, err)
				}
			})
		}
		send("bob", "first", "x", nil, false) // the leader, whose plan waits at the gate
		hold.waitFor(1)
		send("ann", "old", "x", nil, true)
		send("ann", "old", "y", chat.ErrKeyReused, false)
		send("eve", "a", "x", chat.ErrNotAMember, false)
		send("eve", "b", "x", chat.ErrNotAMember, false)
		for i := range 10 {
			send("ann", fmt.Sprint("n", i), "x", nil, false)
		}
		hold.open()
		wg.Wait()
		if h := w.head(id); h.Sequence != 12 {
			t.Errorf("head %+v", h)
		}
		w.check()
		w.checkCommits(true)
	})
}

// The context of a caller concerns that caller only.
func TestCancelledCallers(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	hold := newGate(w.store)
	s := w.service("p", hold)
	w.users(s, "ann", "bob")
	id := w.group(s, "ann", "bob")
	hold.close()
	ctx, cancel := context.WithCancel(w.ctx)
	var wg sync.WaitGroup
	wg.Go(func() { // the leader: its plan is under way, so it learns how it ended
		if _, err := s.Send(ctx, chat.Send{Caller: "ann", ChatID: id, Content: "leader"}); err != nil {
			t.Error(err)
		}
	})
	hold.waitFor(1)
	var gone sync.WaitGroup
	for i := range 8 {
		gone.Go(func() { // waiters that leave before their turn store nothing
			_, err := s.Send(ctx, chat.Send{Caller: "ann", ChatID: id, Content: fmt.Sprint("gone", i)})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	for range 8 {
		wg.Go(func() {
			if _, err := s.Send(w.ctx, chat.Send{Caller: "bob", ChatID: id, Content: "stays"}); err != nil {
				t.Error(err)
			}
		})
	}
	cancel()
	gone.Wait()
	hold.open()
	wg.Wait()
	if _, err := s.Send(ctx, chat.Send{Caller: "ann", ChatID: id, Content: "x"}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if h := w.head(id); h.Sequence != 9 {
		t.Errorf("head %+v", h)
	}
	w.check()
	w.checkCommits(true)
}

// A leader whose context ends while it would wait for a retry goes, and the others
// of its group are carried out.
func TestLeaderGoesBeforeARetry(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	hold := newGate(w.store)
	s := w.service("p", hold)
	w.users(s, "ann", "bob")
	id := w.group(s, "ann", "bob")
	ctx, cancel := context.WithCancel(w.ctx)
	hold.close()
	var wg sync.WaitGroup
	wg.Go(func() { // keeps the chat busy until the group below has gathered
		if _, err := s.Send(w.ctx, chat.Send{Caller: "ann", ChatID: id, Content: "first"}); err != nil {
			t.Error(err)
		}
	})
	hold.waitFor(1)
	wg.Go(func() {
		_, err := s.Send(ctx, chat.Send{Caller: "ann", ChatID: id, Content: "leader"})
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	for range 8 {
		wg.Go(func() {
			if _, err := s.Send(w.ctx, chat.Send{Caller: "bob", ChatID: id, Content: "stays"}); err != nil {
				t.Error(err)
			}
		})
	}
	hold.failNext(store.ErrConflict, cancel)
	hold.open()
	wg.Wait()
	if h := w.head(id); h.Sequence < 9 {
		t.Errorf("head %+v", h)
	}
	w.check()
	w.checkCommits(true)
}

// A leader that leaves takes neither its group nor the repetitions of its own send
// with it.
func TestRepetitionsOutliveTheLeader(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	hold := newGate(w.store)
	s := w.service("p", hold)
	w.users(s, "ann", "bob")
	id := w.group(s, "ann", "bob")
	for range 20 {
		ctx, cancel := context.WithCancel(w.ctx)
		hold.close()
		var wg sync.WaitGroup
		send := func(ctx context.Context, key string, leaves bool) {
			wg.Go(func() {
				_, err := s.Send(ctx, chat.Send{Caller: "ann", ChatID: id, ClientMessageID: key, Content: "x"})
				if err != nil && (!leaves || !errors.Is(err, context.Canceled)) {
					t.Error(err)
				}
			})
		}
		first := uuid.NewString()
		send(w.ctx, first, false)
		hold.waitFor(1)
		key := uuid.NewString()
		send(ctx, key, true)
		for range 4 {
			send(w.ctx, key, false)
		}
		send(w.ctx, uuid.NewString(), false)
		hold.failNext(store.ErrConflict, cancel)
		hold.open()
		wg.Wait()
		cancel()
	}
	if h := w.head(id); h.Sequence != 60 {
		t.Errorf("head %+v", h)
	}
	w.check()
	w.checkCommits(true)
}

// A panic in a hook or in the store ends the group it happened in, and nothing else.
func TestPanicDoesNotWedgeTheChat(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	hold := newGate(w.store)
	s := w.service("p", hold)
	w.users(s, "ann", "bob")
	id := w.group(s, "ann", "bob")
	hold.failNext(nil, func() { panic("store") })
	if _, err := s.Send(w.ctx, chat.Send{Caller: "ann", ChatID: id, Content: "x"}); !errors.Is(err, chat.ErrPanic) ||
		!strings.Contains(err.Error(), "store") {
		t.Error(err)
	}
	hold.close()
	var wg sync.WaitGroup
	panicked := make(chan struct{}, 64)
	for range 32 {
		wg.Go(func() {
			if _, err := s.Send(w.ctx, chat.Send{Caller: "ann", ChatID: id, Content: "x"}); errors.Is(err, chat.ErrPanic) {
				panicked <- struct{}{}
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	hold.waitFor(1)
	hold.failNext(nil, func() { panic("again") })
	hold.open()
	wg.Wait()
	if _, err := s.Send(w.ctx, chat.Send{Caller: "bob", ChatID: id, Content: "x"}); err != nil {
		t.Error(err)
	}
	if n := len(panicked); n > 24 || w.head(id).Sequence != int64(33-n) {
		t.Errorf("%d panicked, head %+v", n, w.head(id))
	}
	w.check()
	w.checkCommits(true)
}

// A command that a clock a year ahead dated does not date the chat for a year: neither
// its next message nor its place in lists, nor what a user changes for themselves.
func TestAClockThatJumpedDatesNothing(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	now := time.UnixMilli(2_000_000_000_000)
	s := w.service("p", w.store, func(c *chat.Config) { c.Clock = func() time.Time { return now } })
	w.users(s, "ann", "bob")
	id := w.group(s, "ann", "bob")
	now = now.AddDate(1, 0, 0)
	if _, err := s.Send(w.ctx, chat.Send{Caller: "ann", ChatID: id, Content: "in a year"}); err != nil {
		t.Fatal(err)
	}
	now = time.UnixMilli(2_000_000_001_000)
	sent, err := s.Send(w.ctx, chat.Send{Caller: "ann", ChatID: id, Content: "now"})
	if err != nil || sent.CreatedAt != 2_000_000_001_000 {
		t.Errorf("sent at %d, %v", sent.CreatedAt, err)
	}
	if head := w.head(id); head.ChangedAt != 2_000_000_001_000 || head.LastMoved() != 2_000_000_001_000 {
		t.Errorf("the head is %+v", head)
	}
	read, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: id, Sequence: 2})
	if err != nil || read.Row.ChangedAt != 2_000_000_001_000 {
		t.Errorf("bob's row is %+v, %v", read.Row, err)
	}
	archived := true
	own, err := s.SetMemberSettings(w.ctx,
		chat.MemberSettings{Caller: "ann", ChatID: id, Archived: &archived, Procedure: "archive"})
	if err != nil || own.Row.ChangedAt < 2_000_000_001_000 || own.Row.ChangedAt > 2_000_000_002_000 {
		t.Errorf("ann's row is %+v, %v", own.Row, err)
	}
}

// Stamps never go back with a clock that does, by up to five minutes, also over a restart.
func TestStampsNeverGoBack(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	now := time.UnixMilli(2_000_000_000_000)
	clock := func(c *chat.Config) { c.Clock = func() time.Time { return now } }
	s := w.service("p", w.store, clock)
	early := w.service("q", w.store, func(c *chat.Config) {
		c.Clock = func() time.Time { return time.UnixMilli(2_000_000_000_000 - 240_000) }
	})
	w.users(s, "ann", "bob")
	id := w.group(s, "ann", "bob")
	other := w.group(s, "ann", "bob")
	send := func(s *chat.Service, id string) int64 {
		sent, err := s.Send(w.ctx, chat.Send{Caller: "ann", ChatID: id, Content: "x"})
		if err != nil {
			t.Fatal(err)
		}
		return sent.CreatedAt
	}
	first := send(s, id)
	if at := send(early, id); at < first { // the chat's own stamps are the floor
		t.Errorf("%d after %d by a process that is late", at, first)
	}
	now = now.Add(-time.Minute)
	if at := send(s, id); at < first {
		t.Errorf("%d after %d", at, first)
	}
	now = now.Add(3 * time.Minute)
	last := send(s, id)
	now = now.Add(-4 * time.Minute)
	send(s, id) // writes the last stamp down
	again := w.service("p", w.store, clock)
	if at := send(again, other); at < last {
		t.Errorf("%d after %d in another process", at, last)
	}
	it, err := w.store.Get(w.ctx, table.ClockKey(), store.Strong)
	if err != nil || it.Get(table.AttrStamp).Int64() != last {
		t.Errorf("clock %v, %v; last %d", it, err, last)
	}
	w.check()
}
