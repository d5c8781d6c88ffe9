package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
)

// brief makes silence count early, so that a test sees what comes of it.
func brief(cfg Config) Config {
	cfg.DeadAfter = 300 * time.Millisecond
	return cfg
}

// serve has a mesh listen on an address of a host.
func serve(t *testing.T, m *Mesh, host string, conf *tls.Config) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	testkit.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Serve(ctx, l, conf) }()
	t.Cleanup(func() { cancel(); <-done })
	return l.Addr().String()
}

func (n *net1) list(s routing.Server, users ...string) {
	n.t.Helper()
	s.Generation, s.Epoch = "g", 1
	testkit.Must(n.t, n.table.Claim(n.t.Context(), s, time.Hour))
	_, err := n.table.Put(n.t.Context(), s, users, time.Hour)
	testkit.Must(n.t, err)
}

// nowhere is an address at which nobody listens.
func nowhere(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// A server finds out by itself that others would not find it at its address, and says so
// in one line.
func TestReach(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	for name, c := range map[string]struct {
		dial func(t *testing.T, own string) string // the address that is announced to others
		tls  func() (client, server *tls.Config)
		want string // "": it is found
	}{
		"own": {want: ""},
		"own by a name": {dial: func(_ *testing.T,
			own string) string {
			return strings.Replace(own, "127.0.0.1", "localhost", 1)
		}},
		"nobody's": {dial: func(t *testing.T, _ string) string { return nowhere(t) }, want: "refused"},
		"no name": {dial: func(*testing.T, string) string { return "no.such.host.invalid:1" },
			want: "no.such.host.invalid"},
		"another process's": {dial: func(t *testing.T, _ string) string {
			n := newNet(t)
			return serve(t, n.mesh(n.config("another", newFakeHub())), "127.0.0.1", nil)
		}, want: "another process answers there"},
		"something that swallows all": {dial: func(t *testing.T, own string) string {
			p := newProxy(t, own)
			p.hold(true)
			return p.addr
		}, want: "deadline"},
		"with certificates": {tls: func() (*tls.Config, *tls.Config) { return ca.config(t), ca.config(t) }},
		"another authority's certificate": {tls: func() (*tls.Config, *tls.Config) { return ca.config(t), other.config(t) },
			want: "unknown authority"},
		"an expired certificate": {tls: func() (*tls.Config, *tls.Config) {
			return ca.config(t), ca.issue(t, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
		}, want: "expired"},
		"a certificate of another name": {
			dial: func(_ *testing.T, own string) string { return strings.Replace(own, "127.0.0.1", "localhost", 1) },
			tls:  func() (*tls.Config, *tls.Config) { return ca.config(t), ca.config(t) }, want: "localhost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNet(t)
			cfg := n.config("one", newFakeHub())
			cfg.DeadAfter = time.Minute // ends when the process answers
			if c.want != "" {
				cfg.DeadAfter = 2 * time.Second // after which the last answer is the error
			}
			var server *tls.Config
			if c.tls != nil {
				cfg.TLS, server = c.tls()
			}
			m := n.mesh(cfg)
			addr := serve(t, m, "127.0.0.1", server)
			if c.dial != nil {
				addr = c.dial(t, addr)
			}
			err := m.VerifySelfReachable(t.Context(), addr)
			if (err == nil) != (c.want == "") ||
				(err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n"))) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}

// A process that has another key than all servers there are finds out before it takes
// part; one that shares it with one of them is not held up by the others.
func TestAnotherKey(t *testing.T) {
	for name, c := range map[string]struct {
		others []string // what is listed besides the process: "same" and "other" key, "nobody" at the address
		refuse bool
	}{
		"alone":                    {nil, false},
		"one of another key":       {[]string{"other"}, true},
		"all of another key":       {[]string{"other", "other"}, true},
		"one shares it":            {[]string{"other", "same"}, false},
		"the other is not reached": {[]string{"nobody"}, false},
		"one is not reached":       {[]string{"other", "nobody"}, false},
		"only workers":             {[]string{"worker"}, false},
		"a worker and another key": {[]string{"worker", "other"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, apart := newNet(t), newNet(t)
			for i, kind := range c.others {
				s := routing.Server{ID: fmt.Sprint(kind, i)}
				cfg := apart.config(s.ID, newFakeHub()) // knows nobody itself
				switch kind {
				case "other":
					cfg.Secret = []byte("another secret of 32 bytes......")
					fallthrough
				case "same":
					s.Addr = serve(t, apart.mesh(cfg), "127.0.0.1", nil)
				case "nobody":
					s.Addr = nowhere(t)
				}
				n.list(s)
			}
			cfg := brief(n.config("new", newFakeHub()))
			if c.refuse {
				cfg.DeadAfter = time.Minute // ends when all have refused
			}
			m, err := New(cfg)
			testkit.Must(t, err)
			defer m.Close()
			err = m.Open(t.Context())
			if errors.Is(err, ErrKey) != c.refuse || (err != nil) != c.refuse {
				t.Fatal(err)
			}
			if c.refuse && (strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "key-file") ||
				!strings.Contains(err.Error(), " at 127.0.0.1:")) {
				t.Error(err)
			}
		})
	}
}

// Addresses may be of any kind that can be dialled.
func TestIPv6(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("not run: this machine has no IPv6")
	} else {
		_ = l.Close()
	}
	n.members["c"] = []string{"u"}
	hub := newFakeHub()
	addr := serve(t, n.mesh(n.config("one", hub)), "::1", nil)
	n.list(routing.Server{ID: "one", Addr: addr}, "u")
	n.mesh(n.config("sender", nil)).Deliver(sent("c", 1))
	hub.until(t, "a change", func(h *fakeHub) bool { return len(h.versions["c"]) == 1 })
}

// A server that others cannot reach, though it is listed: its streams synchronise again
// and again, for they miss what others commit. No other process is held up by it, and
// all is well again once it can be reached.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.members["c"] = []string{"u", "v"}
	good := newFakeHub()
	n.list(routing.Server{ID: "good", Addr: serve(t, n.mesh(n.config("good", good)), "127.0.0.1", nil)}, "v")
	var way *proxy
	cut := newFakeHub()
	deaf := n.mesh(brief(n.config("deaf", cut)))
	way = newProxy(t, serve(t, deaf, "127.0.0.1", nil))
	way.refuse(true)
	n.list(routing.Server{ID: "deaf", Addr: way.addr}, "u")
	n.list(routing.Server{ID: "sender"}) // a process that only sends has no address
	m := n.mesh(brief(n.config("sender", nil)))
	for v := int64(1); v <= 50; v++ {
		testkit.Must(t, m.Repair(t.Context(), sent("c", v)))
	}
	good.until(t, "all changes where they can come", func(h *fakeHub) bool { return len(h.versions["c"]) == 50 })
	cut.until(t, "marks, again and again", func(h *fakeHub) bool { return h.dirty >= 3 })
	if s := m.Stats(); s.Unreachable != 1 || s.Peers != 2 {
		t.Errorf("the sender sees %+v", s)
	}
	if s := deaf.Stats(); s.Received.Unreachable == 0 || s.Received.Missed < 3 {
		t.Errorf("the server sees %+v", s)
	}
	good.mu.Lock()
	if good.dirty > 0 {
		t.Errorf("streams of a server that can be reached were marked %d times", good.dirty)
	}
	good.mu.Unlock()
	way.refuse(false)
	cut.until(t, "what was waiting", func(h *fakeHub) bool { return len(h.versions["c"]) == 50 })
	testkit.Eventually(t, "both sides see the other again", func() bool {
		return deaf.Stats().Received.Unreachable == 0 && m.Stats().Unreachable == 0
	})
}

// A sender that begins and ends without ever reaching a server: the server knows of it
// from the list.
func TestSenderNeverHeardOf(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	hub, m := n.server("one", nil, nil)
	n.list(routing.Server{ID: "ghost"})
	if _, err := m.discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Must(t, n.table.Release(t.Context(), routing.Server{ID: "ghost", Generation: "g", Epoch: 1}))
	hub.until(t, "a mark", func(h *fakeHub) bool { return h.dirty == 1 })
}

// What is on the way to a server that has left in good order is not lost: its streams left
// before it. Nobody calls it any more, though its lease is still seen for a while.
func TestLeft(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.members["c"] = []string{"u"}
	_, staying := n.server("staying", nil, nil)
	hub := newFakeHub()
	cfg := n.config("leaving", hub)
	leaving, err := New(cfg)
	testkit.Must(t, err)
	n.list(routing.Server{ID: "leaving", Addr: serve(t, leaving, "127.0.0.1", nil)}, "u")
	testkit.Must(t, leaving.Open(t.Context()))
	testkit.Must(t, staying.Repair(t.Context(), sent("c", 1)))
	hub.until(t, "a change", func(h *fakeHub) bool { return len(h.versions["c"]) == 1 })
	leaving.Close()
	for v := int64(2); v < 100; v++ {
		testkit.Must(t, staying.Repair(t.Context(), sent("c", v)))
		staying.Receipt("u", "c", &chatv1.MemberState{})
	}
	if s := staying.Stats(); s.Peers != 0 || s.Lost+s.EpochBumps+s.Failed+s.Dropped > 0 ||
		s.Received.Gaps+s.Received.Lost > 0 {
		t.Errorf("%+v", s)
	}
}
