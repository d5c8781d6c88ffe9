package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	linkv1 "github.com/parley-chat/parley/gen/parley/link/v1"
	"github.com/parley-chat/parley/server/delivery"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/routing"
	"github.com/parley-chat/parley/server/routing/routingtest"
)

// endless is a body of a size that nobody should read; it counts what was.
type endless struct{ left, read atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	n := min(int64(len(p)), e.left.Load())
	if n <= 0 {
		return 0, io.EOF
	}
	clear(p[:n])
	e.left.Add(-n)
	e.read.Add(n)
	return int(n), nil
}

// Whoever connects without the secret has nothing read of what they send; those with it
// are held to the limit of a request. What works keeps working all the while.
func TestHostile(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	n.members["c"] = []string{"u"}
	hub, m := n.server("one", []string{"u"}, nil)
	sender := n.mesh(n.config("sender", nil))
	servers, err := n.table.Servers(t.Context())
	testkit.Must(t, err)
	addr := servers[0].Addr
	client := newClient(nil)
	defer client.CloseIdleConnections()
	post := func(path, proved string, body io.Reader) (int, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+path, body)
		testkit.Must(t, err)
		req.Header.Set("Content-Type", "application/proto")
		req.Header.Set(credentialHeader, proved)
		res, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(io.LimitReader(res.Body, 4<<10+1))
		if len(answer) > 4<<10 {
			t.Errorf("%s: an answer of more than 4 KiB", path)
		}
		return res.StatusCode, err
	}
	good := func() string { return credential(secret, "evil", "one", time.Now()) }
	const send = "/parley.link.v1.LinkService/Send"

	// A gigabyte, without the secret and with it.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for name, c := range map[string]struct {
		proof string
		most  int64 // bytes that go out before the end is noticed: HTTP/2's windows, and what is under way
		codes []int
	}{
		"without the secret": {"", 8 << 20, []int{http.StatusUnauthorized}},
		"with it": {good(), 16<<20 + 8<<20,
			[]int{http.StatusTooManyRequests, http.StatusRequestEntityTooLarge, http.StatusBadRequest}},
	} {
		body := &endless{}
		body.left.Store(1 << 30)
		code, err := post(send, c.proof, body)
		ok := err != nil // the stream may be reset before its answer is read
		for _, want := range c.codes {
			ok = ok || code == want
		}
		if !ok || body.read.Load() > c.most {
			t.Errorf("a gigabyte %s: status %d, %v, %d bytes read, want at most %d", name, code, err, body.read.Load(), c.most)
		}
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 256<<20 {
		t.Errorf("a gigabyte cost %d bytes of memory", grown)
	}

	// Bytes that are no HTTP/2, or stop in the middle of it.
	for name, raw := range map[string]string{
		"nothing": "", "an HTTP/1 request": "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "half a preface": "PRI * HTTP/2.0\r\n",
		"a preface and junk": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\xff", 1000),
		"junk":               strings.Repeat("\x16\x03\x01", 5000),
	} {
		conn, err := net.Dial("tcp", addr)
		testkit.Must(t, err)
		testkit.Must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		_, _ = io.WriteString(conn, raw)
		if name != "nothing" && name != "half a preface" {
			got, _ := io.ReadAll(io.LimitReader(conn, 1<<20))
			if bytes.Contains(got, []byte("parley")) {
				t.Errorf("%s: answered with %q", name, got)
			}
		}
		defer conn.Close() // some stay open, as an attacker's would
	}

	// Requests of those who have the secret, and are wrong.
	marshal := func(r *linkv1.SendRequest) []byte {
		b, err := proto.Marshal(r)
		testkit.Must(t, err)
		return b
	}
	many := &linkv1.SendRequest{From: "evil", Generation: "g", Epoch: 1, Number: 1}
	for i := range 501 {
		many.Receipts = append(many.Receipts,
			&linkv1.Receipt{UserId: fmt.Sprint(i), ChatId: "c", State: &chatv1.MemberState{}})
	}
	for name, c := range map[string]struct {
		path string
		body []byte
		want int
	}{
		"junk":     {send, []byte("junk"), http.StatusBadRequest},
		"nothing":  {send, nil, http.StatusBadRequest},
		"too many": {send, marshal(many), http.StatusBadRequest},
		"no number": {send, marshal(&linkv1.SendRequest{From: "evil", Generation: "g", Epoch: 1,
			Receipts: many.Receipts[:1]}), http.StatusBadRequest},
		"another's store": {send, marshal(&linkv1.SendRequest{From: "evil", Generation: "h", Epoch: 1}),
			http.StatusBadRequest},
		"no such call": {"/parley.link.v1.LinkService/Stop", nil, http.StatusNotFound},
		"no such path": {"/metrics", nil, http.StatusNotFound},
		"an event of another chat": {send,
			marshal(&linkv1.SendRequest{From: "evil", Generation: "g", Epoch: 1, Number: 1, Deliveries: []*linkv1.Delivery{
				{Generation: "g", ChatId: "c", Version: 1, Events: wireEvents(t, sent("other", 1))},
			}}), http.StatusBadRequest},
	} {
		if code, err := post(c.path, good(), bytes.NewReader(c.body)); err != nil || code != c.want {
			t.Errorf("%s: status %d, %v; want %d", name, code, err, c.want)
		}
	}

	// The same request again is late, and shown as what it is.
	again := marshal(&linkv1.SendRequest{From: "evil", Generation: "g", Epoch: 1, Number: 1, Receipts: many.Receipts[:1]})
	for range 3 {
		if code, err := post(send, good(), bytes.NewReader(again)); err != nil || code != http.StatusOK {
			t.Errorf("repeated: status %d, %v", code, err)
		}
	}
	if s := m.Stats().Received; s.Stale != 2 || s.Gaps != 0 {
		t.Errorf("repeated requests: %+v", s)
	}
	sender.Deliver(sent("c", 1))
	hub.until(t, "a change, after all that", func(h *fakeHub) bool { return len(h.versions["c"]) == 1 })
}

func wireEvents(t testing.TB, d delivery.Delivery) []*linkv1.Event {
	t.Helper()
	list, _, err := encodeEvents(d.Events, nil)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Whatever a link with certificates is shown by somebody without: no answer, no memory.
func TestTLSHostile(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	n := newNet(t)
	cfg := n.config("one", newFakeHub())
	cfg.TLS = ca.config(t)
	addr := serve(t, n.mesh(cfg), "127.0.0.1", ca.config(t))
	own := ca.config(t)
	for name, conf := range map[string]*tls.Config{
		"no certificate": {RootCAs: own.RootCAs, ServerName: "127.0.0.1", NextProtos: []string{"h2"}},
		"an expired one": func() *tls.Config {
			c := ca.issue(t, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
			c.ServerName, c.NextProtos = "127.0.0.1", []string{"h2"}
			return c
		}(),
		"an old version": {RootCAs: own.RootCAs, ServerName: "127.0.0.1", Certificates: own.Certificates,
			MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}},
	} {
		conn, err := tls.Dial("tcp", addr, conf)
		if err == nil { // with TLS 1.3 the refusal comes after the client's own part
			testkit.Must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "tls") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Large messages to a server that stands still: what waits for it is bounded, in bytes
// and in number, and nobody else waits.
func TestBurst(t *testing.T) {
	t.Parallel()
	n := newNet(t)
	// The slow server stands still for as long as the machine takes for the rest. Nothing may give it up meanwhile: not
	// the receiver, a call, or a ping of the connection.
	n.dead = time.Hour
	for i := range 100 {
		n.members["c"] = append(n.members["c"], fmt.Sprint("u", i))
	}
	var way *proxy
	slow, _ := n.server("slow", n.members["c"][:50], func(addr string) string { way = newProxy(t, addr); return way.addr })
	quick, _ := n.server("quick", n.members["c"][50:], nil)
	cfg := n.config("sender", nil)
	cfg.QueueBytes = 2 << 20
	cfg.Call = time.Hour
	m, err := New(cfg)
	testkit.Must(t, err)
	http2 := m.client.Transport.(*http.Transport).HTTP2
	http2.SendPingTimeout, http2.WriteByteTimeout = 0, 0
	n.start(m)
	p := m.peer(routing.Server{ID: "slow", Addr: way.addr, Generation: "g"})
	way.hold(true)
	text := strings.Repeat("x", 64<<10)
	const total = 100 // three times what has room
	for v := int64(1); v <= total; v++ {
		m.Deliver(delivery.Of([]event.Event{message("c", v, text)}))
		p.mu.Lock()
		if p.bytes > cfg.QueueBytes {
			t.Errorf("%d bytes wait, the bound is %d", p.bytes, cfg.QueueBytes)
		}
		p.mu.Unlock()
		if v%10 == 0 {
			quick.until(t, "all changes where nothing is slow", func(h *fakeHub) bool { return len(h.versions["c"]) == int(v) })
		}
	}
	testkit.Eventually(t, "a change has no room in the queue", func() bool { return m.Stats().Dropped > 0 })
	way.hold(false)
	slow.until(t, "what had room", func(h *fakeHub) bool { return len(h.versions["c"]) >= 2<<20/(64<<10+2*overhead) })
	slow.mu.Lock()
	defer slow.mu.Unlock()
	if slow.dirty > 0 {
		t.Errorf("%d marks for changes that the durable path repairs", slow.dirty)
	}
	for _, c := range slow.contents {
		if len(c) != len(text) {
			t.Fatalf("a text of %d bytes", len(c))
		}
	}
}

// FuzzReceive: no bytes that somebody with the secret sends end the process, and none
// that are refused reach the hub.
func FuzzReceive(f *testing.F) {
	n := &net1{members: map[string][]string{}, table: routingtest.New(time.Now)}
	hub := newFakeHub()
	m, err := New(n.config("one", hub))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(m.Close)
	h := &handler{m}
	seed := func(r *linkv1.SendRequest) {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	seed(&linkv1.SendRequest{From: "p", Generation: "g", Epoch: 1})
	seed(&linkv1.SendRequest{From: "p", Generation: "g", Epoch: 1, Number: 1,
		Deliveries: []*linkv1.Delivery{{Generation: "g", ChatId: "c", Version: 1, Events: wireEvents(f, sent("c", 1))}}})
	seed(&linkv1.SendRequest{From: "p", Generation: "g", Epoch: 2, Number: 9, Bye: true,
		Receipts: []*linkv1.Receipt{{UserId: "u", ChatId: "c", State: &chatv1.MemberState{ReadSequence: 3}}}})
	f.Fuzz(func(t *testing.T, b []byte) {
		req := &linkv1.SendRequest{}
		if proto.Unmarshal(b, req) != nil {
			return
		}
		count := func() int {
			hub.mu.Lock()
			defer hub.mu.Unlock()
			all := len(hub.receipts)
			for _, v := range hub.versions {
				all += len(v)
			}
			return all
		}
		before := count()
		_, err := h.Send(context.WithValue(t.Context(), fromKey{}, req.GetFrom()), req)
		got := count() - before
		if want := len(req.GetDeliveries()) + len(req.GetReceipts()); (err == nil && got != want) ||
			(err != nil && got != 0) {
			t.Errorf("%d of %d reached the hub, %v", got, want, err)
		}
		if len(req.GetDeliveries()) > 500 && err == nil {
			t.Error("beyond the limit")
		}
	})
}
