package commitlog_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
)

// childDir tells this binary to be the process that is killed, and where its data are.
const childDir = "PARLEY_COMMITLOG_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := publishForEver(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// publishForEver publishes from several goroutines, each its numbers in turn from where the
// log has them, and writes a line for each acknowledgement.
func publishForEver(dir string) error {
	s, err := embedded.Open(embedded.Options{Dir: dir})
	if err != nil {
		return err
	}
	log := commitlog.NewLocal(records.Of(s), time.Now)
	ctx := context.Background()
	there, err := contents(ctx, log)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for publisher := range crashPublishers {
		next := 0
		for {
			if _, ok := there[payloadOf(publisher, next)]; !ok {
				break
			}
			next++
		}
		go func() {
			for n := max(0, next-3); ; n++ { // some again
				got, err := log.Append(ctx, crashRequest(publisher, n, ""))
				if err != nil {
					failed <- err
					return
				}
				fmt.Printf("%d %d %d\n", publisher, n, got[0].Base)
			}
		}()
	}
	return <-failed
}

// killRound runs a child, kills it after some acknowledgements, and adds these to acked.
func killRound(t *testing.T, dir string, after int, acked map[string]int64) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), self)
	child.Env = append(os.Environ(), childDir+"="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ { // what it has written before it died counts
		f := strings.Fields(lines.Text())
		if len(f) != 3 || !strings.HasSuffix(lines.Text(), f[2]) {
			break // cut off
		}
		publisher, err1 := strconv.Atoi(f[0])
		number, err2 := strconv.Atoi(f[1])
		base, err3 := strconv.ParseInt(f[2], 10, 64)
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatalf("the child says %q", lines.Text())
		}
		payload := payloadOf(publisher, number)
		if at, known := acked[payload]; known && at != base {
			t.Fatalf("%s was acknowledged at %d and at %d", payload, at, base)
		}
		acked[payload] = base
		if n == after {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := child.Wait(); err == nil || child.ProcessState.Exited() {
		t.Fatalf("the child ended by itself: %v", err)
	}
}

// checkHalves finds requests of which only a half is stored.
func checkHalves(t *testing.T, there map[string]int64) {
	t.Helper()
	for publisher := range crashPublishers {
		for n := 0; ; n++ {
			_, first := there[payloadOf(publisher, n)]
			if _, second := there[otherHalf(publisher, n)]; first != second && n%2 == 0 {
				t.Fatalf("of number %d of publisher %d the halves are stored: %v, %v", n, publisher, first, second)
			}
			if !first {
				break
			}
		}
	}
}

// What was acknowledged is there after the process was killed, each number once, without a
// gap.
func TestKilledProcess(t *testing.T) { // HQ-B15
	dir := filepath.Join(t.TempDir(), "data")
	acked := map[string]int64{}
	for round := range 12 {
		killRound(t, dir, 20+17*round, acked)
		log, s := openDir(t, dir, time.Now)
		there, err := contents(t.Context(), log)
		if err != nil {
			t.Fatal(err)
		}
		for payload, base := range acked {
			if at, ok := there[payload]; !ok || at != base {
				t.Fatalf("round %d: %s was acknowledged at %d, is at %d (%v)", round, payload, base, at, ok)
			}
		}
		checkHalves(t, there)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(acked) < 1000 {
		t.Errorf("only %d acknowledgements", len(acked))
	}
}

// Many publishers of one partition: every position is given once, ids of each publisher
// ascend, and readers that follow see all of them in order.
func TestConcurrentPublishersAndReaders(t *testing.T) { // HQ-B01
	const publishers, each = 20, 500
	log := commitlog.NewLocal(records.Of(embeddedtest.NewDisk(runtime.Gosched).Open(t, nil)), time.Now)
	at := commitlog.Partition{Topic: 1}
	var wg sync.WaitGroup
	bases := make([][]int64, publishers)
	for p := range publishers {
		wg.Go(func() {
			for range each {
				message := &commitlog.Message{Key: strconv.Itoa(p)}
				got, err := log.Append(t.Context(), []commitlog.Append{{Partition: at, Messages: []*commitlog.Message{message}}})
				if err != nil {
					t.Error(err)
					return
				}
				bases[p] = append(bases[p], got[0].Base)
			}
		})
	}
	for range 3 {
		wg.Go(func() {
			seen := make([]int, publishers)
			for next := int64(0); next < publishers*each && !t.Failed(); {
				batches, err := log.Read(t.Context(), at, next, 10_000)
				if err != nil {
					t.Error(err)
					return
				}
				if len(batches) == 0 {
					time.Sleep(time.Millisecond)
				}
				for _, b := range batches {
					if b.Base != next {
						t.Errorf("position %d comes after %d", b.Base, next-1)
					}
					next = b.End()
					p, err := strconv.Atoi(b.Key(0))
					if err != nil {
						t.Error(err)
					}
					seen[p]++
				}
			}
			for p, n := range seen {
				if n != each {
					t.Errorf("%d messages of publisher %d", n, p)
				}
			}
		})
	}
	wg.Wait()
	given := map[int64]bool{}
	for _, list := range bases {
		last := int64(-1)
		for _, base := range list {
			if base <= last || given[base] {
				t.Fatalf("position %d after %d, given before: %v", base, last, given[base])
			}
			last, given[base] = base, true
		}
	}
	if len(given) != publishers*each {
		t.Errorf("%d positions", len(given))
	}
}
