package consume

import (
	"bufio"
	"context"
	"fmt"
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
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/kafkatest"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// These tests run the consumer in a process of its own, together with the store and,
// if it is the embedded one, the broker, as the server does, and let the process end
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
	os.Exit(m.Run())
}

func openEngine(dir string) (*backend.Backend, error) {
	return backend.Open(backend.Config{
		Embedded: &backend.Embedded{DataDir: dir, Kafka: "127.0.0.1:0"}, Logger: slog.New(slog.DiscardHandler),
		Fatal: func(err error) { fmt.Println("error", err) },
	})
}

// child consumes until its input ends, and tells on its output what it does.
func child(dir, kind string) error {
	eng, err := openEngine(dir)
	if err != nil {
		return err
	}
	addr, options := eng.KafkaAddr(), eng.KafkaOptions()
	if brokers := os.Getenv(childAddr); brokers != "" {
		addr, options = brokers, nil
	}
	cfg := Config{
		Addr: addr, Kafka: options, Group: os.Getenv(childGroup), Consumer: fmt.Sprint("p", os.Getpid()), Topics: []string{topic}, Store: eng.Store, Clock: time.Now,
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
				fmt.Println("begun", value)
				time.Sleep(time.Second)
			}
			fmt.Println("handled", string(r.Value))
			return nil
		},
		WriteDeadLetter: func(_ context.Context, d DeadLetter) error {
			fmt.Println("dead", d.Attempts, string(d.Record.Value))
			return nil
		},
	}
	cfg.Isolation = &Isolation{}
	engines := []Config{cfg}
	switch kind {
	case "batches":
		engines[0].Handle, engines[0].Batch = nil, together(cfg.Handle)
	case "two": // the other one works on its records meanwhile, and kills nobody
		other := cfg
		other.Group += "-other"
		var long sync.Once // so that it has a record in work when the process ends
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
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	var wg sync.WaitGroup
	for _, c := range engines {
		e, err := New(c)
		if err != nil {
			return err
		}
		wg.Go(func() { _ = e.Run(ctx) })
	}
	wg.Wait()
	return eng.Close()
}

// home is where the children of a test live, one after the other.
type home struct {
	t       *testing.T
	dir     string
	group   string
	fixture *fixture // on Apache Kafka; nil where each child has a broker of its own
}

// newHome makes a home whose topic has records.
func newHome(t *testing.T, apache bool, values []string) *home {
	t.Helper()
	h := &home{t: t, dir: filepath.Join(t.TempDir(), "data"), group: "test"}
	if apache {
		h.fixture = newFixture(t, kafkatest.Apache(t))
		h.group = h.fixture.group
		h.fixture.begin(h.group + "-other")
		h.fixture.publish(values...)
		return h
	}
	eng, err := openEngine(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	(&fixture{t: t, addr: eng.KafkaAddr(), kafka: eng.KafkaOptions(), broker: &kafkatest.Broker{}}).publish(values...)
	if err := eng.Close(); err != nil {
		t.Fatal(err)
	}
	return h
}

// homes runs a test with the broker in the process that ends, and on Apache Kafka.
func homes(t *testing.T, values []string, test func(t *testing.T, h *home)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) { test(t, newHome(t, false, values)) })
	t.Run("apache", func(t *testing.T) { test(t, newHome(t, true, values)) })
}

// process is a child and its output.
type process struct {
	cmd   *exec.Cmd
	in    interface{ Close() error }
	lines chan string
}

// start starts a child, the others of which have ended.
func (h *home) start(kind string) *process {
	t := h.t
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+h.dir, childKind+"="+kind, childGroup+"="+h.group)
	if h.fixture != nil {
		for _, group := range []string{h.group, h.group + "-other"} {
			h.fixture.expel(group) // a broker would wait until the last one's silence is long enough
		}
		cmd.Env = append(cmd.Env, childAddr+"="+h.fixture.addr)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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

// story is what happened over all processes.
type story struct {
	handled map[string]int
	dead    map[string]int // attempts
	others  int
	parts   map[int32]bool // that the last process handled records of
}

// follow reads what a child tells until it has ended (false) or enough says so.
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
					t.Errorf("%s has two dead letters", value)
				}
				st.dead[value], _ = strconv.Atoi(n)
			case "other":
				st.others++
			case "error":
				t.Fatal(rest)
			}
			if enough() {
				return true
			}
		case <-limit:
			t.Fatalf("%d handled, %d dead", len(st.handled), len(st.dead))
		}
	}
}

// end lets a child end in order.
func (p *process) end(t *testing.T) {
	t.Helper()
	_ = p.in.Close()
	for range p.lines {
	}
	if err := p.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

// A record that ends the process costs the run that met it and three more; then it
// is a dead letter, and nothing else is (K-132, K-131, K-122).
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
				h = newHome(t, h.fixture != nil, values)
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
			t.Fatalf("%d processes ended; dead %v", ends, st.dead)
		}
	}
	if ends != 4 || len(st.dead) != 1 || st.dead[poison] != 3 {
		t.Fatalf("%d processes ended; dead %v", ends, st.dead)
	}
	// After an end in order nothing is suspect.
	eng, err := openEngine(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	for id := range kafka.Partitions(topic) {
		// One of which all was committed before a process ended is taken over with its next
		// record.
		if !st.parts[id] {
			continue
		}
		row, err := eng.Store.Get(t.Context(), table.OwnershipKey(table.AttemptsPartition(h.group, topic, id)), store.Strong)
		if err != nil || row != nil {
			t.Fatalf("partition %d is still owned by %v: %v", id, row, err)
		}
	}
}

// Kills from outside, wherever they hit, make no dead letters.
func TestKillsFromOutside(t *testing.T) {
	kills := 12
	if s := os.Getenv("PARLEY_KILLS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		kills = min(n, 100)
	}
	var values []string
	for i := range 1500 {
		values = append(values, fmt.Sprintf("chat%d ok %d", i%40, i))
	}
	homes(t, values, func(t *testing.T, h *home) { killsFromOutside(t, h, values, kills) })
}

func killsFromOutside(t *testing.T, h *home, values []string, kills int) {
	st := story{handled: map[string]int{}, dead: map[string]int{}}
	for n := range kills {
		if len(st.handled) == len(values) { // then each kill would meet the same last record
			break
		}
		p := h.start("")
		// Another place each time: from the first record on.
		left := []int{1, 2, 3, 5, 30, 60, 90, 150, 210, 330, 450, 520}[n%12] + n/12
		if !st.follow(t, p, func() bool { left--; return left <= 0 || len(st.handled) == len(values) }) {
			t.Fatal("a process ended by itself")
		}
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		st.follow(t, p, func() bool { return false })
	}
	p := h.start("")
	st.follow(t, p, func() bool { return len(st.handled) == len(values) })
	p.end(t)
	if len(st.dead) > 0 {
		t.Fatalf("dead letters: %v", st.dead)
	}
	if missing := slices.DeleteFunc(slices.Clone(values), func(v string) bool { return st.handled[v] > 0 }); len(missing) > 0 {
		t.Fatalf("never handled: %v", missing)
	}
}

// Three ends on a record that was alone, and not two, are what it takes.
func TestCrashIsBlamedOnTheLoneRecord(t *testing.T) {
	homes(t, []string{"a ok 1", "a kill 2", "a ok 3"}, blamesTheLoneRecord)
}

func blamesTheLoneRecord(t *testing.T, h *home) {
	st := story{handled: map[string]int{}, dead: map[string]int{}}
	for range 3 { // the run that meets it, and two of it alone
		p := h.start("")
		for st.follow(t, p, func() bool { return false }) {
		}
	}
	p := h.start("healed")
	st.follow(t, p, func() bool { return st.handled["a kill 2"] > 0 && st.handled["a ok 3"] > 0 })
	p.end(t)
	if len(st.dead) > 0 {
		t.Fatalf("dead letters: %v", st.dead)
	}
}

// A process has two engines, and the records of one end it: nothing is held against
// those that the other was working on.
func TestCrashIsBlamedOnOneEngine(t *testing.T) {
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
				t.Fatalf("%d processes ended; dead %v", ends, st.dead)
			}
		}
		if len(st.dead) != 1 {
			t.Fatalf("dead letters: %v", st.dead)
		}
	})
}

// A member that is stopped for longer than its session keeps nothing: the next one goes
// on where it had committed, and what it finishes when it goes on itself changes no
// offset (K-113).
func TestFrozenMember(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b *kafkatest.Broker) {
		r := newFixture(t, b)
		h := &home{t: t, dir: filepath.Join(t.TempDir(), "data"), group: r.group, fixture: r}
		p := h.start("")
		st := story{handled: map[string]int{}, dead: map[string]int{}}
		r.publish("a ok 1", "a slow 2", "a ok 3")
		for line := range p.lines {
			if line == "begun a slow 2" {
				break
			}
		}
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		next := r.engine(func(c *Config) { c.Expiry = 6 * time.Second })
		stop := r.run(next)
		r.await("the next member's turn", func() bool { return r.calls["a ok 3"] > 0 && next.Stats().Commits > 0 })
		r.publish("a ok 4")
		r.await("the next record", func() bool { return r.calls["a ok 4"] > 0 })
		r.await("its commit", func() bool { return next.Stats().Lag == 0 && next.Stats().Commits > 1 })
		at := r.committed(partitionOf("a"))
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		unchanged := func() {
			t.Helper()
			if now := r.committed(partitionOf("a")); now < at {
				t.Fatalf("committed is %d, after %d", now, at)
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
			t.Error("the last record is not committed")
		}
	})
}
