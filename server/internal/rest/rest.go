// Package rest serves the RPCs as a REST API: paths and methods come from the
// google.api.http annotations of the contracts, bodies are JSON.
//
// It owns what differs from an RPC: routes, path and query parameters, success codes, errors as
// google.rpc.Status, the stream as server-sent events, the OpenAPI document. Nothing is decided here:
// each request becomes a call of the RPC's own handler in the same process, which validates, executes
// and answers it. It does not own authentication (package auth) nor the RPCs (package api).
//
// # Concurrency
//
// A handler is immutable once it is made, and safe for use by many goroutines.
package rest

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/parley-chat/parley/gen/openapi"
	"github.com/parley-chat/parley/server/internal/webpage"
)

// maxBody is the limit of a request's body, in bytes, the same as that of most RPCs.
const maxBody = 128 << 10

// Config is what the REST API depends on; all of it is required but what says otherwise.
type Config struct {
	// Handlers are the RPC handlers by the path below which each serves, without a
	// gate in front of them.
	Handlers map[string]http.Handler
	// Codec is the name of the handlers' codec that takes protobuf and answers in
	// JSON.
	Codec string
	// Gate wraps every call. It sees the headers before the body is
	// read, and refuses in Connect's format.
	Gate func(http.Handler) http.Handler
	// Tokenless are the procedures that LimitTokenless wraps instead of Gate, with the limits of
	// their bodies. May be nil.
	Tokenless      map[string]int64
	LimitTokenless func(http.Handler) http.Handler
	// Services are the full names of the services whose annotated methods are
	// served.
	Services []string
	// Streams are served as server-sent events. There is at least one.
	Streams []Stream
	// Redeem returns the access token of a ticket, which a stream has as a parameter instead of a header;
	// empty for one that is not good. An error says that it is not known whether the ticket is.
	Redeem func(ctx context.Context, ticket string) (token string, err error)
	// MaxBody has the limits of bodies by procedure where they are not 128 KiB. May be nil.
	MaxBody map[string]int64
	// Observe counts a call that ended before its RPC was reached; code is the name
	// of connect's code.
	Observe func(procedure, code string, took time.Duration)
}

// api is the REST API.
type api struct {
	config Config
	mux    *http.ServeMux
}

// New makes the REST API of the services. It serves the paths of the annotations,
// the streams of events, and the OpenAPI document at /api/v1/openapi.json. It fails for
// annotations that it does not support: it knows path
// variables that are whole segments and strings, custom verbs behind a variable at the end,
// and the bodies "*" and none.
func New(c Config) (http.Handler, error) {
	if c.Handlers == nil || c.Codec == "" || c.Gate == nil || len(c.Services) == 0 || c.Observe == nil ||
		len(c.Streams) == 0 || c.Redeem == nil || len(c.Tokenless) > 0 && c.LimitTokenless == nil {
		return nil, errors.New("rest: handlers, codec, gate, services, streams, tickets and observer are required")
	}
	a := &api{config: c, mux: http.NewServeMux()}
	routes, err := routesOf(c.Services)
	if err != nil {
		return nil, err
	}
	customs := map[string]custom{}
	for _, r := range routes {
		if r.handler = handlerOf(c.Handlers, r.procedure); r.handler == nil {
			return nil, fmt.Errorf("rest: %s has no handler", r.procedure)
		}
		if r.maxBody = maxBody; c.MaxBody[r.procedure] != 0 {
			r.maxBody = c.MaxBody[r.procedure]
		}
		entrance := c.Gate
		if limit, ok := c.Tokenless[r.procedure]; ok {
			r.maxBody, entrance = limit, c.LimitTokenless
		}
		call := entrance(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { a.call(r, w, req) }))
		admit := func(w http.ResponseWriter, req *http.Request) { a.admit(r, call, w, req) }
		pattern := r.verb + " " + r.path
		if r.custom == "" {
			a.mux.HandleFunc(pattern, admit)
			continue
		}
		if customs[pattern] == nil {
			customs[pattern] = custom{}
			a.mux.Handle(pattern, customs[pattern])
		}
		customs[pattern]["{"+string(r.variables[len(r.variables)-1].Name())+"}:"+r.custom] = admit
	}
	for _, s := range c.Streams {
		if err := a.addStream(s); err != nil {
			return nil, err
		}
	}
	// It is public: it says no more than the source.
	a.mux.Handle("GET /api/v1/openapi.json", webpage.Static("application/json", webpage.Bare, openapi.Document))
	return a, nil
}

// custom are the routes of a path whose last segment ends with a verb, as {group}:pause, by
// that segment.
type custom map[string]http.HandlerFunc

// ServeHTTP implements http.Handler.
func (c custom) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for segment, next := range c {
		name, verb, _ := strings.Cut(strings.TrimPrefix(segment, "{"), "}:")
		if value, ok := strings.CutSuffix(r.PathValue(name), ":"+verb); ok && value != "" {
			r.SetPathValue(name, value)
			next(w, r)
			return
		}
	}
	noSuchPath.write(w)
}

// noSuchPath answers what no route is for.
var noSuchPath = &fault{status: http.StatusNotFound, code: connect.CodeNotFound, reason: "NO_SUCH_PATH",
	text: "no such path; /docs/reference lists those that there are"}

func handlerOf(handlers map[string]http.Handler, procedure string) http.Handler {
	for path, h := range handlers {
		if strings.HasPrefix(procedure, path) {
			return h
		}
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	missed, pattern := a.mux.Handler(r)
	if pattern != "" {
		a.mux.ServeHTTP(w, r)
		return
	}
	// The mux knows whether it is the path or the method that is wrong, but says so
	// in plain text.
	var plain sink
	missed.ServeHTTP(&plain, r)
	if allow := plain.Header().Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
		(&fault{
			status: http.StatusMethodNotAllowed, code: connect.CodeUnimplemented, reason: "METHOD_NOT_ALLOWED",
			text: "this path takes " + allow,
		}).write(w)
		return
	}
	noSuchPath.write(w)
}

// admit checks the headers and passes the request to the gate.
func (a *api) admit(rt *route, call http.Handler, w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	if rt.body {
		if f := checkContent(r.Header); f != nil {
			a.fail(rt, began, w, f)
			return
		}
	}
	// The gate goes by the type of the content to find the protocol of its answer.
	own := r.WithContext(r.Context())
	own.Header = r.Header.Clone()
	own.Header.Del("Content-Type")
	answer := &response{w: w, route: rt}
	call.ServeHTTP(answer, own)
	answer.finish()
}

// call makes the RPC of an admitted request.
func (a *api) call(rt *route, w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	m, f := rt.decode(w, r)
	if f != nil {
		a.fail(rt, began, w, f)
		return
	}
	wire, err := proto.Marshal(m)
	if err != nil { // a string that is not UTF-8 is refused before
		a.fail(rt, began, w, &fault{status: http.StatusBadRequest, code: connect.CodeInvalidArgument, reason: reasonInvalid,
			text: "the request cannot be encoded"})
		return
	}
	rt.handler.ServeHTTP(w, a.rpc(rt, r, wire))
}

// rpc is the request of the RPC. A GET stays one, for the sake of its ETag.
func (a *api) rpc(rt *route, r *http.Request, wire []byte) *http.Request {
	rpc := r.WithContext(r.Context())
	rpc.Header = http.Header{}
	for name, values := range r.Header {
		if !hidden(name) {
			rpc.Header[name] = values
		}
	}
	rpc.Trailer, rpc.TransferEncoding, rpc.Form, rpc.PostForm = nil, nil, nil, nil
	rpc.URL = &url.URL{Path: rt.procedure}
	if rt.verb == http.MethodGet {
		rpc.Method, rpc.Body, rpc.ContentLength = http.MethodGet, http.NoBody, 0
		rpc.URL.RawQuery = url.Values{
			"connect": {"v1"}, "encoding": {a.config.Codec}, "base64": {"1"},
			"message": {base64.RawURLEncoding.EncodeToString(wire)},
		}.Encode()
	} else {
		rpc.Method, rpc.Body, rpc.ContentLength = http.MethodPost, io.NopCloser(bytes.NewReader(wire)), int64(len(wire))
		rpc.Header.Set("Content-Type", "application/"+a.config.Codec)
	}
	rpc.RequestURI = rpc.URL.RequestURI()
	return rpc
}

// hidden headers speak of the REST request itself, or would change the protocol of
// the RPC.
func hidden(name string) bool {
	switch name {
	case "Connection", "Expect", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return strings.HasPrefix(name, "Content-") || strings.HasPrefix(name, "Connect-") || strings.HasPrefix(name, "Grpc-")
}

// fail counts and answers a request that does not reach its RPC.
func (a *api) fail(rt *route, began time.Time, w http.ResponseWriter, f *fault) {
	a.config.Observe(rt.procedure, f.code.String(), time.Since(began))
	f.write(w)
}

// sink takes an answer that is not sent.
type sink struct{ header http.Header }

// Header implements http.ResponseWriter.
func (s *sink) Header() http.Header {
	if s.header == nil {
		s.header = http.Header{}
	}
	return s.header
}

// Write implements http.ResponseWriter.
func (*sink) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements http.ResponseWriter.
func (*sink) WriteHeader(int) {}
