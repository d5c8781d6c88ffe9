package app_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"
	"golang.org/x/net/http2"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// clients are one of each version of HTTP.
func clients(t *testing.T) map[string]*http.Client {
	return map[string]*http.Client{"HTTP/1.1": {Transport: newTransport(t, false)},
		"HTTP/2": {Transport: newTransport(t, true)}}
}

// ask sends a request and returns the status and the body of the answer.
func ask(t *testing.T, c *http.Client, method, url string, change func(*http.Request)) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(req)
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// A web page that calls a server on its reader's machine by a name of its own is
// refused, in both versions of HTTP, whatever it asks for.
func TestHostsOfPages(t *testing.T) {
	t.Parallel()
	p := launch(t, t.TempDir(), "127.0.0.1:0", "--allowed-hosts", "Chat.example.com,10.1.2.3")
	_, port, _ := net.SplitHostPort(p.addr)
	for version, c := range clients(t) {
		for host, want := range map[string]int{
			"127.0.0.1:" + port: 200, "localhost:" + port: 200, "LOCALHOST": 200, "[::1]:" + port: 200, "app.localhost": 200,
			"127.8.9.10":       200,
			"chat.example.com": 200, "CHAT.EXAMPLE.COM.:443": 200, "10.1.2.3:80": 200,
			"evil.example:" + port: 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421, "192.168.1.1": 421,
			"chat.example.com.evil.example": 421,
		} {
			for _, path := range []string{"/", "/healthz", "/metrics", "/docs"} {
				status, body := ask(t, c, http.MethodGet, "http://"+p.addr+path, func(r *http.Request) { r.Host = host })
				if status != want {
					t.Errorf("%s %s as %q: %d, not %d: %.200s", version, path, host, status, want, body)
				}
				if want == 421 && !strings.Contains(body, "--allowed-hosts") {
					t.Errorf("%s: the answer does not say what is wrong: %s", version, body)
				}
			}
		}
	}
	// gRPC has the name in :authority, and the refusal in trailers or headers.
	u := newUser("bob", "x", p.addr, rehosted{newTransport(t, true)}, connect.WithGRPC())
	_, err := u.chats.ListChats(t.Context(), &chatv1.ListChatsRequest{})
	if connect.CodeOf(err) != connect.CodeInvalidArgument ||
		!strings.Contains(err.Error(), "not called \"evil.example\"") {
		t.Errorf("gRPC: %v", err)
	}
}

// What is refused is answered before its body is there, which may never come, and the
// pages of origins that may call the server can read why.
func TestRefusedIsAnswered(t *testing.T) {
	t.Parallel()
	p := launch(t, t.TempDir(), "127.0.0.1:0")
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(conn,
		"POST /api/v1/chats HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://localhost:5173\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusMisdirectedRequest ||
		res.Header.Get("Access-Control-Allow-Origin") != "http://localhost:5173" {
		t.Errorf("%s, %v", res.Status, res.Header)
	}
}

type rehosted struct{ next http.RoundTripper }

func (h rehosted) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host = "evil.example"
	return h.next.RoundTrip(r)
}

// The head of a request has 16 KiB at most, in one header or in many, in both versions.
func TestLargeHeaders(t *testing.T) {
	t.Parallel()
	p := launch(t, t.TempDir(), "127.0.0.1:0")
	for version, c := range clients(t) {
		for _, tt := range []struct {
			name  string
			size  int // of a value
			count int
			want  int
		}{
			{"one of 15 KiB", 15 << 10, 1, 200}, {"one of 17 KiB", 17 << 10, 1, 431}, {"one of 64 KiB", 64 << 10, 1, 431},
			{"15 of 1 KiB", 1 << 10, 15, 200}, {"18 of 1 KiB", 1 << 10, 18, 431},
		} {
			status, body := ask(t, c, http.MethodGet, "http://"+p.addr+"/healthz", func(r *http.Request) {
				for i := range tt.count {
					r.Header.Set("X-"+strconv.Itoa(i), strings.Repeat("x", tt.size))
				}
			})
			// Go's HTTP/2 client knows the server's limit, and does not even try.
			known := version == "HTTP/2" && strings.Contains(body, "larger than peer's advertised limit")
			if status != tt.want && !(tt.want == 431 && known) {
				t.Errorf("%s, %s: %d: %.200s", version, tt.name, status, body)
			}
		}
	}
}

// Where others can listen in, the server says so in one line. Metrics have a listener of
// their own.
func TestExposed(t *testing.T) {
	t.Parallel()
	p := launch(t, t.TempDir(), "0.0.0.0:0", "--metrics-listen", "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(p.addr)
	base := "http://127.0.0.1:" + port
	testkit.Eventually(t, "the last line of the start is read", func() bool {
		return strings.Contains(p.log.String(), "msg=listening")
	})
	if n := strings.Count(p.log.String(), "without TLS"); n != 1 {
		t.Errorf("%d lines say that there is no TLS: %s", n, &p.log)
	}
	if said := p.said.String(); strings.Contains(said, "=ey") || strings.Contains(said, "ALICE") {
		t.Errorf("tokens are printed: %s", said)
	}
	plain := clients(t)["HTTP/1.1"]
	for path, want := range map[string]int{"/metrics": 404, "/healthz": 200, "/readyz": 200, "/docs": 200, "/": 200} {
		if status, body := ask(t, plain, http.MethodGet, base+path,
			func(r *http.Request) { r.Host = "chat.example.com" }); status != want || strings.Contains(body, "/metrics") {
			t.Errorf("%s: %d: %.300s", path, status, body)
		}
	}
	names := grpcreflect.NewClient(clients(t)["HTTP/2"], base).NewStream(t.Context())
	if list, err := names.ListServices(); err == nil {
		t.Errorf("reflection lists %v", list)
	}
	_, _ = names.Close()
	if metrics := p.metricsListener(t); scrape(t, metrics, "parley_streams_open") != 0 {
		t.Errorf("no metrics at %q", metrics)
	}
}

// Behind a proxy clients are told apart by the address that it added, whatever they say
// themselves.
func TestBehindProxy(t *testing.T) {
	t.Parallel()
	p := launch(t, t.TempDir(), "127.0.0.1:0", "--behind-proxy", "1", "--max-connections-per-address", "3")
	if strings.Contains(p.log.String(), "without TLS") {
		t.Error("the proxy's TLS is not known of")
	}
	tr := newTransport(t, false)
	from := func(address string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("X-Forwarded-For", address) }
	}
	c := &http.Client{Transport: tr}
	r := &benchFixture{b: t, ctx: t.Context(), p: p, dir: p.dataDir()}
	r.readKey()
	token, err := r.key.Issue("bob", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // of one client, which says that it is another each time
		u := newUser("bob", token, p.addr, forwarded{tr, fmt.Sprintf("203.0.113.%d, 198.51.100.9", i)})
		stream, err := u.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
		if err != nil || !stream.Receive() {
			t.Fatalf("stream %d: %v", i, err)
		}
		defer stream.Close()
	}
	if status, body := ask(t, c, http.MethodGet, "http://"+p.addr+"/healthz", from("198.51.100.9")); status != 429 ||
		!strings.Contains(body, "too many requests under way") {
		t.Errorf("a fourth request: %d: %s", status, body)
	}
	if status, _ := ask(t, c, http.MethodGet, "http://"+p.addr+"/healthz", from("198.51.100.10")); status != 200 {
		t.Errorf("another client: %d", status)
	}
}

type forwarded struct {
	next    http.RoundTripper
	address string
}

func (f forwarded) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Forwarded-For", f.address)
	return f.next.RoundTrip(r)
}

// dataDir is where a process has its data.
func (p *process) dataDir() string {
	for i, a := range p.cmd.Args {
		if a == "--data-dir" {
			return p.cmd.Args[i+1]
		}
	}
	return ""
}

// 2,000 tokens that are none cost a line in the log now and then, and are counted by
// what is wrong with them.
func TestFloodOfBadTokens(t *testing.T) {
	p := launch(t, t.TempDir(), "127.0.0.1:0")
	other := launch(t, t.TempDir(), "127.0.0.1:0")
	foreign := token(t, other.dataDir(), "bob")
	other.kill()
	tr := newTransport(t, false)
	for reason, header := range map[string]string{"missing": "", "not_bearer": "Basic x", "invalid": "Bearer x",
		"other_key": "Bearer " + foreign} {
		each(500, 16, func(int) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
				"http://"+p.addr+"/parley.chat.v1.ChatService/ListChats", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			if header != "" {
				req.Header.Set("Authorization", header)
			}
			res, err := tr.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			_ = res.Body.Close()
			if res.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s: %s", reason, res.Status)
			}
		})
		if got := scrape(t, p.addr, `parley_auth_refused_total{reason="`+reason+`"}`); got != 500 {
			t.Errorf("%s: %v counted", reason, got)
		}
	}
	said := p.log.String()
	if n := strings.Count(said, "was not authenticated"); n < 1 || n > 30 || !strings.Contains(said, "reason=") ||
		strings.Contains(said, foreign) {
		t.Errorf("%d lines of 2,000: %.1000s", n, said)
	}
}

// Streams that need no token are few: a newer one ends the oldest, so that nobody keeps
// others out.
func TestReflectionStreamsAreFew(t *testing.T) {
	t.Parallel()
	p := launch(t, t.TempDir(), "127.0.0.1:0")
	open := func(c *http.Client) (body io.Reader) {
		t.Helper()
		pr, pw := io.Pipe()
		t.Cleanup(func() { _ = pw.Close() })
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+p.addr+"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", pr)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/grpc")
		go func() { _, _ = pw.Write([]byte("\x00\x00\x00\x00\x02\x3a\x00")) }() // list services
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = res.Body.Close() })
		if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		return res.Body
	}
	c := clients(t)["HTTP/2"]
	first := open(c)
	for range 32 {
		open(c)
	}
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, first)
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the first of 33 streams is still open")
	}
}

// 700 connections of a neighbour that say nothing, against 424 files that the process
// may open: who has a token is served, and what they write is kept.
func TestIdleConnectionsAgainstFewDescriptors(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("not run: needs a shell's ulimit")
	}
	dir := t.TempDir()
	p := start(t, exec.Command("sh", "-c", `ulimit -n 424 && exec "$0" "$@"`, binary(t), "--listen", "127.0.0.1:0",
		"--kafka-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--data-dir",
		dir))
	r := &benchFixture{b: t, ctx: t.Context(), p: p, dir: dir}
	r.readKey()
	bob := r.user("bob", false)
	stream, err := bob.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
	if err != nil || !stream.Receive() {
		t.Fatal(err)
	}
	defer stream.Close()
	for i := range 700 {
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		switch i % 3 { // nothing, a part of a header, a connection of HTTP/2
		case 1:
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\n")
		case 2:
			_, _ = io.WriteString(c, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		}
	}
	ann := r.user("ann", false) // by a new connection
	// So many chats that the log opens files for all its partitions.
	each(300, 16, func(int) { r.send(ann, r.group(ann, "bob"), strings.Repeat("x", 4_000)) })
	for chats := map[string]bool{}; len(chats) < 300; {
		if t.Failed() {
			t.FailNow() // a call failed: not all chats are there
		}
		if !stream.Receive() {
			t.Fatalf("the stream has ended: %v", stream.Err())
		}
		for _, f := range stream.Msg().GetFrames() {
			if id := f.GetChatId(); id != "" {
				chats[id] = true
			}
		}
	}
	said := p.log.String()
	if strings.Contains(said, "too many open files") {
		t.Errorf("files were missing: %.2000s", said)
	}
	if lines := strings.Count(said, "\n"); lines > 60 {
		t.Errorf("%d lines in the log: %.2000s", lines, said)
	}
	if n := scrape(t, p.addr, "parley_connections_evicted_total"); n == 0 {
		t.Error("no connection had to go")
	}
}
