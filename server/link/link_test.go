package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/server/chat"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var secret = []byte("a secret of more than 16 bytes")

// fakeHub keeps what it is told.
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

func (h *fakeHub) MarkDirty() { h.note(func() { h.dirty++ }) }

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
	late := time.After(20 * time.Second)
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
			t.Fatalf("never: %s; have %v, %d marks, receipts %v", what, h.versions, h.dirty, h.receipts)
		}
	}
}

// net1 is an installation: a table and member lists.
type net1 struct {
	t       *testing.T
	table   *routing.Memory
	members map[string][]string
	fail    error // of reading members
}

func newNet(t *testing.T) *net1 {
	return &net1{t: t, table: routing.NewMemory(time.Now), members: map[string][]string{}}
}

func (n *net1) config(process string, hub Hub) Config {
	return Config{
		Process: process, Generation: "g", Table: n.table, Secret: secret, Hub: hub, Clock: time.Now, Logger: slog.New(slog.DiscardHandler),
		Recipients: routing.NewRecipients(nil, func(_ context.Context, id string) (int64, []string, error) { return 1, n.members[id], n.fail }),
		Keepalive:  50 * time.Millisecond, Discover: 50 * time.Millisecond, Call: time.Second,
	}
}

// mesh starts a process that only sends.
func (n *net1) mesh(cfg Config) *Mesh {
	n.t.Helper()
	m, err := New(cfg)
	must(n.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	must(n.t, m.Open(n.t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = m.Run(ctx) }()
	n.t.Cleanup(func() { cancel(); <-done })
	return m
}

// server starts a process with streams of users; through, if given, is the address that
// others are told.
func (n *net1) server(process string, users []string, through func(addr string) string) (*fakeHub, *Mesh) {
	n.t.Helper()
	hub := newFakeHub()
	m := n.mesh(n.config(process, hub))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(n.t, err)
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
	must(n.t, n.table.Claim(n.t.Context(), s, time.Hour))
	_, err = n.table.Put(n.t.Context(), s, users, time.Hour)
	must(n.t, err)
	return hub, m
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func message(chatID string, version int64, text string) event.Event {
	return &eventv1.MessagePersisted{ChatId: chatID, Content: text, Metadata: &eventv1.EventMetadata{
		EventId: fmt.Sprint("evt_", version), EventType: event.TypeMessagePersisted, EventVersion: 1, Generation: "g", Version: version, MembershipVersion: 1,
	}}
}

func sent(chatID string, version int64) delivery.Delivery {
	return delivery.Of([]event.Event{message(chatID, version, fmt.Sprint("text ", version))})
}

func TestOncePerServer(t *testing.T) {
	n := newNet(t)
	n.members["c"] = []string{"u", "v", "w", "away"}
	one, own := n.server("one", []string{"u", "v"}, nil)
	two, _ := n.server("two", []string{"w"}, nil)
	three, _ := n.server("three", []string{"x"}, nil)
	m := n.mesh(n.config("sender", nil))
	for v := int64(1); v <= 300; v++ {
		m.Deliver(sent("c", v))
	}
	want := make([]int64, 300)
	for i := range want {
		want[i] = int64(i) + 1
	}
	for _, h := range []*fakeHub{one, two} {
		h.until(t, "all changes, once and in order", func(h *fakeHub) bool { return slices.Equal(h.versions["c"], want) })
	}
	three.mu.Lock()
	defer three.mu.Unlock()
	if len(three.versions) > 0 || one.dirty+two.dirty+three.dirty > 0 || one.contents[0] != "text 1" {
		t.Errorf("three got %v; %d marks", three.versions, one.dirty+two.dirty+three.dirty)
	}
	own.Deliver(sent("c", 301)) // its own hub knows already
	two.until(t, "a change from a server", func(h *fakeHub) bool { return len(h.versions["c"]) == 301 })
	one.mu.Lock()
	defer one.mu.Unlock()
	if len(one.versions["c"]) != 300 {
		t.Error("a process sent to itself")
	}
}

func TestTargetsAndReceipts(t *testing.T) {
	n := newNet(t)
	n.members["c"] = []string{"u"}
	hub, _ := n.server("one", []string{"removed"}, nil)
	m := n.mesh(n.config("sender", nil))
	d := sent("c", 1)
	d.Targets = []string{"removed"} // no member any more
	m.Deliver(d)
	m.Receipt("removed", "c", &chatv1.MemberState{ReadSequence: 7})
	hub.until(t, "the removal and the receipt", func(h *fakeHub) bool {
		return len(h.versions["c"]) == 1 && slices.Equal(h.receipts, []string{"removed c 7"})
	})
}

// K-119: what cannot be routed is left out, and everybody synchronises.
func TestSkippedRepairIsNoticed(t *testing.T) {
	n := newNet(t)
	n.members["c"] = []string{"u"}
	hub, _ := n.server("one", []string{"u"}, nil)
	m := n.mesh(n.config("sender", nil))
	n.table.Fail(routing.ErrUnavailable)
	must(t, m.Repair(t.Context(), sent("c", 1)))
	hub.until(t, "a mark", func(h *fakeHub) bool { return h.dirty == 1 })
	m.Deliver(sent("c", 2)) // the durable path repairs it: no mark
	m.Receipt("u", "c", &chatv1.MemberState{})
	hub.until(t, "another mark", func(h *fakeHub) bool { return h.dirty == 2 })
	n.table.Fail(nil)
	must(t, m.Repair(t.Context(), sent("c", 3)))
	hub.until(t, "a repair", func(h *fakeHub) bool { return slices.Equal(h.versions["c"], []int64{3}) })
	if s := m.Stats(); s.Skips != 2 || s.Unrouted != 1 {
		t.Errorf("%+v", s)
	}
	n.fail = errors.New("store")
	d := sent("other", 1)
	if err := m.Repair(t.Context(), d); !errors.Is(err, n.fail) { // K-124: again later
		t.Errorf("the store is away: %v", err)
	}
}

// Cut connections, slow ones and ones that lead nowhere: nothing is missed unnoticed.
func TestLinksCut(t *testing.T) {
	n := newNet(t)
	n.members["c"] = []string{"u"}
	var way *proxy
	hub, _ := n.server("one", []string{"u"}, func(addr string) string { way = newProxy(t, addr); return way.addr })
	m := n.mesh(n.config("sender", nil))
	const total = 2000
	for v := int64(1); v <= total; v++ {
		must(t, m.Repair(t.Context(), sent("c", v)))
		switch v % 400 {
		case 100:
			way.cut()
		case 200:
			way.hold(true)
		case 300:
			way.hold(false)
		}
	}
	// The last one to come tells of all the others.
	hub.until(t, "the last change, or a mark after it was lost", func(h *fakeHub) bool {
		seen := map[int64]bool{}
		for _, v := range h.versions["c"] {
			seen[v] = true
		}
		return len(seen) == total || (h.dirty > 0 && m.idle())
	})
	hub.mu.Lock()
	defer hub.mu.Unlock()
	seen := map[int64]bool{}
	for _, v := range hub.versions["c"] {
		seen[v] = true
	}
	if len(seen) < total && hub.dirty == 0 {
		t.Errorf("%d of %d changes came, and nobody noticed", len(seen), total)
	}
	if s := m.Stats(); s.Failed == 0 {
		t.Errorf("nothing was cut: %+v", s)
	}
}

// idle reports whether nothing waits for a link.
func (m *Mesh) idle() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.peers {
		p.mu.Lock()
		n := len(p.queue)
		p.mu.Unlock()
		if n > 0 {
			return false
		}
	}
	return true
}

// A queue that is full leaves live changes to the durable path and shows lost repairs as
// a gap.
func TestFullQueue(t *testing.T) {
	n := newNet(t)
	n.members["c"] = []string{"u"}
	var way *proxy
	hub, _ := n.server("one", []string{"u"}, func(addr string) string { way = newProxy(t, addr); return way.addr })
	cfg := n.config("sender", nil)
	cfg.QueueItems = 10
	m := n.mesh(cfg)
	way.hold(true)
	for v := int64(1); v <= 500; v++ {
		m.Deliver(sent("c", v))
	}
	for m.Stats().Dropped == 0 {
		time.Sleep(time.Millisecond)
	}
	hub.mu.Lock()
	if hub.dirty != 0 {
		t.Error("marked for live changes")
	}
	hub.mu.Unlock()
	for v := int64(501); v <= 600; v++ {
		must(t, m.Repair(t.Context(), sent("c", v)))
	}
	way.hold(false)
	hub.until(t, "a mark", func(h *fakeHub) bool { return h.dirty > 0 })
}

func TestServerGone(t *testing.T) {
	n := newNet(t)
	n.members["c"] = []string{"u"}
	cfg := n.config("sender", nil)
	cfg.Forget = 200 * time.Millisecond
	dead := routing.Server{ID: "dead", Addr: "127.0.0.1:1", Generation: "g", Epoch: 1}
	m := n.mesh(cfg)
	must(t, n.table.Claim(t.Context(), dead, time.Hour))
	_, err := n.table.Put(t.Context(), dead, []string{"u"}, time.Hour)
	must(t, err)
	must(t, n.table.Claim(t.Context(), routing.Server{ID: "foreign", Addr: "127.0.0.1:1", Generation: "other", Epoch: 1}, time.Hour))
	m.Deliver(sent("c", 1))
	for m.Stats().Failed == 0 {
		time.Sleep(time.Millisecond)
	}
	// K-120: it does not answer; what is for it is skipped.
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := m.Repair(ctx, sent("c", 2)); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	if got := m.Stats().Peers; got != 1 {
		t.Errorf("%d peers, the foreign one included?", got)
	}
	must(t, n.table.Release(t.Context(), dead))
	for m.Stats().Peers > 0 {
		time.Sleep(time.Millisecond)
	}
}

func TestForwarding(t *testing.T) {
	n := newNet(t)
	hub, _ := n.server("one", nil, nil)
	_, m := n.server("two", nil, nil)
	ctx := t.Context()
	if err := m.Ack(ctx, "u", "one.str_1", 4); !errors.Is(err, delivery.ErrStreamGone) {
		t.Errorf("ack: %v", err)
	}
	must(t, m.Extend(ctx, "u", "s", "one.str_1", time.Unix(5, 0)))
	if err := m.Extend(ctx, "thief", "s", "one.str_1", time.Unix(5, 0)); !errors.Is(err, delivery.ErrNotYours) {
		t.Errorf("extend: %v", err)
	}
	if err := m.Ack(ctx, "u", "nowhere.str_1", 4); !errors.Is(err, delivery.ErrStreamGone) {
		t.Errorf("no such server: %v", err)
	}
	if err := m.Ack(ctx, "u", "one."+strings.Repeat("x", 200), 4); err == nil {
		t.Error("an id beyond the limit")
	}
	hub.mu.Lock()
	defer hub.mu.Unlock()
	if want := []string{"u one.str_1", "u s one.str_1 5", "thief s one.str_1 5"}; !slices.Equal(hub.acks, want) {
		t.Errorf("%q, want %q", hub.acks, want)
	}
}

// Nobody without the secret is listened to, whatever they send.
func TestProof(t *testing.T) {
	n := newNet(t)
	hub, m := n.server("one", nil, nil)
	servers, err := n.table.Servers(t.Context())
	must(t, err)
	now := time.Now()
	body, err := proto.Marshal(&linkv1.SendRequest{From: "evil", Generation: "g", Epoch: 1, Number: 1, Receipts: []*linkv1.Receipt{{UserId: "u", ChatId: "c", State: &chatv1.MemberState{}}}})
	must(t, err)
	for name, c := range map[string]struct {
		proof string
		want  int
	}{
		"none":           {"", http.StatusUnauthorized},
		"junk":           {"a b c d", http.StatusUnauthorized},
		"other secret":   {proof([]byte("another secret of 16 bytes"), "evil", "one", now), http.StatusUnauthorized},
		"for another":    {proof(secret, "evil", "two", now), http.StatusUnauthorized},
		"old":            {proof(secret, "evil", "one", now.Add(-2*time.Minute)), http.StatusUnauthorized},
		"early":          {proof(secret, "evil", "one", now.Add(2*time.Minute)), http.StatusUnauthorized},
		"another's name": {proof(secret, "good", "one", now), http.StatusForbidden},
		"good":           {proof(secret, "evil", "one", now), http.StatusOK},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+servers[0].Addr+"/parley.link.v1.LinkService/Send", strings.NewReader(string(body)))
		must(t, err)
		req.Header.Set("Content-Type", "application/proto")
		req.Header.Set(proofHeader, c.proof)
		res, err := m.client.Do(req)
		must(t, err)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("%s: status %d, want %d", name, res.StatusCode, c.want)
		}
	}
	hub.mu.Lock()
	defer hub.mu.Unlock()
	if len(hub.receipts) != 1 {
		t.Errorf("%d receipts got through, want 1", len(hub.receipts))
	}
}

func TestTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	n := newNet(t)
	n.members["c"] = []string{"u"}
	start := func(process string, hub Hub, conf *tls.Config) *Mesh {
		cfg := n.config(process, hub)
		cfg.TLS = conf
		return n.mesh(cfg)
	}
	hub := newFakeHub()
	srv := start("one", hub, ca.config(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l, ca.config(t)) }()
	t.Cleanup(func() { cancel(); <-done })
	s := routing.Server{ID: "one", Addr: l.Addr().String(), Generation: "g", Epoch: 1}
	good := start("good", nil, ca.config(t))
	bad := start("bad", nil, other.config(t))
	plain := start("plain", nil, nil)
	must(t, n.table.Claim(t.Context(), s, time.Hour))
	_, err = n.table.Put(t.Context(), s, []string{"u"}, time.Hour)
	must(t, err)
	good.Deliver(sent("c", 1))
	hub.until(t, "a change over TLS", func(h *fakeHub) bool { return len(h.versions["c"]) == 1 })
	for _, m := range []*Mesh{bad, plain} {
		m.Deliver(sent("c", 2))
		for m.Stats().Failed == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	hub.mu.Lock()
	defer hub.mu.Unlock()
	if len(hub.versions["c"]) != 1 {
		t.Error("a process of another authority was listened to")
	}
}

func TestCommitNudge(t *testing.T) {
	n := newNet(t)
	m := n.mesh(n.config("relay", nil))
	c := chat.Commit{
		ChatID: "chat_1", Head: table.Head{ChatID: "chat_1", Version: 9}, Events: []event.Event{message("chat_1", 8, "a"), message("chat_1", 9, "b")},
		Outbox: store.Row{Key: store.Key{Table: store.Outbox, PK: table.ShardKey(event.Shard("chat_1")), SK: "chat_1#8"}},
	}
	b, err := EncodeCommit(c)
	must(t, err)
	got, err := m.DecodeCommit(b)
	must(t, err)
	if got.ChatID != c.ChatID || got.Head.Version != 9 || got.Outbox.Key != c.Outbox.Key || len(got.Events) != 2 || !proto.Equal(got.Events[1], c.Events[1]) {
		t.Errorf("%+v", got)
	}
	foreign := c
	foreign.Events = []event.Event{message("chat_2", 9, "x")}
	skewed := c
	skewed.Events = []event.Event{message("chat_1", 7, "x")}
	for name, c := range map[string]chat.Commit{"another chat's event": foreign, "another version": skewed, "nothing": {}} {
		b, err := EncodeCommit(c)
		must(t, err)
		if _, err := m.DecodeCommit(b); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if _, err := m.DecodeCommit([]byte("junk")); err == nil {
		t.Error("junk was taken")
	}
}

// proxy is a way to a server that can be cut and held up.
type proxy struct {
	addr string

	mu    sync.Mutex
	held  chan struct{} // closed: not held
	conns []net.Conn
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
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
	must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	must(t, err)
	cert, err := x509.ParseCertificate(der)
	must(t, err)
	return &authority{key, cert}
}

func (a *authority) config(t *testing.T) *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	must(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: pool, ClientCAs: pool, MinVersion: tls.VersionTLS13}
}

// BenchmarkRepair brings a hundred changes from one process to another.
func BenchmarkRepair(b *testing.B) {
	n := newNet(nil)
	n.members["c"] = []string{"u", "v"}
	hub := newFakeHub()
	srv, err := New(n.config("one", hub))
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l, nil) }()
	defer func() { cancel(); <-done; srv.Close() }()
	s := routing.Server{ID: "one", Addr: l.Addr().String(), Generation: "g", Epoch: 1}
	if err := n.table.Claim(b.Context(), s, time.Hour); err != nil {
		b.Fatal(err)
	}
	if _, err := n.table.Put(b.Context(), s, []string{"u"}, time.Hour); err != nil {
		b.Fatal(err)
	}
	m, err := New(n.config("sender", nil))
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	version := int64(0)
	for b.Loop() {
		for range 100 {
			version++
			if err := m.Repair(b.Context(), sent("c", version)); err != nil {
				b.Fatal(err)
			}
		}
		for got := 0; got < int(version); {
			<-hub.changed
			hub.mu.Lock()
			got = len(hub.versions["c"])
			hub.mu.Unlock()
		}
	}
}
