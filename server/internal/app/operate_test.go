package app_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/app"
)

// safeBuffer is written by a server while a test reads it.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// greeted runs the server in this process until stop is called, and returns what
// it printed at the start.
func greeted(t *testing.T, listen, dir string, more ...string) (greeting string, logs *safeBuffer, stop func() int) {
	t.Helper()
	return greetedIn(t.Context(), t, listen, dir, more...)
}

// greetedIn does what greeted does in a context, which may have clocks.
func greetedIn(ctx context.Context, t *testing.T, listen, dir string, more ...string) (greeting string,
	logs *safeBuffer, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	logs = &safeBuffer{}
	pr, pw := io.Pipe()
	done := make(chan int, 1)
	go func() {
		args := []string{"--listen", listen, "--kafka-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0",
			"--data-dir", dir, "--log-format", "json"}
		code := app.Run(ctx, append(args, more...), nil, pw, logs)
		_ = pw.Close()
		done <- code
	}()
	for b := make([]byte, 4<<10); !strings.HasSuffix(greeting, "\n\n") || !strings.Contains(greeting, "Bob reads it"); {
		n, err := pr.Read(b)
		if greeting += string(b[:n]); err != nil {
			cancel()
			t.Fatalf("exit code %d: %s", <-done, logs)
		}
	}
	stop = sync.OnceValue(func() int {
		cancel()
		_ = pr.Close()
		return <-done
	})
	t.Cleanup(func() { stop() })
	return greeting, logs, stop
}

// Nothing that users wrote, and no token, is found in logs and metrics (S-38).
// Nothing of a stopped server keeps running in the process.
func TestCanariesAndLeaks(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	const canary = "canary4711"
	greeting, logs, stop := greeted(t, "127.0.0.1:0", t.TempDir())
	addr := listening.FindStringSubmatch(greeting)[1]
	tokens := regexp.MustCompile(`=(ey\S+)`).FindAllStringSubmatch(greeting, -1)
	if len(tokens) != 2 {
		t.Fatalf("the greeting has %d tokens: %s", len(tokens), greeting)
	}
	tr := newTransport(t, false)
	u := newUser("alice", tokens[0][1], addr, tr)
	res, err := u.chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{
		Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: canary + "name", MemberIds: []string{"bob"},
	})
	if err != nil {
		t.Fatal(err)
	}
	id := res.GetOverview().GetChat().GetChatId()
	if _, err := u.messages.SendMessage(t.Context(),
		&messagev1.SendMessageRequest{ChatId: id, Content: canary + "content"}); err != nil {
		t.Fatal(err)
	}
	// What is refused is not logged either: too long, unknown users and chats, forged
	// and broken tokens, broken requests.
	_, _ = u.messages.SendMessage(t.Context(), &messagev1.SendMessageRequest{ChatId: canary + "chat", Content: canary})
	_, _ = u.messages.SendMessage(t.Context(),
		&messagev1.SendMessageRequest{ChatId: id, Content: strings.Repeat(canary, 10_000)})
	_, _ = u.chats.CreateChat(t.Context(), &chatv1.CreateChatRequest{
		Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: canary, MemberIds: []string{canary + "user"},
	})
	for _, auth := range []string{"", "Bearer " + canary, "Bearer " + tokens[1][1][:40] + canary, "Basic " + canary,
		"Bearer " + tokens[0][1]} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
			"http://"+addr+"/parley.message.v1.MessageService/SendMessage?token="+canary,
			strings.NewReader(`{"chatId":"`+canary+`","content":{"`+canary+`"`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if auth != "" {
			req.Header.Set("Authorization", auth)
		}
		res, err := (&http.Client{Transport: tr}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	_, metrics := get(t, "http://"+addr+"/metrics")
	for _, want := range []string{
		`parley_auth_refused_total{reason="missing"} 1`, `parley_auth_refused_total{reason="invalid"} 2`,
		`parley_auth_refused_total{reason="not_bearer"} 1`,
		`parley_rpc_duration_seconds_count{code="ok",procedure="/parley.message.v1.MessageService/SendMessage"} 1`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
	tr.CloseIdleConnections()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if code := stop(); code != 0 {
		t.Fatalf("exit code %d: %s", code, logs)
	}
	signature := func(token string) string { return token[strings.LastIndexByte(token, '.')+1:] }
	for what, text := range map[string]string{"logs": logs.String(), "metrics": metrics} {
		for _, secret := range []string{canary, signature(tokens[0][1]), signature(tokens[1][1])} {
			if strings.Contains(text, secret) {
				t.Errorf("%s: %s", what, text)
			}
		}
	}
	for _, event := range []string{`"msg":"listening"`, `"msg":"draining"`, `"msg":"stopped"`} {
		if !strings.Contains(logs.String(), event) {
			t.Errorf("no %s in %s", event, logs.String())
		}
	}
	goleak.VerifyNone(t, leaks)
}

// signaled sends a signal to a process and returns how it ended.
func (p *process) signaled(t *testing.T, sig os.Signal) *os.ProcessState {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	<-p.gone
	return p.cmd.ProcessState
}

func TestSignals(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no signals")
	}
	for _, sig := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		p := launch(t, t.TempDir(), "127.0.0.1:0")
		if state := p.signaled(t, sig); state.ExitCode() != 0 {
			t.Errorf("%v: %v", sig, state)
		}
	}

	// A request that does not end holds a drain up, until a second signal.
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	follower := newUser("bob", token(t, dir, "bob"), p.addr, newTransport(t, true))
	st, err := follower.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
	if err != nil || !st.Receive() {
		t.Fatal(err, st.Err())
	}
	defer st.Close()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The server answers "continue" once the handler waits for the body.
	_, err = fmt.Fprintf(conn, "POST /parley.chat.v1.ChatService/ListChats HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
		"Authorization: Bearer %s\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n", token(t, dir, "alice"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for st.Receive() { // the stream ends: the drain has begun
	}
	// Not all at once: the first signal may still be on its way within the process.
	for ended := false; !ended; {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-p.gone:
			ended = true
		case <-time.After(50 * time.Millisecond):
		}
	}
	state := p.cmd.ProcessState
	if ws, ok := state.Sys().(interface{ Signaled() bool }); !ok || !ws.Signaled() {
		t.Fatalf("after the second signal: %v", state)
	}
}

// The lines that the server prints work as they are.
func TestGreeting(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil || runtime.GOOS == "windows" {
		t.Skip("no bash")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl")
	}
	for _, listen := range []string{"127.0.0.1:0"} { // beyond loopback nobody is greeted
		t.Run(listen, func(t *testing.T) {
			greeting, _, _ := greeted(t, listen, t.TempDir())
			// Four groups of lines stand in: tokens, stream, group and message, history.
			var groups []string
			for _, block := range strings.Split(greeting, "\n\n") {
				if strings.HasPrefix(block, "  ") {
					groups = append(groups, strings.TrimSpace(block))
				}
			}
			if len(groups) != 4 {
				t.Fatalf("%d groups of lines in %s", len(groups), greeting)
			}
			got := filepath.Join(t.TempDir(), "stream")
			script := fmt.Sprintf("set -e\n%s\n(%s) > %s 2>&1 &\n%s\n%s\nfor i in $(seq 200); do grep -q 'Hello, Bob' %s && break; sleep 0.05; done\ncat %s\n",
				groups[0], groups[1], got, groups[2], groups[3], got, got)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, bash, "-c", script)
			// A proxy that the environment names is not asked for this machine.
			cmd.Env = append(os.Environ(), "no_proxy=*")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for what, n := range map[string]int{"Hello, Bob": 2, `"hello":`: 1, `"messages":`: 1, `"code":`: 0} {
				if got := strings.Count(string(out), what); got < n || (n == 0 && got > 0) {
					t.Errorf("%q comes %d times:\n%s", what, got, out)
				}
			}
		})
	}
}

// A data directory that cannot be written is refused in one line.
func TestUnwritable(t *testing.T) {
	if runtime.GOOS == "windows" || os.Geteuid() == 0 {
		t.Skip("everything can be written")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--listen", "127.0.0.1:0"}, {"token", "bob"}} {
		code, stdout, stderr := run(t.Context(), map[string]string{"PARLEY_DATA_DIR": dir}, args...)
		if code != 1 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "permission denied") {
			t.Errorf("%v: exit code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
}

// A start after kill -9 does not cover its greeting with a line for each partition.
func TestStartAfterKillIsQuiet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	alice := newUser("alice", token(t, dir, "alice"), p.addr, newTransport(t, false))
	var chats []string
	write := func() {
		t.Helper()
		for _, id := range chats {
			if _, err := alice.messages.SendMessage(t.Context(),
				&messagev1.SendMessageRequest{ChatId: id, Content: "x"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 40 { // in as many partitions as chance has it
		res, err := alice.chats.CreateChat(t.Context(),
			&chatv1.CreateChatRequest{Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"}})
		if err != nil {
			t.Fatal(err)
		}
		chats = append(chats, res.GetOverview().GetChat().GetChatId())
	}
	write()
	handled := regexp.MustCompile(`(?m)^parley_fanout_handled_total (\d{3,})$`) // 40 chats, 40 members, 40 messages
	testkit.Eventually(t, "fanout owns the chats' partitions", func() bool {
		_, text := get(t, "http://"+p.addr+"/metrics")
		return handled.MatchString(text)
	})
	write()
	p.kill()
	p = launch(t, dir, "127.0.0.1:0")
	testkit.Eventually(t, "the log says that a previous owner has left", func() bool {
		return strings.Contains(p.log.String(), "previous owner")
	})
	time.Sleep(time.Second) // lines that must not come: a partition's would follow the first at once
	if n := strings.Count(p.log.String(), "\n"); n > 15 {
		t.Errorf("the log has %d lines, want at most 15: %s", n, &p.log)
	}
}
