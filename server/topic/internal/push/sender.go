package push

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-chat/parley/server/infra/egress"
)

// Bounds of requests.
const (
	// MaxRequests is how many requests a process has at a time, PerHost how many of them to one host, and
	// PerPrincipal how many for the webhooks that one principal has set.
	MaxRequests  = 256
	PerHost      = egress.PerHost
	PerPrincipal = 32

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
	Etag    string   // of the subscription
}

// Sender sends the requests of all workers of a process.
type Sender struct {
	Doer
	clock func() time.Time
	limit time.Duration // of a request

	principals, hosts, all *slots
}

// slots bound the requests for each of several names.
type slots struct {
	limit int

	mu     sync.Mutex
	byName map[string]*named
}

// named are the requests for a name.
type named struct {
	slots chan struct{}
	users int // that have a slot, or wait for one
}

// NewSender makes a Sender.
func NewSender(d Doer, clock func() time.Time) *Sender {
	of := func(limit int) *slots { return &slots{limit: limit, byName: map[string]*named{}} }
	return &Sender{Doer: d, clock: clock, limit: requestTime, principals: of(PerPrincipal), hosts: of(PerHost),
		all: of(MaxRequests)}
}

// enter waits for a slot for a request to a host, for a webhook of a principal; empty: of one without a bound.
// It takes one of the principal first, then one of the host, then one of all: requests that wait for a host
// take no slot that another host could use, and those of a principal none that another one could use. It
// reports false if ctx ends before.
func (s *Sender) enter(ctx context.Context, principal, host string) (leave func(), ok bool) {
	var taken []func()
	leave = func() {
		for _, f := range slices.Backward(taken) {
			f()
		}
	}
	for _, in := range []struct {
		*slots
		name string
	}{{s.principals, principal}, {s.hosts, host}, {s.all, "all"}} {
		if in.name == "" {
			continue
		}
		f, ok := in.enter(ctx, in.name)
		if !ok {
			leave()
			return nil, false
		}
		taken = append(taken, f)
	}
	return leave, true
}

// enter waits for a slot of a name.
func (p *slots) enter(ctx context.Context, name string) (leave func(), ok bool) {
	p.mu.Lock()
	n := p.byName[name]
	if n == nil {
		n = &named{slots: make(chan struct{}, p.limit)}
		p.byName[name] = n
	}
	n.users++
	p.mu.Unlock()
	gone := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if n.users--; n.users == 0 {
			delete(p.byName, name)
		}
	}
	select {
	case n.slots <- struct{}{}:
		return func() { <-n.slots; gone() }, true
	case <-ctx.Done():
		gone()
		return nil, false
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

// post sends one request, for which the caller has a slot.
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
