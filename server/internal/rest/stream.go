package rest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Stream is an RPC that answers with a stream, and that GET of a path serves as server-sent events
// (HTML, section 9.2).
type Stream struct {
	Path      string // a pattern of http.ServeMux without the method
	Procedure string
	// Codec is the name of the handler's codec that takes protobuf and answers in
	// events.
	Codec string
	// Request makes the request from the variables of the path, and says what sets each parameter that the
	// query may have, once. Errors of setting one follow on its name, and are shown. Other parameters are
	// ignored, as unknown fields are.
	Request func(path func(name string) string) (proto.Message, map[string]func(value string) error)
}

const (
	envelopeSize = 5
	endOfStream  = 2             // flag of the last envelope
	maxEnvelope  = 32 << 20      // more than any response of the RPCs has
	lastEventID  = "lastEventId" // the header Last-Event-ID as a parameter, for the first request
)

var (
	errNoStream = errors.New("rest: the stream has no handler, no codec or no request")
	errEnvelope = errors.New("rest: an envelope is too large")
)

// addStream serves a stream of events.
func (a *api) addStream(s Stream) error {
	rt := &route{
		procedure: s.Procedure, handler: handlerOf(a.config.Handlers, s.Procedure),
		outcome: outcome{http.StatusOK, http.StatusOK},
	}
	if rt.handler == nil || s.Codec == "" || s.Request == nil {
		return errNoStream
	}
	call := a.config.Gate(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rt.handler.ServeHTTP(w, streamRPC(s, r))
	}))
	a.mux.HandleFunc("GET "+s.Path, func(w http.ResponseWriter, r *http.Request) { a.stream(s, rt, call, w, r) })
	return nil
}

// message is the request of the RPC.
func (s Stream) message(path func(name string) string, query url.Values) ([]byte, error) {
	m, parameters := s.Request(path)
	for name, set := range parameters {
		switch values := query[name]; {
		case len(values) > 1:
			return nil, fmt.Errorf("%s is given twice", name)
		case len(values) == 1:
			if err := set(values[0]); err != nil {
				return nil, fmt.Errorf("%s %w", name, err)
			}
		}
	}
	return proto.Marshal(m)
}

func (a *api) stream(s Stream, rt *route, call http.Handler, w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	if r.Method != http.MethodGet { // a pattern for GET takes HEAD too
		w.Header().Set("Allow", http.MethodGet)
		a.fail(rt, began, w, &fault{
			status: http.StatusMethodNotAllowed, code: connect.CodeUnimplemented, reason: "METHOD_NOT_ALLOWED",
			text: "this path takes GET",
		})
		return
	}
	if n, _ := io.ReadFull(http.MaxBytesReader(w, r.Body, 1), make([]byte, 1)); n > 0 {
		a.fail(rt, began, w, invalid("body", "this request has none"))
		return
	}
	params, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		a.fail(rt, began, w, invalid("query", "is not well-formed"))
		return
	}
	message, err := s.message(r.PathValue, params)
	if err != nil {
		a.fail(rt, began, w, invalid("query", plain(err)))
		return
	}
	own := r.WithContext(r.Context())
	own.Header = r.Header.Clone()
	own.Header.Del("Content-Type") // as in admit
	envelope := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	own.Body, own.ContentLength = io.NopCloser(bytes.NewReader(envelope)), int64(len(envelope))
	if own.Header.Get("Last-Event-ID") == "" && params.Has(lastEventID) {
		own.Header.Set("Last-Event-ID", params.Get(lastEventID))
	}
	if f := a.redeem(own, params["ticket"]); f != nil {
		a.fail(rt, began, w, f)
		return
	}
	answer := &events{refusal: &response{w: w, route: rt}}
	call.ServeHTTP(answer, own)
	answer.refusal.finish()
}

// redeem puts the access token of a ticket in the header, where a stream is opened with one.
func (a *api) redeem(r *http.Request, tickets []string) *fault {
	switch {
	case len(tickets) == 0:
		return nil
	case len(tickets) > 1:
		return invalid("ticket", "is given twice")
	case r.Header.Get("Authorization") != "":
		return invalid("ticket", "excludes an access token in the header")
	}
	token, err := a.config.Redeem(r.Context(), tickets[0])
	switch {
	case err != nil:
		return &fault{status: http.StatusServiceUnavailable, code: connect.CodeUnavailable, reason: "UNAVAILABLE",
			text: "it is not known just now whether the ticket was used: ask for another one"}
	case token == "":
		return &fault{status: http.StatusUnauthorized, code: connect.CodeUnauthenticated, reason: "UNAUTHENTICATED",
			text: "the ticket is not this server's, was used, or is too old: ask for another one"}
	}
	r.Header.Set("Authorization", "Bearer "+token)
	return nil
}

// streamRPC is the request of the RPC, whose body is a message in an envelope already.
func streamRPC(s Stream, r *http.Request) *http.Request {
	rpc := r.WithContext(r.Context())
	rpc.Header = http.Header{}
	for name, values := range r.Header {
		if !hidden(name) {
			rpc.Header[name] = values
		}
	}
	rpc.Trailer, rpc.TransferEncoding, rpc.Form, rpc.PostForm = nil, nil, nil, nil
	rpc.URL = &url.URL{Path: s.Procedure}
	rpc.RequestURI = rpc.URL.RequestURI()
	rpc.Method = http.MethodPost
	rpc.Header.Set("Content-Type", "application/connect+"+s.Codec)
	return rpc
}

// events turns what the RPC answers, messages in envelopes, into the stream of events that
// the messages are. Requests that it refuses before the first message are answered as other
// calls are.
type events struct {
	refusal *response
	open    bool // the stream has begun
	status  int
	pending []byte // of an envelope
}

// Header implements http.ResponseWriter.
func (e *events) Header() http.Header { return e.refusal.w.Header() }

// Unwrap is for http.ResponseController.
func (e *events) Unwrap() http.ResponseWriter { return e.refusal.w }

// WriteHeader implements http.ResponseWriter. A stream's status is known when its
// first envelope is.
func (e *events) WriteHeader(status int) {
	if e.status == 0 {
		if e.status = status; status >= http.StatusBadRequest {
			e.refusal.WriteHeader(status)
		}
	}
}

// Write implements http.ResponseWriter.
func (e *events) Write(b []byte) (int, error) {
	e.WriteHeader(http.StatusOK)
	if e.status >= http.StatusBadRequest {
		return e.refusal.Write(b)
	}
	e.pending = append(e.pending, b...)
	for len(e.pending) >= envelopeSize {
		size := binary.BigEndian.Uint32(e.pending[1:envelopeSize])
		if size > maxEnvelope {
			return 0, errEnvelope
		}
		whole := envelopeSize + int(size)
		if len(e.pending) < whole {
			break
		}
		message := e.pending[envelopeSize:whole]
		if e.pending[0]&endOfStream != 0 {
			return len(b), e.end(message)
		}
		if err := e.send(message); err != nil {
			return 0, err
		}
		e.pending = append(e.pending[:0], e.pending[whole:]...)
	}
	if len(e.pending) == 0 && cap(e.pending) > keepBuffer {
		e.pending = nil // of a burst
	}
	return len(b), nil
}

// keepBuffer is what a stream keeps of the space for its envelopes.
const keepBuffer = 16 << 10

func (e *events) send(text []byte) error {
	if !e.open {
		e.open, e.refusal.state = true, sent
		e.ownHeaders()
		e.Header().Set("Content-Type", "text/event-stream")
		e.refusal.w.WriteHeader(http.StatusOK)
	}
	_, err := e.refusal.w.Write(text)
	return err
}

// ownHeaders removes the headers of the RPC.
func (e *events) ownHeaders() {
	for _, name := range []string{"Accept-Encoding", "Connect-Accept-Encoding", "Connect-Content-Encoding"} {
		e.Header().Del(name)
	}
}

// end reports why the stream ends: as its last event, or as the answer if there was
// none before.
func (e *events) end(message []byte) error {
	var last struct {
		Error    json.RawMessage
		Metadata http.Header
	}
	if err := json.Unmarshal(message, &last); err != nil {
		return err
	}
	if last.Error == nil { // a stream continues until there is a reason to end it
		return nil
	}
	if !e.open {
		for name, values := range last.Metadata {
			e.Header()[http.CanonicalHeaderKey(name)] = values
		}
		e.ownHeaders()
		e.refusal.WriteHeader(http.StatusInternalServerError) // until the error is read
		_, err := e.refusal.Write(last.Error)
		return err
	}
	_, s := translate(http.StatusInternalServerError, last.Error)
	text, err := protojson.Marshal(s)
	if err != nil {
		return err
	}
	if err := e.send(append(append([]byte("event: end\ndata: "), text...), "\n\n"...)); err != nil {
		return err
	}
	e.Flush()
	return nil
}

// Flush implements http.Flusher.
func (e *events) Flush() {
	if e.open {
		_ = http.NewResponseController(e.refusal.w).Flush() // what cannot flush does so at the end
	}
}
