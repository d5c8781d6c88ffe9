// Program bench-jetstream measures durable topics of Parley beside streams of NATS JetStream, in turns: each server is
// a process of its own, the clients are this process, messages and publishers are the same. .tools/bench-jetstream/run
// builds and runs it.
package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// How both are loaded.
const (
	payload    = 200 // bytes
	batch      = 100 // messages of a call, or under way of a publisher
	publishers = 8
	maxAhead   = 10_000 // messages that publishers may be ahead of the slowest group
	paced      = 500    // messages a second for latencies, one a call
	warm       = time.Second
)

// system is a server under test.
type system interface {
	// start runs the server on an empty directory.
	start(ctx context.Context, dir string) error
	// prepare makes a topic, or stream, with groups.
	prepare(ctx context.Context, groups int) error
	// publisher returns what stores messages: it returns once all are as durable as the server makes them.
	publisher(i int) func(ctx context.Context, payloads [][]byte) error
	// consume has a member of a group take and acknowledge messages until ctx ends.
	consume(ctx context.Context, group int, handle func(payload []byte)) error
	cpu() time.Duration
	stop()
}

// figures are what came of one server with a number of groups.
type figures struct{ published, delivered, cpu, p50, p99 float64 }

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		serve(os.Args[2], os.Args[3] == "sync")
		return
	}
	parley := flag.String("parley", "", "program of the server of Parley")
	rounds := flag.Int("rounds", 3, "rounds, of which the medians count")
	hold := flag.Duration("hold", 3*time.Second, "that is measured")
	groups := flag.String("groups", "1 4 16 64", "numbers of groups")
	flag.Parse()
	if err := run(context.Background(), *parley, *rounds, *hold, strings.Fields(*groups)); err != nil {
		fmt.Fprintln(os.Stderr, "bench-jetstream:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, parley string, rounds int, hold time.Duration, groups []string) error {
	names := []string{"Parley", "JetStream, each write synced", "JetStream as it is"}
	makers := []func() system{
		func() system { return &parleyServer{program: parley} },
		func() system { return &jetStream{sync: true} },
		func() system { return &jetStream{} },
	}
	all := map[string][]figures{}
	for r := range rounds {
		for _, g := range groups {
			var n int
			if _, err := fmt.Sscan(g, &n); err != nil || n < 1 {
				return fmt.Errorf("%q is no number of groups", g)
			}
			for i, name := range names {
				f, err := measure(ctx, makers[i](), n, hold)
				if err != nil {
					return fmt.Errorf("%s with %d groups: %w", name, n, err)
				}
				all[name+g] = append(all[name+g], f)
				fmt.Fprintf(os.Stderr, "%s round %d: %s, %d groups: %+v\n", time.Now().Format(time.TimeOnly), r+1, name, n, f)
			}
		}
	}
	fmt.Println("| groups | server | published/s | deliveries/s | server CPU a delivery, µs | p50, ms | p99, ms |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for _, g := range groups {
		for _, name := range names {
			list := all[name+g]
			fmt.Printf("| %s | %s | %.0f | %.0f | %.2f | %.1f | %.1f |\n", g, name,
				median(list, func(f figures) float64 { return f.published }),
				median(list, func(f figures) float64 { return f.delivered }),
				median(list, func(f figures) float64 { return f.cpu }),
				median(list, func(f figures) float64 { return f.p50 }),
				median(list, func(f figures) float64 { return f.p99 }))
		}
	}
	return nil
}

func median(list []figures, of func(figures) float64) float64 {
	values := make([]float64, len(list))
	for i, f := range list {
		values[i] = of(f)
	}
	slices.Sort(values)
	n := len(values)
	return (values[(n-1)/2] + values[n/2]) / 2
}

// load is a system under load.
type load struct {
	system
	base      time.Time
	published atomic.Int64
	delivered []atomic.Int64
	timing    atomic.Int64 // messages sent from then on are timed, ns since base; 0: none
	mu        sync.Mutex
	times     []time.Duration
	failed    atomic.Pointer[error]
}

func (l *load) fail(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		l.failed.CompareAndSwap(nil, &err)
	}
}

func (l *load) slowest() int64 {
	least := l.published.Load()
	for i := range l.delivered {
		least = min(least, l.delivered[i].Load())
	}
	return least
}

func (l *load) total() (n int64) {
	for i := range l.delivered {
		n += l.delivered[i].Load()
	}
	return n
}

// measure loads a server with all that it takes, and then with a steady rate.
func measure(ctx context.Context, s system, groups int, hold time.Duration) (f figures, err error) {
	dir, err := os.MkdirTemp("", "bench-jetstream-*")
	if err != nil {
		return f, err
	}
	defer os.RemoveAll(dir)
	if err := s.start(ctx, filepath.Join(dir, "data")); err != nil {
		return f, err
	}
	defer s.stop()
	if err := s.prepare(ctx, groups); err != nil {
		return f, err
	}
	l := &load{system: s, base: time.Now(), delivered: make([]atomic.Int64, groups)}
	ctx, end := context.WithCancel(ctx)
	defer end()
	for g := range groups {
		if err := s.consume(ctx, g, func(b []byte) { l.take(g, b) }); err != nil {
			return f, err
		}
	}
	l.flood(ctx, hold, &f)
	if err := l.settle(); err != nil {
		return f, err
	}
	l.pace(ctx, hold)
	if err := l.settle(); err != nil {
		return f, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.SortFunc(l.times, func(a, b time.Duration) int { return cmp.Compare(a, b) })
	if n := len(l.times); n > 0 {
		f.p50, f.p99 = l.times[n/2].Seconds()*1e3, l.times[n*99/100].Seconds()*1e3
	}
	if e := l.failed.Load(); e != nil {
		return f, *e
	}
	return f, nil
}

func (l *load) take(group int, b []byte) {
	l.delivered[group].Add(1)
	from := l.timing.Load()
	if from == 0 {
		return
	}
	now := time.Since(l.base)
	if sent := time.Duration(binary.BigEndian.Uint64(b)); int64(sent) >= from {
		l.mu.Lock()
		l.times = append(l.times, now-sent)
		l.mu.Unlock()
	}
}

// flood has publishers store batches, one after another, as long as the groups keep up.
func (l *load) flood(ctx context.Context, hold time.Duration, f *figures) {
	ctx, end := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range publishers {
		publish, messages := l.publisher(i), payloads(batch)
		all.Go(func() {
			for ctx.Err() == nil && l.failed.Load() == nil {
				if l.slowest()+maxAhead < l.published.Load() {
					time.Sleep(200 * time.Microsecond)
					continue
				}
				if err := publish(context.WithoutCancel(ctx), messages); err != nil {
					l.fail(err)
					return
				}
				l.published.Add(batch)
			}
		})
	}
	time.Sleep(warm)
	published, delivered, used, began := l.published.Load(), l.total(), l.cpu(), time.Now()
	time.Sleep(hold)
	n, took := float64(l.total()-delivered), time.Since(began).Seconds()
	f.published, f.delivered = float64(l.published.Load()-published)/took, n/took
	f.cpu = float64((l.cpu() - used).Nanoseconds()) / 1000 / max(1, n)
	end()
	all.Wait()
}

// pace publishes at a steady rate; each message counts from when it was due.
func (l *load) pace(ctx context.Context, hold time.Duration) {
	const every = publishers * time.Second / paced
	began := time.Since(l.base)
	l.timing.Store(int64(began + warm))
	var all sync.WaitGroup
	for i := range publishers {
		publish, messages := l.publisher(i), payloads(1)
		all.Go(func() {
			for due := began + every/publishers*time.Duration(i); due < began+warm+hold; due += every {
				time.Sleep(due - time.Since(l.base))
				binary.BigEndian.PutUint64(messages[0], uint64(due))
				if err := publish(ctx, messages); err != nil {
					l.fail(err)
					return
				}
				l.published.Add(1)
			}
		})
	}
	all.Wait()
}

// settle waits until every group has everything.
func (l *load) settle() error {
	for range 3000 {
		if l.slowest() >= l.published.Load() {
			return nil
		}
		if e := l.failed.Load(); e != nil {
			return *e
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("the slowest group has %d of %d messages", l.slowest(), l.published.Load())
}

// payloads are messages whose bytes no compression makes smaller.
func payloads(n int) [][]byte {
	list := make([][]byte, n)
	for i := range list {
		list[i] = make([]byte, payload)
		for j := 8; j < payload; j += 8 {
			binary.LittleEndian.PutUint64(list[i][j:], rand.Uint64())
		}
	}
	return list
}
