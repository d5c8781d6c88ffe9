package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/parley-chat/parley/server/infra/loopback"
)

// Bounds of connections.
const (
	// DefaultPerAddress is how many connections go to one IP address at most.
	DefaultPerAddress = 64
	// PerHost is how many connections to a host are kept for further requests. A caller that sends more requests at a
	// time to a host makes connections anew for those beyond it: with TLS that costs ten times a request.
	PerHost = 32

	dialTime       = 5 * time.Second
	handshakeTime  = 5 * time.Second
	idleTime       = 30 * time.Second
	maxIdle        = 256
	maxHeaderBytes = 64 << 10
	maxURL         = 2048
	firstOpenPort  = 1024 // below it only 443: other services are behind these ports
)

// Resolver finds the addresses of a name. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Config holds what a Guard goes by. The zero value allows public addresses only.
type Config struct {
	Allow Allowed
	// Loopback allows http and https to this machine, in development.
	Loopback   bool
	Roots      *x509.CertPool // nil: those of the system
	Resolver   Resolver       // nil: net.DefaultResolver
	PerAddress int            // connections to an IP address; 0: DefaultPerAddress
	// Own are the addresses of this machine; nil: those of its interfaces. Only Loopback and Allow let requests
	// reach one: on a public address of this machine there are services for others than users.
	Own func() ([]net.Addr, error)
}

// Refused is why a Guard does not send a request.
type Refused struct{ Text string }

// Error implements error.
func (e *Refused) Error() string { return e.Text }

func refused(format string, args ...any) error { return &Refused{fmt.Sprintf(format, args...)} }

// Guard sends requests to addresses of users.
type Guard struct {
	cfg    Config
	client *http.Client

	mu    sync.Mutex
	conns map[netip.Addr]*connections
}

// connections are those to an address.
type connections struct {
	slots chan struct{}
	users int // that have a slot, or wait for one
}

// New makes a Guard.
func New(c Config) *Guard {
	if c.Resolver == nil {
		c.Resolver = net.DefaultResolver
	}
	if c.PerAddress == 0 {
		c.PerAddress = DefaultPerAddress
	}
	if c.Own == nil {
		c.Own = net.InterfaceAddrs
	}
	g := &Guard{cfg: c, conns: map[netip.Addr]*connections{}}
	// HTTP/1.1 alone: with one request for each connection the bound of connections is one of requests.
	g.client = &http.Client{
		Transport: &http.Transport{
			Proxy: nil, DialContext: g.dial, TLSHandshakeTimeout: handshakeTime, IdleConnTimeout: idleTime,
			MaxIdleConnsPerHost: PerHost, MaxIdleConns: maxIdle, MaxResponseHeaderBytes: maxHeaderBytes,
			DisableCompression: true,
			TLSClientConfig:    &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: c.Roots},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return g
}

// Do sends a request. It checks the address again: an address that was allowed when it was stored may be refused now.
// The caller closes the body of the answer. A redirect is the answer, and not followed. The error is ErrBusy if the
// context of the request ends while it waits for a connection, because its address has as many as it may.
func (g *Guard) Do(r *http.Request) (*http.Response, error) {
	if err := g.Check(r.URL.String()); err != nil {
		return nil, err
	}
	d := &dialing{ctx: r.Context()}
	ctx := httptrace.WithClientTrace(context.WithValue(r.Context(), dialingKey{}, d),
		&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { d.got.Store(true) }})
	res, err := InTime(g.client, r.WithContext(ctx))
	if err != nil && d.waits.Load() && !d.got.Load() {
		err = fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return res, err
}

// InTime sends a request with a client. An answer that comes when the request's context has ended is the context's
// error: the client closes the connection then, many servers end the handler of a closed connection with an empty 200,
// and the client may read that before the connection is closed. Such a 200 would say that a request was handled which
// was interrupted.
func InTime(client *http.Client, r *http.Request) (*http.Response, error) {
	res, err := client.Do(r) //nolint:gosec // callers decide which addresses they reach
	if err != nil {
		return nil, err
	}
	if ended := r.Context().Err(); ended != nil {
		_ = res.Body.Close()
		return nil, ended
	}
	return res, nil
}

// dialing is what a connection knows of the request for which it is made: the context of a dial has the values
// of the request's context, and not its end.
type dialing struct {
	ctx   context.Context
	waits atomic.Bool // for a slot
	got   atomic.Bool // a connection, maybe one that another request does not need any more
}

type dialingKey struct{}

// Close closes the connections that are not in use.
func (g *Guard) Close() { g.client.CloseIdleConnections() }

// Check returns, as a Refused in one line for people, why no request is sent to a URL, as far as the URL
// itself says so. The addresses of a name are checked when a connection is made.
func (g *Guard) Check(raw string) error {
	if len(raw) > maxURL {
		return refused("the URL has more than %d bytes", maxURL)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Opaque != "" || u.Hostname() == "":
		return refused("the URL must be https://HOST/PATH")
	case u.User != nil:
		return refused("the URL must not have a user name: requests are signed instead")
	case u.Fragment != "":
		return refused("the URL must not have a fragment")
	}
	host, port := canonical(u.Hostname()), u.Port()
	local := g.cfg.Loopback && loopback.Is(host)
	named := local
	switch u.Scheme {
	case "https":
		if port == "" {
			port = "443"
		}
		named = named || g.cfg.Allow.host(host, port)
	case "http":
		if port == "" {
			port = "80"
		}
		if named = named || g.cfg.Allow.host(host, port); !named {
			return refused("the URL must begin with https://")
		}
	default:
		return refused("the URL must begin with https://")
	}
	if err := checkPort(port, named); err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); err == nil && !named {
		return g.checkAddress(ip)
	}
	return nil
}

func checkPort(port string, named bool) error {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return refused("the URL has a port that is not one")
	}
	if !named && n != 443 && n < firstOpenPort {
		return refused("the port must be 443 or at least %d", firstOpenPort)
	}
	return nil
}

// checkAddress reports, as a Refused, that an address is not public and not of a network that is allowed.
func (g *Guard) checkAddress(a netip.Addr) error {
	if public(a) || within(a.Unmap(), g.cfg.Allow.networks) {
		return nil
	}
	return refused("the host has an address that is not public: an operator can allow it with topic-push-allow")
}

// checkPeer is checkAddress, and refuses the addresses of this machine that are public, too.
func (g *Guard) checkPeer(a netip.Addr) error {
	a = a.Unmap()
	if err := g.checkAddress(a); err != nil {
		return err
	}
	if g.cfg.Loopback || within(a, g.cfg.Allow.networks) {
		return nil
	}
	own, err := g.cfg.Own()
	if err != nil {
		return refused("the addresses of the server itself cannot be read")
	}
	for _, o := range own {
		if p, err := netip.ParsePrefix(o.String()); err == nil && p.Addr().Unmap() == a {
			return refused("the host has an address of the server itself: an operator can allow it with topic-push-allow")
		}
	}
	return nil
}

// dial connects to a host. The address that is checked is the one that the kernel gets, right before the
// connection: a name that leads elsewhere when it is resolved again gains nothing.
func (g *Guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	host = canonical(host)
	named := g.cfg.Allow.host(host, port) || g.cfg.Loopback && loopback.Is(host)
	if err := checkPort(port, named); err != nil {
		return nil, err
	}
	list, err := g.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialTime, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		switch {
		case err != nil:
			return refused("the address cannot be checked")
		case named:
			return nil
		}
		return g.checkPeer(at.Addr())
	}}
	err = refused("the host has no address")
	for _, a := range list {
		var conn net.Conn
		if conn, err = g.connect(ctx, &d, network, a, port); err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}

// resolve returns the addresses of a host, which is a name or an address.
func (g *Guard) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	list, err := g.cfg.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	const most = 4 // addresses that are tried
	for i := range list {
		list[i] = list[i].Unmap()
	}
	return list[:min(len(list), most)], nil
}

// connect makes a connection to an address, once it has not as many as it may.
func (g *Guard) connect(
	ctx context.Context, d *net.Dialer, network string, a netip.Addr, port string,
) (net.Conn, error) {
	leave, err := g.enter(ctx, a)
	if err != nil {
		return nil, err
	}
	conn, err := d.DialContext(ctx, network, net.JoinHostPort(a.String(), port))
	if err != nil {
		leave()
		return nil, err
	}
	return &counted{Conn: conn, left: sync.OnceFunc(leave)}, nil
}

// ErrBusy says that an IP address has as many connections as it may.
var ErrBusy = errors.New("egress: the address has as many connections as one may have")

// idleCheckEvery is how often connections that are not in use are closed while a request waits
// for one.
const idleCheckEvery = 100 * time.Millisecond

// enter waits for a slot for a connection to an address. Connections that are not in use have slots, too, and
// those of other names at the address are of no use here: they are closed, at once and while this waits.
func (g *Guard) enter(ctx context.Context, a netip.Addr) (leave func(), err error) {
	g.mu.Lock()
	c := g.conns[a]
	if c == nil {
		c = &connections{slots: make(chan struct{}, g.cfg.PerAddress)}
		g.conns[a] = c
	}
	c.users++
	g.mu.Unlock()
	gone := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if c.users--; c.users == 0 {
			delete(g.conns, a)
		}
	}
	leave = func() { <-c.slots; gone() }
	select {
	case c.slots <- struct{}{}:
		return leave, nil
	default:
	}
	of, _ := ctx.Value(dialingKey{}).(*dialing)
	if of == nil {
		of = &dialing{ctx: ctx}
	}
	of.waits.Store(true)
	ticker := time.NewTicker(idleCheckEvery)
	defer ticker.Stop()
	for {
		g.client.CloseIdleConnections()
		select {
		case c.slots <- struct{}{}:
			of.waits.Store(false)
			return leave, nil
		case <-ticker.C:
		case <-of.ctx.Done(): // waits stays: this is why
			gone()
			return nil, ErrBusy
		case <-ctx.Done():
			gone()
			return nil, ErrBusy
		}
	}
}

// counted is a connection that counts for its address until it is closed.
type counted struct {
	net.Conn
	left func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.left()
	return c.Conn.Close()
}
