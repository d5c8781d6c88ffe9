// Package topicproxy brings what operators ask of durable topics from a process that serves
// operators to the servers, which have the topics.
//
// Any server takes any call and finds the owner of the topic. The package owns which calls are
// passed on, in whose name, and how the dead letters of all slots are read one slot after the
// other. It knows neither topics nor the owners of slots. Operators were let in before.
//
// Concurrency: everything is safe for concurrent use.
package topicproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
	"github.com/parley-chat/parley/server/auth"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/link/caller"
	"github.com/parley-chat/parley/server/topic/refusal"
)

// Servers returns how one of the servers is called, and the address that calls begin with.
type Servers func(ctx context.Context) (connect.HTTPClient, string, error)

// services are those whose calls are passed on.
var services = []string{
	topicv1connect.BackfillServiceName, topicv1connect.ConsumerServiceName, topicv1connect.SubscriptionServiceName,
	topicv1connect.TopicAdminServiceName, topicv1connect.TopicServiceName,
}

// Config is what the handlers work with. All of it is required.
type Config struct {
	Servers Servers
	// Operator is the operator of an admitted call.
	Operator func(ctx context.Context) (auth.Operator, bool)
	Logger   *slog.Logger
}

// Handlers are what serves operators, by path.
func Handlers(c Config) map[string]http.Handler {
	h := &httputil.ReverseProxy{
		Rewrite:       func(*httputil.ProxyRequest) {}, // the transport knows where to
		Transport:     passing{c},
		FlushInterval: -1, // messages of a stream do not wait
		ErrorLog:      slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
		ErrorHandler:  c.failed,
	}
	all := map[string]http.Handler{}
	for _, name := range services {
		all["/"+name+"/"] = h
	}
	return all
}

// passing passes calls on to a server.
type passing struct{ Config }

// errNobody reports that a call has no authenticated operator.
var errNobody = errors.New("topicproxy: a call without a caller")

// RoundTrip implements http.RoundTripper.
func (p passing) RoundTrip(r *http.Request) (*http.Response, error) {
	op, ok := p.Operator(r.Context())
	if !ok {
		return nil, errNobody
	}
	client, base, err := p.server(r.Context())
	if err != nil {
		return nil, err
	}
	to, err := http.NewRequestWithContext(r.Context(), r.Method, base+r.URL.RequestURI(), r.Body)
	if err != nil {
		return nil, fmt.Errorf("topicproxy: %w", err)
	}
	to.Header, to.ContentLength, to.Trailer = r.Header.Clone(), r.ContentLength, r.Trailer
	to.Header.Del("Authorization") // it is valid here, and must not reach the server
	to.Header.Del("Parley-Slot")   // which slot it is the server finds out
	err = caller.Caller{Principal: op.Name, Operator: true, Creator: true, ExpiresAt: op.ExpiresAt}.Introduce(to.Header)
	if err != nil {
		return nil, err
	}
	return client.Do(to)
}

// How long a call waits for a link to a server, which a process that has just started has not.
const (
	findWithin = 5 * time.Second
	findPause  = 50 * time.Millisecond
)

// server finds a server to pass a call on to.
func (p passing) server(ctx context.Context) (client connect.HTTPClient, base string, err error) {
	ctx, cancel := context.WithTimeout(ctx, findWithin)
	defer cancel()
	for {
		if client, base, err = p.Servers(ctx); err == nil || wait.For(ctx, findPause) != nil {
			return client, base, err
		}
	}
}

// The domain and the retry delay of the error if no server answers.
const (
	errorDomain = "parley"
	retryAfter  = time.Second
)

// failed tells the caller that no server answered.
func (c Config) failed(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		c.Logger.Warn("a call of an operator reached no server", "procedure", r.URL.Path, "error", err)
	}
	out := connect.NewError(connect.CodeUnavailable, errors.New("no server answers just now"))
	for _, m := range []proto.Message{
		&errdetails.ErrorInfo{Reason: string(refusal.NoOwner), Domain: errorDomain},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)},
	} {
		if d, err := connect.NewErrorDetail(m); err == nil {
			out.AddDetail(d)
		}
	}
	_ = connect.NewErrorWriter().Write(w, r, out) // fails if the client has left
}
