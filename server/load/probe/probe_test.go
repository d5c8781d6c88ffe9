package probe

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/load/figure"
)

const scraped = `# HELP process_cpu_seconds_total Total user and system CPU time spent in seconds.
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total %d.5
process_resident_memory_bytes 2.097152e+06
go_memstats_mallocs_total %d00
parley_rpc_duration_seconds_bucket{code="ok",le="0.005"} 7
parley_relay_nudges_dropped_total 3
`

// What the server took is the difference of two samples; what it does not say is left out.
func TestServer(t *testing.T) {
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n++
		fmt.Fprintf(w, scraped, n, n)
	}))
	server := NewServer(s.URL, nil)
	before := server.Read(t.Context())
	after := server.Read(t.Context())
	if server.Err() != nil {
		t.Fatal(server.Err())
	}
	var f figure.Figures
	server.Add(&f, before, after, 2*time.Second, "send", 50)
	for name, want := range map[string]float64{"server CPU": 20_000, "server cores": 0.5, "server memory": 2,
		"server allocations": 2, "nudges dropped": 0} {
		if got, ok := f.Value(name); !ok || got != want {
			t.Errorf("%s is %v (there: %v), want %v", name, got, ok, want)
		}
	}
	if _, ok := f.Value("Kafka transactions"); ok {
		t.Error("a figure without a metric")
	}
	server.Line(t.Context())
	if line := server.Line(t.Context()); !strings.Contains(line, "cores, 2 MB") {
		t.Errorf("line %q", line)
	}
	s.Close()
	if got := server.Read(t.Context()); got != nil || server.Err() == nil {
		t.Errorf("a server that is away says %v", got)
	}
	f = nil
	server.Add(&f, before, nil, time.Second, "send", 50)
	AddIdle(&f, nil, before, nil, time.Second, 5)
	if len(f) > 0 || server.Line(t.Context()) != "" {
		t.Errorf("a server that is away has %v", f)
	}
}

func TestRefusedMetrics(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	server := NewServer(s.URL, nil)
	server.Read(t.Context())
	err := server.Err()
	if err == nil || !strings.Contains(err.Error(), "404") || !strings.Contains(err.Error(), "--metrics") {
		t.Errorf("error %v", err)
	}
}

func TestAddIdle(t *testing.T) {
	empty := Sample{metricMemory: 1 << 20, metricHeap: 1 << 10, metricStacks: 0, metricCPU: 1}
	after := Sample{metricMemory: 3 << 20, metricHeap: 5 << 10, metricStacks: 4 << 10, metricCPU: 3}
	var f figure.Figures
	AddIdle(&f, empty, empty, after, 4*time.Second, 8)
	for name, want := range map[string]float64{"memory of a stream": 256, "heap and stacks of a stream": 1,
		"server cores": 0.5} {
		if got, _ := f.Value(name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
}

func TestProgress(t *testing.T) {
	line := func(context.Context) string { return "halfway" }
	for _, terminal := range []bool{false, true} {
		var out strings.Builder
		p := NewProgress(&out, false)
		p.terminal = terminal
		p.print("round 1", time.Second, 2*time.Second, line(t.Context()))
		if got := out.String(); !strings.Contains(got, "round 1") || !strings.Contains(got, "halfway") ||
			strings.Contains(got, "[##########..........]") != terminal || strings.HasSuffix(got, "\n") == terminal {
			t.Errorf("terminal: %v, %q", terminal, got)
		}
	}
	var out strings.Builder
	NewProgress(&out, true).During("round 1", time.Second, line)()
	if out.Len() > 0 {
		t.Errorf("quiet, and says %q", &out)
	}
}

func TestDisk(t *testing.T) {
	dir := t.TempDir()
	var d Disk
	d.Measure(dir + "/nowhere")
	var m figure.Machine
	if d.Report(&m); m.Disk != "" {
		t.Errorf("measured %s", m.Disk)
	}
	d.Measure(dir)
	if d.Report(&m); m.Disk != dir || m.FsyncP50 <= 0 || m.FsyncP99 < m.FsyncP50 {
		t.Errorf("measured %+v", m)
	}
}

func TestClock(t *testing.T) {
	c := NewClock()
	defer c.Close()
	began := time.Now()
	c.Sleep(-time.Second)
	c.Sleep(3 * time.Millisecond)
	if took := time.Since(began); took < 3*time.Millisecond {
		t.Errorf("slept for %v", took)
	}
}

// Idle time and time in which processors waited for the disk is time that something else could have had.
func TestBusy(t *testing.T) {
	a := parseBusy("cpu  100 10 40 800 50 0 0 0 0 0")
	b := parseBusy("cpu  130 10 60 830 60 0 0 10 0 0")
	if share := b.Since(a); share != 0.6 { // 60 of 100
		t.Errorf("busy %v", share)
	}
	for _, bad := range []string{"", "cpu", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 7 x"} {
		if c := parseBusy(bad); c != (Busy{}) {
			t.Errorf("%q reads as %v", bad, c)
		}
	}
	if a.Since(a) != 0 || (Busy{}).Since(a) != 0 {
		t.Error("no time has passed")
	}
}
