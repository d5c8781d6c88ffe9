package app_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"

	eventv1 "github.com/parley-chat/parley/gen/parley/event/v1"
	"github.com/parley-chat/parley/server/internal/app"
)

// BenchmarkSustained sends at a steady rate into 256 chats, through RPCs, and measures
// what becomes of the durable path meanwhile: how long an event takes to readers of
// committed records, how old the oldest unpublished row gets, how many nudges are dropped,
// and which share of the server's processor time the path takes. -benchtime says how many
// sends: 300000x at 5,000/s are a minute. Profiles are kept where SUSTAINED_PROFILES says. The server is the test's
// own binary, with a
// profile of its processor time, so that the shares are of the same run; clients and
// reader share the machine with it.
func BenchmarkSustained(b *testing.B) {
	for _, rate := range []int{50, 1_000, 5_000} {
		b.Run(fmt.Sprint("rate=", rate), func(b *testing.B) { benchSustained(b, rate) })
	}
}

// durablePath are the functions that only the durable path calls.
const durablePath = `parley/(workers/(relay|consume|fanout)|server/kafka)|franz-go`

func benchSustained(b *testing.B, rate int) {
	const chats, callers = 256, 128
	if b.N < chats { // a first try of package testing
		return
	}
	dir, profile := b.TempDir(), filepath.Join(cmp.Or(os.Getenv("SUSTAINED_PROFILES"), b.TempDir()),
		fmt.Sprintf("cpu-%d", rate))
	p, toggle := launchProfiled(b, dir, profile)
	r := &benchFixture{b: b, ctx: b.Context(), p: p, dir: dir}
	r.readKey()
	u := r.user("ann", false)
	r.user("ben", false)
	ids := make([]string, chats)
	each(chats, 16, func(i int) { ids[i] = r.group(u, "ben") })
	w := r.watch()
	seen := r.sample(8)
	pad := strings.Repeat("x", 108)
	used, before := processorTime(b, r.p.cmd.Process.Pid), w.counters()
	acks := make([]time.Duration, b.N)
	toggle()
	b.ResetTimer()
	begin := time.Now()
	each(b.N, callers, func(i int) {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(rate)))) // the rate
		start := time.Now()
		r.send(u, ids[i%chats], stamped(pad))
		acks[i] = time.Since(start)
	})
	b.StopTimer()
	toggle()
	used = processorTime(b, r.p.cmd.Process.Pid) - used
	after := w.stop()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "sends/s")
	reportLatency(b, acks, "ack-")
	reportLatency(b, seen(), "kafka-")
	b.ReportMetric((after["parley_relay_nudges_dropped_total"]-before["parley_relay_nudges_dropped_total"])/float64(
		b.N)*100, "dropped-%")
	b.ReportMetric(w.oldest, "oldest-s")
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-µs/send")
	reportLatency(b, fsyncs(b, r.dir, 200), "fsync-")
	_ = r.p.cmd.Process.Signal(syscall.SIGTERM)
	<-r.p.gone
	b.ReportMetric(share(b, profile, durablePath), "durable-%")
	b.ReportMetric(share(b, profile, `runtime\.gcBgMarkWorker|runtime\.gcAssist|runtime\.bgsweep`), "gc-%")
}

// sample reads every n-th partition, committed records only, until the returned
// function is called: that waits for what is under way, and says how long each event took
// since its plan was made, before it was on the disk.
func (r *benchFixture) sample(n int32) func() []time.Duration {
	parts := map[int32]kgo.Offset{}
	for p := int32(0); p < 64; p += n {
		parts[p] = kgo.NewOffset().AtStart()
	}
	c, err := kgo.NewClient(append(asReader(r.b, r.dir), kgo.SeedBrokers(r.p.kafka),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"messages.persisted": parts}), kgo.DisableClientMetrics())...)
	if err != nil {
		r.b.Fatal(err)
	}
	ctx, stop := context.WithCancel(r.ctx)
	var took []time.Duration
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			c.PollFetches(ctx).EachRecord(func(rec *kgo.Record) {
				var m eventv1.MessagePersisted
				if err := proto.Unmarshal(rec.Value[6:], &m); err != nil { // after the schema's id
					r.b.Error(err)
				}
				took = append(took, time.Since(m.GetMetadata().GetEventTime().AsTime()))
			})
		}
		c.Close()
	}()
	return func() []time.Duration {
		time.Sleep(2 * time.Second) // for events that are still on their way: a sample, which may miss some
		stop()
		<-done
		return took
	}
}

// watcher asks for the server's metrics again and again.
type watcher struct {
	r      *benchFixture
	end    context.CancelFunc
	wg     sync.WaitGroup
	oldest float64 // seconds, the most that was seen
}

func (r *benchFixture) watch() *watcher {
	ctx, end := context.WithCancel(r.ctx)
	w := &watcher{r: r, end: end}
	w.wg.Go(func() {
		for ctx.Err() == nil {
			w.oldest = max(w.oldest, w.counters()["parley_relay_oldest_seconds"])
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	return w
}

func (w *watcher) stop() map[string]float64 {
	w.end()
	w.wg.Wait()
	return w.counters()
}

// counters are the server's metrics, by name with labels.
func (w *watcher) counters() map[string]float64 {
	values, err := readMetrics(context.Background(), w.r.p.addr)
	if err != nil {
		w.r.b.Error(err)
	}
	return values
}

// profileVariable names the file for the profile of a server that the test's binary is.
const profileVariable = "TEST_SERVER_PROFILE"

// runProfiled is a server that writes a profile of its processor time. The first byte on its
// standard input begins the profile, the second one or the server's end completes it.
func runProfiled(path string) int {
	f, err := os.Create(path)
	if err != nil {
		return 1
	}
	defer f.Close()
	defer pprof.StopCPUProfile()
	go func() {
		var one [1]byte
		for _, toggle := range []func(){func() { _ = pprof.StartCPUProfile(f) }, pprof.StopCPUProfile} {
			if _, err := os.Stdin.Read(one[:]); err != nil {
				return
			}
			toggle()
		}
	}()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return app.Run(ctx, os.Args[1:], os.Environ(), os.Stdout, io.Discard)
}

// launchProfiled starts one. toggle begins its profile, and then ends it.
func launchProfiled(b *testing.B, dir, profile string) (p *process, toggle func()) {
	cmd := exec.Command(os.Args[0], "--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0", "--registry-listen",
		"127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--data-dir", dir)
	cmd.Env = append(os.Environ(), profileVariable+"="+profile)
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	return start(b, cmd), func() {
		if _, err := in.Write([]byte{0}); err != nil {
			b.Error(err)
		}
	}
}

// share is the part of a profile's samples, in percent, with a function in their stacks
// whose name matches.
func share(b *testing.B, profile, functions string) float64 {
	out, err := exec.Command("go", "tool", "pprof", "-top", "-nodecount=1000000", "-nodefraction=0", "-focus="+functions,
		profile).CombinedOutput()
	m := regexp.MustCompile(`Showing nodes accounting for [^,]+, ([0-9.]+)% of`).FindStringSubmatch(string(out))
	if err != nil || m == nil {
		b.Fatalf("pprof: %v %s", err, out)
	}
	n, _ := strconv.ParseFloat(m[1], 64)
	return n
}

// processorTime is what a process has used; Linux only.
func processorTime(b *testing.B, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Skip("processor time is read from /proc")
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest) // from the third on
	ticks := 0
	for _, f := range fields[11:13] {
		n, _ := strconv.Atoi(f)
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100
}
