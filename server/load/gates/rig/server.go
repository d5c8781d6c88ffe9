package rig

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/parley-chat/parley/server/load/probe"
)

// userName is the user who makes the topics, publishes and consumes.
const userName = "gates"

const (
	startTime = time.Minute // in which a server must listen
	stopTime  = time.Minute // in which one must end
)

// Metrics of the server that gates check.
const (
	metricCPU     = "process_cpu_seconds_total"
	metricMemory  = "process_resident_memory_bytes"
	metricHeap    = "go_memstats_heap_alloc_bytes"
	metricTrimmed = "parley_topics_trimmed_total"
	metricDied    = "parley_topics_groups_died_total"
)

var listening = regexp.MustCompile(`listening on (http://[^\s,]+)`)

// Server is a server under test: a process of its own.
type Server struct {
	program string
	Dir     string // of its data
	cmd     *exec.Cmd
	url     string
	tokens  [MaxUsers]string // of the users that were asked for; the first one's is always there
	metrics *probe.Server
	gone    chan struct{}
	Took    time.Duration // until it listened
}

// Start starts a server on a data directory and waits until it listens.
func Start(ctx context.Context, program, dir string) (*Server, error) {
	s := &Server{program: program, Dir: dir, gone: make(chan struct{})}
	// Messages are removed each minute; one user does here what thousands do elsewhere.
	creators := userName
	for n := 1; n < MaxUsers; n++ {
		creators += "," + nameOf(n)
	}
	args := []string{"--data-dir", dir, "--topic-creators", creators, "--topic-jobs", "high", "--limits", "off",
		"--max-requests", "0"}
	for _, name := range []string{"listen", "kafka-listen", "registry-listen", "ops-listen"} {
		args = append(args, "--"+name, "127.0.0.1:0")
	}
	s.cmd = exec.CommandContext(ctx, program, args...)
	s.cmd.Env = environ()
	var errors bytes.Buffer
	s.cmd.Stderr = &errors
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	late := time.AfterFunc(startTime, func() { _ = s.cmd.Process.Kill() })
	defer late.Stop()
	lines := bufio.NewScanner(stdout)
	for s.url == "" && lines.Scan() {
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			s.url, s.Took = m[1], time.Since(began)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, stdout)
		_ = s.cmd.Wait() // how it ends shows in what it answered
		close(s.gone)
	}()
	if s.url == "" {
		<-s.gone
		return nil, fmt.Errorf("the server did not start: %.2000s", errors.String())
	}
	s.metrics = probe.NewServer(s.url+"/metrics", nil)
	if _, err = s.UserOf(ctx, 0); err != nil {
		s.Kill()
		return nil, err
	}
	return s, nil
}

// URL is where the server listens.
func (s *Server) URL() string { return s.url }

// environ is the environment without settings of a server.
func environ() (list []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PARLEY_") {
			list = append(list, v)
		}
	}
	return list
}

// tokenOf has the program print a user's token.
func (s *Server) tokenOf(ctx context.Context, user string) (string, error) {
	cmd := exec.CommandContext(ctx, s.program, "--data-dir", s.Dir, "token", user)
	cmd.Env = environ()
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("no token: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Stop has the server end in good order.
func (s *Server) Stop() error {
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil { // a system without signals
		s.Kill()
		return nil //nolint:nilerr // it has ended
	}
	select {
	case <-s.gone:
		return nil
	case <-time.After(stopTime):
		s.Kill()
		return errors.New("the server did not end")
	}
}

// Kill ends the server at once.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.gone
}

// Usage is what a server has used, and holds.
type Usage struct {
	At      time.Time
	CPU     float64 // seconds
	Memory  float64 // bytes
	Heap    float64 // bytes
	Trimmed float64 // messages
	Died    float64 // groups
	Written float64 // bytes to the disk; 0 where the system does not say
}

// Usage asks the server and the system.
func (s *Server) Usage(ctx context.Context) Usage {
	m := s.metrics.Read(ctx)
	return Usage{At: time.Now(), CPU: m[metricCPU], Memory: m[metricMemory], Heap: m[metricHeap],
		Trimmed: m[metricTrimmed], Died: m[metricDied], Written: s.written()}
}

// Cores is how many processors were used between two moments.
func (u Usage) Cores(before Usage) float64 {
	return (u.CPU - before.CPU) / u.At.Sub(before.At).Seconds()
}

// Writes is how many bytes a second went to the disk between two moments.
func (u Usage) Writes(before Usage) float64 {
	return (u.Written - before.Written) / u.At.Sub(before.At).Seconds()
}

// written is how many bytes the process has had written to the disk.
func (s *Server) written() float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "write_bytes: "); ok {
			n, _ := strconv.ParseFloat(strings.TrimSpace(v), 64)
			return n
		}
	}
	return 0
}

// Tables is the size of the engine's tables: what is stored, without the log ahead of it.
func (s *Server) Tables() (bytes int64) {
	_ = filepath.WalkDir(s.Dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".sst" {
			if info, err := d.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return nil // files come and go
	})
	return bytes
}

const (
	diskBlock  = 1 << 20
	diskBlocks = 128
)

// DiskSpeed is how many bytes a second go to the disk of a directory, synced at the end.
func DiskSpeed(dir string) (float64, error) {
	f, err := os.CreateTemp(dir, "disk-*")
	if err != nil {
		return 0, err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer f.Close()
	block, began := make([]byte, diskBlock), time.Now()
	for range diskBlocks {
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	return diskBlock * diskBlocks / time.Since(began).Seconds(), nil
}
