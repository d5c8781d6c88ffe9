package chat_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/chat/plan"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
	"github.com/parley-chat/parley/server/store/table"
	"github.com/parley-chat/parley/server/store/table/people"
)

// checkPeer holds what a row says of the other person of a direct chat against that one's.
func (w *fixture) checkPeer(row table.UserChat) {
	w.t.Helper()
	two := w.chat(row.ChatID).DirectUsers
	if len(two) == 0 {
		if row.Peer != "" || row.PeerReadSequence != 0 {
			w.t.Errorf("a row of a group has another person: %+v", row)
		}
		return
	}
	if !slices.Contains(two, row.UserID) || row.Peer == row.UserID || !slices.Contains(two, row.Peer) {
		w.t.Errorf("%+v, in a direct chat of %v", row, two)
	}
	if other := w.userChat(row.Peer, row.ChatID); row.PeerReadSequence > other.ReadSequence {
		w.t.Errorf("%+v, but the other one is %+v", row, other)
	}
}

// pair is a direct chat of ann and bob, in which ann has sent some messages, and what the
// hook for receipts is called with.
type pair struct {
	*fixture
	svc *chat.Service
	id  string

	mu       sync.Mutex
	reported map[string]table.UserChat // the newest of each user
	n        int                       // calls of the hook
}

func newPair(t *testing.T, st store.Store, sends int, change ...func(*chat.Config)) *pair {
	t.Helper()
	p := &pair{fixture: newFixture(t, st), reported: map[string]table.UserChat{}}
	p.svc = p.service("p", st, append(change, p.listen)...)
	p.users(p.svc, "ann", "bob")
	c, err := p.svc.CreateDirect(p.ctx, chat.CreateDirect{Caller: "ann", Other: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	p.id = c.ChatID
	for i := range sends {
		p.send(p.svc, p.id, "ann", fmt.Sprint(i))
	}
	return p
}

func (p *pair) listen(c *chat.Config) {
	c.Receipt = func(row table.UserChat, _ table.Head) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.n++
		if row.Revision >= p.reported[row.UserID].Revision {
			p.reported[row.UserID] = row
		}
	}
}

func (p *pair) mark(user string, sequence int64) {
	p.t.Helper()
	if _, err := p.svc.MarkRead(p.ctx, chat.MarkRead{Caller: user, ChatID: p.id, Sequence: sequence}); err != nil {
		p.t.Fatal(err)
	}
}

// expect demands how far somebody knows the other one to have read, in the store and, if
// reported, by the hook.
func (p *pair) expect(user string, sequence int64, reported bool) {
	p.t.Helper()
	row := p.userChat(user, p.id)
	if row.PeerReadSequence != sequence || reported != (p.reported[user] == row) {
		p.t.Errorf("%s has %+v and was shown %+v, expected %d", user, row, p.reported[user], sequence)
	}
}

// In a direct chat a mark reaches the other person's row under a revision of its own, and
// the hook has both rows. What that person's row holds besides stays.
func TestMarksReachTheOtherPerson(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		p := newPair(t, st, 4)
		archived := true
		if _, err := p.svc.SetMemberSettings(p.ctx,
			chat.MemberSettings{Caller: "ann", ChatID: p.id, Archived: &archived, Procedure: "archive"}); err != nil {
			t.Fatal(err)
		}
		before := p.userChat("ann", p.id)
		p.mark("bob", 2)
		p.expect("ann", 2, true)
		after := p.userChat("ann", p.id)
		want := before
		want.PeerReadSequence, want.Revision, want.ChangedAt = 2, before.Revision+1, after.ChangedAt
		if after != want || after.ChangedAt < before.ChangedAt {
			t.Errorf("ann's row is %+v, expected %+v", after, want)
		}
		if row := p.userChat("bob", p.id); p.reported["bob"] != row || row.ReadSequence != 2 || row.PeerReadSequence != 0 {
			t.Errorf("bob's row is %+v, reported %+v", row, p.reported["bob"])
		}
		p.mark("bob", 1) // nothing goes back
		p.expect("ann", 2, true)
		// The process may have died before its receipts: a repetition tells both again.
		p.reported = map[string]table.UserChat{}
		p.mark("bob", 2)
		p.expect("ann", 2, true)
		// A message says by itself how far its sender has read; it costs no write.
		revision := p.userChat("ann", p.id).Revision
		p.send(p.svc, p.id, "bob", "five")
		if row := p.userChat("ann", p.id); row.Revision != revision || row.PeerReadSequence != 2 {
			t.Errorf("a message changes the other person's row: %+v", row)
		}
		p.mark("ann", 5)
		p.expect("bob", 5, true)
		p.send(p.svc, p.id, "ann", "six")
		p.mark("bob", 6)
		p.expect("ann", 6, true)
		p.check()
	})
}

// A repetition with a request id, and a new id for the same position, tell both again, too.
func TestRepeatedMarksNotifyAgain(t *testing.T) {
	p := newPair(t, storetest.NewMemory(time.Now), 3)
	for _, request := range []string{"r1", "r1", "r2"} {
		p.reported = map[string]table.UserChat{}
		_, err := p.svc.MarkRead(p.ctx, chat.MarkRead{Caller: "bob", ChatID: p.id, Sequence: 3, RequestID: request})
		if err != nil {
			t.Fatal(err)
		}
		p.expect("ann", 3, true)
		if p.reported["bob"] != p.userChat("bob", p.id) {
			t.Errorf("%s: reported to bob: %+v", request, p.reported["bob"])
		}
	}
}

// Nobody is notified while one of the two blocks the other, where an earlier release made the
// row, or where the installation wants it so.
func TestPeersThatAreNotNotified(t *testing.T) {
	set := func(name string) func(*pair) {
		return func(p *pair) {
			p.t.Helper()
			p.write(store.Update{Set: []store.Attr{{Name: name, Value: store.Bool(true)}}})
		}
	}
	for name, c := range map[string]struct {
		change func(*chat.Config)
		begin  func(*pair)
	}{
		"bob blocks ann":     {begin: set(people.AttrBlocks)},
		"ann blocks bob":     {begin: set(people.AttrBlocked)},
		"ann is deleted":     {begin: set(people.AttrClosed)},
		"an earlier release": {begin: func(p *pair) { p.write(store.Update{Remove: []string{"peer"}}) }},
		"by the settings":    {change: func(c *chat.Config) { c.NoReadReceipts = true }},
	} {
		t.Run(name, func(t *testing.T) {
			change := c.change
			if change == nil {
				change = func(*chat.Config) {}
			}
			p := newPair(t, storetest.NewMemory(time.Now), 3, change)
			if c.begin != nil {
				c.begin(p)
			}
			before := p.userChat("ann", p.id)
			p.mark("bob", 3)
			p.mark("bob", 3)
			if now := p.userChat("ann", p.id); now != before || p.reported["ann"].UserID != "" {
				t.Errorf("ann's row is %+v, reported %+v", now, p.reported["ann"])
			}
			if row := p.userChat("bob", p.id); row.ReadSequence != 3 || p.reported["bob"] != row {
				t.Errorf("bob's row is %+v, reported %+v", row, p.reported["bob"])
			}
		})
	}
}

// write changes bob's row past the service.
func (p *pair) write(u store.Update) {
	p.t.Helper()
	w := store.Write{Op: store.OpUpdate, Key: table.UserChatKey("bob", p.id), Update: u, Cond: store.Exists(), Name: "x"}
	if err := p.store.Transact(p.ctx, store.Plan{Writes: []store.Write{w}}); err != nil {
		p.t.Fatal(err)
	}
}

// onMark is a store in which something happens once between what a mark reads and what it
// writes.
type onMark struct {
	store.Store
	once func()
}

func (s *onMark) Transact(ctx context.Context, p store.Plan) error {
	notifies := slices.ContainsFunc(p.Writes, func(w store.Write) bool { return w.Name == plan.CondPeer })
	if f := s.once; f != nil && notifies {
		s.once = nil
		f()
	}
	return s.Store.Transact(ctx, p)
}

// What changes between the reads and the write of a mark is noticed: the mark is decided
// again, on the rows as they are then.
func TestMarksAreDecidedOnPresentRows(t *testing.T) {
	ms := func(s *chat.Service, c chat.MemberSettings) {
		if _, err := s.SetMemberSettings(context.Background(), c); err != nil {
			panic(err)
		}
	}
	archived := true
	for name, c := range map[string]struct {
		happens  func(p *pair, other *chat.Service)
		peerRead int64
	}{
		"a block": {func(p *pair, _ *chat.Service) {
			p.write(store.Update{Set: []store.Attr{{Name: people.AttrBlocks, Value: store.Bool(true)}}})
		}, 0},
		"another mark of the same user": {func(p *pair, other *chat.Service) {
			if _, err := other.MarkRead(p.ctx, chat.MarkRead{Caller: "bob", ChatID: p.id, Sequence: 3}); err != nil {
				panic(err)
			}
		}, 3},
		"a mark of the other person": {func(p *pair, other *chat.Service) {
			if _, err := other.MarkRead(p.ctx, chat.MarkRead{Caller: "ann", ChatID: p.id, Sequence: 4}); err != nil {
				panic(err)
			}
		}, 2},
		"a setting of the other person": {func(p *pair, other *chat.Service) {
			ms(other, chat.MemberSettings{Caller: "ann", ChatID: p.id, Archived: &archived, Procedure: "archive"})
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			mem := storetest.NewMemory(time.Now)
			p := newPair(t, mem, 3)
			p.send(p.svc, p.id, "bob", "four")
			p.send(p.svc, p.id, "ann", "five")
			p.write(store.Update{Set: []store.Attr{{Name: table.AttrReadSequence, Value: store.Int(0)}}})
			st := &onMark{Store: mem}
			other := p.service("other", mem, p.listen)
			p.svc = p.service("slow", st, p.listen)
			st.once = func() { c.happens(p, other) }
			p.mark("bob", 2)
			if st.once != nil {
				t.Fatal("nothing happened")
			}
			row := p.userChat("ann", p.id)
			if row.PeerReadSequence != c.peerRead || row.Archived != (name == "a setting of the other person") {
				t.Errorf("ann's row is %+v, expected %d", row, c.peerRead)
			}
			if c.peerRead > 0 && p.reported["ann"] != row {
				t.Errorf("ann was shown %+v, the row is %+v", p.reported["ann"], row)
			}
			if now := p.userChat("bob", p.id); now.ReadSequence < 2 || p.reported["bob"].ReadSequence != now.ReadSequence {
				t.Errorf("bob's row is %+v, reported %+v", now, p.reported["bob"])
			}
		})
	}
}

// Whoever sends all the time changes the own row all the time, and holds up no mark of the
// other person.
func TestBusyPeopleHoldUpNoMark(t *testing.T) {
	mem := storetest.NewMemory(time.Now)
	p := newPair(t, mem, 2)
	other := p.service("other", mem, p.listen)
	st, attempts := &onMark{Store: mem}, 0
	p.svc = p.service("slow", st, p.listen)
	var busy func()
	busy = func() {
		attempts++
		p.send(other, p.id, "ann", "more")
		st.once = busy
	}
	st.once = busy
	p.mark("bob", 2)
	p.expect("ann", 2, true)
	if attempts != 2 || p.reported["bob"] != p.userChat("bob", p.id) {
		t.Errorf("%d attempts, bob was shown %+v", attempts, p.reported["bob"])
	}
	p.check()
}

// Two people read at the same time, in two processes, and change their settings: no mark is
// lost, nobody is shown more than is true, and what was shown last is what the store has.
func TestBothReadAtOnce(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		p := newPair(t, st, 8)
		for range 8 {
			p.send(p.svc, p.id, "bob", "x")
		}
		for _, user := range []string{"ann", "bob"} { // as if nobody had read anything
			w := store.Write{Op: store.OpUpdate, Key: table.UserChatKey(user, p.id), Cond: store.Exists(), Name: "x",
				Update: store.Update{Set: []store.Attr{{Name: table.AttrReadSequence, Value: store.Int(0)}}}}
			if err := st.Transact(p.ctx, store.Plan{Writes: []store.Write{w}}); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for i, user := range []string{"ann", "bob"} {
			svc := p.service(fmt.Sprint("q", i), st, p.listen)
			wg.Go(func() {
				for n := int64(1); n <= 16; n++ {
					_, err := svc.MarkRead(p.ctx, chat.MarkRead{Caller: user, ChatID: p.id, Sequence: n})
					for errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrThrottled) || errors.Is(err, store.ErrAmbiguous) {
						_, err = svc.MarkRead(p.ctx, chat.MarkRead{Caller: user, ChatID: p.id, Sequence: n})
					}
					if err != nil {
						t.Errorf("%s reads %d: %v", user, n, err)
					}
				}
			})
		}
		wg.Wait()
		for _, user := range []string{"ann", "bob"} {
			p.expect(user, 16, true)
			if row := p.userChat(user, p.id); row.ReadSequence != 16 {
				t.Errorf("%+v", row)
			}
		}
		p.check()
	})
}
