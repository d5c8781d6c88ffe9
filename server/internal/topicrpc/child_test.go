package topicrpc

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"
)

// asChild is set in a process that serves a benchmark of another one.
const asChild = "TOPICAPI_BENCH_CHILD"

// usage is what a server has used, and holds.
type usage struct {
	CPU  int64 // ns
	Heap uint64
}

// cpu is what this process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// child is a server in a process of its own.
type child struct {
	b    *testing.B
	addr string
	ask  io.Writer
	hear *bufio.Reader
}

// startChild runs BenchmarkServe of this program in another process, with a data directory
// of its own. TOPICAPI_BENCH_PROFILE is a file for its CPU profile.
func startChild(b *testing.B) *child {
	b.Helper()
	args := []string{"-test.run=^$", "-test.bench=^BenchmarkServe$", "-test.benchtime=1x"}
	if p := os.Getenv("TOPICAPI_BENCH_PROFILE"); p != "" {
		args = append(args, "-test.cpuprofile="+p)
	}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asChild+"=1")
	answers, out, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	cmd.ExtraFiles, cmd.Stderr = []*os.File{out}, os.Stderr
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	_ = out.Close() // the child has its own
	b.Cleanup(func() {
		_ = in.Close() // has it end
		if err := cmd.Wait(); err != nil {
			b.Error(err)
		}
		_ = answers.Close()
	})
	c := &child{b: b, ask: in, hear: bufio.NewReader(answers)}
	c.answer(&c.addr)
	return c
}

func (c *child) answer(v any) {
	c.b.Helper()
	line, err := c.hear.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	if err != nil {
		c.b.Fatal("the server: ", err)
	}
}

// used is the CPU that the server has used, heap what it holds after a collection.
func (c *child) used() time.Duration { return time.Duration(c.usage("cpu").CPU) }
func (c *child) heap() float64       { return float64(c.usage("heap").Heap) }

func (c *child) usage(what string) (u usage) {
	c.b.Helper()
	if _, err := io.WriteString(c.ask, what+"\n"); err != nil {
		c.b.Fatal(err)
	}
	c.answer(&u)
	return u
}

// BenchmarkServe is the server of the other benchmarks, and measures nothing: it says its
// address, and for each line that it reads, what it has used.
func BenchmarkServe(b *testing.B) {
	if os.Getenv(asChild) == "" {
		b.Skip("the server of other benchmarks")
	}
	w, out := newFixture(b), json.NewEncoder(os.NewFile(3, "answers"))
	w.must(out.Encode(w.addr))
	asked := bufio.NewScanner(os.Stdin)
	for asked.Scan() {
		u := usage{CPU: int64(cpu(b))}
		if asked.Text() == "heap" {
			u.Heap = heap()
		}
		w.must(out.Encode(u))
	}
}

// heap is the size of what is reachable.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // for what the first one has finalised
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkSync writes and syncs 4 KB on the disk on which the servers have their data.
func BenchmarkSync(b *testing.B) {
	f, err := os.Create(b.TempDir() + "/f")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	page, all := make([]byte, 4096), make([]float64, 0, 200)
	for range cap(all) {
		began := time.Now()
		if _, err := f.Write(page); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		all = append(all, float64(time.Since(began).Microseconds())/1000)
	}
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2], "p50-ms")
	b.ReportMetric(all[len(all)*99/100], "p99-ms")
	b.ReportMetric(0, "ns/op")
}
