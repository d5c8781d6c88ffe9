package consume

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/backend"
	"github.com/parley-chat/parley/server/eventlog"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// These tests run the consumer in a process of its own, together with the store and,
// unless it is Apache Kafka, the broker or the log, as the server does, and let the process end
// without warning.
const (
	childDir   = "PARLEY_CONSUME_DIR" // makes the test binary such a process
	childKind  = "PARLEY_CONSUME_KIND"
	childAddr  = "PARLEY_CONSUME_ADDR" // of Apache Kafka
	childGroup = "PARLEY_CONSUME_GROUP"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir, os.Getenv(childKind)); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testkit.Waiting()
	os.Exit(m.Run())
}

func openEngine(dir string) (*backend.Backend, error) {
	return backend.Open(backend.Config{
		Embedded: &backend.Embedded{DataDir: dir, Kafka: "127.0.0.1:0"}, Logger: slog.New(slog.DiscardHandler),
		Fatal: func(err error) { fmt.Println("error", err) },
	})
}

// child consumes until its input ends, and prints what it does. A slow record waits for a line
// of input.
func child(dir, kind string) error {
	eng, err := openEngine(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	resume := make(chan struct{})
	go readInput(resume, cancel)
	cfg := Config{
		Addr: os.Getenv(childAddr), Group: os.Getenv(childGroup), Consumer: fmt.Sprint("p", os.Getpid()),
		Topics: []string{topic}, Store: eng.Store, Clock: time.Now,
		Logger: slog.New(slog.DiscardHandler), Parallel: 4, Expiry: 6 * time.Second,
		Handle: func(_ context.Context, r *kafka.Record) error {
			switch value := string(r.Value); {
			case strings.Contains(value, "kill") && kind != "healed":
				self, err := os.FindProcess(os.Getpid())
				if err == nil {
					err = self.Kill()
				}
				fmt.Println("error", err)
				select {}
			case strings.Contains(value, "slow"):
				fmt.Println("started", value)
				<-resume
			}
			fmt.Println("handled", string(r.Value))
			return nil
		},
		WriteDeadLetter: func(_ context.Context, d DeadLetter) error {
			fmt.Println("dead", d.Attempts, string(d.Record.Value))
			return nil
		},
	}
	if cfg.Addr == "" {
		handle := cfg.Handle
		cfg.Handle = func(ctx context.Context, r *kafka.Record) error {
			time.Sleep(time.Millisecond) // or all would be handled before a kill comes
			return handle(ctx, r)
		}
		cfg.Join = func(c kafka.SessionConfig) (Session, error) { return eng.Join(c), nil }
	}
	cfg.Isolation = &Isolation{}
	engines := []Config{cfg}
	switch kind {
	case "aggregates":
		childLedger(&engines[0])
	case "batches":
		engines[0].Handle, engines[0].Batch = nil, together(cfg.Handle)
	case "two": // the other engine handles its records meanwhile and kills no process
		other := cfg
		other.Group += "-other"
		// It has a record in work when the process ends. Real time: a suspect runs alone, which
		// waits until this record is finished.
		var long sync.Once
		other.Handle = func(context.Context, *kafka.Record) error {
			long.Do(func() { time.Sleep(time.Second) })
			fmt.Println("other")
			return nil
		}
		other.WriteDeadLetter = func(_ context.Context, d DeadLetter) error {
			fmt.Println("error the other engine has a dead letter:", string(d.Record.Value))
			return nil
		}
		engines = append(engines, other)
	}
	var wg sync.WaitGroup
	for _, c := range engines {
		e, err := New(c)
		if err != nil {
			return err
		}
		wg.Go(func() { _ = e.Run(ctx, func() {}) })
	}
	wg.Wait()
	return eng.Close()
}

// readInput sends to resume for each line of input and calls end at its end.
func readInput(resume chan<- struct{}, end func()) {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		resume <- struct{}{}
	}
	end()
}

// home has the data of a test's children, which run one after the other.
type home struct {
	t       *testing.T
	dir     string
	group   string
	kind    string   // where the log is: the store, Apache Kafka
	fixture *fixture // on Apache Kafka; nil where each child has a log of its own
}

// newHome makes a home whose topic has records.
func newHome(t *testing.T, kind string, values []string) *home {
	t.Helper()
	h := &home{t: t, dir: filepath.Join(t.TempDir(), "data"), group: "test", kind: kind}
	if kind == "apache" {
		h.fixture = newFixture(t, kafkatest.Apache(t))
		h.group = h.fixture.group
		h.fixture.begin(h.group + "-other")
		h.fixture.publish(values...)
		return h
	}
	eng, err := openEngine(h.dir)
	testkit.Must(t, err)
	testkit.Must(t, eng.Publish(t.Context(), []eventlog.Publication{{Records: recordsFor(values...)}}))
	testkit.Must(t, eng.Close())
	return h
}

// homes runs a test with the log in the process that ends, and on Apache Kafka.
func homes(t *testing.T, values []string, test func(t *testing.T, h *home)) {
	t.Helper()
	alongside(t)
	for _, kind := range []string{"store", "apache"} {
		t.Run(kind, func(t *testing.T) { test(t, newHome(t, kind, values)) })
	}
}

// process is a child and its output.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

// start starts a child after the previous one has ended.
func (h *home) start(kind string) *process {
	t := h.t
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+h.dir, childKind+"="+kind, childGroup+"="+h.group)
	if h.fixture != nil {
		for _, group := range []string{h.group, h.group + "-other"} {
			h.fixture.expel(group) // otherwise the broker waits for the session of the last child to expire
		}
		cmd.Env = append(cmd.Env, childAddr+"="+h.fixture.addr)
	}
	in, err := cmd.StdinPipe()
	testkit.Must(t, err)
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	p := &process{cmd: cmd, in: in, lines: make(chan string, 100_000)}
	go func() {
		defer close(p.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return p
}

// story records what happened over all processes.
type story struct {
	handled map[string]int
	dead    map[string]int // attempts
	others  int
	parts   map[int32]bool // whose records the last process handled
}

// follow reads a child's output until enough returns true, or the child has ended (false).
func (st *story) follow(t *testing.T, p *process, enough func() bool) bool {
	t.Helper()
	if st.parts == nil {
		st.parts = map[int32]bool{}
	}
	limit := time.After(time.Minute)
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				_ = p.cmd.Wait()
				return false
			}
			word, rest, _ := strings.Cut(line, " ")
			switch word {
			case "handled":
				st.handled[rest]++
				key, _, _ := strings.Cut(rest, " ")
				st.parts[partitionOf(key)] = true
			case "dead":
				n, value, _ := strings.Cut(rest, " ")
				if st.dead[value] != 0 {
					t.Errorf("%s has two dead letters, expected at most one", value)
				}
				st.dead[value], _ = strconv.Atoi(n)
			case "other":
				st.others++
			case "error":
				t.Fatalf("the child failed: %s", rest)
			}
			if enough() {
				return true
			}
		case <-limit:
			t.Fatalf("after a minute %d records are handled and %d are dead letters, expected more", len(st.handled), len(st.dead))
		}
	}
}

// end stops a child in an orderly way.
func (p *process) end(t *testing.T) {
	t.Helper()
	_ = p.in.Close()
	for range p.lines {
	}
	testkit.Must(t, p.cmd.Wait())
}

// A record that ends the process ends the run that first handles it and three more. Then it is a
// dead letter, and no other record is (K-132, K-131, K-122).
func TestRecordThatEndsTheProcess(t *testing.T) {
	var values []string
	for i := range 400 {
		values = append(values, fmt.Sprintf("chat%d ok %d", i%40, i))
	}
	const poison = "chat7 kill 250"
	values[250] = poison
	homes(t, values, func(t *testing.T, h *home) {
		for _, kind := range []string{"", "batches"} {
			if kind != "" {
				h = newHome(t, h.kind, values)
			}
			endsTheProcess(t, h, kind, values, poison)
		}
	})
}

func endsTheProcess(t *testing.T, h *home, kind string, values []string, poison string) {
	st := story{handled: map[string]int{}, dead: map[string]int{}}
	ends := 0
	for {
		p := h.start(kind)
		clear(st.parts)
		if st.follow(t, p, func() bool { return len(st.handled)+len(st.dead) == len(values) && st.dead[poison] > 0 }) {
			p.end(t)
			break
		}
		if ends++; ends > 4 {
			t.Fatalf("%d processes ended, expected 4; dead letters %v", ends, st.dead)
		}
	}
	if ends != 4 || len(st.dead) != 1 || st.dead[poison] != 3 {
		t.Fatalf("%d processes ended, expected 4; dead letters with attempts %v, expected %s with 3", ends, st.dead, poison)
	}
	// After an orderly end no partition has an owner, so nothing is suspect.
	eng, err := openEngine(h.dir)
	testkit.Must(t, err)
	defer eng.Close()
	for id := range kafka.Partitions(topic) {
		// A partition that was fully committed before a process ended is claimed with its next
		// record only.
		if !st.parts[id] {
			continue
		}
		row, err := eng.Store.Get(t.Context(), table.OwnershipKey(table.AttemptsPartition(h.group, topic, id)), store.Strong)
		if err != nil || row != nil {
			t.Fatalf("partition %d is owned by %v (%v), expected nobody", id, row, err)
		}
	}
}

// Processes that are killed from outside, at any point, make no dead letters. PARLEY_KILLS sets the number of kills, up
// to 100, or the time for them.
func TestKillsFromOutside(t *testing.T) {
	var values []string
	for i := range 1500 {
		values = append(values, fmt.Sprintf("chat%d ok %d", i%40, i))
	}
	homes(t, values, func(t *testing.T, h *home) { killsFromOutside(t, h, values) })
}

func killsFromOutside(t *testing.T, h *home, values []string) {
	st := story{handled: map[string]int{}, dead: map[string]int{}}
	for n := range testkit.Rounds(t, "PARLEY_KILLS", 12) {
		if n == 100 || len(st.handled) == len(values) { // each further kill would hit the same last record
			break
		}
		p := h.start("")
		// At another place each time, from the first record on.
		left := []int{1, 2, 3, 5, 30, 60, 90, 150, 210, 330, 450, 520}[n%12] + n/12
		if !st.follow(t, p, func() bool { left--; return left <= 0 || len(st.handled) == len(values) }) {
			t.Fatal("a process ended by itself, expected it to wait for its kill")
		}
		testkit.Must(t, p.cmd.Process.Kill())
		st.follow(t, p, func() bool { return false })
	}
	p := h.start("")
	if len(st.handled) < len(values) { // otherwise it may have nothing to print
		st.follow(t, p, func() bool { return len(st.handled) == len(values) })
	}
	p.end(t)
	if len(st.dead) > 0 {
		t.Fatalf("dead letters: %v, expected none", st.dead)
	}
	if missing := slices.DeleteFunc(slices.Clone(values),
		func(v string) bool { return st.handled[v] > 0 }); len(missing) > 0 {
		t.Fatalf("never handled: %v, expected all records", missing)
	}
}

// A record becomes a dead letter after three crashes while it is handled alone, not after two.
func TestTwoCrashesMakeNoDeadLetter(t *testing.T) {
	homes(t, []string{"a ok 1", "a kill 2", "a ok 3"}, twoCrashes)
}

func twoCrashes(t *testing.T, h *home) {
	st := story{handled: map[string]int{}, dead: map[string]int{}}
	for range 3 { // the run that first handles it, and two that handle it alone
		p := h.start("")
		for st.follow(t, p, func() bool { return false }) {
		}
	}
	p := h.start("healed")
	st.follow(t, p, func() bool { return st.handled["a kill 2"] > 0 && st.handled["a ok 3"] > 0 })
	p.end(t)
	if len(st.dead) > 0 {
		t.Fatalf("dead letters: %v, expected none", st.dead)
	}
}

// A process has two engines, and a record of one ends it. The records that the other engine was
// handling do not become suspects.
func TestCrashCountsAgainstOneEngine(t *testing.T) {
	var values []string
	for i := range 60 {
		values = append(values, fmt.Sprintf("chat%d ok %d", i%20, i))
	}
	values = append(values, "chat7 kill 60")
	homes(t, values, func(t *testing.T, h *home) {
		st := story{handled: map[string]int{}, dead: map[string]int{}}
		for ends := 0; ; ends++ {
			p := h.start("two")
			st.others = 0
			if st.follow(t, p, func() bool { return st.dead["chat7 kill 60"] > 0 && len(st.handled) == len(values)-1 }) {
				p.end(t)
				break
			}
			if ends > 6 {
				t.Fatalf("%d processes ended, expected up to 6; dead letters %v", ends, st.dead)
			}
		}
		if len(st.dead) != 1 {
			t.Fatalf("dead letters: %v, expected only chat7 kill 60", st.dead)
		}
	})
}

// A member that is stopped for longer than its session loses its partitions. The next member
// continues after its last commit, and what it finishes when it resumes changes no offset
// (K-113).
func TestFrozenMember(t *testing.T) {
	alongside(t)
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		r := newFixture(t, b)
		h := &home{t: t, dir: filepath.Join(t.TempDir(), "data"), group: r.group, fixture: r}
		p := h.start("")
		st := story{handled: map[string]int{}, dead: map[string]int{}}
		r.publish("a ok 1", "a slow 2", "a ok 3")
		for line := range p.lines {
			if line == "started a slow 2" {
				break
			}
		}
		testkit.Must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
		next := r.engine(func(c *Config) { c.Expiry = 6 * time.Second })
		stop := r.run(next)
		r.await("the records of the next member", func() bool { return r.calls["a ok 3"] > 0 && next.Stats().Commits > 0 })
		r.publish("a ok 4")
		r.await("the next record", func() bool { return r.calls["a ok 4"] > 0 })
		r.await("its commit", func() bool { return next.Stats().Lag == 0 && next.Stats().Commits > 1 })
		at := r.committed(partitionOf("a"))
		testkit.Must(t, p.cmd.Process.Signal(syscall.SIGCONT))
		_, err := fmt.Fprintln(p.in) // the slow record resumes
		testkit.Must(t, err)
		unchanged := func() {
			t.Helper()
			if now := r.committed(partitionOf("a")); now < at {
				t.Fatalf("the committed offset went from %d to %d, expected it never to fall", at, now)
			}
		}
		st.follow(t, p, func() bool { return st.handled["a slow 2"] > 0 })
		unchanged()
		stop()
		unchanged()
		r.publish("a ok 5")
		st.follow(t, p, func() bool { unchanged(); return st.handled["a ok 5"] > 0 })
		p.end(t)
		if now := r.committed(partitionOf("a")); now == at {
			t.Errorf("the committed offset is %d after the last record, expected more", now)
		}
	})
}
