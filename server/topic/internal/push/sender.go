package push

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of requests.
const (
	// MaxRequests is how many requests a process has at a time, PerHost how many of them to one host.
	MaxRequests = 256
	PerHost     = 32

	requestTime = 15 * time.Second
	maxAnswer   = 64 << 10 // bytes that are read of an answer, to use the connection again
)

// Doer sends requests. *egress.Guard is one.
type Doer interface {
	Do(r *http.Request) (*http.Response, error)
	// Check returns, for people, why no request is sent to a URL.
	Check(url string) error
}

// Target is a webhook.
type Target struct {
	URL     string
	Secrets []string // each makes a signature
}

// Sender sends the requests of all workers of a process.
type Sender struct {
	Doer
	clock func() time.Time
	limit time.Duration // of a request
	all   chan struct{}

	mu    sync.Mutex
	hosts map[string]*host
}

// host bounds the requests to a host.
type host struct {
	places chan struct{}
	users  int // that have a place, or wait for one
}

// NewSender makes a Sender.
func NewSender(d Doer, clock func() time.Time) *Sender {
	return &Sender{Doer: d, clock: clock, limit: requestTime, all: make(chan struct{}, MaxRequests),
		hosts: map[string]*host{}}
}

// enter waits for a place for a request to a host: first for one of the host, so that requests which wait for a
// host take no place that another host could use. It reports false if ctx ends before.
func (s *Sender) enter(ctx context.Context, name string) (leave func(), ok bool) {
	s.mu.Lock()
	h := s.hosts[name]
	if h == nil {
		h = &host{places: make(chan struct{}, PerHost)}
		s.hosts[name] = h
	}
	h.users++
	s.mu.Unlock()
	gone := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h.users--; h.users == 0 {
			delete(s.hosts, name)
		}
	}
	if !acquire(ctx, h.places) {
		gone()
		return nil, false
	}
	if !acquire(ctx, s.all) {
		<-h.places
		gone()
		return nil, false
	}
	return func() {
		<-s.all
		<-h.places
		gone()
	}, true
}

func acquire(ctx context.Context, places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// hostOf is the host of a URL, by which requests are bounded.
func hostOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
}

// post sends one request, for which the caller has a place.
func (s *Sender) post(ctx context.Context, t Target, id string, body []byte) outcome {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	var written atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { written.Store(true) }})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL, bytes.NewReader(body))
	if err != nil {
		return outcome{verdict: unavailable, class: "refused_address"}
	}
	now := s.clock()
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "Parley")
	if err := sign(r.Header, t.Secrets, id, now, body); err != nil {
		return outcome{verdict: unavailable, class: "secret"}
	}
	res, err := s.Do(r)
	if err != nil {
		if caller.Err() != nil {
			return outcome{verdict: aborted}
		}
		return broken(err, written.Load())
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer))
	return answered(res, now)
}
