package app_test

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// BenchmarkLone sends at a steady rate, one send at a time mostly, into one group whose
// members all have streams. It reports the server's processor time for each send and the part
// of it that the durable path takes, the time until readers of committed records have an
// event, and what the server uses while nobody sends. The server is the test's own binary,
// with a profile, as in BenchmarkSustained.
func BenchmarkLone(b *testing.B) {
	for _, tt := range []struct{ members, rate int }{{10, 5}, {10, 50}, {10, 200}, {100, 50}} {
		b.Run(fmt.Sprintf("members=%d/rate=%d", tt.members, tt.rate), func(b *testing.B) {
			benchLone(b, tt.members, tt.rate)
		})
	}
}

// idleFor is how long a server without sends is watched.
const idleFor = 5 * time.Second

func benchLone(b *testing.B, members, rate int) {
	if b.N < 2 { // a first try of package testing
		return
	}
	dir := b.TempDir()
	profile := filepath.Join(cmp.Or(os.Getenv("SUSTAINED_PROFILES"), b.TempDir()),
		fmt.Sprintf("lone-%d-%d", members, rate))
	p, toggle := launchProfiled(b, dir, profile)
	r := &benchFixture{b: b, ctx: b.Context(), p: p, dir: dir}
	r.readKey()
	users := r.members(members)
	id := r.group(users[0], names(users[1:])...)
	c := r.crowd(id, users)
	time.Sleep(time.Second) // the group's own events are published
	pid := r.p.cmd.Process.Pid
	idle := processorTime(b, pid)
	time.Sleep(idleFor)
	used := processorTime(b, pid)
	idle = used - idle
	pace := func(n int) {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		var sends sync.WaitGroup
		for i := range n {
			<-tick.C
			sends.Go(func() { r.send(users[i%len(users)], id, stamped("hello")) })
		}
		sends.Wait()
	}
	toggle()
	b.ResetTimer()
	pace(b.N)
	c.await(int64(b.N * members))
	b.StopTimer()
	toggle()
	used = processorTime(b, pid) - used
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-µs/send")
	b.ReportMetric(float64(idle)/float64(idleFor)*1000, "idle-millicores")
	seen, read := r.sample(1), max(20, b.N/8) // apart: the server works for this reader, too
	time.Sleep(time.Second)
	pace(read)
	took := seen()
	if len(took) >= read {
		reportLatency(b, took[len(took)-read:], "kafka-")
	}
	c.stop()
	c.wg.Wait()
	reportLatency(b, c.times, "")
	_ = r.p.cmd.Process.Signal(syscall.SIGTERM)
	<-r.p.gone
	b.ReportMetric(share(b, profile, durablePath), "durable-%")
}
