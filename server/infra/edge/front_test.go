package edge

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// The client is who the proxies saw, not who it says that it is.
func TestClient(t *testing.T) {
	for _, tt := range []struct {
		headers []string
		proxies int
		want    string
	}{
		{[]string{"203.0.113.7"}, 1, "203.0.113.7/32"},
		{[]string{"10.0.0.1, 203.0.113.7"}, 1, "203.0.113.7/32"},
		{[]string{"10.0.0.1", "203.0.113.7"}, 1, "203.0.113.7/32"},
		{[]string{"10.0.0.1, 203.0.113.7, 192.0.2.1"}, 2, "203.0.113.7/32"},
		{[]string{"203.0.113.7:4711"}, 1, "203.0.113.7/32"},
		{[]string{"[2001:db8:1:2::3]:4711"}, 1, "2001:db8:1:2::/64"},
		{[]string{"2001:db8:1:2::3"}, 1, "2001:db8:1:2::/64"},
		{[]string{"::ffff:203.0.113.7"}, 1, "203.0.113.7/32"},
		{[]string{"203.0.113.7"}, 2, "198.51.100.9/32"}, {[]string{"unknown"}, 1, "198.51.100.9/32"}, // past a proxy
		{nil, 1, "198.51.100.9/32"}, {[]string{"203.0.113.7"}, 0, "198.51.100.9/32"}, {nil, 0, "198.51.100.9/32"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.RemoteAddr = "198.51.100.9:4711"
		for _, h := range tt.headers {
			r.Header.Add("X-Forwarded-For", h)
		}
		got := Proxies{Count: tt.proxies}.Client(r)
		if got.IsValid() != (tt.want != "") || got.IsValid() && got.String() != tt.want {
			t.Errorf("%q behind %d: %v, not %s", tt.headers, tt.proxies, got, tt.want)
		}
	}
	for at, want := range map[string]string{"127.0.0.1:1": "", "[::1]:1": "", "[::ffff:127.0.0.1]:1": "", "": "", "@": "",
		"[2001:db8:1:2::3]:1": "2001:db8:1:2::/64", "[fe80::1%eth0]:1": "fe80::/64"} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.RemoteAddr = at
		if got := (Proxies{}).Client(r); got.IsValid() != (want != "") || got.IsValid() && got.String() != want {
			t.Errorf("from %q: %v, not %q", at, got, want)
		}
	}
}

// With the networks of the proxies the client is whoever the last of them was called by: who
// comes past them, or names others itself, is who it is.
func TestClientBeyondNetworks(t *testing.T) {
	p := Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.7/32"),
		netip.MustParsePrefix("127.0.0.1/32")}}
	for _, tt := range []struct{ peer, header, want string }{
		{"10.1.2.3:4711", "203.0.113.7", "203.0.113.7/32"},
		{"10.1.2.3:4711", "198.51.100.1, 203.0.113.7", "203.0.113.7/32"},
		{"10.1.2.3:4711", "203.0.113.7, 192.0.2.7, 10.9.9.9", "203.0.113.7/32"},
		{"10.1.2.3:4711", "198.51.100.1, 203.0.113.7, 192.0.2.7", "203.0.113.7/32"},
		{"10.1.2.3:4711", "2001:db8:1:2::3", "2001:db8:1:2::/64"},
		{"127.0.0.1:4711", "203.0.113.7", "203.0.113.7/32"},
		{"203.0.113.9:4711", "198.51.100.1", "203.0.113.9/32"}, // past the proxies
		{"203.0.113.9:4711", "10.0.0.1", "203.0.113.9/32"},
		{"[2001:db8:5:6::7]:4711", "198.51.100.1", "2001:db8:5:6::/64"},
		{"10.1.2.3:4711", "10.4.5.6", "10.4.5.6/32"}, // a client within the networks
		{"10.1.2.3:4711", "unknown", "10.1.2.3/32"},
		{"10.1.2.3:4711", "203.0.113.7, unknown", "10.1.2.3/32"},
		{"10.1.2.3:4711", "", "10.1.2.3/32"},
		{"127.0.0.1:4711", "", ""}, // the probes of this machine
		{"", "203.0.113.7", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		if r.RemoteAddr = tt.peer; tt.header != "" {
			r.Header.Set("X-Forwarded-For", tt.header)
		}
		got := p.Client(r)
		if got.IsValid() != (tt.want != "") || got.IsValid() && got.String() != tt.want {
			t.Errorf("%q from %s: %v, not %s", tt.header, tt.peer, got, tt.want)
		}
		var seen netip.Prefix
		q := &Requests{Proxies: p, PerClient: 1}
		q.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = Address(r.Context()) })).
			ServeHTTP(httptest.NewRecorder(), r)
		if seen != got {
			t.Errorf("%q from %s: those behind see %v, not %v", tt.header, tt.peer, seen, got)
		}
	}
}

// Beyond 16 KiB a request is refused, whether the bytes are in its line, in few headers
// or in many.
func TestHeadSize(t *testing.T) {
	q := &Requests{Refuse: func(w http.ResponseWriter, _ *http.Request,
		why Refusal) {
		http.Error(w, why.Text, why.Status)
	}}
	h := q.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for name, tt := range map[string]struct {
		path, value   int
		values, wants int
	}{
		"little": {1, 10, 10, 200}, "a long path": {16_000, 0, 0, 200}, "a longer one": {16_400, 0, 0, 431},
		"a header": {1, 16_000, 1, 200}, "a larger one": {1, 16_380, 1, 431}, "many": {1, 0, 2_000, 200},
		"more": {1, 0, 3_300, 431},
	} {
		r := httptest.NewRequest(http.MethodGet, "/"+strings.Repeat("x", tt.path), http.NoBody)
		for range tt.values {
			r.Header.Add("X", strings.Repeat("x", tt.value))
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.wants {
			t.Errorf("%s: %d: %s", name, w.Code, w.Body)
		}
	}
	if n := q.Refused(); n != 3 {
		t.Errorf("%d were counted", n)
	}
}

// A stream that needs no token ends when its time is over, or when there are too many,
// even if it waits for a request that does not come.
func TestSlots(t *testing.T) {
	for name, s := range map[string]*Slots{"time": {Max: 10, Time: 50 * time.Millisecond},
		"number": {Max: 1, Time: time.Hour}} {
		ended := make(chan error, 2)
		srv := httptest.NewServer(s.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			ended <- err
		})))
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			pr, pw := io.Pipe()
			defer pw.Close()
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, srv.URL, pr)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				if res, err := http.DefaultClient.Do(req); err == nil {
					_ = res.Body.Close()
				}
			}()
		}
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: the request came to an end", name)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("%s: no stream was ended", name)
		}
		srv.CloseClientConnections()
		go srv.Close()
	}
}

// Answers that need no token are few at a time; the rest are refused.
func TestPages(t *testing.T) {
	within, leave := make(chan struct{}), make(chan struct{})
	h := NewPages(1, time.Minute).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		within <- struct{}{}
		<-leave
	}))
	get := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
		return w.Code
	}
	first := make(chan int)
	go func() { first <- get() }()
	<-within
	if got := get(); got != http.StatusServiceUnavailable {
		t.Errorf("a second one: %d", got)
	}
	close(leave)
	if got := <-first; got != http.StatusOK {
		t.Errorf("the first: %d", got)
	}
	go func() { <-within }()
	if got := get(); got != http.StatusOK {
		t.Errorf("after it: %d", got)
	}
}
