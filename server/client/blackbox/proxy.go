package blackbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/parley-chat/parley/server/infra/wait"
)

// faults are what a proxy does to calls. Times of zero and chances of zero are no faults.
type faults struct {
	lose   float64       // chance that the answer to a unary call is lost after the server has done the call
	twice  float64       // chance that a unary call reaches the server twice
	delay  time.Duration // longest delay of the answer to a unary call
	linger time.Duration // how long the server sees a stream that the client has ended
	buffer bool          // an answer reaches the client when the server has ended it
}

// proxy stands between the client and the server. It speaks HTTP/1.1 and HTTP/2 without TLS to the client. It is safe
// for concurrent use.
type proxy struct {
	*listener
	url    string
	web    *http.Server
	up     *http.Transport
	served sync.WaitGroup

	mu     sync.Mutex
	rng    *rand.Rand
	faults faults
}

func newProxy(ctx context.Context, to string, rng *rand.Rand) (*proxy, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: &listener{Listener: l, conns: map[*conn]bool{}}, url: "http://" + l.Addr().String(), rng: rng,
		up: &http.Transport{Protocols: new(http.Protocols)}}
	p.up.Protocols.SetUnencryptedHTTP2(true)
	silent := slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	target := &url.URL{Scheme: "http", Host: to}
	forward := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     p,
		FlushInterval: -1,
		ErrorLog:      silent,
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.web = &http.Server{Handler: forward, ErrorLog: silent, Protocols: new(http.Protocols),
		ReadHeaderTimeout: time.Minute}
	p.web.Protocols.SetHTTP1(true)
	p.web.Protocols.SetUnencryptedHTTP2(true)
	p.served.Go(func() { _ = p.web.Serve(p.listener) })
	return p, nil
}

func (p *proxy) close() {
	_ = p.web.Close()
	p.cut()
	p.served.Wait()
	p.up.CloseIdleConnections()
}

// set replaces the faults. Calls under way keep theirs.
func (p *proxy) set(f faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = f
}

// draw returns the faults of one call.
func (p *proxy) draw() (f faults, lose, twice bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f = p.faults
	lose, twice = p.rng.Float64() < f.lose, p.rng.Float64() < f.twice
	if f.delay > 0 {
		f.delay = time.Duration(p.rng.Int64N(int64(f.delay)))
	}
	return f, lose, twice
}

var errLost = errors.New("the answer is lost")

// RoundTrip makes a call to the server, with faults.
func (p *proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	f, lose, twice := p.draw()
	if strings.HasSuffix(r.URL.Path, "/Subscribe") || strings.HasSuffix(r.URL.Path, "/stream") {
		return p.stream(r, f)
	}
	var body []byte
	var err error
	if r.Body != nil { // nil for an empty body
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	if twice {
		if _, err := p.unary(r, body); err != nil {
			return nil, err
		}
	}
	res, err := p.unary(r, body)
	if err == nil && f.delay > 0 {
		err = wait.For(r.Context(), f.delay)
	}
	if err == nil && lose {
		err = errLost
	}
	return res, err
}

// unary makes a call and reads its answer to the end.
func (p *proxy) unary(r *http.Request, body []byte) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	res, err := p.up.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body) // which also brings the trailers
	res.Body = io.NopCloser(bytes.NewReader(answer))
	return res, err
}

// stream opens a stream. With linger the server does not see for a time that the client has ended it.
func (p *proxy) stream(r *http.Request, f faults) (*http.Response, error) {
	if f.linger == 0 {
		res, err := p.up.RoundTrip(r)
		if err != nil || !f.buffer {
			return res, err
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		res.Body = io.NopCloser(bytes.NewReader(answer))
		return res, err
	}
	ctx, end := context.WithCancel(context.WithoutCancel(r.Context()))
	res, err := p.up.RoundTrip(r.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	res.Body = &lingering{res.Body, func() { time.AfterFunc(f.linger, end) }}
	return res, nil
}

// lingering is a body that is closed later.
type lingering struct {
	io.ReadCloser
	end func()
}

// Close lets the stream live on for a time.
func (l *lingering) Close() error {
	l.end()
	return nil
}

// chance returns a random number from 0 to 1.
func (p *proxy) chance() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rng.Float64()
}
