// Package streams holds open streams of the real program in real time, by every
// protocol, directly and through proxies, for longer than any timer in the way:
// heartbeats, deadlines of writes and bodies, pings of HTTP/2, idle limits. It has
// no code of its own.
//
// The program is built with timers a quarter as long, and the tests wait a quarter as
// long; with PARLEY_TEST_LONG=1 all times are the real ones.
package streams

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/internal/racetest"
)

// build builds the server once for all tests.
var build = sync.OnceValues(func() (string, error) {
	dir, err := filepath.Abs(buildDir)
	if err != nil {
		return "", err
	}
	overlay, err := shortened(dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "parley")
	// Without symbols for debuggers it is linked in half the time.
	out, err := exec.Command("go", "build", "-overlay", overlay, "-ldflags=-s -w", "-o", path,
		"github.com/parley-chat/parley/server").CombinedOutput()
	if err != nil {
		return "", &buildError{string(out), err}
	}
	return path, nil
})

type buildError struct {
	output string
	err    error
}

func (e *buildError) Error() string { return e.err.Error() + ": " + e.output }

// program is a running server.
type program struct {
	testing.TB
	dir, addr string
	more      []string // flags
	key       *auth.Key
	cmd       *exec.Cmd
	gone      chan struct{}
	log       tail
}

// tail keeps the end of what a process writes.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (l *tail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	l.text = l.text[max(0, len(l.text)-4<<10):]
	return len(b), nil
}

func (l *tail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

var listening = regexp.MustCompile(`listening on http://(\S+),`)

// start starts the server on a new data directory.
func start(t testing.TB, more ...string) *program {
	t.Helper()
	p := &program{TB: t, dir: t.TempDir(), more: more}
	p.run("127.0.0.1:0")
	key, err := auth.ReadKey(filepath.Join(p.dir, "auth.key"))
	p.must(err)
	p.key = key
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("the server's last words: %s", &p.log)
		}
	})
	return p
}

// run starts the process and waits until it listens.
func (p *program) run(listen string) {
	p.Helper()
	racetest.SkipProgram(p)
	path, err := build()
	p.must(err)
	p.cmd = exec.Command(path, append([]string{"--listen", listen, "--kafka-listen", "127.0.0.1:0",
		"--registry-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--topic-creators", "alice", "--data-dir", p.dir,
		"--limits", "off", "--max-streams-per-user", "1000"}, p.more...)...)
	p.cmd.Stderr = &p.log
	stdout, err := p.cmd.StdoutPipe()
	p.must(err)
	p.must(p.cmd.Start())
	gone := make(chan struct{})
	p.gone = gone
	lines := bufio.NewScanner(stdout)
	p.addr = ""
	for p.addr == "" && lines.Scan() {
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			p.addr = m[1]
		}
	}
	cmd := p.cmd
	go func() {
		_, _ = io.Copy(io.Discard, stdout) // the rest of the greeting
		_ = cmd.Wait()
		close(gone)
	}()
	if p.addr == "" {
		<-gone
		p.Fatalf("the server did not start: %s", &p.log)
	}
}

// kill ends the process without any chance to tidy up.
func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

func (p *program) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *program) token(user string) string {
	p.Helper()
	token, err := p.key.Issue(user, time.Now(), time.Hour)
	p.must(err)
	return token
}

// rest makes a call of the REST API as a user and returns the body of its answer,
// which must be a success.
func (p *program) rest(user, method, path, body string) string {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+p.addr+"/api/v1"+path, strings.NewReader(body))
	p.must(err)
	req.Header.Set("Authorization", "Bearer "+p.token(user))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	p.must(err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	p.must(err)
	if res.StatusCode/100 != 2 {
		p.Fatalf("%s %s: %d %s", method, path, res.StatusCode, b)
	}
	return string(b)
}

var chatID = regexp.MustCompile(`chat_[0-9A-Z]{26}`)

// group makes a group of alice and others, who must have been seen before.
func (p *program) group(others []string) string {
	p.Helper()
	body := `{"type":"CHAT_TYPE_GROUP","name":"Tea","memberIds":["` + strings.Join(others, `","`) + `"]}`
	return chatID.FindString(p.rest("alice", http.MethodPost, "/chats", body))
}

func (p *program) say(chat, content string) {
	p.Helper()
	p.rest("alice", http.MethodPost, "/chats/"+chat+"/messages", `{"content":"`+content+`"}`)
}
