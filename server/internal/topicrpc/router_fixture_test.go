package topicrpc_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/audit"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/internal/topicrpc"
	"github.com/parley-chat/parley/server/topic"
	"github.com/parley-chat/parley/server/topic/topictest"
)

const slots = 4

// fixture is servers over one store and one log, each with an address for users and one for the
// other servers.
type fixture struct {
	*topictest.Cluster
	t *testing.T

	mu      sync.Mutex
	servers map[string]*server
	turn    int // of whom is asked
}

type server struct {
	*topictest.Node
	users   string // addresses
	others  string
	streams *topicrpc.Streams
	cut     func() // as if the machine were gone
	gone    atomic.Bool
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{Cluster: topictest.NewCluster(t, slots), t: t, servers: map[string]*server{}}
	w.TTL = 1800 * time.Millisecond
	return w
}

// user is who calls: the header says so.
type user struct{}

func (w *fixture) start(name string) *server {
	w.t.Helper()
	s := &server{streams: topicrpc.NewStreams(nil), Node: w.Start(name)}
	w.t.Cleanup(func() { s.Gate.Set(false); s.Stop() })
	identify := func(ctx context.Context) topicrpc.Identity {
		who, _ := ctx.Value(user{}).(string)
		return topicrpc.Identity{Caller: topic.Caller{Principal: who, Creator: who == "maker"},
			Token: auth.Principal{SessionID: "s-" + who}}
	}
	route := func(identify func(context.Context) topicrpc.Identity) *topicrpc.Router {
		return topicrpc.NewRouter(topicrpc.RouterConfig{Slots: s.SlotManager, Process: name, Remote: w.remote,
			Streams: s.streams, Identify: identify})
	}
	own := topicrpc.New(topicrpc.Config{Route: route(identify), Identify: identify, Streams: s.streams})
	users := w.listen(own.Services(),
		func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				h.ServeHTTP(rw, r.WithContext(context.WithValue(r.Context(), user{}, r.Header.Get("User"))))
			})
		})
	anywhere := w.handler(w.visited(s, route(visitor)))
	others := w.listen(w.visited(s, topicrpc.NewSlotInterceptor(s.SlotManager)), func(h http.Handler) http.Handler {
		return topicrpc.Admit(h, anywhere)
	})
	s.users, s.others = users.addr, others.addr
	s.cut = func() { s.gone.Store(true); others.cut(); users.cut() }
	w.mu.Lock()
	w.servers[name] = s
	w.mu.Unlock()
	return s
}

// listener is an HTTP server of a test.
type listener struct {
	addr string
	cut  func()
}

// visitor is who makes a call that another process passes on.
func visitor(ctx context.Context) topicrpc.Identity {
	id, _ := topicrpc.ForwardedCaller(ctx)
	return id
}

// visited are the services that other processes call.
func (w *fixture) visited(s *server, route connect.Interceptor) []api.Service {
	return append(
		topicrpc.New(topicrpc.Config{Route: route, Streams: s.streams, Identify: visitor}).Services(),
		topicrpc.NewAdminServer(topicrpc.AdminConfig{Route: route, Audit: audit.New(w.Store, time.Now),
			Operator: func(ctx context.Context) string { return visitor(ctx).Principal }}).Service(),
		topicrpc.NewDeadLetterServer(topicrpc.DeadLetterConfig{Route: route, Identify: visitor}).Service())
}

// handler serves services to everybody.
func (w *fixture) handler(services []api.Service) http.Handler {
	handlers, err := api.New(api.Config{
		Store: w.Store, Logger: slog.New(slog.DiscardHandler), Observe: func(string, string, time.Duration) {},
		Enter: func(context.Context) error { return nil }, More: services,
	})
	testkit.Must(w.t, err)
	mux := http.NewServeMux()
	for path, h := range handlers.Handlers() {
		mux.Handle(path, h)
	}
	return mux
}

func (w *fixture) listen(services []api.Service, around func(http.Handler) http.Handler) listener {
	return w.serve(around(w.handler(services)))
}

func (w *fixture) serve(h http.Handler) listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(w.t, err)
	srv := edge.NewServer(h, slog.DiscardHandler)
	guard := edge.New(l, edge.Limits{Connections: 1000}, slog.New(slog.DiscardHandler))
	guard.Install(srv.Server)
	done := make(chan struct{})
	go func() {
		_ = srv.Serve(guard)
		close(done)
	}()
	cut := sync.OnceFunc(func() {
		_ = srv.Close()
		<-done
	})
	w.t.Cleanup(cut)
	return listener{l.Addr().String(), cut}
}

// client speaks HTTP/2 as servers do among each other.
var client = &http.Client{Transport: func() *http.Transport { // one pool for all tests
	tr := &http.Transport{Protocols: new(http.Protocols), TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	return tr
}()}

func (w *fixture) remote(_ context.Context, process string) (connect.HTTPClient, string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.servers[process]
	if s == nil {
		return nil, "", fmt.Errorf("no server %s", process)
	}
	return client, "http://" + s.others, nil
}

// as adds who calls.
type as string

func (a as) Do(r *http.Request) (*http.Response, error) {
	r.Header.Set("User", string(a))
	return client.Do(r)
}

func (s *server) topics(who string, o ...connect.ClientOption) topicv1connect.TopicServiceClient {
	return topicv1connect.NewTopicServiceClient(as(who), "http://"+s.users, o...)
}

func (s *server) subscriptions(who string) topicv1connect.SubscriptionServiceClient {
	return topicv1connect.NewSubscriptionServiceClient(as(who), "http://"+s.users)
}

func (s *server) consumers(who string, o ...connect.ClientOption) topicv1connect.ConsumerServiceClient {
	return topicv1connect.NewConsumerServiceClient(as(who), "http://"+s.users, o...)
}

// spread waits until each server has its share of the slots.
func (w *fixture) spread(servers ...*server) {
	w.t.Helper()
	testkit.Eventually(w.t, "slots are spread", func() bool {
		for _, s := range servers {
			if n := len(s.Services()); n < slots/len(servers) || n > (slots+len(servers)-1)/len(servers) {
				return false
			}
		}
		return true
	})
}

// named returns the name of a topic in a slot that a server has.
func (w *fixture) named(s *server, prefix string) string {
	w.t.Helper()
	for i := range 1000 {
		name := fmt.Sprint(prefix, i)
		if _, leave, ok := s.Enter(topic.SlotOf(name, slots)); ok {
			leave()
			return name
		}
	}
	w.t.Fatalf("%s has no slot", s.Name)
	return ""
}

// make makes a topic with a group, through a server.
func (w *fixture) make(through *server, name, group string) {
	w.t.Helper()
	_, err := through.topics("maker").ConfigureTopic(w.t.Context(), &topicv1.ConfigureTopicRequest{Topic: name,
		Config: &topicv1.TopicConfig{Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
	testkit.Must(w.t, err)
	_, err = through.subscriptions("maker").CreateSubscription(w.t.Context(),
		&topicv1.CreateSubscriptionRequest{Topic: name, Group: group})
	testkit.Must(w.t, err)
}

func publish(ctx context.Context, through *server, name, payload string,
	p *topicv1.Producer) (*topicv1.PublishResponse, error) {
	return through.topics("maker").Publish(ctx, &topicv1.PublishRequest{Topic: name, Producer: p,
		Messages: []*topicv1.TopicMessage{{Payload: []byte(payload)}}})
}
