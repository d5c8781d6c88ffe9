package blackbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/auth"
)

// startTime is how long a server may take to start.
const startTime = 30 * time.Second

// server is a running server with data of its own. One goroutine uses it.
type server struct {
	program string
	dir     string // has everything of the server
	data    string // data directory
	addr    string // stays the same over all starts

	cmd  *exec.Cmd
	log  tail
	gone chan struct{} // closed when the process has ended
}

func startServer(ctx context.Context, program, dir string) (*server, error) {
	s := &server{program: program, dir: dir, data: filepath.Join(dir, "data"), addr: "127.0.0.1:0"}
	return s, s.start(ctx)
}

// environment is what the server inherits, without settings of an installation and without limits for one user.
func environment() (list []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PARLEY_") {
			list = append(list, v)
		}
	}
	return append(list, "PARLEY_LIMITS=off", "PARLEY_MAX_REQUESTS=0")
}

// start starts the server in its data directory and waits until it listens.
func (s *server) start(ctx context.Context) error {
	const free = "127.0.0.1:0"
	s.cmd = exec.CommandContext(ctx, s.program, "--listen", s.addr, "--kafka-listen", free, "--registry-listen", free,
		"--ops-listen", free, "--data-dir", s.data)
	s.cmd.Env, s.cmd.Stderr = environment(), &s.log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.gone = make(chan struct{})
	listening := make(chan string, 1)
	go func() {
		defer close(s.gone)
		lines, address := bufio.NewScanner(out), regexp.MustCompile(`listening on http://(\S+),`)
		for lines.Scan() {
			if m := address.FindStringSubmatch(lines.Text()); m != nil {
				listening <- m[1]
			}
		}
		_, _ = io.Copy(io.Discard, out)
		_ = s.cmd.Wait()
	}()
	select {
	case s.addr = <-listening:
		return nil
	case <-s.gone:
	case <-time.After(startTime):
		s.kill()
	}
	return fmt.Errorf("the server did not start: %s", s.log.String())
}

// kill ends the process without a warning.
func (s *server) kill() {
	if s.cmd.Process == nil { // it could not be started
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.gone
}

// backUp writes a copy of the data while the server does not run.
func (s *server) backUp(ctx context.Context, name string) error {
	return s.command(ctx, "backup", filepath.Join(s.dir, name))
}

// restore replaces the data by a copy while the server does not run.
func (s *server) restore(ctx context.Context, name string) error {
	if err := os.RemoveAll(s.data); err != nil {
		return err
	}
	return s.command(ctx, "restore", filepath.Join(s.dir, name))
}

func (s *server) command(ctx context.Context, name, path string) error {
	cmd := exec.CommandContext(ctx, s.program, "--data-dir", s.data, name, path)
	cmd.Env = environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// key reads the key that signs access tokens.
func (s *server) key() (*auth.Key, error) {
	key, err := auth.ReadKey(auth.KeyPath("", s.data))
	if err != nil {
		return nil, errors.Join(errors.New("the server has no key"), err)
	}
	return key, nil
}

// tail keeps the end of what a process writes. It is safe for concurrent use.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// maxTail is how much is kept, in bytes.
const maxTail = 4 << 10

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-maxTail):]
	return len(b), nil
}

// String returns the end of the text.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
