package chat

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat/command"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// Memory is bounded: unknown chats and lost creations leave nothing behind, and of
// the others the least recently used go.
func TestMemoryIsBounded(t *testing.T) {
	ctx := context.Background()
	st := storetest.NewMemory(time.Now)
	s, err := New(ctx, Config{Store: st, Clock: time.Now, Generation: "g", Producer: "p", Heads: 128})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{"ann", "bob"} {
		if err := s.EnsureUser(ctx, u); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		if _, err := s.Send(ctx, Send{Caller: "ann", ChatID: fmt.Sprint("chat_", i), Content: "x"}); !errors.Is(err,
			ErrNotAMember) {
			t.Error(err)
		}
		if _, err := s.Change(ctx, OpLeave, MemberChange{Caller: "ann", ChatID: fmt.Sprint("chat_", i)}); !errors.Is(err,
			ErrNotAMember) {
			t.Error(err)
		}
		if err := s.FinishPending(ctx, fmt.Sprint("chat_", i)); err != nil {
			t.Error(err)
		}
	}
	if n := s.queues.Size(); n != 0 {
		t.Errorf("%d unknown chats are remembered", n)
	}
	var ids []string
	for range 500 {
		c, err := s.CreateGroup(ctx, CreateGroup{Caller: "ann", Name: "g", Members: []string{"bob"}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.ChatID)
	}
	if n := s.queues.Size(); n > 128 || n < 64 {
		t.Errorf("%d chats are remembered", n)
	}
	for _, id := range append(ids, ids...) {
		if _, err := s.Send(ctx, Send{Caller: "bob", ChatID: id, Content: "x"}); err != nil {
			t.Error(err)
		}
	}
	if n := s.queues.Size(); n > 128 {
		t.Errorf("%d chats are remembered", n)
	}
}

// stuck holds plans until they are let go.
type stuck struct {
	store.Store
	arrived, leave chan struct{}
}

func (s *stuck) Transact(ctx context.Context, p store.Plan) error {
	s.arrived <- struct{}{}
	<-s.leave
	return s.Store.Transact(ctx, p)
}

// The queue of a chat is bounded, and everybody in it is served or refused.
func TestQueueIsBounded(t *testing.T) {
	ctx := context.Background()
	st := storetest.NewMemory(time.Now)
	easy, err := New(ctx, Config{Store: st, Clock: time.Now, Generation: "g", Producer: "p"})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{"ann", "bob"} {
		if err := easy.EnsureUser(ctx, u); err != nil {
			t.Fatal(err)
		}
	}
	c, err := easy.CreateDirect(ctx, CreateDirect{Caller: "ann", Other: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	slow := &stuck{Store: st, arrived: make(chan struct{}, 64), leave: make(chan struct{})}
	s, err := New(ctx, Config{Store: slow, Clock: time.Now, Generation: "g", Producer: "p", Queue: 4})
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 16)
	send := func() {
		_, err := s.Send(ctx, Send{Caller: "ann", ChatID: c.ChatID, Content: "x"})
		results <- err
	}
	go send()
	<-slow.arrived // the leader's plan is under way
	for range 8 {
		go send()
	}
	for range 4 { // these found the queue full
		if err := <-results; !errors.Is(err, store.ErrThrottled) {
			t.Error(err)
		}
	}
	close(slow.leave)
	for range 5 {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if s.queues.Size() != 1 {
		t.Error("the chat is not idle")
	}
}

func TestNewID(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID("chat_")
		if len(id) != 31 || id[:5] != "chat_" || command.CheckChat(id) != nil || seen[id] {
			t.Fatal(id)
		}
		seen[id] = true
	}
}

func TestConfigIsChecked(t *testing.T) {
	if _, err := New(context.Background(), Config{}); err == nil {
		t.Error("an empty configuration was accepted")
	}
}

// script is a store whose plans wait for their turn and end as it says.
type script struct {
	store.Store
	arrived chan struct{}
	next    chan func(run func() error) error
}

func (s *script) Transact(ctx context.Context, p store.Plan) error {
	s.arrived <- struct{}{}
	return (<-s.next)(func() error { return s.Store.Transact(ctx, p) })
}

// WaitFor returns when n commands are waiting.
func (s *Service) WaitFor(chatID string, n int) {
	for s.queues.Waiting(chatID) != n {
		runtime.Gosched()
	}
}

// A leader that leaves before a retry returns its group in order, without those
// that have left themselves; the next leader runs them.
func TestGroupOutlivesItsLeader(t *testing.T) {
	bg := context.Background()
	st := storetest.NewMemory(time.Now)
	play := &script{Store: st, arrived: make(chan struct{}), next: make(chan func(func() error) error)}
	current := &struct{ store.Store }{st}
	s, err := New(bg, Config{Store: current, Clock: time.Now, Generation: "g", Producer: "p"})
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{"ann", "bob"} {
		if err := s.EnsureUser(bg, u); err != nil {
			t.Fatal(err)
		}
	}
	c, err := s.CreateDirect(bg, CreateDirect{Caller: "ann", Other: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	s.clock.Keep(bg, s.commits.Transact) // so that no plan but the sends' comes
	current.Store = play

	type result struct {
		Sent
		error
	}
	send := func(ctx context.Context, key, content string) chan result {
		ch := make(chan result, 1)
		go func() {
			sent, err := s.Send(ctx, Send{Caller: "ann", ChatID: c.ChatID, ClientMessageID: key, Content: content})
			ch <- result{sent, err}
		}()
		return ch
	}
	commit := func(run func() error) error { return run() }
	first := send(bg, "first", "x")
	<-play.arrived
	leaderCtx, leaderLeaves := context.WithCancel(bg)
	defer leaderLeaves()
	waiterCtx, waiterLeaves := context.WithCancel(bg)
	defer waiterLeaves()
	leader := send(leaderCtx, "leader", "x")
	s.WaitFor(c.ChatID, 1)
	twin := send(bg, "leader", "x")
	s.WaitFor(c.ChatID, 2)
	gone := send(waiterCtx, "gone", "x")
	s.WaitFor(c.ChatID, 3)
	a := send(bg, "a", "x")
	s.WaitFor(c.ChatID, 4)
	other := send(bg, "a", "y")
	s.WaitFor(c.ChatID, 5)
	b := send(bg, "b", "x")
	s.WaitFor(c.ChatID, 6)

	play.next <- commit
	if r := <-first; r.error != nil || r.Sequence != 1 {
		t.Error(r)
	}
	<-play.arrived // the group of all the others
	s.WaitFor(c.ChatID, 0)
	waiterLeaves()
	if r := <-gone; !errors.Is(r.error, context.Canceled) {
		t.Error(r)
	}
	leaderLeaves()
	play.next <- func(func() error) error { return store.ErrConflict }
	if r := <-leader; !errors.Is(r.error, context.Canceled) {
		t.Error(r)
	}
	<-play.arrived
	play.next <- commit
	for i, ch := range []chan result{twin, a, b} {
		if r := <-ch; r.error != nil || r.Replayed || r.Sequence != int64(i+2) {
			t.Errorf("%d: %+v", i, r)
		}
	}
	if r := <-other; !errors.Is(r.error, ErrKeyReused) {
		t.Error(r)
	}
	if n := s.queues.Size(); n != 1 {
		t.Errorf("%d chats", n)
	}
}
