package streams

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
)

// flood sends more than all buffers on the way to a reader hold.
func (p *program) flood(chat string) {
	p.Helper()
	text := strings.Repeat("x", 16<<10)
	for range 1000 {
		p.say(chat, text)
	}
}

// TestStuckReader: a reader that takes nothing more is cut 10 s after the buffers
// are full, and its neighbours on the same connection live on.
func TestStuckReader(t *testing.T) {
	t.Parallel()
	p := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	type stuck struct {
		name string
		tr   *http.Transport
		body io.ReadCloser
		live chan struct{} // the neighbour's heartbeats
	}
	var all []*stuck
	for _, h2 := range []bool{false, true} {
		s := &stuck{name: map[bool]string{false: "HTTP/1.1", true: "h2c"}[h2], tr: newTransport(h2),
			live: make(chan struct{}, 100)}
		defer s.tr.CloseIdleConnections()
		dial := (&net.Dialer{}).DialContext
		s.tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err == nil && !h2 {
				err = c.(*net.TCPConn).SetReadBuffer(32 << 10)
			}
			return c, err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost,
			"http://"+p.addr+deliveryv1connect.DeliveryServiceSubscribeProcedure, strings.NewReader("\x00\x00\x00\x00\x00"))
		p.must(err)
		req.Header.Set("Content-Type", "application/connect+proto")
		res, err := bearer{p.token("bob"), s.tr}.RoundTrip(req)
		p.must(err)
		defer res.Body.Close()
		s.body = res.Body
		if h2 {
			go func() { // on the same connection; it ends with the test
				_ = follow(ctx, s.tr, "http://"+p.addr, p.token("cid"), func(f *deliveryv1.Frame) {
					if f.GetHeartbeat() != nil {
						s.live <- struct{}{}
					}
				})
				close(s.live)
			}()
			<-s.live
		}
		all = append(all, s)
	}
	chat := p.group([]string{"bob"})
	p.flood(chat)
	time.Sleep(15 * time.Second / divisor) // nobody reads for longer than the 10 s in which a write must end
	for _, s := range all {
		n, err := io.Copy(io.Discard, s.body)
		if err == nil || ctx.Err() != nil {
			t.Errorf("%s: not cut; %d bytes, %v", s.name, n, err)
		}
		t.Logf("%s: cut after %d bytes: %v", s.name, n, err)
	}
	for range 2 { // later than the cut
		if _, ok := <-all[1].live; !ok {
			t.Error("the neighbour's stream ended too")
		}
	}
}

// TestFrozenPeer: an HTTP/2 client that answers no pings, as a machine that is gone,
// does not hold its stream: 20 s without a frame, 10 s for the answer.
func TestFrozenPeer(t *testing.T) {
	t.Parallel()
	p := start(t)
	c, err := net.Dial("tcp", p.addr)
	p.must(err)
	defer c.Close()
	_, err = io.WriteString(c, http2.ClientPreface)
	p.must(err)
	framer := http2.NewFramer(c, c)
	p.must(framer.WriteSettings())
	var block strings.Builder
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "GET"}, {":scheme", "http"}, {":path", "/api/v1/stream"}, {":authority", p.addr},
		{"authorization", "Bearer " + p.token("bob")},
	} {
		p.must(enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
	}
	p.must(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndStream: true,
		EndHeaders: true}))
	p.must(c.SetReadDeadline(time.Now().Add(time.Minute)))
	data, pings := 0, 0
	for {
		f, err := framer.ReadFrame()
		if ne, ok := err.(net.Error); ok && ne.Timeout() { //nolint:errorlint // as the package has it
			t.Fatalf("still open after a minute; %d pings", pings)
		}
		if err != nil {
			break
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				p.must(framer.WriteSettingsAck())
			}
		case *http2.DataFrame:
			data++
		case *http2.PingFrame:
			pings++
		}
	}
	if data < 2 || pings == 0 {
		t.Errorf("%d frames of the stream, %d pings", data, pings)
	}
}

// TestRequestWithoutEnd: a stream's request that does not end is refused in words
// once the time for bodies is over, and does not hang.
func TestRequestWithoutEnd(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", h2), func(t *testing.T) {
			t.Parallel()
			r, w := io.Pipe()
			defer w.Close()
			go func() { _, _ = w.Write(make([]byte, 5)) }() // a whole message, and then nothing
			tr := newTransport(h2)
			defer tr.CloseIdleConnections()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				"http://"+p.addr+deliveryv1connect.DeliveryServiceSubscribeProcedure, r)
			p.must(err)
			req.Header.Set("Content-Type", "application/connect+proto")
			res, err := bearer{p.token("bob"), tr}.RoundTrip(req)
			p.must(err)
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			p.must(err)
			if !strings.Contains(string(b), "DEADLINE_EXCEEDED") {
				t.Errorf("%q", b)
			}
		})
	}
}

// TestConnectionAfterAStream: what bounds a stream's writes does not outlive it: its
// connection serves calls later than that.
func TestConnectionAfterAStream(t *testing.T) {
	t.Parallel()
	p := start(t, "--max-streams-per-user", "5")
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", h2), func(t *testing.T) {
			t.Parallel()
			user := fmt.Sprint("user", h2)
			tr := newTransport(h2)
			defer tr.CloseIdleConnections()
			ended := make(chan error, 1)
			live := make(chan struct{})
			opened := sync.OnceFunc(func() { close(live) })
			go func() {
				ended <- follow(t.Context(), tr, "http://"+p.addr, p.token(user), func(f *deliveryv1.Frame) {
					if f.GetHeartbeat() != nil { // the first of several, if the others come late
						opened()
					}
				})
			}()
			<-live
			others := newTransport(true)
			defer others.CloseIdleConnections()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for range 10 { // the sixth stream of a user ends the first
				go func() {
					_ = follow(ctx, others, "http://"+p.addr, p.token(user), func(*deliveryv1.Frame) {})
				}()
			}
			if err := <-ended; connect.CodeOf(err) != connect.CodeResourceExhausted {
				t.Fatal(err)
			}
			time.Sleep(11 * time.Second / divisor) // longer than the 10 s of the last write's limit
			reused := false
			ctx = httptrace.WithClientTrace(t.Context(),
				&httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
			c := deliveryv1connect.NewDeliveryServiceClient(&http.Client{Transport: bearer{p.token(user), tr}}, "http://"+p.addr)
			if _, err := c.Sync(ctx, &deliveryv1.SyncRequest{}); err != nil || !reused {
				t.Errorf("%v, connection reused: %t", err, reused)
			}
		})
	}
}
