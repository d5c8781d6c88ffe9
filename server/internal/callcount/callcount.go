// Package callcount counts the requests of processes to DynamoDB, Kafka and Redis: proxies
// between the two that parse enough of each protocol to name the requests.
//
// It is for tests and benchmarks of the cost of an operation, in requests, bytes and
// DynamoDB's units. Taps listen on loopback and change no traffic, except the addresses that
// Kafka's brokers give to their clients. TLS cannot be tapped.
//
// Concurrency: a Tap is safe for concurrent use.
package callcount

import (
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
)

// Count is the traffic under one name.
type Count struct {
	Calls   int64
	Out, In int64   // bytes to the engine and from it
	Units   float64 // DynamoDB's capacity units, as it reported them
}

func (c Count) plus(d Count) Count {
	return Count{c.Calls + d.Calls, c.Out + d.Out, c.In + d.In, c.Units + d.Units}
}

// Counts is the traffic by name.
type Counts map[string]Count

// Since returns what came after an earlier reading of the same tap.
func (c Counts) Since(before Counts) Counts {
	out := Counts{}
	for name, n := range c {
		b := before[name]
		if d := (Count{n.Calls - b.Calls, n.Out - b.Out, n.In - b.In, n.Units - b.Units}); d != (Count{}) {
			out[name] = d
		}
	}
	return out
}

// Of sums up the names that begin with one of the prefixes; all without any.
func (c Counts) Of(prefixes ...string) (sum Count) {
	for name, n := range c {
		if len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			sum = sum.plus(n)
		}
	}
	return sum
}

// String lists the counts, one name a line.
func (c Counts) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c)) {
		n := c[name]
		fmt.Fprintf(&b, "%-60s %6d calls %9d out %9d in", name, n.Calls, n.Out, n.In)
		if n.Units != 0 {
			fmt.Fprintf(&b, " %g units", n.Units)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// Tap is one proxy, or one for each of several brokers.
type Tap struct {
	mu        sync.Mutex
	counts    Counts
	closed    bool
	listeners []net.Listener
	conns     map[net.Conn]bool
	running   sync.WaitGroup
}

func newTap() *Tap { return &Tap{counts: Counts{}, conns: map[net.Conn]bool{}} }

// Counts returns the traffic so far.
func (t *Tap) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.counts)
}

func (t *Tap) add(name string, c Count) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[name] = t.counts[name].plus(c)
}

// Addrs returns the addresses of the tap, host:port, in the order of its targets.
func (t *Tap) Addrs() []string {
	var list []string
	for _, l := range t.listeners {
		list = append(list, l.Addr().String())
	}
	return list
}

// Addr returns them with commas between.
func (t *Tap) Addr() string { return strings.Join(t.Addrs(), ",") }

// Close ends all connections.
func (t *Tap) Close() {
	t.mu.Lock()
	t.closed = true
	for _, l := range t.listeners {
		_ = l.Close()
	}
	for c := range t.conns {
		_ = c.Close()
	}
	t.mu.Unlock()
	t.running.Wait()
}

func (t *Tap) listen() (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	t.listeners = append(t.listeners, l)
	return l, nil
}

// track registers a connection to be closed with the tap; false if the tap is closed.
func (t *Tap) track(c net.Conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = c.Close()
		return false
	}
	t.conns[c] = true
	return true
}

func (t *Tap) drop(c net.Conn) {
	_ = c.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.conns, c)
}

// session parses one connection. Each function reads one direction to its end. The bytes
// that it reads are forwarded automatically, unless rewrites is set.
type session struct {
	requests, answers func(in io.Reader, out io.Writer) error
	rewrites          bool // answers writes to out itself
}

// serve accepts connections and forwards them to an address.
func (t *Tap) serve(l net.Listener, to string, open func() session) {
	t.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			t.running.Go(func() { t.forward(client, to, open()) })
		}
	})
}

func (t *Tap) forward(client net.Conn, to string, s session) {
	if !t.track(client) {
		return
	}
	defer t.drop(client)
	server, err := net.Dial("tcp", to)
	if err != nil || !t.track(server) {
		return
	}
	defer t.drop(server)
	var both sync.WaitGroup
	both.Go(func() {
		in := io.TeeReader(client, server)
		if s.requests(in, server) != nil { // another protocol: stop counting
			_, _ = io.Copy(io.Discard, in)
		}
		_ = server.(*net.TCPConn).CloseWrite()
	})
	both.Go(func() {
		var in io.Reader = server
		if !s.rewrites {
			in = io.TeeReader(server, client)
		}
		if s.answers(in, client) != nil && !s.rewrites {
			_, _ = io.Copy(io.Discard, in)
		}
		_ = client.(*net.TCPConn).CloseWrite()
	})
	both.Wait()
}

// answers counts the bytes of answers under a name.
func (t *Tap) answers(name string) func(io.Reader, io.Writer) error {
	return func(in io.Reader, _ io.Writer) error {
		b := make([]byte, 32<<10)
		for {
			n, err := in.Read(b)
			if n > 0 {
				t.add(name, Count{In: int64(n)})
			}
			if err != nil {
				return err
			}
		}
	}
}
