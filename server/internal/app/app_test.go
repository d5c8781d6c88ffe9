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
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/app"
)

// run runs the program in this process until it ends by itself or ctx does.
func run(ctx context.Context, env map[string]string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = app.Run(ctx, args, environ(env), &out, &errs)
	return code, out.String(), errs.String()
}

// errorLines counts lines that are not of the log, which may say that the disk is slow.
func errorLines(stderr string) (n int) {
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "time=") {
			n++
		}
	}
	return n
}

// environ is an environment in the form of os.Environ.
func environ(env map[string]string) (list []string) {
	for name, value := range env {
		list = append(list, name+"="+value)
	}
	return list
}

func TestStartErrorsAreOneLine(t *testing.T) {
	t.Parallel() // it mostly waits
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	locked := t.TempDir()
	launch(t, locked, "127.0.0.1:0")
	newer := t.TempDir()
	if err := os.WriteFile(filepath.Join(newer, "FORMAT"), []byte("parley 99 99\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := t.TempDir()
	if err := os.WriteFile(filepath.Join(open, "auth.key"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	fresh := []string{"--listen", "127.0.0.1:0", "--data-dir"}
	for name, tt := range map[string]struct {
		args []string
		env  map[string]string
		code int
		says string
	}{
		"unknown flag":       {args: []string{"--nope"}, code: 2, says: "-nope"},
		"stray argument":     {args: []string{"serve"}, code: 2, says: `unknown command "serve"`},
		"bad address":        {args: []string{"--listen", "8080"}, code: 2, says: "host:port"},
		"bad address by env": {env: map[string]string{"PARLEY_LISTEN": "x"}, code: 2, says: "host:port"},
		"bad port": {args: []string{"--listen", "127.0.0.1:99999"}, code: 2,
			says: `listen must be host:port, not "127.0.0.1:99999"`},
		"named port":           {args: []string{"--listen", "127.0.0.1:http"}, code: 2, says: "host:port"},
		"bad log format":       {args: []string{"--log-format", "xml"}, code: 2, says: "text or json"},
		"empty data directory": {args: []string{"--data-dir", ""}, code: 2, says: "data-dir"},
		"token without user":   {args: []string{"token"}, code: 2, says: "one user"},
		"token without data": {args: []string{"--data-dir", empty, "token", "bob"}, code: 1,
			says: empty + " holds no key yet: start the server there first"},
		"token of another key": {args: []string{"--key-file", filepath.Join(empty, "no.pem"), "token", "bob"}, code: 1,
			says: "no.pem: no such file"},
		"token with a flag": {args: []string{"token", "--data-dir", "x"}, code: 2, says: "flags go before the command"},
		"help for nothing":  {args: []string{"help", "dance"}, code: 2, says: `unknown command "dance"`},
		"misspelt variable": {env: map[string]string{"PARLEY_LISTN": ":1"}, code: 2, says: "did you mean PARLEY_LISTEN?"},
		"no client to test": {args: []string{"conformance", "--long"}, code: 2, says: "command of a client after --"},
		"no such scenario": {args: []string{"conformance", "--only", "dance", "--", "true"}, code: 1,
			says: "no scenario has such a name"},
		"any web page":         {args: []string{"--web-origins", "*"}, code: 2, says: "must name each origin"},
		"unwritable directory": {args: append(fresh, "/proc/parley"), code: 1, says: "/proc/parley"},
		"token for nonsense":   {args: []string{"--data-dir", t.TempDir(), "token", "a b"}, code: 2, says: "user id"},
		"port in use": {args: []string{"--listen", busy.Addr().String(), "--data-dir", t.TempDir()}, code: 1,
			says: "in use"},
		"Kafka for all": {args: append(fresh, t.TempDir(), "--kafka-listen", "0.0.0.0:0"), code: 1,
			says: "loopback only"},
		"Kafka port in use": {args: append(fresh, t.TempDir(), "--kafka-listen", busy.Addr().String()), code: 1,
			says: busy.Addr().String()},
		"locked":          {args: append(fresh, locked), code: 1, says: "in use by another process"},
		"too new":         {args: append(fresh, newer), code: 1, says: "format"},
		"not a directory": {args: append(fresh, filepath.Join(file, "data")), code: 1, says: file},
		"bad key":         {args: append(fresh, open), code: 1, says: "auth.key"},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := run(t.Context(), tt.env, tt.args...)
			if code != tt.code || !strings.Contains(stderr, tt.says) || errorLines(stderr) != 1 ||
				opening.ReplaceAllString(stdout, "") != "" {
				t.Fatalf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
		})
	}
	if _, err := os.Stat(empty); err == nil {
		t.Error("token made a directory")
	}
	if code, stdout, stderr := run(t.Context(), nil, "--help"); code != 0 || !strings.Contains(stdout, "PARLEY_LISTEN") ||
		stderr != "" {
		t.Fatalf("help: %d, %q, %q", code, stdout, stderr)
	}
}

// opening is what a server says of what it opens, before it does.
var opening = regexp.MustCompile(`(?m)^Opening the (store|event log) in /.*\n`)

// Every command says what it is for, in each form in which people ask, whatever else is
// wrong with the settings.
func TestHelpOfEveryCommand(t *testing.T) {
	wrong := map[string]string{"PARLEY_TYPO": "1", "PARLEY_LISTEN": "x"}
	for command, says := range map[string]string{
		"": "PARLEY_WEB_ORIGINS", "token": "token USER", "deadletters": "redrive", "deadletters list": "--page-token",
		"deadletters show":  "-content",
		"deadletters count": "-class", "deadletters redrive": "-execute", "deadletters discard": "-reason",
		"replay": "-all-chats", "groups": "hot-keys",
		"groups describe": "GROUP", "groups hot-keys": "PARTITION", "operators": "token", "operators token": "-role",
		"users": "suspend", "users suspend": "-reason", "sessions": "end-all", "services add-key": "-expires-in",
		"chats messages": "-reason", "limits": "show", "audit": "-call", "audit list": "-kind", "audit export": "-reason",
		"keys": "rotate", "keys rotate": "-notice",
		"tail": "-position", "chat": "-token-file", "conformance": "-seed",
	} {
		words := strings.Fields(command)
		for _, line := range [][]string{append(slices.Clone(words), "--help"), append(slices.Clone(words), "-h"),
			append([]string{"help"}, words...)} {
			code, stdout, stderr := run(t.Context(), wrong, line...)
			if code != 0 || stderr != "" || !strings.Contains(stdout, strings.TrimPrefix(says, "-")) {
				t.Errorf("%q: %d, %q, lacks %s: %s", line, code, stderr, says, stdout)
			}
		}
	}
	for _, line := range []string{"version", "--version", "-version"} {
		code, stdout, stderr := run(t.Context(), wrong, line)
		if code != 0 || stderr != "" || !strings.HasPrefix(stdout, "server ") ||
			!strings.Contains(stdout, runtime.Version()) || strings.Count(stdout, "\n") != 1 {
			t.Errorf("%s: %d, %q, %q", line, code, stdout, stderr)
		}
	}
}

// A server without demo users prints no token and knows nobody; it still says where
// everything is.
func TestDemoUsersOff(t *testing.T) {
	dir, out := t.TempDir(), &safeBuffer{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() {
		env := environ(map[string]string{"PARLEY_DEMO_USERS": "off", "PARLEY_LISTEN": "127.0.0.1:0", "PARLEY_DATA_DIR": dir})
		done <- app.Run(ctx, freePorts, env, out, io.Discard)
	}()
	defer func() { cancel(); <-done }()
	testkit.Eventually(t, "the greeting is whole", func() bool { return strings.Contains(out.String(), "registry at") })
	text := out.String()
	if !opening.MatchString(text) || strings.Contains(text, "eyJ") || strings.Contains(strings.ToLower(text), "alice") ||
		strings.Contains(text, "curl") {
		t.Error(text)
	}
	addr := listening.FindStringSubmatch(text)[1]
	_, err := newUser("carol", token(t, dir, "carol"), addr, newTransport(t, false)).chats.CreateChat(t.Context(),
		&chatv1.CreateChatRequest{
			Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"},
		})
	if connect.CodeOf(err) == 0 || err == nil || !strings.Contains(err.Error(), "bob") &&
		connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("bob is there: %v", err)
	}
}

// freePorts stand for the usual ones, which a server of another run of the tests may have.
var freePorts = []string{"--kafka-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--ops-listen",
	"127.0.0.1:0"}

// inProcess runs the server in this process and returns its address and a
// function that stops it and returns the exit code.
func inProcess(t *testing.T, env map[string]string, args ...string) (addr string, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	pr, pw := io.Pipe()
	var errs bytes.Buffer
	done := make(chan int, 1)
	go func() {
		code := app.Run(ctx, append(slices.Clone(freePorts), args...), environ(env), pw, &errs)
		_ = pw.Close()
		done <- code
	}()
	var text strings.Builder
	buf := make([]byte, 4096)
	for addr == "" {
		n, err := pr.Read(buf)
		text.Write(buf[:n])
		if m := listening.FindStringSubmatch(text.String()); m != nil {
			addr = m[1]
		} else if err != nil {
			cancel()
			t.Fatalf("exit code %d: %s", <-done, errs.String())
		}
	}
	go func() { _, _ = io.Copy(io.Discard, pr) }()
	code := -1
	stop = func() int {
		if cancel(); code < 0 {
			code = <-done
		}
		return code
	}
	t.Cleanup(func() { stop() })
	return addr, stop
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestServesHealthMetricsReflection(t *testing.T) {
	addr, stop := inProcess(t, map[string]string{"PARLEY_LISTEN": "127.0.0.1:0", "PARLEY_DATA_DIR": t.TempDir()})
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ready", "/metrics": "parley_streams_open 0"} {
		if code, body := get(t, "http://"+addr+path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %.200s", path, code, body)
		}
	}
	// Health and reflection need no token; everything else does.
	for path, want := range map[string]int{
		"/grpc.health.v1.Health/Check": 200, "/parley.chat.v1.ChatService/ListChats": 401, "/nothing/here": 404,
	} {
		res, err := http.Post("http://"+addr+path, "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	if code := stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
}

func TestDrainEndsStreams(t *testing.T) {
	dir := t.TempDir()
	addr, stop := inProcess(t, nil, "--listen", "127.0.0.1:0", "--data-dir", dir)
	u := newUser("alice", token(t, dir, "alice"), addr, newTransport(t, true))
	st, err := u.delivery.Subscribe(t.Context(), &deliveryv1.SubscribeRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	stopped := make(chan int, 1)
	var end *deliveryv1.End
	for st.Receive() {
		for _, f := range st.Msg().GetFrames() {
			if f.GetHeartbeat() != nil { // the stream is live
				go func() { stopped <- stop() }()
			}
			if f.GetEnd() != nil {
				end = f.GetEnd()
			}
		}
	}
	if end.GetCode() != deliveryv1.EndCode_END_CODE_DRAIN || connect.CodeOf(st.Err()) != connect.CodeUnavailable {
		t.Fatalf("end %v, error %v", end, st.Err())
	}
	if code := <-stopped; code != 0 {
		t.Fatalf("exit code %d", code)
	}
	// The same directory serves again, and knows the token.
	addr, _ = inProcess(t, nil, "--listen", "127.0.0.1:0", "--data-dir", dir)
	u = newUser("alice", token(t, dir, "alice"), addr, newTransport(t, false))
	if _, err := u.chats.ListChats(t.Context(), &chatv1.ListChatsRequest{}); err != nil {
		t.Fatal(err)
	}
}

// The shell lines of the README are run as they stand there, but for the port.
func TestReadme(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil || runtime.GOOS == "windows" {
		t.Skip("no bash")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("no curl")
	}
	lines := slices.DeleteFunc(readmeBlocks(t, "curl"), func(code string) bool { return strings.Contains(code, "topics") })
	if len(lines) != 4 {
		t.Fatalf("the README has %d blocks with curl", len(lines))
	}
	dir := t.TempDir()
	p := launch(t, dir, "127.0.0.1:0")
	script := fmt.Sprintf("ALICE=%s\nBOB=%s\nset -e\n(%s) > %s/stream 2>&1 &\n%s\n"+
		"for i in $(seq 200); do grep -q 'Hello, Bob' %s/stream && break; sleep 0.05; done\ncat %s/stream\n",
		token(t, dir, "alice"), token(t, dir, "bob"), strings.TrimSpace(lines[0]), dir, lines[1]+lines[2]+lines[3], dir, dir)
	script = strings.ReplaceAll(script, "127.0.0.1:8080", p.addr)
	// The stream's curl ends with the server.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, bash, "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for what, n := range map[string]int{"Hello, Bob": 3, `"hello":`: 1, `"messages":`: 1, `"token":`: 2, "Cake at four": 1,
		"MEMBER_ROLE_ADMIN": 2,
		" 200\n":            1, " 201\n": 2, "204\n": 2, "mutedUntil": 1, "invalid": 0, "unauthenticated": 0, "ErrorInfo": 0,
	} {
		if got := strings.Count(string(out), what); got < n || (n == 0 && got > 0) {
			t.Errorf("%q comes %d times:\n%s", what, got, out)
		}
	}
}
