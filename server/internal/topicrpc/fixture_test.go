package topicrpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/commitlog"
	"github.com/parley-chat/parley/server/infra/edge"
	"github.com/parley-chat/parley/server/internal/api"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/embedded"
	"github.com/parley-chat/parley/server/store/embedded/embeddedtest"
	"github.com/parley-chat/parley/server/store/embedded/records"
	"github.com/parley-chat/parley/server/topic"
)

// fixture is the services over the embedded engine, as the program serves them. A bearer
// token is a user's name; alice makes topics, and "operator" is one.
type fixture struct {
	testing.TB
	addr    string
	service *topic.Service
	streams *Streams
	reads   *atomic.Int64 // of the log
	expires *atomic.Int64 // when tokens do, in Unix seconds
}

// counted counts what is read of the log.
type counted struct {
	store.Records
	n *atomic.Int64
}

func (c counted) Seek(
	ctx context.Context, from, until []byte, descending bool, f func([]byte, func() ([]byte, error)) bool,
) error {
	return c.Records.Seek(ctx, from, until, descending, func(key []byte, value func() ([]byte, error)) bool {
		c.n.Add(1)
		return f(key, value)
	})
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	w := &fixture{TB: t, streams: NewStreams(nil), reads: &atomic.Int64{}, expires: &atomic.Int64{}}
	w.expires.Store(time.Now().Add(time.Hour).Unix())
	disk := engine(t)
	var err error
	log := slog.New(slog.DiscardHandler)
	w.service, err = topic.New(t.Context(), topic.Config{
		Store: disk, Log: commitlog.NewLocal(counted{records.Of(disk), w.reads}, time.Now), Logger: log, Clock: time.Now,
		Audit: func(context.Context, string, string, string) (func(code, result string), error) {
			return func(string, string) {}, nil
		},
	})
	w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- w.service.Run(ctx, func() {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
	services, err := api.New(api.Config{Store: disk, Logger: log, Observe: func(string, string, time.Duration) {},
		More: New(Config{Topics: w.service, Streams: w.streams, Identify: func(ctx context.Context) Identity {
			p, _ := auth.PrincipalFrom(ctx)
			return Identity{Token: p, Caller: topic.Caller{Principal: p.UserID,
				Operator: p.UserID == "operator", Creator: p.UserID == "alice"}}
		}}).Services()})
	w.must(err)
	mux := http.NewServeMux()
	for path, h := range services.Handlers() {
		mux.Handle(path, w.gate(h))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	srv := edge.NewServer(mux, slog.DiscardHandler)
	guard := edge.New(l, edge.Limits{Connections: 1000}, log)
	guard.Install(srv.Server)
	done := make(chan struct{})
	go func() {
		_ = srv.Serve(guard)
		close(done)
	}()
	t.Cleanup(func() {
		_ = srv.Close()
		<-done
	})
	w.addr = l.Addr().String()
	return w
}

// engine is the embedded engine: in memory for tests, on the disk for benchmarks.
func engine(t testing.TB) *embedded.Store {
	if _, ok := t.(*testing.B); !ok {
		return embeddedtest.NewDisk(nil).Open(t, time.Now)
	}
	e, err := embedded.Open(embedded.Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Clock: time.Now,
		Fatal: func(err error) { panic(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// gate lets everybody in who says a name.
func (w *fixture) gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		user := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		edge.Trust(r.Context())
		p := auth.Principal{UserID: user, SessionID: "ses-" + user, ExpiresAt: time.Unix(w.expires.Load(), 0)}
		next.ServeHTTP(rw, r.WithContext(auth.WithPrincipal(r.Context(), p)))
	})
}

func (w *fixture) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// userClients are the clients of a user.
type userClients struct {
	*fixture
	topics        topicv1connect.TopicServiceClient
	subscriptions topicv1connect.SubscriptionServiceClient
	consumers     topicv1connect.ConsumerServiceClient
	client        *http.Client
}

type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

func (w *fixture) as(user string, options ...connect.ClientOption) *userClients {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	w.Cleanup(tr.CloseIdleConnections)
	c, base := &http.Client{Transport: bearer{user, tr}}, "http://"+w.addr
	return &userClients{w, topicv1connect.NewTopicServiceClient(c, base, options...),
		topicv1connect.NewSubscriptionServiceClient(c, base, options...),
		topicv1connect.NewConsumerServiceClient(c, base, options...), c}
}

// topic makes a topic with groups.
func (c *userClients) topic(name string, semantics topicv1.Semantics, groups ...string) {
	c.Helper()
	_, err := c.topics.ConfigureTopic(c.Context(), &topicv1.ConfigureTopicRequest{Topic: name,
		Config: &topicv1.TopicConfig{Semantics: semantics}})
	c.must(err)
	for _, g := range groups {
		c.subscribe(name, g, nil)
	}
}

const (
	asQueue = topicv1.Semantics_SEMANTICS_QUEUE
	pubSub  = topicv1.Semantics_SEMANTICS_PUB_SUB
)

func (c *userClients) subscribe(name, group string, config *topicv1.SubscriptionConfig) {
	c.Helper()
	_, err := c.subscriptions.CreateSubscription(c.Context(),
		&topicv1.CreateSubscriptionRequest{Topic: name, Group: group, Config: config})
	c.must(err)
}

// publish publishes messages with payloads of one byte, with a key if one is given.
func (c *userClients) publish(name string, count int, keys ...string) {
	c.Helper()
	for count > 0 {
		req := &topicv1.PublishRequest{Topic: name}
		for range min(count, 1000) {
			m := &topicv1.TopicMessage{Payload: []byte{1}}
			if len(keys) > 0 {
				m.Key = keys[len(req.GetMessages())%len(keys)]
			}
			req.Messages = append(req.Messages, m)
		}
		_, err := c.topics.Publish(c.Context(), req)
		c.must(err)
		count -= len(req.GetMessages())
	}
}

// member is a polling member of a group.
type member struct {
	*userClients
	topic, group, name, session string
}

// pull asks for messages and returns what comes.
func (m *member) pull(limit int32, wait time.Duration) *topicv1.PullResponse {
	m.Helper()
	res, err := m.consumers.Pull(m.Context(), &topicv1.PullRequest{Topic: m.topic, Group: m.group, Session: m.session,
		Member: m.name, MaxMessages: limit, Wait: durationpb.New(wait)})
	m.must(err)
	m.session = res.GetSession()
	return res
}

// messages is how many a response has.
func messages(res *topicv1.PullResponse) (n int) {
	for _, d := range res.GetDeliveries() {
		n += len(d.GetMessages())
	}
	return n
}

// positions are the positions of a response.
func positions(res *topicv1.PullResponse) (all []*topicv1.Positions) {
	for _, d := range res.GetDeliveries() {
		if d.GetOffsets() == nil {
			all = append(all, &topicv1.Positions{Partition: d.GetPartition(), Base: d.GetBase(),
				Count: int64(len(d.GetMessages()))})
		}
		for _, o := range d.GetOffsets() {
			all = append(all, &topicv1.Positions{Partition: d.GetPartition(), Base: d.GetBase() + int64(o)})
		}
	}
	return all
}

func (m *member) ack(positions ...*topicv1.Positions) []*topicv1.Refusal {
	m.Helper()
	res, err := m.consumers.Ack(m.Context(), &topicv1.AckRequest{Session: m.session,
		Set: &topicv1.AckSet{Positions: positions}})
	m.must(err)
	return res.GetRefusals()
}

// drain takes and acknowledges all there is, and returns how many.
func (m *member) drain() (n int) {
	m.Helper()
	for {
		res := m.pull(1000, 0)
		if messages(res) == 0 {
			return n
		}
		n += messages(res)
		if refused := m.ack(positions(res)...); len(refused) > 0 {
			m.Errorf("%s: refused %v", m.name, refused)
		}
	}
}

// reason is the stable name of an error.
func reason(err error) string {
	if e := new(connect.Error); errors.As(err, &e) {
		for _, d := range e.Details() {
			if m, err := d.Value(); err == nil {
				if info, ok := m.(*errdetails.ErrorInfo); ok {
					return info.GetReason()
				}
			}
		}
	}
	return ""
}
