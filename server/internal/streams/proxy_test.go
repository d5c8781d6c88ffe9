package streams

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"
	"time"
)

// idleLimit is that of the proxies; many balancers have 60 s.
var idleLimit = 30 * time.Second / divisor

// tcpProxy passes bytes on and closes a connection on which nothing moved for the
// limit, in either direction. It returns its address.
func tcpProxy(t testing.TB, to string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go pass(c, to)
		}
	}()
	return l.Addr().String()
}

// pass connects two ends until one closes or both are silent for the limit.
func pass(near net.Conn, to string) {
	defer near.Close()
	far, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer far.Close()
	var once sync.Once
	done := make(chan struct{})
	end := func() { once.Do(func() { close(done) }) }
	idle := time.AfterFunc(idleLimit, end)
	defer idle.Stop()
	carry := func(dst, src net.Conn) {
		defer end()
		_, _ = io.Copy(dst, touching{src, idle})
	}
	go carry(far, near)
	go carry(near, far)
	<-done
}

// touching resets a timer with each read.
type touching struct {
	io.Reader
	idle *time.Timer
}

func (r touching) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.idle.Reset(idleLimit)
	}
	return n, err
}

// httpProxy passes requests on by HTTP/1.1 or HTTP/2 and gives up an answer of
// which nothing came for the limit, as proxy_read_timeout of nginx does. Pings of
// HTTP/2 do not count: it has connections of its own. It serves HTTP/1.1 and, by
// TLS or without, HTTP/2.
func httpProxy(t testing.TB, to string, h2, tls bool) *httptest.Server {
	t.Helper()
	tr := newTransport(h2)
	t.Cleanup(tr.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: to}) },
		Transport:     limited{tr},
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	s := httptest.NewUnstartedServer(proxy)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Config.Protocols.SetHTTP2(true)
	if tls {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

var errIdle = errors.New("nothing came for too long")

type limited struct{ next http.RoundTripper }

func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	idle := time.AfterFunc(idleLimit, func() { cancel(errIdle) })
	res, err := l.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		idle.Stop()
		cancel(nil)
		return nil, err
	}
	res.Body = limitedBody{touching{res.Body, idle}, res.Body, func() { idle.Stop(); cancel(nil) }}
	return res, nil
}

type limitedBody struct {
	io.Reader
	body io.Closer
	end  func()
}

func (b limitedBody) Close() error {
	b.end()
	return b.body.Close()
}
