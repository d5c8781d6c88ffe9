package chat_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
)

// plans counts the plans of a store, and those that failed.
type plans struct {
	store.Store
	mu          sync.Mutex
	all, failed int
}

func (p *plans) Transact(ctx context.Context, pl store.Plan) error {
	err := p.Store.Transact(ctx, pl)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !isClock(pl) {
		p.all++
		if err != nil {
			p.failed++
		}
	}
	return err
}

// during returns how many plans do made, and how many of them failed.
func (p *plans) during(do func()) (all, failed int) {
	p.mu.Lock()
	all, failed = p.all, p.failed
	p.mu.Unlock()
	do()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all - all, p.failed - failed
}

// Whoever has no right to something is refused beside the queue: while a chat's plan
// is stuck, everybody gets an answer who may not add to it, send to it or change it,
// also who was a member and knows it, and nobody waits.
func TestRefusalsDoNotQueue(t *testing.T) {
	w := newFixture(t, storetest.NewMemory(time.Now))
	hold := newGate(w.store)
	s := w.service("p", hold)
	w.users(s, "ann", "amy", "bob", "cat", "eve", "new")
	id := w.group(s, "ann", "amy", "bob", "cat")
	if _, err := s.Change(w.ctx, chat.OpRole,
		chat.MemberChange{Caller: "ann", ChatID: id, UserID: "amy", Role: table.Admin}); err != nil {
		t.Fatal(err)
	}
	w.send(s, id, "cat", "was here")
	if err := changeMember(w.ctx, s, chat.OpRemove,
		chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat"}); err != nil {
		t.Fatal(err)
	}
	hold.close()
	var stuck sync.WaitGroup
	stuck.Go(func() { w.send(s, id, "ann", "x") })
	hold.waitFor(1)
	name := "other"
	add := func(caller string, role table.Role) error {
		_, err := s.Change(w.ctx, chat.OpAdd, chat.MemberChange{Caller: caller, ChatID: id, UserID: "new", Role: role})
		return err
	}
	change := func(caller string) error {
		_, _, err := s.UpdateChat(w.ctx, chat.ChatChange{Caller: caller, ChatID: id, Name: &name})
		return err
	}
	send := func(caller string) error {
		_, err := s.Send(w.ctx, chat.Send{Caller: caller, ChatID: id, Content: "x"})
		return err
	}
	role := func(caller string) error {
		_, err := s.Change(w.ctx, chat.OpRole,
			chat.MemberChange{Caller: caller, ChatID: id, UserID: "amy", Role: table.Member})
		return err
	}
	var refused sync.WaitGroup
	for _, x := range []struct {
		what string
		do   func() error
		want error
	}{
		{"a removed member adds", func() error { return add("cat", table.Member) }, chat.ErrNotAMember},
		{"a removed member sends", func() error { return send("cat") }, chat.ErrNotAMember},
		{"a stranger adds", func() error { return add("eve", table.Member) }, chat.ErrNotAMember},
		{"a stranger sends", func() error { return send("eve") }, chat.ErrNotAMember},
		{"a stranger renames", func() error { return change("eve") }, chat.ErrNotAMember},
		{"a stranger removes", func() error { return remove("bob")(w, s, id, "eve") }, chat.ErrNotAMember},
		{"a member adds", func() error { return add("bob", table.Member) }, chat.ErrForbidden},
		{"a member renames", func() error { return change("bob") }, chat.ErrForbidden},
		{"a member removes", func() error { return remove("amy")(w, s, id, "bob") }, chat.ErrForbidden},
		{"a member gives a role", func() error { return role("bob") }, chat.ErrForbidden},
		{"an admin gives a role", func() error { return role("amy") }, chat.ErrForbidden},
		{"an admin adds an admin", func() error { return add("amy", table.Admin) }, chat.ErrForbidden},
		{"an admin removes the owner", func() error { return remove("ann")(w, s, id, "amy") }, chat.ErrInvalidOperation},
		{"the owner leaves", func() error {
			return changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "ann", ChatID: id})
		}, chat.ErrInvalidOperation},
		{"somebody completes a group that is complete", func() error { return s.FinishPending(w.ctx, id) }, nil},
	} {
		for range 20 {
			refused.Go(func() {
				if err := x.do(); !errors.Is(err, x.want) {
					t.Errorf("%s: %v", x.what, err)
				}
			})
		}
	}
	refused.Wait() // with the plan still stuck
	hold.open()
	stuck.Wait()
	w.check()
}

// A stranger's message fails nobody's plan; one of a member whose membership another
// process ended fails one, and no other.
func TestStrangersShareNoPlan(t *testing.T) {
	w := newFixture(t, storetest.NewMemory(time.Now))
	count := &plans{Store: w.store}
	hold := newGate(count)
	s, other := w.service("p", hold), w.service("q", w.store)
	w.users(s, "ann", "bob", "cat", "eve")
	id := w.group(s, "ann", "bob", "cat")
	together := func(want error, who string) (all, failed int) {
		t.Helper()
		return count.during(func() {
			hold.close()
			var wg sync.WaitGroup
			wg.Go(func() { w.send(s, id, "ann", "first") })
			hold.waitFor(1)
			for i := range 6 {
				wg.Go(func() { w.send(s, id, "bob", fmt.Sprint(i)) })
			}
			wg.Go(func() {
				if _, err := s.Send(w.ctx, chat.Send{Caller: who, ChatID: id, Content: "x"}); !errors.Is(err, want) {
					t.Errorf("%s: %v", who, err)
				}
			})
			s.WaitFor(id, map[bool]int{true: 6, false: 7}[who == "eve"])
			hold.open()
			wg.Wait()
		})
	}
	if all, failed := together(chat.ErrNotAMember, "eve"); all != 2 || failed != 0 {
		t.Errorf("%d plans, %d of them failed beside a stranger's message", all, failed)
	}
	if all, failed := together(nil, "cat"); all != 2 || failed != 0 {
		t.Errorf("%d plans, %d of them failed", all, failed)
	}
	if err := changeMember(w.ctx, other, chat.OpLeave, chat.MemberChange{Caller: "cat", ChatID: id}); err != nil {
		t.Fatal(err)
	}
	w.send(s, id, "bob", "learns of the head")
	if all, failed := together(chat.ErrNotAMember, "cat"); all != 3 || failed != 1 {
		t.Errorf("%d plans, %d of them failed beside the message of one who left elsewhere", all, failed)
	}
	if all, failed := count.during(func() {
		for range 10 {
			if _, err := s.Send(w.ctx, chat.Send{Caller: "cat", ChatID: id, Content: "x"}); !errors.Is(err, chat.ErrNotAMember) {
				t.Error(err)
			}
		}
	}); all != 0 || failed != 0 {
		t.Errorf("%d plans were made for one who is known to have left", all)
	}
	w.check()
}

// A member's repetition fails a shared plan once; for ten seconds after that what this
// member sends there is looked up first, and answered apart.
func TestRepetitionsShareNoPlanTwice(t *testing.T) {
	var mu sync.Mutex
	now := time.Now()
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	w := newFixture(t, storetest.NewMemory(clock))
	count := &plans{Store: w.store}
	hold := newGate(count)
	s := w.service("p", hold, func(c *chat.Config) { c.Clock = clock })
	w.users(s, "ann", "bob", "cat")
	id := w.group(s, "ann", "bob", "cat")
	old := chat.Send{Caller: "cat", ChatID: id, Content: "x", ClientMessageID: "old"}
	if _, err := s.Send(w.ctx, old); err != nil {
		t.Fatal(err)
	}
	beside := func(queued int) (failed int) {
		t.Helper()
		_, failed = count.during(func() {
			hold.close()
			var wg sync.WaitGroup
			wg.Go(func() { w.send(s, id, "ann", "first") })
			hold.waitFor(1)
			wg.Go(func() { w.send(s, id, "bob", "beside") })
			wg.Go(func() {
				if sent, err := s.Send(w.ctx, old); err != nil || !sent.Replayed || sent.Sequence != 1 {
					t.Errorf("%+v, %v", sent, err)
				}
			})
			s.WaitFor(id, queued)
			hold.open()
			wg.Wait()
		})
		return failed
	}
	if failed := beside(2); failed != 1 {
		t.Errorf("%d plans failed", failed)
	}
	for range 3 {
		if failed := beside(1); failed != 0 {
			t.Errorf("%d plans failed for a known repeater", failed)
		}
		w.send(s, id, "cat", "something new, which does not clear the repeater")
	}
	other := old
	other.Content = "y"
	if _, err := s.Send(w.ctx, other); !errors.Is(err, chat.ErrKeyReused) {
		t.Error(err)
	}
	mu.Lock()
	now = now.Add(11 * time.Second)
	mu.Unlock()
	w.send(s, id, "cat", "looked up for the last time")
	if failed := beside(2); failed != 1 {
		t.Errorf("%d plans failed later", failed)
	}
	w.check()
}

// A member sends without a read from the first message on in a chat that this process
// put them in, and after one read in every other.
func TestWhatASendReads(t *testing.T) {
	w := newFixture(t, storetest.NewMemory(time.Now))
	count := &counter{Store: w.store}
	s := w.service("p", count)
	w.users(s, "ann", "bob")
	id := w.group(s, "ann", "bob")
	calls := func(s *chat.Service, who string) int64 {
		before := count.calls.Load()
		w.send(s, id, who, "x")
		return count.calls.Load() - before
	}
	for _, who := range []string{"ann", "bob", "ann", "bob"} {
		if n := calls(s, who); n != 1 {
			t.Errorf("%s: %d calls", who, n)
		}
	}
	again := w.service("q", count)
	w.users(again, "ann")
	for i, want := range []int64{3, 1, 1} { // the sender, the head, the plan; then the plan alone
		if n := calls(again, "bob"); n != want {
			t.Errorf("send %d of another process: %d calls, not %d", i, n, want)
		}
	}
}

// A program that asks again and again for what it is refused takes no time away from
// others: four of its requests are looked up at a time, each for five milliseconds at
// least, so that a hundred at once cost 800 look-ups a second, and a member nothing.
func TestRefusalsAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t, storetest.NewMemory(time.Now))
		count := &counter{Store: w.store}
		s := w.service("p", count, func(c *chat.Config) { c.Sleep = nil })
		w.users(s, "ann", "bob", "eve")
		id := w.group(s, "ann", "bob")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		before := count.calls.Load()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				for ctx.Err() == nil {
					var err error
					if i%2 == 0 {
						_, err = s.Send(ctx, chat.Send{Caller: "eve", ChatID: id, Content: "x"})
					} else {
						_, err = s.Change(ctx, chat.OpAdd,
							chat.MemberChange{Caller: "eve", ChatID: id, UserID: "eve", Role: table.Member})
					}
					if !errors.Is(err, chat.ErrNotAMember) && ctx.Err() == nil {
						t.Error(err)
					}
				}
			})
		}
		for range 100 {
			time.Sleep(7 * time.Millisecond)
			began := time.Now()
			w.send(s, id, "bob", "x")
			if took := time.Since(began); took != 0 {
				t.Errorf("a member's send took %v", took)
			}
		}
		wg.Wait()
		// A send that is refused takes two calls, a change without a request id one.
		if n := count.calls.Load() - before - 100; n < 600 || n > 2*800+16 {
			t.Errorf("a stranger made the store answer %d calls in a second", n)
		}
	})
}

// A user has so many requests under way for a chat, and in all; others are not
// concerned.
func TestBusy(t *testing.T) {
	w := newFixture(t, storetest.NewMemory(time.Now))
	hold := newGate(w.store)
	s := w.service("p", hold, func(c *chat.Config) { c.PerChat, c.PerCaller = 4, 6 })
	w.users(s, "ann", "bob", "cat")
	id, second, third := w.group(s, "ann", "bob"), w.group(s, "ann", "bob"), w.group(s, "ann", "bob")
	hold.close()
	var wg sync.WaitGroup
	for i, chatID := range []string{id, id, id, id, second, second} {
		wg.Go(func() { w.send(s, chatID, "bob", fmt.Sprint(i)) })
	}
	s.WaitFor(id, 3)
	s.WaitFor(second, 1)
	for _, do := range []func() error{
		func() error { _, err := s.Send(w.ctx, chat.Send{Caller: "bob", ChatID: id, Content: "x"}); return err },
		func() error {
			_, err := s.Send(w.ctx, chat.Send{Caller: "bob", ChatID: third, Content: "x"})
			return err
		},
		func() error {
			return changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "bob", ChatID: third})
		},
		func() error {
			_, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: third, Sequence: 1})
			return err
		},
		func() error {
			_, err := s.SetMemberSettings(w.ctx,
				chat.MemberSettings{Caller: "bob", ChatID: third, MutedUntil: new(int64), Procedure: "unmute"})
			return err
		},
		func() error {
			_, err := s.CreateGroup(w.ctx, chat.CreateGroup{Caller: "bob", Name: "g", Members: []string{"ann"}})
			return err
		},
		func() error {
			_, err := s.CreateDirect(w.ctx, chat.CreateDirect{Caller: "bob", Other: "ann"})
			return err
		},
	} {
		if err := do(); !errors.Is(err, chat.ErrBusy) {
			t.Error(err)
		}
	}
	wg.Go(func() { w.send(s, id, "ann", "not concerned") })
	s.WaitFor(id, 4)
	hold.open()
	wg.Wait()
	w.send(s, third, "bob", "free again")
	w.check()
}

// A plan is not repeated at any age: its stamp would lie too far back for those who
// synchronise from a later one. After 21 seconds in which the store takes nothing, the
// command ends, and its repetition makes another plan.
func TestPlansDoNotGrowOld(t *testing.T) {
	now := time.UnixMilli(2_000_000_000_000)
	clock := func() time.Time { return now }
	w := newFixture(t, storetest.NewMemory(clock))
	oldest := time.Duration(0)
	healthy := now.Add(21 * time.Second)
	watch := &watched{Store: w.store, see: func(p store.Plan) error {
		for _, wr := range p.Writes {
			if wr.Key.Table == store.Messages {
				at := table.Message{}
				if m, err := table.MessageFrom(store.Row{Key: wr.Key, Item: wr.Item}); err == nil {
					at = m
				}
				oldest = max(oldest, now.Sub(time.UnixMilli(at.CreatedAt)))
				if now.Before(healthy) {
					return store.ErrThrottled
				}
			}
		}
		return nil
	}}
	s := w.service("p", watch, func(c *chat.Config) {
		c.Clock = clock
		c.Sleep = func(context.Context, time.Duration) error { now = now.Add(900 * time.Millisecond); return nil }
	})
	w.users(s, "ann", "bob")
	id := w.group(s, "ann", "bob")
	r := chat.Send{Caller: "ann", ChatID: id, Content: "x", ClientMessageID: "c"}
	sent, err := s.Send(w.ctx, r)
	for errors.Is(err, store.ErrThrottled) {
		now = now.Add(time.Second)
		sent, err = s.Send(w.ctx, r)
	}
	if err != nil || sent.Replayed {
		t.Fatal(sent, err)
	}
	if age := now.Sub(time.UnixMilli(sent.CreatedAt)); age > 20*time.Second || oldest > 20*time.Second ||
		oldest < 15*time.Second {
		t.Errorf("a plan was sent %v after its stamp, and the message stored after %v", oldest, age)
	}
}

// watched shows plans to a test, which may refuse them.
type watched struct {
	store.Store
	see func(store.Plan) error
}

func (w *watched) Transact(ctx context.Context, p store.Plan) error {
	if err := w.see(p); err != nil {
		return err
	}
	return w.Store.Transact(ctx, p)
}

// While members are on their way in, a count says nothing, though the stored one is
// damaged: counting members alone would "correct" it.
func TestCountWhilePending(t *testing.T) {
	w := newFixture(t, storetest.NewMemory(time.Now))
	dying := &crash{Store: w.store}
	dying.left.Store(1)
	s := w.service("p", w.store)
	w.users(s, "ann", "bob", "cat")
	c, err := w.service("d", dying).CreateGroup(w.ctx,
		chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob", "cat"}})
	if err != nil || c.Incomplete == nil {
		t.Fatal(c, err)
	}
	before := w.head(c.ChatID)
	found, err := s.CheckCount(w.ctx, c.ChatID)
	if err != nil || found != (chat.Count{Stored: 3, Counted: 3}) || w.head(c.ChatID) != before {
		t.Errorf("%+v, %v", found, err)
	}
	if err := s.FinishPending(w.ctx, c.ChatID); err != nil {
		t.Fatal(err)
	}
	if found, err = s.CheckCount(w.ctx, c.ChatID); err != nil || found != (chat.Count{Stored: 3, Counted: 3}) {
		t.Errorf("%+v, %v", found, err)
	}
	w.check()
}

// L-100: what answered a role that was there answers its repetition, to the version.
func TestReplayOfAnUnchangedRole(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob", "cat")
		id := w.group(s, "ann", "bob", "cat")
		for range 5 {
			w.send(s, id, "ann", "x")
		}
		r := chat.MemberChange{Caller: "ann", ChatID: id, UserID: "bob", Role: table.Member, RequestID: "r"}
		first, err := s.Change(w.ctx, chat.OpRole, r)
		if err != nil || first.Replayed || first.Member.Version != 2 {
			t.Fatal(first, err)
		}
		w.send(s, id, "bob", "y")
		again, err := s.Change(w.ctx, chat.OpRole, r)
		first.Replayed = true
		if err != nil || again != first {
			t.Errorf("%+v, %v; first %+v", again, err, first)
		}
	})
}
