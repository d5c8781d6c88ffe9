package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/routing/routingtest"
)

// fakeHub records what it is notified of.
type fakeHub struct {
	mu       sync.Mutex
	versions map[string][]int64 // by chat
	contents []string
	receipts []string
	dirty    int
	acks     []string
	changed  chan struct{}
}

func newFakeHub() *fakeHub {
	return &fakeHub{versions: map[string][]int64{}, changed: make(chan struct{}, 1)}
}

func (h *fakeHub) note(f func()) {
	h.mu.Lock()
	f()
	h.mu.Unlock()
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

func (h *fakeHub) Deliver(d delivery.Delivery) {
	h.note(func() {
		h.versions[d.ChatID] = append(h.versions[d.ChatID], d.Version)
		for _, e := range d.Events {
			h.contents = append(h.contents, e.(*eventv1.MessagePersisted).GetContent())
		}
	})
}

func (h *fakeHub) Receipt(user, chatID string, s *chatv1.MemberState) {
	h.note(func() { h.receipts = append(h.receipts, fmt.Sprint(user, " ", chatID, " ", s.GetReadSequence())) })
}

func (h *fakeHub) InvalidateAll() { h.note(func() { h.dirty++ }) }

func (h *fakeHub) Stream(user, id string) (*delivery.Stream, error) {
	h.note(func() { h.acks = append(h.acks, user+" "+id) })
	return nil, delivery.ErrStreamGone
}

func (h *fakeHub) Extend(user, session, id string, until time.Time) error {
	h.note(func() { h.acks = append(h.acks, fmt.Sprint(user, " ", session, " ", id, " ", until.Unix())) })
	if user == "thief" {
		return delivery.ErrNotYours
	}
	return nil
}

// until waits for a state that must come.
func (h *fakeHub) until(t *testing.T, what string, ok func(*fakeHub) bool) {
	t.Helper()
	late := time.After(2 * time.Minute)
	for {
		h.mu.Lock()
		done := ok(h)
		h.mu.Unlock()
		if done {
			return
		}
		select {
		case <-h.changed:
		case <-time.After(20 * time.Millisecond):
		case <-late:
			h.mu.Lock()
			defer h.mu.Unlock()
			t.Fatalf("never: %s; have %v, %d marks, receipts %v", what, runs(h.versions), h.dirty, h.receipts)
		}
	}
}

// runs describes versions by chat as runs of successors, such as 1-160 159-300, so that a failure shows the gap.
func runs(versions map[string][]int64) map[string]string {
	out := map[string]string{}
	for chatID, list := range versions {
		for i := 0; i < len(list); i++ {
			from := list[i]
			for i+1 < len(list) && list[i+1] == list[i]+1 {
				i++
			}
			out[chatID] += fmt.Sprintf("%d-%d ", from, list[i])
		}
	}
	return out
}

// net1 is an installation: a table and member lists.
type net1 struct {
	t       *testing.T
	table   *routingtest.Memory
	members map[string][]string
	fail    error                                                          // of reading members
	accept  map[string]func(context.Context, chat.Send) (chat.Sent, error) // by process
	avoid   time.Duration
	dead    time.Duration           // without an answer, after which a process counts as dead
	carried map[string]http.Handler // by process
}

func newNet(t *testing.T) *net1 {
	return &net1{t: t, table: routingtest.New(time.Now), members: map[string][]string{}}
}

// config has a time limit of calls that no pause of a busy machine reaches: a call that is given up is sent again, so
// that a hub sees a change twice, or is dropped after the last attempt. Tests of that set a shorter one.
func (n *net1) config(process string, hub Hub) Config {
	return Config{
		Process: process, Generation: "g", Table: n.table, Secret: secret, Hub: hub, Clock: time.Now,
		Logger: slog.New(slog.DiscardHandler), Accept: n.accept[process], Avoid: n.avoid,
		Carried: n.carried[process],
		Recipients: routing.NewRecipients("g", nil,
			func(_ context.Context, id string) (int64, []string, error) { return 1, n.members[id], n.fail }),
		Keepalive: 50 * time.Millisecond, Discover: 50 * time.Millisecond, Call: time.Minute, DeadAfter: n.dead,
	}
}

// mesh starts a process that only sends.
func (n *net1) mesh(cfg Config) *Mesh {
	n.t.Helper()
	m, err := New(cfg)
	testkit.Must(n.t, err)
	n.start(m)
	return m
}

func (n *net1) start(m *Mesh) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	testkit.Must(n.t, m.Open(n.t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx, func() {}) }()
	n.t.Cleanup(func() { cancel(); <-done })
}

// server starts a process with streams of users; through, if given, is the address that
// is announced to others.
func (n *net1) server(process string, users []string, through func(addr string) string) (*fakeHub, *Mesh) {
	n.t.Helper()
	hub := newFakeHub()
	m := n.mesh(n.config(process, hub))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Serve(ctx, l, nil) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	addr := l.Addr().String()
	if through != nil {
		addr = through(addr)
	}
	s := routing.Server{ID: process, Addr: addr, Generation: "g", Epoch: 1}
	testkit.Must(n.t, n.table.Claim(n.t.Context(), s, time.Hour))
	_, err = n.table.Put(n.t.Context(), s, users, time.Hour)
	testkit.Must(n.t, err)
	return hub, m
}

func message(chatID string, version int64, text string) event.Event {
	return &eventv1.MessagePersisted{ChatId: chatID, Content: text, Metadata: &eventv1.EventMetadata{
		EventId: fmt.Sprint("evt_", version), EventType: event.TypeMessagePersisted, EventVersion: 1, Generation: "g",
		Version: version, MembershipVersion: 1,
	}}
}

func sent(chatID string, version int64) delivery.Delivery {
	return delivery.Of([]event.Event{message(chatID, version, fmt.Sprint("text ", version))})
}

// proxy is a way to a server that can be cut and held up.
type proxy struct {
	addr string

	mu     sync.Mutex
	held   chan struct{} // closed: not held
	closed bool
	conns  []net.Conn
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	p := &proxy{addr: l.Addr().String(), held: make(chan struct{})}
	close(p.held)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			if p.closed {
				_, _ = in.Close(), out.Close()
			}
			p.mu.Unlock()
			for _, c := range [][2]net.Conn{{in, out}, {out, in}} {
				wg.Go(func() {
					defer c[0].Close()
					defer c[1].Close()
					b := make([]byte, 32<<10)
					for {
						n, err := c[0].Read(b)
						if err != nil {
							return
						}
						p.mu.Lock()
						held := p.held
						p.mu.Unlock()
						<-held
						if _, err := c[1].Write(b[:n]); err != nil {
							return
						}
					}
				})
			}
		}
	})
	t.Cleanup(func() { _ = l.Close(); p.hold(false); p.cut(); wg.Wait() })
	return p
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// refuse lets no connection through, or lets them again.
func (p *proxy) refuse(on bool) {
	p.mu.Lock()
	p.closed = on
	p.mu.Unlock()
	p.cut()
}

func (p *proxy) hold(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.held:
		if on {
			p.held = make(chan struct{})
		}
	default:
		if !on {
			close(p.held)
		}
	}
}

// authority signs certificates for 127.0.0.1.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour),
		IsCA:     true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	testkit.Must(t, err)
	cert, err := x509.ParseCertificate(der)
	testkit.Must(t, err)
	return &authority{key, cert}
}

func (a *authority) config(t *testing.T) *tls.Config {
	return a.issue(t, time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
}

func (a *authority) issue(t *testing.T, from, until time.Time) *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: from, NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	testkit.Must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: pool,
		ClientCAs: pool, MinVersion: tls.VersionTLS13}
}
