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
	"testing"
	"time"

	"github.com/parley-chat/parley/server/engine"
	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table"
)

// These tests run the consumer in a process of its own, together with the broker
// and the store as the server does, and let the process end without warning.
const (
	childDir  = "PARLEY_CONSUME_DIR" // makes the test binary such a process
	childKind = "PARLEY_CONSUME_KIND"
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

func openEngine(dir string) (*engine.Engine, error) {
	return engine.Open(engine.Config{
		DataDir: dir, Kafka: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
		Fatal: func(err error) { fmt.Println("error", err) },
	})
}

// child consumes until its input ends, and tells on its output what it does.
func child(dir, kind string) error {
	eng, err := openEngine(dir)
	if err != nil {
		return err
	}
	e, err := New(Config{
		Addr: eng.KafkaAddr(), Group: "test", Consumer: fmt.Sprint("p", os.Getpid()), Topics: []string{topic}, Store: eng.Store, Clock: time.Now,
		Logger: slog.New(slog.DiscardHandler), Parallel: 4,
		Handle: func(_ context.Context, r *kafka.Record) error {
			if strings.Contains(string(r.Value), "kill") && kind != "healed" {
				self, err := os.FindProcess(os.Getpid())
				if err == nil {
					err = self.Kill()
				}
				fmt.Println("error", err)
				select {}
			}
			fmt.Println("handled", string(r.Value))
			return nil
		},
		Dead: func(_ context.Context, d Dead) error {
			fmt.Println("dead", d.Attempts, string(d.Record.Value))
			return nil
		},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	_ = e.Run(ctx)
	return eng.Close()
}

// process is a child and what it told.
type process struct {
	cmd   *exec.Cmd
	in    interface{ Close() error }
	lines chan string
}

func startChild(t *testing.T, dir, kind string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childKind+"="+kind)
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
	p := &process{cmd: cmd, in: in, lines: make(chan string, 10_000)}
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
}

// follow reads what a child tells until it has ended (false) or enough says so.
func (st *story) follow(t *testing.T, p *process, enough func() bool) bool {
	t.Helper()
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
			case "dead":
				n, value, _ := strings.Cut(rest, " ")
				if st.dead[value] != 0 {
					t.Errorf("%s was buried twice", value)
				}
				st.dead[value], _ = strconv.Atoi(n)
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

func fill(t *testing.T, values []string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	eng, err := openEngine(dir)
	if err != nil {
		t.Fatal(err)
	}
	(&rig{t: t, addr: eng.KafkaAddr()}).publish(values...)
	if err := eng.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
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
	dir := fill(t, values)
	st := story{handled: map[string]int{}, dead: map[string]int{}}
	ends := 0
	for {
		p := startChild(t, dir, "")
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
	eng, err := openEngine(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	for id := range kafka.Partitions(topic) {
		row, err := eng.Store.Get(t.Context(), table.OwnershipKey(table.AttemptsPartition("test", topic, id)), store.Strong)
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
	dir := fill(t, values)
	st := story{handled: map[string]int{}, dead: map[string]int{}}
	for n := range kills {
		if len(st.handled) == len(values) { // then each kill would meet the same last record
			break
		}
		p := startChild(t, dir, "")
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
	p := startChild(t, dir, "")
	st.follow(t, p, func() bool { return len(st.handled) == len(values) })
	p.end(t)
	if len(st.dead) > 0 {
		t.Fatalf("dead letters: %v", st.dead)
	}
	if missing := slices.DeleteFunc(values, func(v string) bool { return st.handled[v] > 0 }); len(missing) > 0 {
		t.Fatalf("never handled: %v", missing)
	}
}

// Three ends on a record that was alone, and not two, are what it takes.
func TestBlameIsForTheLonely(t *testing.T) {
	dir := fill(t, []string{"a ok 1", "a kill 2", "a ok 3"})
	st := story{handled: map[string]int{}, dead: map[string]int{}}
	for range 3 { // the run that meets it, and two of it alone
		p := startChild(t, dir, "")
		for st.follow(t, p, func() bool { return false }) {
		}
	}
	p := startChild(t, dir, "healed")
	st.follow(t, p, func() bool { return st.handled["a kill 2"] > 0 && st.handled["a ok 3"] > 0 })
	p.end(t)
	if len(st.dead) > 0 {
		t.Fatalf("dead letters: %v", st.dead)
	}
}
