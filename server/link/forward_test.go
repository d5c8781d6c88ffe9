package link

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/storetest"
)

// chatFor is a chat that prefers a server over others.
func chatFor(server string, others ...string) string {
	for i := 0; ; i++ {
		id, best := fmt.Sprint("chat_", i), true
		for _, o := range others {
			best = best && score(server, id) > score(o, id)
		}
		if best {
			return id
		}
	}
}

// accepting is an installation with the server "one", which accepts by a function, and the
// mesh of "two".
func accepting(
	t *testing.T, way func(string) string, accept func(context.Context, chat.Send) (chat.Sent, error),
	change func(*Config),
) *Mesh {
	n := newNet(t)
	n.accept = map[string]func(context.Context, chat.Send) (chat.Sent, error){"one": accept}
	n.server("one", nil, way)
	cfg := n.config("two", nil)
	// A busy machine is not to look like a server that does not answer: it gets no message for a while.
	cfg.Keepalive, cfg.Call = time.Second, forwardTime
	if change != nil {
		change(&cfg)
	}
	return n.mesh(cfg)
}

// A message gets to the server that its chat prefers as it is, and the answer back; one
// whose chat prefers this process stays.
func TestForward(t *testing.T) {
	t.Parallel()
	m := chat.Send{Caller: "ann", ChatID: chatFor("one", "two"), ClientMessageID: "m1", Content: "hello", ContentType: 1,
		Cause: event.Cause{Actor: "ann", Trace: "t", Correlation: "c", Causation: "r"}}
	want := chat.Sent{MessageID: "msg_1", ClientMessageID: "m1", Sequence: 7, Version: 9, CreatedAt: 11, Replayed: true}
	mesh := accepting(t, nil, func(_ context.Context, got chat.Send) (chat.Sent, error) {
		forwarded := m
		forwarded.Forwarded = true
		if got != forwarded {
			t.Errorf("accepts %+v, want %+v", got, forwarded)
		}
		return want, nil
	}, nil)
	if got, ok := mesh.Forward(t.Context(), m); !ok || got != want {
		t.Errorf("forwarded: %+v %t, want %+v", got, ok, want)
	}
	if s := mesh.Stats(); s.Forwarded != 1 {
		t.Errorf("%d forwarded, want 1", s.Forwarded)
	}
	m.ChatID = chatFor("two", "one")
	if got, ok := mesh.Forward(t.Context(), m); ok {
		t.Errorf("a chat that prefers this process: %+v from another", got)
	}
	m.ChatID, m.Caller = chatFor("one", "two"), ""
	if _, ok := mesh.Forward(t.Context(), m); ok {
		t.Error("a message without a sender was accepted")
	}
}

// A server that refuses a message is asked for the next one; one that does not answer is
// left alone for a while.
func TestForwardRefused(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	var now atomic.Int64
	var way *proxy
	mesh := accepting(t, func(addr string) string { way = newProxy(t, addr); return way.addr },
		func(context.Context, chat.Send) (chat.Sent, error) {
			calls.Add(1)
			return chat.Sent{}, chat.ErrNotAMember
		}, func(c *Config) {
			c.Keepalive = time.Hour // whether it is heard of is not the point here
			c.Clock = func() time.Time { return time.Now().Add(time.Duration(now.Load())) }
		})
	m := chat.Send{Caller: "ann", ChatID: chatFor("one", "two"), ClientMessageID: "m1", Content: "hello"}
	for want := int64(1); want <= 3; want++ {
		if sent, ok := mesh.Forward(t.Context(), m); ok || calls.Load() != want {
			t.Errorf("refused: %+v %t after %d calls, want %d", sent, ok, calls.Load(), want)
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := mesh.Forward(gone, m); ok || mesh.preferred(m.ChatID) == nil {
		t.Error("a sender that has left must not count against the server")
	}
	way.refuse(true)
	if _, ok := mesh.Forward(t.Context(), m); ok || mesh.preferred(m.ChatID) != nil {
		t.Error("a server that cannot be reached is to be left alone")
	}
	way.refuse(false)
	now.Store(int64(time.Minute))
	mesh.Forward(t.Context(), m)
	if calls.Load() != 4 {
		t.Errorf("%d calls, want another one after a while", calls.Load())
	}
}

// A server of an earlier release, and a process without chats, accept nothing.
func TestForwardToWhoCannot(t *testing.T) {
	t.Parallel()
	mesh := accepting(t, nil, nil, nil)
	m := chat.Send{Caller: "ann", ChatID: chatFor("one", "two"), ClientMessageID: "m1", Content: "hello"}
	if _, ok := mesh.Forward(t.Context(), m); ok || mesh.preferred(m.ChatID) != nil {
		t.Error("a server that cannot accept messages is to be left alone")
	}
}

// All agree on the server that a chat prefers, every server has its share, and one more
// takes over some chats and moves no other.
func TestPreference(t *testing.T) {
	const of = "srv_01J00000000000000000000"
	servers := []string{of + "01A", of + "01B", of + "02A"}
	prefers := func(id string, of []string) string {
		best := of[0]
		for _, s := range of[1:] {
			if score(s, id) > score(best, id) {
				best = s
			}
		}
		return best
	}
	const chats = 3000
	share := map[string]int{}
	for i := range chats {
		id := fmt.Sprintf("chat_01J000000000000000%08d", i)
		before, after := prefers(id, servers[:2]), prefers(id, servers)
		if share[after]++; after != before && after != servers[2] {
			t.Fatalf("%s moves from %s to %s because of %s", id, before, after, servers[2])
		}
	}
	for _, s := range servers {
		if share[s] < chats/4 {
			t.Errorf("%s is preferred by %d of %d chats", s, share[s], chats)
		}
	}
}

// slowly is a store whose plans take a while, so that they overlap.
type slowly struct{ store.Store }

func (s slowly) Transact(ctx context.Context, p store.Plan) error {
	time.Sleep(time.Millisecond)
	defer time.Sleep(time.Millisecond)
	return s.Store.Transact(ctx, p)
}

// newGroup makes a group of so many members, u0 its owner.
func newGroup(t *testing.T, svc *chat.Service, members int) string {
	t.Helper()
	var users []string
	for i := range members {
		users = append(users, fmt.Sprint("u", i))
		testkit.Must(t, svc.EnsureUser(t.Context(), users[i]))
	}
	c, err := svc.CreateGroup(t.Context(), chat.CreateGroup{Caller: "u0", Name: "g", Members: users[1:]})
	testkit.Must(t, errors.Join(err, c.Incomplete))
	return c.ChatID
}

// connectedTo reports whether a process has answered.
func (m *Mesh) connectedTo(process string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.peers[process]
	return p != nil && p.connected()
}

// spoil cuts links, holds them up and lets none through, until it is over.
func spoil(ways map[string]*proxy, over <-chan struct{}) {
	for i := 0; ; i++ {
		for _, way := range ways {
			switch i % 3 {
			case 0:
				way.cut()
			case 1:
				way.hold(true)
			default:
				way.refuse(true)
			}
		}
		select {
		case <-over:
		case <-time.After(30 * time.Millisecond):
		}
		for _, way := range ways {
			way.hold(false)
			way.refuse(false)
		}
		select {
		case <-over:
			return
		case <-time.After(120 * time.Millisecond):
		}
	}
}

// Two processes with one store and people who write in one chat at both: links are cut,
// held up and refused meanwhile, and each message is stored once, and answered.
func TestForwardedOverCutLinks(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.accept, n.avoid = map[string]func(context.Context, chat.Send) (chat.Sent, error){}, 20*time.Millisecond
	st := storetest.NewMemory(time.Now)
	processes, ways := []string{"one", "two"}, map[string]*proxy{}
	services, meshes := map[string]*chat.Service{}, map[string]*Mesh{}
	var forwarded atomic.Int64
	for _, name := range processes {
		svc, err := chat.New(t.Context(), chat.Config{Store: slowly{st}, Clock: time.Now, Generation: "g", Producer: name,
			Shared: true,
			Forward: func(ctx context.Context, m chat.Send) (chat.Sent, bool) {
				sent, ok := meshes[name].Forward(ctx, m)
				if ok {
					forwarded.Add(1)
				}
				return sent, ok
			}})
		testkit.Must(t, err)
		services[name], n.accept[name] = svc, svc.Send
	}
	for _, name := range processes {
		_, meshes[name] = n.server(name, nil, func(addr string) string {
			ways[name] = newProxy(t, addr)
			return ways[name].addr
		})
	}
	const writers, each = 6, 150
	id := newGroup(t, services["one"], writers)
	testkit.Eventually(t, "links in both directions", func() bool {
		return meshes["one"].connectedTo("two") && meshes["two"].connectedTo("one")
	})
	var trouble, writing sync.WaitGroup
	over := make(chan struct{})
	trouble.Go(func() { spoil(ways, over) })
	var mu sync.Mutex
	sequences := map[int64]bool{}
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				sent, err := services[processes[w%2]].Send(t.Context(), chat.Send{Caller: fmt.Sprint("u", w), ChatID: id,
					Content: "hello", ClientMessageID: fmt.Sprint(i)})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				sequences[sent.Sequence] = true
				mu.Unlock()
			}
		})
	}
	writing.Wait()
	close(over)
	trouble.Wait()
	page, err := st.Query(t.Context(), store.Query{Table: store.Messages, PK: id, Consistency: store.Strong})
	testkit.Must(t, err)
	if want := writers * each; len(page.Rows) != want || len(sequences) != want {
		t.Errorf("%d messages are stored and %d answered, want %d", len(page.Rows), len(sequences), want)
	}
	if forwarded.Load() == 0 {
		t.Error("nothing was forwarded")
	}
}
