package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/testkit"
)

// names is a resolver of a table.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	list, ok := n[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var all []netip.Addr
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all, nil
}

// inside are addresses of each class that is not public, in all forms.
var inside = map[string][]string{
	"loopback":    {"127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"},
	"unspecified": {"0.0.0.0", "0.1.2.3", "::", "::ffff:0.0.0.0"},
	"private": {"10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.255",
		"192.168.0.1", "::ffff:10.1.2.3"},
	"link-local and metadata": {"169.254.169.254", "169.254.0.1", "fe80::1", "::ffff:169.254.169.254",
		"168.63.129.16", "192.0.0.192"},
	"CGNAT":                    {"100.64.0.1", "100.127.255.255", "100.100.100.200"},
	"multicast":                {"224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"},
	"reserved and broadcast":   {"240.0.0.1", "255.255.255.255", "100::1", "5f00::1", "4000::1"},
	"unique local":             {"fc00::1", "fd00:ec2::254", "fdff::1"},
	"site local, IPv4 in IPv6": {"fec0::1", "::127.0.0.1", "::a00:1"},
	"documentation, benchmarks": {"192.0.2.1", "198.51.100.7", "203.0.113.9", "198.18.0.1", "198.19.255.255",
		"2001:db8::1", "3fff::1", "2001:2::1"},
	"NAT64":               {"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::a00:1", "64:ff9b:1::a00:1"},
	"6to4 and its relays": {"2002:7f00:1::1", "2002:a9fe:a9fe::", "192.88.99.1"},
	"Teredo, ORCHID":      {"2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001::1", "2001:20::1"},
}

// outside are public addresses, some of them next to networks that are not.
var outside = []string{"8.8.8.8", "1.1.1.1", "9.255.255.255", "11.0.0.0", "172.15.255.255", "172.32.0.0",
	"100.63.255.255",
	"100.128.0.0", "169.253.255.255", "192.167.255.255", "223.255.255.255", "198.17.255.255", "198.20.0.0",
	"2606:4700::1111",
	"2001:4860:4860::8888", "2003::1", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808"}

// No request reaches an address that is not public, by its address, or by a name that leads there (S-48).
func TestSec_S_48_OnlyPublicAddresses(t *testing.T) {
	table := names{}
	g := New(Config{Resolver: table})
	for class, list := range inside {
		for _, a := range list {
			ip := netip.MustParseAddr(a)
			if public(ip) {
				t.Errorf("%s: %s counts as public", class, a)
			}
			literal := "https://" + net.JoinHostPort(a, "8443") + "/"
			wantRefused(t, literal, g.Check(literal))
			name := "host.example.com"
			table[name] = []string{a}
			_, err := g.Do(request(t, "https://"+name+":8443/"))
			wantRefused(t, class+", a name for "+a, err)
		}
	}
	for _, a := range outside {
		if !public(netip.MustParseAddr(a)) {
			t.Errorf("%s does not count as public", a)
		}
		if err := g.Check("https://" + net.JoinHostPort(a, "443") + "/"); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
	if public(netip.MustParseAddr("2a00:1450::1%eth0")) {
		t.Error("an address with a zone counts as public")
	}
}

func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	var no *Refused
	if !errors.As(err, &no) {
		t.Fatalf("%s: %v, want a refusal", what, err)
	}
}

func request(t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
	testkit.Must(t, err)
	return r
}

// A URL is refused for what it says, before its host is resolved.
func TestCheck(t *testing.T) {
	allow, err := ParseAllowed([]string{"hooks.internal:81", "Other.Internal", "10.1.0.0/16", "[::1]:9000"})
	testkit.Must(t, err)
	g := New(Config{Allow: allow})
	for _, s := range []string{"", "hooks.example.com", "//hooks.example.com/", "ftp://hooks.example.com/",
		"http://hooks.example.com/",
		"https://user@hooks.example.com/", "https://a:b@hooks.example.com/", "https:///path", "https:hooks",
		"https://h.example.com:0/",
		"https://h.example.com:70000/", "https://h.example.com:22/", "https://h.example.com:80/",
		"https://h.example.com/#a",
		"http://10.1.2.3/", "https://10.2.0.1/", "https://127.0.0.1/", "https://[::ffff:127.0.0.1]/",
		"https://[::1]/",
		"http://hooks.internal/",
		"https://h.example.com/" + strings.Repeat("a", maxURL), "https://h.example.com/\x00"} {
		wantRefused(t, s, g.Check(s))
	}
	for _, s := range []string{"https://hooks.example.com/a?b=c", "https://hooks.example.com:443/",
		"https://hooks.example.com:1024/",
		"https://8.8.8.8/", "http://hooks.internal:81/", "http://other.internal/",
		"https://OTHER.internal.:22/", "https://10.1.2.3/",
		"http://[::1]:9000/"} {
		if err := g.Check(s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

func TestParseAllowed(t *testing.T) {
	for _, s := range []string{"", "10.0.0.0/33", "a b", "host:0", "host:99999", "http://host",
		"::ffff:10.0.0.0/104",
		strings.Repeat("a", 300)} {
		if _, err := ParseAllowed([]string{s}); err == nil {
			t.Errorf("%q is allowed", s)
		}
	}
	if _, err := ParseAllowed(make([]string, maxAllowed+1)); err == nil {
		t.Error("the list has no bound")
	}
}

// server is an HTTPS server on this machine, for names of the internet.
func server(t *testing.T, h http.HandlerFunc) (port string, roots *x509.CertPool) {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	testkit.Must(t, err)
	roots = x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return u.Port(), roots
}

// A host that operators list is reached, and a network as well; the certificate is checked all the same.
func TestAllowedIsReached(t *testing.T) {
	port, roots := server(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	table := names{"example.com": {"127.0.0.1"}, "other.test": {"127.0.0.1"}}
	for _, allow := range []string{"example.com", "example.com:" + port, "127.0.0.0/8"} {
		list, err := ParseAllowed([]string{allow})
		testkit.Must(t, err)
		g := New(Config{Allow: list, Resolver: table, Roots: roots})
		res, err := g.Do(request(t, "https://example.com:"+port+"/"))
		testkit.Must(t, err)
		testkit.Must(t, res.Body.Close())
		testkit.Equal(t, "status", res.StatusCode, http.StatusNoContent)
		g.Close()
	}
	list, err := ParseAllowed([]string{"other.test"})
	testkit.Must(t, err)
	g := New(Config{Allow: list, Resolver: table, Roots: roots})
	if _, err := g.Do(request(t, "https://other.test:"+port+"/")); err == nil {
		t.Error("a certificate for another name is accepted")
	}
	if _, err := g.Do(request(t, "https://example.com:"+port+"/")); err == nil {
		t.Error("a host that is not listed is reached")
	}
}

// A name that has an allowed address when it is asked first, and a forbidden one then, leads nowhere: the address
// that is checked is the one that the connection is made to.
func TestRebinding(t *testing.T) {
	var asked atomic.Int64
	var reached atomic.Int64
	port, roots := server(t, func(http.ResponseWriter, *http.Request) { reached.Add(1) }) // at 127.0.0.1
	allow, err := ParseAllowed([]string{"127.0.0.2/32"})
	testkit.Must(t, err)
	g := New(Config{Allow: allow, Roots: roots, Resolver: changing(func() string {
		if asked.Add(1)%2 == 1 {
			return "127.0.0.2"
		}
		return "127.0.0.1"
	})})
	for n := range 6 {
		_, err := g.Do(request(t, "https://example.com:"+port+"/"))
		var no *Refused
		switch {
		case err == nil:
			t.Fatal("the forbidden address was reached")
		case n%2 == 0 && errors.As(err, &no): // nothing listens at 127.0.0.2
			t.Errorf("the allowed address is refused: %v", err)
		case n%2 == 1:
			wantRefused(t, "the forbidden address", err)
		}
	}
	testkit.Equal(t, "names that were asked for", asked.Load(), 6)
	testkit.Equal(t, "requests", reached.Load(), 0)
}

// An address of this machine is refused although it is public, unless it is allowed, and in development.
func TestOwnAddress(t *testing.T) {
	own := func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.ParseIP("8.8.8.8"), Mask: net.CIDRMask(24, 32)}}, nil
	}
	allow, err := ParseAllowed([]string{"8.8.8.0/24"})
	testkit.Must(t, err)
	for _, c := range []struct {
		at      string
		cfg     Config
		refused bool
	}{
		{"8.8.8.8", Config{Own: own}, true},
		{"::ffff:8.8.8.8", Config{Own: own}, true},
		{"8.8.8.9", Config{Own: own}, false},
		{"8.8.8.8", Config{Own: own, Allow: allow}, false},
		{"8.8.8.8", Config{Own: own, Loopback: true}, false},
		{"8.8.8.9", Config{Own: func() ([]net.Addr, error) { return nil, errors.New("no") }}, true},
	} {
		err := New(c.cfg).checkPeer(netip.MustParseAddr(c.at))
		if c.refused {
			wantRefused(t, c.at, err)
		} else if err != nil {
			t.Errorf("%s: %v", c.at, err)
		}
	}
	_, err = New(Config{Own: own, Resolver: names{"example.com": {"8.8.8.8"}}}).Do(request(t, "https://example.com/"))
	wantRefused(t, "a name for this machine", err) // before a connection is made
}

type changing func() string

func (f changing) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr(f())}, nil
}

// Neither a redirect nor a proxy of the environment leads elsewhere, and development allows this machine only.
func TestNoRedirectAndNoProxy(t *testing.T) {
	var reached atomic.Int64
	port, roots := server(t, func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		http.Redirect(w, r, "https://169.254.169.254/latest", http.StatusTemporaryRedirect)
	})
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	g := New(Config{Loopback: true, Roots: roots})
	defer g.Close()
	res, err := g.Do(request(t, "https://127.0.0.1:"+port+"/"))
	testkit.Must(t, err)
	testkit.Must(t, res.Body.Close())
	testkit.Equal(t, "status", res.StatusCode, http.StatusTemporaryRedirect)
	testkit.Equal(t, "requests", reached.Load(), 1)
	wantRefused(t, "a private address in development", g.Check("https://10.0.0.1/"))
}

// An IP address gets so many connections at a time, by whichever names. A request beyond that waits: until one
// is closed, or its time is over.
func TestConnectionsOfAnAddress(t *testing.T) {
	const most = 3
	hold := make(chan struct{})
	entered := make(chan struct{}, 10)
	port, roots := server(t, func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-hold
	})
	list, err := ParseAllowed([]string{"127.0.0.0/8"})
	testkit.Must(t, err)
	table := names{"a.example.com": {"127.0.0.1"}, "example.com": {"127.0.0.1"}}
	g := New(Config{Allow: list, Roots: roots, Resolver: table, PerAddress: most})
	defer g.Close()
	results := make(chan error, most+1)
	send := func(name string) {
		res, err := g.Do(request(t, "https://"+name+":"+port+"/"))
		if err == nil {
			err = res.Body.Close()
		}
		results <- err
	}
	for range most {
		go send("example.com")
		<-entered
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err = g.Do(request(t, "https://a.example.com:"+port+"/").WithContext(ctx)); !errors.Is(err, ErrBusy) {
		t.Errorf("one more: %v, want %v", err, ErrBusy)
	}
	testkit.Equal(t, "requests", len(entered), 0)
	go send("example.com") // it waits
	close(hold)
	for range most + 1 {
		testkit.Must(t, <-results)
	}
}

// Connections that are not in use keep no request to the address away, also those for other names: neither
// those that are there, nor those that are left while it waits.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	hold := make(chan struct{}, 1)
	entered := make(chan struct{}, 10)
	port, roots := server(t, func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-hold
	})
	list, err := ParseAllowed([]string{"127.0.0.0/8"})
	testkit.Must(t, err)
	table := names{"other.example.com": {"127.0.0.1"}, "example.com": {"127.0.0.1"}}
	g := New(Config{Allow: list, Roots: roots, Resolver: table, PerAddress: 1})
	defer g.Close()
	send := func(name string) error {
		ctx, cancel := context.WithTimeout(t.Context(), idleTime/2)
		defer cancel()
		r := request(t, "https://"+name+":"+port+"/").WithContext(ctx)
		res, err := g.Do(r)
		if err == nil {
			err = res.Body.Close()
		}
		return err
	}
	hold <- struct{}{}
	testkit.Must(t, send("example.com"))
	<-entered
	hold <- struct{}{}
	testkit.Must(t, send("other.example.com"))
	<-entered
	first := make(chan error, 1)
	go func() { first <- send("example.com") }()
	<-entered
	second := make(chan error, 1)
	go func() { second <- send("other.example.com") }()
	select {
	case err := <-second:
		t.Fatalf("a request beyond the bound ended: %v", err)
	case <-time.After(3 * idleCheckEvery):
	}
	hold <- struct{}{}
	testkit.Must(t, <-first)
	hold <- struct{}{}
	testkit.Must(t, <-second)
}

// As many requests at a time as are sent to a host use the same connections again and again.
func TestConnectionsAreKept(t *testing.T) {
	var made atomic.Int64
	arrived := make(chan struct{}, PerHost)
	answer := make(chan struct{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-answer
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			made.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	g := New(Config{Loopback: true})
	defer g.Close()
	for range 3 {
		var requests sync.WaitGroup
		for range PerHost {
			requests.Go(func() {
				res, err := g.Do(request(t, s.URL))
				if err != nil {
					t.Error(err)
					return
				}
				_ = res.Body.Close()
			})
		}
		for range PerHost { // all are under way: none has the connection of another one
			<-arrived
		}
		for range PerHost {
			answer <- struct{}{}
		}
		requests.Wait()
	}
	testkit.Equal(t, "connections", made.Load(), PerHost)
}

// A server that ends the handler of a closed connection with an empty 200 has not handled the request.
func TestAnswerOfInterruptedRequest(t *testing.T) {
	late := roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://example.com/", nil)
	testkit.Must(t, err)
	if res, err := InTime(&http.Client{Transport: late}, r); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %+v, %v, want an interrupted request", res, err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
