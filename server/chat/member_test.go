package chat_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

func (w *fixture) add(s *chat.Service, id, by, user string, role table.Role) table.Membership {
	w.t.Helper()
	m, err := s.Change(w.ctx, chat.OpAdd, chat.MemberChange{Caller: by, ChatID: id, UserID: user, Role: role})
	if err != nil {
		w.t.Fatal(err)
	}
	return m.Member
}

// changeMember is Change where its result does not matter.
func changeMember(ctx context.Context, s *chat.Service, op chat.Operation, c chat.MemberChange) error {
	_, err := s.Change(ctx, op, c)
	return err
}

func (w *fixture) send(s *chat.Service, id, by, text string) chat.Sent {
	w.t.Helper()
	sent, err := s.Send(w.ctx, chat.Send{Caller: by, ChatID: id, Content: text})
	if err != nil {
		w.t.Fatal(err)
	}
	return sent
}

// L-135…L-139, L-144, L-146: each role tries each change on each role.
func TestAuthorizationMatrix(t *testing.T) {
	forbidden, invalid, stranger := chat.ErrForbidden, chat.ErrInvalidOperation, chat.ErrNotAMember
	callers := []string{"owner", "admin", "member", "stranger"}
	for name, row := range map[string]struct {
		run  func(w *fixture, s *chat.Service, id, caller string) error
		want [4]error // by owner, admin, member, stranger
	}{
		"L-135 add as member": {func(w *fixture, s *chat.Service, id, caller string) error {
			_, err := s.Change(w.ctx, chat.OpAdd,
				chat.MemberChange{Caller: caller, ChatID: id, UserID: "new", Role: table.Member})
			return err
		}, [4]error{nil, nil, forbidden, stranger}},
		"L-136 add as admin": {func(w *fixture, s *chat.Service, id, caller string) error {
			_, err := s.Change(w.ctx, chat.OpAdd,
				chat.MemberChange{Caller: caller, ChatID: id, UserID: "new", Role: table.Admin})
			return err
		}, [4]error{nil, forbidden, forbidden, stranger}},
		"L-074 add as owner": {func(w *fixture, s *chat.Service, id, caller string) error {
			_, err := s.Change(w.ctx, chat.OpAdd,
				chat.MemberChange{Caller: caller, ChatID: id, UserID: "new", Role: table.Owner})
			return err
		}, [4]error{invalid, invalid, invalid, stranger}},
		"L-137 remove a member":  {remove("member2"), [4]error{nil, nil, forbidden, stranger}},
		"L-137 remove an admin":  {remove("admin2"), [4]error{nil, forbidden, forbidden, stranger}},
		"L-079 remove the owner": {remove("owner"), [4]error{invalid, invalid, forbidden, stranger}},
		"L-084 remove nobody": {remove("new"),
			[4]error{chat.ErrMemberNotFound, chat.ErrMemberNotFound, forbidden, stranger}},
		"L-087 remove oneself": {func(w *fixture, s *chat.Service, id, caller string) error {
			return remove(caller)(w, s, id, caller)
		}, [4]error{invalid, invalid, invalid, stranger}},
		"L-139 leave": {func(w *fixture, s *chat.Service, id, caller string) error {
			return changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: caller, ChatID: id})
		}, [4]error{invalid, nil, nil, stranger}},
		"L-141 send": {func(w *fixture, s *chat.Service, id, caller string) error {
			_, err := s.Send(w.ctx, chat.Send{Caller: caller, ChatID: id, Content: "x"})
			return err
		}, [4]error{nil, nil, nil, stranger}},
		"L-142 read": {func(w *fixture, s *chat.Service, id, caller string) error {
			_, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: caller, ChatID: id, Sequence: 1})
			return err
		}, [4]error{nil, nil, nil, stranger}},
	} {
		for i, caller := range callers {
			t.Run(name+" by "+caller, func(t *testing.T) {
				w := newFixture(t, dynamotest.Store(t, time.Now))
				s := w.service("p", w.store)
				w.users(s, "owner", "admin", "admin2", "member", "member2", "stranger", "new")
				id := w.group(s, "owner", "member", "member2")
				w.add(s, id, "owner", "admin", table.Admin)
				w.add(s, id, "owner", "admin2", table.Admin)
				before := w.head(id)
				if err := row.run(w, s, id, caller); !errors.Is(err, row.want[i]) {
					t.Errorf("%v, want %v", err, row.want[i])
				}
				if row.want[i] != nil && w.head(id) != before {
					t.Error("a refusal changed the chat")
				}
				// L-146: a chat that does not exist answers every caller alike.
				if err := row.run(w, s, chat.NewID("chat_"), caller); !errors.Is(err, stranger) {
					t.Errorf("no such chat: %v", err)
				}
				w.check()
				w.checkCommits(true)
			})
		}
	}
}

func remove(user string) func(w *fixture, s *chat.Service, id, caller string) error {
	return func(w *fixture, s *chat.Service, id, caller string) error {
		return changeMember(w.ctx, s, chat.OpRemove, chat.MemberChange{Caller: caller, ChatID: id, UserID: user})
	}
}

func TestJoinLeaveJoin(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob", "cat")
		c, err := s.CreateGroup(w.ctx,
			chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob"}, History: table.SinceJoined})
		if err != nil {
			t.Fatal(err)
		}
		id := c.ChatID
		w.send(s, id, "ann", "1")
		m := w.add(s, id, "ann", "cat", table.Admin)
		if m.Role != table.Admin || m.JoinedVersion != 4 || m.Version != 4 || m.JoinedSequence != 1 || m.JoinedAt == 0 {
			t.Errorf("%+v", m)
		}
		row := w.userChat("cat", id)
		if row.ReadSequence != 1 || row.JoinedSequence != 1 || row.DeliveredSequence != 1 || row.JoinedVersion != 4 ||
			row.Left() ||
			row.Visible(3, 1) || !row.Visible(4, 0) || !row.Visible(5, 2) {
			t.Errorf("%+v", row)
		}
		// L-068
		if _, err := s.Change(w.ctx, chat.OpAdd,
			chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat", Role: table.Member}); !errors.Is(err,
			chat.ErrAlreadyMember) {
			t.Error(err)
		}
		// L-075
		if _, err := s.Change(w.ctx, chat.OpAdd,
			chat.MemberChange{Caller: "ann", ChatID: id, UserID: "zoe", Role: table.Member}); !errors.Is(err,
			chat.ErrUserNotFound) {
			t.Error(err)
		}
		w.send(s, id, "cat", "2")
		if err := changeMember(w.ctx, s, chat.OpRemove,
			chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat"}); err != nil {
			t.Fatal(err)
		}
		row = w.userChat("cat", id)
		left := time.Unix(row.ExpiresAt, 0).Sub(time.UnixMilli(row.ChangedAt))
		if row.LeftVersion != 6 || row.JoinedVersion != 4 || row.JoinedSequence != 1 || row.History != table.SinceJoined ||
			left > 90*24*time.Hour || left < 90*24*time.Hour-time.Second || row.Visible(7, 3) {
			t.Errorf("%+v", row)
		}
		// L-123
		if _, err := s.Send(w.ctx, chat.Send{Caller: "cat", ChatID: id, Content: "x"}); !errors.Is(err, chat.ErrNotAMember) {
			t.Error(err)
		}
		if _, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: "cat", ChatID: id, Sequence: 1}); !errors.Is(err,
			chat.ErrNotAMember) {
			t.Error(err)
		}
		if err := s.Delivered(w.ctx, "cat", id, 99); err != nil || w.userChat("cat", id).DeliveredSequence != 0 {
			t.Error(err, w.userChat("cat", id))
		}
		w.send(s, id, "ann", "3")
		w.add(s, id, "ann", "cat", table.Member)
		row = w.userChat("cat", id)
		if row.JoinedSequence != 3 || row.ReadSequence != 3 || row.JoinedVersion != 8 || row.Left() || row.ExpiresAt != 0 {
			t.Errorf("%+v", row)
		}
		if err := changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "cat", ChatID: id}); err != nil {
			t.Fatal(err)
		}
		// L-088
		if err := changeMember(w.ctx, s, chat.OpLeave, chat.MemberChange{Caller: "cat", ChatID: id}); !errors.Is(err,
			chat.ErrNotAMember) {
			t.Error(err)
		}
		w.check()
		w.checkCommits(true)
	})
}

// L-072, L-182: at 99 members one of many concurrent additions fits.
func TestLastPlace(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		services := []*chat.Service{w.service("p", st), w.service("q", st)}
		members := numbered("u", 98)
		late := numbered("late", 50)
		w.users(services[0], append(append(members, late...), "ann")...)
		id := w.group(services[0], "ann", members...)
		var mu sync.Mutex
		added, full := 0, 0
		var wg sync.WaitGroup
		for i, u := range late {
			wg.Go(func() {
				_, err := services[i%2].Change(w.ctx, chat.OpAdd,
					chat.MemberChange{Caller: "ann", ChatID: id, UserID: u, Role: table.Member})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					added++
				case errors.Is(err, chat.ErrChatFull):
					full++
				default:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if added != 1 || full != 49 || w.chat(id).MemberCount != 100 {
			t.Errorf("%d added, %d refused", added, full)
		}
		w.check()
		w.checkCommits(true)
	})
}

// L-160, L-163, L-183: changes of one membership take effect one after another, and each
// caller gets the truth.
func TestConcurrentChangesOfOneMember(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		services := []*chat.Service{w.service("p", st), w.service("q", st)}
		w.users(services[0], "ann", "bob", "cat")
		id := w.group(services[0], "ann", "bob")
		var mu sync.Mutex
		balance := 0
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				ch := chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat", Role: table.Member}
				if i%2 == 0 {
					_, err := services[i/2%2].Change(w.ctx, chat.OpAdd, ch)
					mu.Lock()
					defer mu.Unlock()
					if err == nil {
						balance++
					} else if !errors.Is(err, chat.ErrAlreadyMember) {
						t.Error(err)
					}
					return
				}
				err := changeMember(w.ctx, services[i/2%2], chat.OpRemove, ch)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					balance--
				} else if !errors.Is(err, chat.ErrMemberNotFound) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := w.chat(id).MemberCount; n != int64(2+balance) || balance < 0 || balance > 1 {
			t.Errorf("%d members, balance %d", n, balance)
		}
		w.check()
		w.checkCommits(true)
	})
}

// torn is a store whose batches are read one by one, from the last key, with
// something happening after the first.
type torn struct {
	store.Store
	after   store.Table // default: memberships
	between func()
}

func (s *torn) BatchGet(ctx context.Context, keys []store.Key, c store.Consistency) ([]store.Item, error) {
	items := make([]store.Item, len(keys))
	for i := len(keys) - 1; i >= 0; i-- {
		var err error
		if items[i], err = s.Get(ctx, keys[i], c); err != nil {
			return nil, err
		}
		if do := s.between; do != nil &&
			(keys[i].Table == s.after || (s.after == "" && keys[i].Table == store.ChatMemberships)) {
			s.between = nil
			do()
		}
	}
	return items, nil
}

// A member who moves from pending to member while the rows are read is in neither of
// them, and still is found.
func TestTornReads(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	dying := &crash{Store: w.store}
	dying.left.Store(1)
	healthy := w.service("q", w.store)
	w.users(healthy, "ann", "bob", "cat")
	c, err := w.service("d", dying).CreateGroup(w.ctx,
		chat.CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob", "cat"}})
	if err != nil || c.Incomplete == nil {
		t.Fatal(c, err)
	}
	reads := &torn{Store: w.store}
	s := w.service("p", reads)
	w.send(s, c.ChatID, "ann", "x") // so that the head is remembered
	// The memberships are the last keys, the caller's is read before the target's.
	reads.between = func() {
		reads.between = func() {
			if err := healthy.FinishPending(w.ctx, c.ChatID); err != nil {
				t.Error(err)
			}
		}
	}
	if err := changeMember(w.ctx, s, chat.OpRemove,
		chat.MemberChange{Caller: "ann", ChatID: c.ChatID, UserID: "bob"}); err != nil {
		t.Error(err)
	}
	if reads.between != nil {
		t.Error("nothing happened in between")
	}
	w.check()
	w.checkCommits(true)
}

// L-076: a repetition whose first attempt arrives between its reads, so that the
// caller is gone and the request was not seen, is answered like the first (found by
// the explorer).
func TestLateLeave(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	healthy := w.service("q", w.store)
	w.users(healthy, "ann", "bob")
	id := w.group(healthy, "ann", "bob")
	leave := chat.MemberChange{Caller: "bob", ChatID: id, RequestID: "r"}
	reads := &torn{Store: w.store, after: store.IdempotencyKeys, between: func() {
		if err := changeMember(w.ctx, healthy, chat.OpLeave, leave); err != nil {
			t.Error(err)
		}
	}}
	out, err := w.service("p", reads).Change(w.ctx, chat.OpLeave, leave)
	if err != nil || !out.Replayed || reads.between != nil {
		t.Errorf("%+v, %v", out, err)
	}
	w.check()
}

// L-076: a repetition of a request is answered like the first, also when the world
// has moved on.
func TestMemberRequestsReplay(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		s := w.service("p", st)
		w.users(s, "ann", "bob", "cat", "dan")
		id := w.group(s, "ann", "bob")
		add := chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat", Role: table.Admin, RequestID: "a"}
		first, err := s.Change(w.ctx, chat.OpAdd, add)
		if err != nil {
			t.Fatal(err)
		}
		leave := chat.MemberChange{Caller: "bob", ChatID: id, RequestID: "l"}
		del := chat.MemberChange{Caller: "ann", ChatID: id, UserID: "cat", RequestID: "r"}
		for range 2 {
			if again, err := s.Change(w.ctx, chat.OpAdd, add); err != nil || again.Member != first.Member || !again.Replayed {
				t.Errorf("%+v, %v; first %+v", again, err, first)
			}
			if err := changeMember(w.ctx, s, chat.OpRemove, del); err != nil {
				t.Error(err)
			}
			if err := changeMember(w.ctx, s, chat.OpLeave, leave); err != nil {
				t.Error(err)
			}
		}
		add.UserID = "dan"
		if _, err := s.Change(w.ctx, chat.OpAdd, add); !errors.Is(err, chat.ErrKeyReused) {
			t.Error(err)
		}
		add.RequestID = "b"
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := s.Change(w.ctx, chat.OpAdd, add); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if h := w.head(id); h.Version != 6 {
			t.Errorf("%+v", h)
		}
		w.check()
		w.checkCommits(true)
	})
}

func TestMarkReadAndDelivered(t *testing.T) {
	engines(t, func(t *testing.T, st store.Store) {
		w := newFixture(t, st)
		var mu sync.Mutex
		var receipts []table.UserChat
		s := w.service("p", st, func(c *chat.Config) {
			c.Receipt = func(row table.UserChat, head table.Head) {
				mu.Lock()
				defer mu.Unlock()
				receipts = append(receipts, row)
			}
		})
		w.users(s, "ann", "bob")
		id := w.group(s, "ann", "bob")
		for i := range 5 {
			w.send(s, id, "ann", fmt.Sprint(i))
		}
		for _, x := range []struct{ ask, want int64 }{{2, 2}, {1, 2}, {2, 2}, {99, 5}} {
			out, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: id, Sequence: x.ask})
			if err != nil || out.Row.ReadSequence != x.want || out.Head.Sequence != 5 || out.Row != w.userChat("bob", id) {
				t.Errorf("%+v, %v", out, err)
			}
		}
		// A repetition is reported once more, a lower position is not.
		if len(receipts) != 3 || receipts[1].ReadSequence != 2 || receipts[2].ReadSequence != 5 ||
			receipts[1].UserID != "bob" || receipts[1].ChatID != id {
			t.Errorf("%+v", receipts)
		}
		if _, err := s.MarkRead(w.ctx, chat.MarkRead{Caller: "bob", ChatID: id, Sequence: 0}); !errors.Is(err,
			chat.ErrInvalidArgument) {
			t.Error(err)
		}
		before := w.userChat("bob", id)
		for _, x := range []struct{ ask, want int64 }{{3, 3}, {1, 3}, {4, 4}} {
			if err := s.Delivered(w.ctx, "bob", id, x.ask); err != nil || w.userChat("bob", id).DeliveredSequence != x.want {
				t.Error(err, w.userChat("bob", id))
			}
		}
		if after := w.userChat("bob", id); after.ChangedAt != before.ChangedAt {
			t.Error("a watermark counts as a change")
		}
		if err := s.Delivered(w.ctx, "zoe", id, 1); err != nil || len(w.scan(store.DeliveryState)) != 2 {
			t.Error("a watermark made a row", err)
		}
		w.check()
	})
}
