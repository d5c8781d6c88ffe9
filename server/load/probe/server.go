// Package probe gives a load test its facts about the machine and the server other than the
// answers: the server's metrics, the disk, its own processor time, a clock to send by, and
// the progress lines.
//
// Concurrency: a Server is safe for concurrent use; one goroutine uses everything else.
package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/load/figure"
)

// Metrics of the server that figures come from. Versions that lack one lack its figure.
const (
	metricCPU          = "process_cpu_seconds_total"
	metricMemory       = "process_resident_memory_bytes"
	metricHeap         = "go_memstats_heap_inuse_bytes"
	metricStacks       = "go_memstats_stack_inuse_bytes"
	metricAllocs       = "go_memstats_mallocs_total"
	metricAllocated    = "go_memstats_alloc_bytes_total"
	metricDropped      = "parley_relay_nudges_dropped_total"
	metricPublished    = "parley_relay_published_total"
	metricOldest       = "parley_relay_oldest_seconds"
	metricTransactions = "parley_kafka_publish_seconds_count"
)

const (
	scrapeTime = 5 * time.Second
	maxScrape  = 4 << 20 // bytes
	megabyte   = 1 << 20
)

// Sample is the metrics without labels at one moment.
type Sample map[string]float64

// Server is what the server says of itself.
type Server struct {
	url    string
	client *http.Client

	mu    sync.Mutex
	err   error // of the last time
	last  Sample
	since time.Time
}

// NewServer names the metrics by their URL; conf is for one with TLS.
func NewServer(url string, conf *tls.Config) *Server {
	return &Server{url: url, client: &http.Client{Timeout: scrapeTime, Transport: &http.Transport{TLSClientConfig: conf}}}
}

// Err is why the metrics could not be read the last time.
func (s *Server) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Read reads the metrics; none if they cannot be had, which the report says.
func (s *Server) Read(ctx context.Context) Sample {
	got, err := s.scrape(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	return got
}

func (s *Server) scrape(ctx context.Context) (Sample, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, nil)
	if err != nil {
		return nil, err
	}
	res, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s; --metrics names another address", s.url, res.Status)
	}
	got := Sample{}
	lines := bufio.NewScanner(io.LimitReader(res.Body, maxScrape))
	for lines.Scan() {
		name, text, ok := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(text, 64); ok && err == nil {
			got[name] = v
		}
	}
	return got, lines.Err()
}

// Line says what the server took since the last line.
func (s *Server) Line(ctx context.Context) string {
	now := s.Read(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	cores, ok := now.Since(s.last, metricCPU)
	took := time.Since(s.since)
	s.last, s.since = now, time.Now()
	if !ok {
		return ""
	}
	return fmt.Sprintf("  server %s cores, %.0f MB", figure.Format(cores/took.Seconds()), now[metricMemory]/megabyte)
}

// Since is by how much a counter grew.
func (now Sample) Since(before Sample, name string) (float64, bool) {
	a, ok1 := before[name]
	b, ok2 := now[name]
	return b - a, ok1 && ok2
}

// Add adds what the server took between two samples, for each of n things of a kind.
func (s *Server) Add(f *figure.Figures, before, after Sample, took time.Duration, kind string, n uint64) {
	per := func(name, unit, metric string, scale float64) {
		if v, ok := after.Since(before, metric); ok && n > 0 {
			f.Add(name, unit, v*scale/float64(n))
		}
	}
	per("server CPU", "µs/"+kind, metricCPU, 1e6)
	addCores(f, before, after, took)
	per("server allocations", "/"+kind, metricAllocs, 1)
	per("server allocated", "B/"+kind, metricAllocated, 1)
	if kind != "send" {
		return
	}
	per("published by then", "%", metricPublished, 100)
	per("nudges dropped", "%", metricDropped, 100)
	if v, ok := after.Since(before, metricTransactions); ok {
		f.Add("Kafka transactions", "/s", v/took.Seconds())
	}
	if v, ok := after[metricOldest]; ok {
		f.Add("oldest unpublished", "s", v)
	}
}

// AddOwn adds what this process took itself: it shares the machine.
func AddOwn(f *figure.Figures, used, took time.Duration, kind string, n uint64) {
	if used == 0 { // this system does not say
		return
	}
	if n > 0 {
		f.Add("own CPU", "µs/"+kind, float64(used.Microseconds())/float64(n))
	}
	f.Add("own cores", "", used.Seconds()/took.Seconds())
}

// AddIdle adds what n streams on which nothing happens cost: before the first of them, and
// at the beginning and end of a time.
func AddIdle(f *figure.Figures, empty, before, after Sample, took time.Duration, n int) {
	memory := func(name string, metrics ...string) {
		grown := 0.0
		for _, m := range metrics {
			v, ok := after.Since(empty, m)
			if !ok {
				return
			}
			grown += v
		}
		f.Add(name, "KB", grown/1024/float64(n))
	}
	memory("memory of a stream", metricMemory)
	memory("heap and stacks of a stream", metricHeap, metricStacks)
	addCores(f, before, after, took)
}

// addCores adds what the server takes of the machine.
func addCores(f *figure.Figures, before, after Sample, took time.Duration) {
	if v, ok := after.Since(before, metricCPU); ok {
		f.Add("server cores", "", v/took.Seconds())
	}
	if v, ok := after[metricMemory]; ok {
		f.Add("server memory", "MB", v/megabyte)
	}
}
