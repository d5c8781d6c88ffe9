package edge

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/parley-chat/parley/server/infra/loopback"
)

// MaxHeader bounds the head of a request: its line and all headers, in bytes.
const MaxHeader = 16 << 10

// Refusal is what is wrong with a request that goes no further.
type Refusal struct {
	Status int    // of HTTP
	Reason string // a word for programs
	Text   string // a line for people
}

// Requests bounds requests before anything else sees them.
type Requests struct {
	// Hosts are the names under which the server is called.
	Hosts Hosts
	// Proxies stand between clients and the server.
	Proxies Proxies
	// PerClient is how many requests a client behind proxies may have under way; 0:
	// unbounded. Without proxies, [Limits] count its connections.
	PerClient int
	// Refuse answers a request that goes no further.
	Refuse func(http.ResponseWriter, *http.Request, Refusal)

	refused atomic.Int64
	mu      sync.Mutex
	clients map[netip.Prefix]int // with requests under way, so that there are no more of them
}

// Refused is the number of requests that were refused.
func (q *Requests) Refused() int64 { return q.refused.Load() }

// Wrap puts the bounds in front of a handler.
func (q *Requests) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		why, ok := q.check(r)
		if !ok {
			q.refuse(w, r, why)
			return
		}
		if !q.Proxies.Any() {
			next.ServeHTTP(w, r)
			return
		}
		client := q.Proxies.Client(r)
		r = r.WithContext(context.WithValue(r.Context(), addressKey{}, client))
		if q.PerClient == 0 {
			next.ServeHTTP(w, r)
			return
		}
		leave, ok := q.enter(client)
		if !ok {
			q.refuse(w, r, Refusal{http.StatusTooManyRequests, "TOO_MANY_REQUESTS",
				"this client address has too many requests under way: wait for their answers"})
			return
		}
		defer leave()
		next.ServeHTTP(w, r)
	})
}

func (q *Requests) refuse(w http.ResponseWriter, r *http.Request, why Refusal) {
	q.refused.Add(1)
	q.Refuse(w, r, why)
}

func (q *Requests) check(r *http.Request) (why Refusal, ok bool) {
	if n := headSize(r); n > MaxHeader {
		return Refusal{http.StatusRequestHeaderFieldsTooLarge, "HEADERS_TOO_LARGE",
			fmt.Sprintf("the request's headers have %d bytes, %d are allowed", n, MaxHeader)}, false
	}
	if !q.Hosts.Allow(r.Host) && !calledByAddress(r) {
		return Refusal{http.StatusMisdirectedRequest, "HOST_NOT_ALLOWED",
			fmt.Sprintf("this server is not called %.100q: --allowed-hosts says by which names it is called",
				strings.ToValidUTF8(r.Host, "\ufffd"))}, false
	}
	return why, true
}

// calledByAddress reports whether a request's host is the address at which its connection came
// in, as probes call a server by. A host name does not count, even if it resolves to that
// address.
func calledByAddress(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	at, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return err == nil && ok && at.AddrPort().Addr().Unmap().WithZone("") == ip.Unmap()
}

// headSize is the size of a request's head as HTTP/1.1 writes it, whichever version it
// came in.
func headSize(r *http.Request) int {
	const separators = len(": \r\n")
	n := len(r.Method) + len(r.RequestURI) + len(" ") + len(" HTTP/1.1\r\n") + len("Host") + len(r.Host) + separators
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v) + separators
		}
	}
	return n
}

// enter counts a request of a client. A request without an address, such as the proxy's own
// probes, is not counted.
func (q *Requests) enter(client netip.Prefix) (leave func(), ok bool) {
	if !client.IsValid() {
		return func() {}, true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.clients[client] >= q.PerClient {
		return nil, false
	}
	if q.clients == nil {
		q.clients = map[netip.Prefix]int{}
	}
	q.clients[client]++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.clients[client]--; q.clients[client] == 0 {
			delete(q.clients, client)
		}
	}, true
}

// Hosts are the names under which a server is called, as Host or :authority. The zero
// value allows every name.
//
// A web page can call a server on its reader's machine by a name of its own that
// resolves to 127.0.0.1, and the browser takes the answer for the page's own; the name
// gives it away.
type Hosts struct{ names map[string]bool }

// LocalHosts are the names of this machine: localhost and below it, its own addresses,
// and the given ones.
func LocalHosts(more ...string) Hosts {
	h := Hosts{map[string]bool{"localhost": true}}
	for _, name := range more {
		h.names[canonical(name)] = true
	}
	return h
}

// Allow reports whether a Host header, with or without a port, is one of the names. One
// that is empty is no browser's.
func (h Hosts) Allow(host string) bool {
	if h.names == nil || host == "" {
		return true
	}
	name := host
	if n, _, err := net.SplitHostPort(host); err == nil {
		name = n
	}
	name = canonical(name)
	if loopback.IsIP(name) {
		return true
	}
	return h.names[name] || strings.HasSuffix(name, ".localhost")
}

// canonical is a name in the form in which names are compared.
func canonical(name string) string {
	return strings.TrimSuffix(strings.ToLower(strings.Trim(name, "[]")), ".")
}
