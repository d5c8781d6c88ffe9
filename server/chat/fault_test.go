package chat_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/dynamo/dynamotest"
	"github.com/parley-chat/parley/server/store/table"
)

// Two processes on one chat over a store that loses requests and replies, delays
// plans that it reported as unknown, conflicts and throttles: every acknowledged send
// is stored exactly once, and every commit is reported exactly once.
func TestFaultyStore(t *testing.T) {
	met := map[string]int{}
	for seed := range uint64(dynamotest.Rounds(12, 3)) {
		w := newFixture(t, dynamotest.Store(t, time.Now))
		plain := w.service("plain", w.store)
		w.users(plain, "ann", "bob", "cat")
		id := w.group(plain, "ann", "bob", "cat")
		bad := []*faulty{newFaulty(w.store, seed, 0.4), newFaulty(w.store, seed+1000, 0.4)}
		services := []*chat.Service{w.service("p", bad[0]), w.service("q", bad[1])}
		const writers, each = 16, 10
		var mu sync.Mutex
		acknowledged := map[string]chat.Sent{}
		var wg sync.WaitGroup
		for i := range writers {
			wg.Go(func() {
				user := []string{"ann", "bob", "cat"}[i%3]
				for j := range each {
					key := fmt.Sprintf("%d-%d", i, j)
					sent, err := services[i%2].Send(w.ctx, chat.Send{Caller: user, ChatID: id, ClientMessageID: key, Content: key})
					if err != nil || sent.Replayed {
						t.Errorf("seed %d: %+v, %v", seed, sent, err)
					}
					mu.Lock()
					acknowledged[key] = sent
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		for _, f := range bad {
			f.arrive(w.ctx, true)
		}
		stored := map[string]table.Message{}
		for _, r := range w.scan(store.Messages) {
			m, err := table.MessageFrom(r)
			if err != nil {
				t.Fatal(err)
			}
			if _, twice := stored[m.Content]; twice {
				t.Errorf("seed %d: %s twice", seed, m.Content)
			}
			stored[m.Content] = m
		}
		for key, sent := range acknowledged {
			if m := stored[key]; m.MessageID != sent.MessageID || m.Sequence != sent.Sequence || m.Version != sent.Version ||
				m.CreatedAt != sent.CreatedAt {
				t.Errorf("seed %d: %+v acknowledged, %+v stored", seed, sent, m)
			}
		}
		if len(stored) != writers*each {
			t.Errorf("seed %d: %d stored", seed, len(stored))
		}
		w.check()
		w.checkCommits(true)
		for kind, n := range bad[0].counts {
			met[kind] += n
		}
	}
	if len(met) != 5 {
		t.Errorf("not all faults were met: %v", met)
	}
}

// A store that never gives an answer ends in ErrAmbiguous, an unavailable one in its
// own error at once, and neither wedges the chat.
func TestStoreWithoutAnswer(t *testing.T) {
	w := newFixture(t, dynamotest.Store(t, time.Now))
	hold := newGate(w.store)
	var mu sync.Mutex
	now := time.Now()
	s := w.service("p", hold, func(c *chat.Config) {
		c.Clock = func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			now = now.Add(100 * time.Millisecond)
			return now
		}
	})
	w.users(s, "ann", "bob")
	id := w.group(s, "ann", "bob")
	for _, x := range []struct{ fault, want error }{
		{store.ErrAmbiguous, store.ErrAmbiguous},
		{store.ErrConflict, store.ErrConflict},
		{store.ErrThrottled, store.ErrThrottled},
		{store.ErrUnavailable, store.ErrUnavailable},
		{store.ErrFull, store.ErrFull},
		{store.ErrClosed, store.ErrClosed},
	} {
		calls := 0
		hold.failAll(func() error { calls++; return x.fault })
		if _, err := s.Send(w.ctx, chat.Send{Caller: "ann", ChatID: id, Content: "x"}); !errors.Is(err, x.want) {
			t.Errorf("%v: %v", x.fault, err)
		}
		if once := errors.Is(x.fault, store.ErrUnavailable) || errors.Is(x.fault, store.ErrFull) ||
			errors.Is(x.fault, store.ErrClosed); once != (calls == 1) {
			t.Errorf("%v: %d calls", x.fault, calls)
		}
		hold.failAll(nil)
		w.send(s, id, "bob", "y")
	}
	// A store that goes away leaves an open outcome open, at once.
	calls := 0
	hold.failAll(func() error {
		if calls++; calls == 1 {
			return store.ErrAmbiguous
		}
		return store.ErrClosed
	})
	if _, err := s.Send(w.ctx, chat.Send{Caller: "ann", ChatID: id, Content: "x"}); !errors.Is(err, store.ErrAmbiguous) ||
		calls != 2 {
		t.Errorf("%v after %d calls", err, calls)
	}
	hold.failAll(nil)
	if h := w.head(id); h.Sequence != 6 {
		t.Errorf("%+v", h)
	}
	w.check()
	w.checkCommits(true)
}

// Any sequence of commands over a faulty store, from two processes with small
// chunks, keeps every invariant, and every answer is true.
func TestCommandSequences(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newFixture(rt, dynamotest.Store(t, time.Now))
		users := numbered("u", 8)
		plain := w.service("plain", w.store)
		w.users(plain, users...)
		seed := rapid.Uint64().Draw(rt, "seed")
		rate := rapid.SampledFrom([]float64{0, 0.2, 0.5}).Draw(rt, "fault rate")
		bad := []*faulty{newFaulty(w.store, seed, rate), newFaulty(w.store, seed+1, rate)}
		small := func(c *chat.Config) { c.Chunk, c.Heads = 2, 1 }
		services := []*chat.Service{w.service("p", bad[0], small), w.service("q", bad[1], small)}
		user := rapid.SampledFrom(users)
		var chats []string
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			s := services[rapid.IntRange(0, 1).Draw(rt, "process")]
			if len(chats) == 0 || rapid.IntRange(0, 9).Draw(rt, "create") == 0 {
				id, err := createAny(rt, w, s, users)
				if err != nil {
					rt.Fatal(err)
				}
				if id != "" {
					chats = append(chats, id)
				}
				continue
			}
			id := rapid.SampledFrom(chats).Draw(rt, "chat")
			ch := chat.MemberChange{
				Caller: user.Draw(rt, "caller"), ChatID: id, UserID: user.Draw(rt, "user"),
				Role: rapid.SampledFrom([]table.Role{table.Admin, table.Member, table.Owner}).Draw(rt, "role"),
			}
			before := w.membersOf(id)
			var err error
			switch rapid.IntRange(0, 5).Draw(rt, "command") {
			case 0:
				if _, err = s.Change(w.ctx, chat.OpAdd, ch); err == nil &&
					(before[ch.UserID] != "" || w.membersOf(id)[ch.UserID] != ch.Role) {
					rt.Fatalf("added %+v to %v", ch, before)
				}
			case 1:
				if err = changeMember(w.ctx, s, chat.OpRemove, ch); err == nil &&
					(before[ch.UserID] == "" || before[ch.UserID] == table.Owner || w.membersOf(id)[ch.UserID] != "") {
					rt.Fatalf("removed %+v from %v", ch, before)
				}
			case 2:
				if err = changeMember(w.ctx, s, chat.OpLeave, ch); err == nil &&
					(before[ch.Caller] == "" || w.membersOf(id)[ch.Caller] != "") {
					rt.Fatalf("%+v left %v", ch, before)
				}
			case 3:
				var sent chat.Sent
				if sent, err = s.Send(w.ctx, chat.Send{Caller: ch.Caller, ChatID: id, Content: "x"}); err == nil &&
					(before[ch.Caller] == "" || sent.Sequence != w.head(id).Sequence) {
					rt.Fatalf("%+v sent to %v: %+v", ch, before, sent)
				}
			case 4:
				err = s.FinishPending(w.ctx, id)
			case 5:
				_, err = s.MarkRead(w.ctx, chat.MarkRead{Caller: ch.Caller, ChatID: id,
					Sequence: rapid.Int64Range(1, 5).Draw(rt, "sequence")})
			}
			for _, known := range []error{chat.ErrNotAMember, chat.ErrForbidden, chat.ErrInvalidOperation, chat.ErrAlreadyMember,
				chat.ErrMemberNotFound} {
				if errors.Is(err, known) {
					err = nil
				}
			}
			if err != nil {
				rt.Fatal(err)
			}
		}
		for i, s := range services {
			bad[i].arrive(w.ctx, true)
			for _, id := range chats {
				if err := s.FinishPending(w.ctx, id); err != nil {
					rt.Fatal(err)
				}
			}
		}
		for _, f := range bad {
			f.arrive(w.ctx, true)
		}
		w.check()
		w.checkCommits(true)
	})
}

// createAny creates a group, in some cases crashed after its first phase, or a
// direct chat.
func createAny(rt *rapid.T, w *fixture, s *chat.Service, users []string) (string, error) {
	who := rapid.Permutation(users).Draw(rt, "users")
	if rapid.IntRange(0, 3).Draw(rt, "direct") == 0 {
		c, err := s.CreateDirect(w.ctx, chat.CreateDirect{Caller: who[0], Other: who[1]})
		if c.Replayed {
			return "", err
		}
		return c.ChatID, err
	}
	if rapid.Bool().Draw(rt, "crash") {
		dying := &crash{Store: w.store}
		dying.left.Store(1)
		s = w.service(fmt.Sprintf("dying%d", rand.Uint64()), dying)
	}
	n := rapid.IntRange(1, len(users)-1).Draw(rt, "others")
	c, err := s.CreateGroup(w.ctx, chat.CreateGroup{Caller: who[0], Name: "g", Members: who[1 : n+1]})
	return c.ChatID, err
}

// membersOf returns the members of a chat, those on their way in included.
func (w *fixture) membersOf(id string) map[string]table.Role {
	w.t.Helper()
	out := map[string]table.Role{}
	page, err := w.store.Query(w.ctx, store.Query{Table: store.ChatMemberships, PK: id, Consistency: store.Strong})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range page.Rows {
		out[r.Key.SK] = table.MembershipFrom(id, r.Key.SK, r.Item).Role
	}
	it, err := w.store.Get(w.ctx, table.PendingKey(id), store.Strong)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, u := range table.PendingFrom(id, it).Members {
		out[u] = table.Member
	}
	return out
}

// faulty injects what a store may do to a plan. Choices come from a seeded source.
type faulty struct {
	store.Store
	mu     sync.Mutex
	rng    *rand.Rand
	rate   float64      // of plans that meet a fault
	late   []store.Plan // under way: reported as unknown, may arrive any time
	counts map[string]int
}

func newFaulty(st store.Store, seed uint64, rate float64) *faulty {
	return &faulty{Store: st, rng: rand.New(rand.NewPCG(seed, 1)), rate: rate, counts: map[string]int{}}
}

// arrivals takes some of the plans that are under way.
func (f *faulty) arrivals(all bool) []store.Plan {
	f.mu.Lock()
	defer f.mu.Unlock()
	var now []store.Plan
	f.late = slices.DeleteFunc(f.late, func(p store.Plan) bool {
		if all || f.rng.IntN(3) == 0 {
			now = append(now, p)
			return true
		}
		return false
	})
	return now
}

func (f *faulty) arrive(ctx context.Context, all bool) {
	for _, p := range f.arrivals(all) {
		_ = f.Store.Transact(ctx, p)
	}
}

func (f *faulty) Transact(ctx context.Context, p store.Plan) error {
	f.arrive(ctx, false)
	f.mu.Lock()
	kind := ""
	if f.rng.Float64() < f.rate {
		kind = []string{"conflict", "throttled", "lost request", "lost reply", "late"}[f.rng.IntN(5)]
		f.counts[kind]++
	}
	if kind == "late" {
		f.late = append(f.late, p)
	}
	f.mu.Unlock()
	switch kind {
	case "conflict":
		return fmt.Errorf("%w (injected)", store.ErrConflict)
	case "throttled":
		return fmt.Errorf("%w (injected)", store.ErrThrottled)
	case "lost request", "late":
		return fmt.Errorf("%w (injected)", store.ErrAmbiguous)
	case "lost reply":
		if err := f.Store.Transact(ctx, p); errors.Is(err, store.ErrInvalid) {
			return err
		}
		return fmt.Errorf("%w (injected)", store.ErrAmbiguous)
	}
	return f.Store.Transact(ctx, p)
}
