package modeltest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/event"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/topicrpc"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/workers/deadletter"
	"github.com/parley-chat/parley/workers/migrate"
	"github.com/parley-chat/parley/workers/ops"
)

// pipes is a listener whose connections are in memory, so that they are part of a bubble.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	ended chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), ended: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.ended) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.ended:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// as is a transport that calls as a principal.
type as struct {
	user string
	next http.RoundTripper
}

func (a as) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", a.user)
	return a.next.RoundTrip(r)
}

// server is the services of topics over the embedded engine, in the bubble of a test.
type server struct{ tr *http.Transport }

// serve runs a server until the test ends. A principal is what the header Authorization says.
func serve(t *testing.T) *server {
	t.Helper()
	disk := embeddedtest.NewDisk(nil).Open(t, time.Now)
	service, err := topic.New(t.Context(), topic.Config{Store: disk, Clock: time.Now,
		Log: commitlog.NewLocal(records.Of(disk), time.Now), Logger: slog.New(slog.DiscardHandler),
		Audit: func(context.Context, string, string, string) (func(code, result string), error) {
			return func(string, string) {}, nil
		}})
	testkit.Must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- service.Run(ctx, func() {}) }()
	services := topicrpc.New(topicrpc.Config{Topics: service, Streams: topicrpc.NewStreams(nil),
		Identify: func(ctx context.Context) topicrpc.Identity {
			p, _ := auth.PrincipalFrom(ctx)
			return topicrpc.Identity{Token: p, Caller: topic.Caller{
				Principal: p.UserID, Operator: p.UserID == "operator", Creator: p.UserID == "alice"}}
		}}).Services()
	services = append(services, topicrpc.NewAdminServer(topicrpc.AdminConfig{Topics: service.Admin(),
		Operator: func(context.Context) string { return "operator" }}).Service())
	handlers, err := api.New(api.Config{Store: disk, Logger: slog.New(slog.DiscardHandler),
		Observe: func(string, string, time.Duration) {}, More: services})
	testkit.Must(t, err)
	mux := http.NewServeMux()
	for path, h := range handlers.Handlers() {
		mux.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user := r.Header.Get("Authorization")
			h.ServeHTTP(w, r.WithContext(auth.WithPrincipal(r.Context(), auth.Principal{UserID: user,
				SessionID: "session-" + user, ExpiresAt: time.Now().Add(24 * time.Hour)})))
		}))
	}
	protocols := new(http.Protocols) // a stream in both directions needs HTTP/2
	protocols.SetUnencryptedHTTP2(true)
	serveOperators(t, mux, disk, service.DeadLetters())
	l, srv := newPipes(), &http.Server{Handler: mux, Protocols: protocols}
	served := make(chan struct{})
	go func() {
		_ = srv.Serve(l)
		close(served)
	}()
	tr := &http.Transport{DialContext: l.dial, Protocols: protocols}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		_ = srv.Close()
		<-served
		stop()
		testkit.Must(t, <-ran)
	})
	return &server{tr}
}

// serveOperators serves the dead letters of topics to operators. Nothing is done about events, so that there is no
// Kafka behind it.
func serveOperators(t *testing.T, mux *http.ServeMux, disk store.Store, deadLetters deadletter.TopicDeadLetters) {
	t.Helper()
	key, err := auth.LoadKey(t.TempDir())
	testkit.Must(t, err)
	token, err := key.IssueOperator("ada", time.Now(), 24*time.Hour)
	testkit.Must(t, err)
	operators, err := ops.New(ops.Config{Addr: "of no events", Store: disk, DeadLetters: deadLetters,
		Decode: func(context.Context, []byte, []byte) (event.Event, error) { return nil, event.ErrSchema },
		Key:    key, Clock: time.Now, Logger: slog.New(slog.DiscardHandler), Migrator: &migrate.Migrator{},
		Observe: func(string, string, time.Duration) {}})
	testkit.Must(t, err)
	mux.HandleFunc("/"+opsv1connect.OpsServiceName+"/", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "operator" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		operators.Handler().ServeHTTP(w, r)
	})
}

func (s *server) as(user string, options ...connect.ClientOption) Clients {
	return Dial(&http.Client{Transport: as{user, s.tr}}, "http://server", options...)
}

// run runs a world against a server, by way of a liar if there is one, and returns what it found.
func run(t *testing.T, seed uint64, length time.Duration, l *liar, only ...string) (findings []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := serve(t)
		clients := func(user string) Clients { return s.as(user) }
		if l != nil {
			l.honest, l.operator = s.as("alice"), s.as("operator")
			clients = func(user string) Clients { return l.lying(s, user) }
		}
		w := New(Config{User: clients("alice"), Operator: clients("operator"), Stranger: clients("eve"), Name: "eve",
			Topics: "t.", Seed: seed, Pace: 200 * time.Millisecond, Patience: 3 * time.Minute, Only: only,
			Simulated: true})
		testkit.Must(t, w.Start(t.Context()))
		time.Sleep(length)
		findings = w.Settle(t.Context())
		t.Log(w)
	})
	return findings
}

// A server that keeps the contract is found to keep it, under other schedules each time.
func TestModelClient(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if findings := run(t, seed, 5*time.Second, nil); len(findings) > 0 {
				t.Errorf("%d findings:\n%s", len(findings), strings.Join(findings, "\n"))
			}
		})
	}
}
