package push

import (
	"context"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/infra/egress"
	"github.com/parley-chat/parley/server/infra/testkit"
)

// What real webhooks answer, over TLS and through the guard of a server in development.
func TestWebhooksOverTLS(t *testing.T) {
	secret := NewSecret()
	s := httptest.NewUnstartedServer(http.HandlerFunc(answers))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	trusting := egress.New(egress.Config{Loopback: true, Roots: roots})
	defer trusting.Close()
	wary := egress.New(egress.Config{Loopback: true})
	defer wary.Close()
	away, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	testkit.Must(t, away.Close())
	for _, c := range []struct {
		url   string
		guard *egress.Guard
		want  outcome
	}{
		{s.URL + "/ok", trusting, outcome{verdict: taken, status: 200}},
		{s.URL + "/created", trusting, outcome{verdict: taken, status: 201}},
		{s.URL + "/500", trusting, outcome{verdict: failed, status: 500, class: "status"}},
		{s.URL + "/busy", trusting, outcome{verdict: unavailable, status: 429, class: "status", wait: 7 * time.Second}},
		{s.URL + "/gone", trusting, outcome{verdict: gone, status: 410, class: "gone"}},
		{s.URL + "/elsewhere", trusting, outcome{verdict: failed, status: 307, class: "redirect"}},
		{s.URL + "/reset", trusting, outcome{verdict: failed, class: "connection"}},
		{s.URL + "/endless", trusting, outcome{verdict: taken, status: 200}},
		{s.URL + "/drip", trusting, outcome{verdict: taken, status: 200}},
		{s.URL + "/headers", trusting, outcome{verdict: failed, class: "connection"}},
		{s.URL + "/silent", trusting, outcome{verdict: failed, class: "timeout"}},
		{s.URL + "/ok", wary, outcome{verdict: unavailable, class: "tls"}},
		{strings.Replace(s.URL, "https", "http", 1), trusting, outcome{verdict: rejected, status: 400, class: "status"}},
		{"https://" + away.Addr().String() + "/", trusting, outcome{verdict: unavailable, class: "connect"}},
		{"https://no-such-host.invalid/", trusting, outcome{verdict: unavailable, class: "dns"}},
		{"https://10.0.0.1/", trusting, outcome{verdict: unavailable, class: "refused_address"}},
	} {
		sender := NewSender(c.guard, time.Now)
		sender.limit = time.Second
		got := sender.post(t.Context(), Target{URL: c.url, Secrets: []string{secret}}, "id", []byte(`{"a":1}`))
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.url, got, c.want)
		}
	}
}

// A request that is aborted because the worker stops says nothing.
func TestAbortedRequest(t *testing.T) {
	entered := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(entered)
		<-r.Context().Done()
	}))
	defer s.Close()
	guard := egress.New(egress.Config{Loopback: true})
	defer guard.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	o := NewSender(guard, time.Now).post(ctx, Target{URL: s.URL, Secrets: []string{NewSecret()}}, "id", nil)
	testkit.Equal(t, "verdict", o.verdict, aborted)
}

// answers are those of a webhook, by the path.
func answers(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || string(body) != `{"a":1}` || r.Header.Get("content-type") != "application/json" ||
		r.Header.Get(SignatureHeader) == "" || r.Method != http.MethodPost {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	switch r.URL.Path {
	case "/created":
		w.WriteHeader(http.StatusCreated)
	case "/500":
		w.WriteHeader(http.StatusInternalServerError)
	case "/busy":
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	case "/gone":
		w.WriteHeader(http.StatusGone)
	case "/elsewhere":
		http.Redirect(w, r, "/ok", http.StatusTemporaryRedirect)
	case "/reset":
		panic(http.ErrAbortHandler)
	case "/endless": // it ends when the server has read enough and closes the connection
		for chunk := make([]byte, 1<<20); err == nil; {
			_, err = w.Write(chunk)
		}
	case "/drip":
		for err == nil {
			_, err = w.Write([]byte("."))
			w.(http.Flusher).Flush()
			time.Sleep(10 * time.Millisecond)
		}
	case "/headers":
		for range 100 {
			w.Header().Add("X-Large", strings.Repeat("a", 1000))
		}
	case "/silent":
		<-r.Context().Done()
	}
}
