package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// maxBuffered bounds the buffer of an answer that connect makes itself. Those are short;
// a longer answer is passed through unchanged.
const maxBuffered = 64 << 10

// errorNormalizer wraps the handlers and completes the errors that connect makes itself.
// Connect reads the request of a unary RPC before any interceptor runs, so a request that
// cannot be read (malformed, too large, compressed in an unknown way) fails with a code
// but without a reason, and is not counted; a wrong path, method or content type is
// refused by a status alone. The normalizer buffers the answer until the interceptor
// runs. An answer that is complete before that is rewritten with a reason.
type errorNormalizer struct {
	next       http.Handler
	procedures map[string]kind
	errors     *connect.ErrorWriter
	report     func(ctx context.Context, procedure string, refused *connect.Error, took time.Duration)
}

// kind is how a procedure may be called.
type kind struct {
	streams bool
	safe    bool // may be a GET
}

// proceduresOf lists the procedures of services.
func proceduresOf(services []string) (map[string]kind, error) {
	all := map[string]kind{}
	for _, name := range services {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
		if err != nil {
			return nil, fmt.Errorf("api: service %s: %w", name, err)
		}
		service, ok := d.(protoreflect.ServiceDescriptor)
		if !ok {
			return nil, fmt.Errorf("api: %s is not a service", name)
		}
		for i := range service.Methods().Len() {
			m := service.Methods().Get(i)
			k := kind{streams: m.IsStreamingClient() || m.IsStreamingServer()}
			if o, ok := m.Options().(*descriptorpb.MethodOptions); ok {
				k.safe = o.GetIdempotencyLevel() == descriptorpb.MethodOptions_NO_SIDE_EFFECTS
			}
			all["/"+name+"/"+string(m.Name())] = k
		}
	}
	return all, nil
}

type bufferKey struct{}

// markReached records that the interceptor runs: from now on the answer is the RPC's own
// and is not buffered.
func markReached(ctx context.Context) {
	if h, ok := ctx.Value(bufferKey{}).(*bufferedWriter); ok {
		h.passThrough = true
	}
}

// ServeHTTP implements http.Handler.
func (n *errorNormalizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	procedure, ok := n.procedures[r.URL.Path]
	if !ok {
		notFound(n.errors, w, r)
		return
	}
	started := time.Now()
	h := &bufferedWriter{w: w, unary: !procedure.streams}
	h.before = appendHeader(h.space[:0], w.Header())
	if h.unary && r.ProtoMajor == 2 {
		growStack()
	}
	n.next.ServeHTTP(h, r.WithContext(context.WithValue(r.Context(), bufferKey{}, h)))
	if h.passThrough {
		if h.status >= http.StatusBadRequest {
			endLine(w)
		}
		return
	}
	refused, ok := h.refusal()
	if !ok {
		if refused = procedure.explain(h.status, r); refused == nil {
			h.release()
			return
		}
		if allow := w.Header().Get("Allow"); allow != "" {
			h.before = append(h.before, field{"Allow", []string{allow}})
		} else {
			h.before = append(h.before, field{"Accept-Post", []string{procedure.types()}})
		}
		w = statusOverride{w, h.status}
	}
	n.report(r.Context(), r.URL.Path, refused, time.Since(started))
	clear(w.Header())
	for _, f := range h.before {
		w.Header()[f.name] = f.values
	}
	writeError(n.errors, w, r, refused)
}

// field is one header.
type field struct {
	name   string
	values []string
}

// appendHeader adds headers to a list. The list keeps its values when others are added to
// the header.
func appendHeader(to []field, h http.Header) []field {
	for name, values := range h {
		to = append(to, field{name, values})
	}
	return to
}

// stackSize is what a unary call needs of its goroutine's stack.
const stackSize = 8 << 10

// growStack makes room on the stack of a new goroutine at once, while there is little to
// copy. In HTTP/2 each call has a goroutine of its own, whose stack would double three
// times on the way to the store.
//
//go:noinline
func growStack() {
	var room [stackSize]byte
	runtime.KeepAlive(&room)
}

// bufferedWriter buffers an answer until the interceptor runs. Only the handler's
// goroutine uses it.
type bufferedWriter struct {
	w           http.ResponseWriter
	unary       bool // the answer is one message
	passThrough bool
	status      int
	body        bytes.Buffer
	before      []field // headers that were set before the handler ran
	space       [4]field
}

// Header implements http.ResponseWriter.
func (h *bufferedWriter) Header() http.Header { return h.w.Header() }

// Unwrap is for http.ResponseController.
func (h *bufferedWriter) Unwrap() http.ResponseWriter { return h.w }

// WriteHeader implements http.ResponseWriter.
func (h *bufferedWriter) WriteHeader(status int) {
	if h.status == 0 {
		h.status = status
	}
	if h.passThrough {
		h.w.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (h *bufferedWriter) Write(b []byte) (int, error) {
	if h.passThrough {
		return h.w.Write(b)
	}
	if h.body.Len()+len(b) > maxBuffered {
		h.release()
		return h.w.Write(b)
	}
	return h.body.Write(b)
}

// Flush implements http.Flusher, which connect asks for by type. It flushes every message of
// gRPC; that of a unary call leaves with its trailers, in one write instead of two.
func (h *bufferedWriter) Flush() {
	if h.passThrough && !h.unary {
		_ = http.NewResponseController(h.w).Flush() // a writer that cannot flush does so at the end
	}
}

// release writes what is buffered and ends the buffering.
func (h *bufferedWriter) release() {
	h.passThrough = true
	if h.status != 0 {
		h.w.WriteHeader(h.status)
	}
	_, _ = h.w.Write(h.body.Bytes())
}

// refusal parses the error that connect wrote, in any of its protocols.
func (h *bufferedWriter) refusal() (*connect.Error, bool) {
	header := h.w.Header()
	status := header.Get("Grpc-Status")
	text := header.Get("Grpc-Message")
	if status == "" { // trailers that were not announced
		status, text = header.Get(http.TrailerPrefix+"Grpc-Status"), header.Get(http.TrailerPrefix+"Grpc-Message")
	}
	if status != "" {
		code, err := strconv.ParseUint(status, 10, 32)
		if err != nil || code == 0 {
			return nil, false //nolint:nilerr // no code, no error to translate
		}
		if plain, err := url.PathUnescape(text); err == nil {
			text = plain
		}
		return unreadable(connect.Code(code), text), true
	}
	var e struct {
		Code    connect.Code
		Message string
	}
	body := h.body.Bytes()
	if len(body) > envelopeSize && body[0] == endOfStream {
		var end struct{ Error json.RawMessage }
		if json.Unmarshal(body[envelopeSize:], &end) != nil {
			return nil, false //nolint:nilerr // not an error of Connect
		}
		body = end.Error
	} else if h.status < http.StatusBadRequest {
		return nil, false
	}
	if json.Unmarshal(body, &e) != nil || e.Code == 0 {
		return nil, false //nolint:nilerr // not an error of Connect
	}
	return unreadable(e.Code, e.Message), true
}

// Envelopes of Connect's streams.
const (
	envelopeSize = 5
	endOfStream  = 2
)

// unreadable makes the error of a request that connect could not read: an invalid argument,
// regardless of connect's code.
func unreadable(code connect.Code, text string) *connect.Error {
	if code == connect.CodeCanceled && strings.HasSuffix(text, io.ErrUnexpectedEOF.Error()) {
		code = connect.CodeDataLoss // the client stopped sending, but may still read
	}
	switch code {
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeDataLoss:
		why, ok := strings.CutPrefix(text, "protocol error: ")
		if !ok {
			why = "it is broken off, or not what its headers say"
		}
		return newError(connect.CodeInvalidArgument, reasonInvalid,
			"the request cannot be read: "+strings.ToValidUTF8(why, "\ufffd"), nil, 0)
	}
	return reject(code, text)
}

// reject adds a reason to an error that connect made. Its text describes what the client
// sent and hides everything else.
func reject(code connect.Code, text string) *connect.Error {
	// Protojson varies its spaces and quotes its input.
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\u00a0", " ")
	if _, after, ok := strings.Cut(text, "proto: "); ok {
		text = "the request cannot be read: " + after // without the names of Go types
	}
	if why, ok := strings.CutPrefix(text, "unary request has "); ok {
		code, text = connect.CodeInvalidArgument, "the request must be one message, and has "+why
	}
	reason := strings.ToUpper(code.String())
	switch code {
	case connect.CodeResourceExhausted:
		reason = reasonTooLarge
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeDataLoss:
		text = "the answer cannot be written"
	}
	return newError(code, reason, text, nil, 0)
}

// addReason adds a reason to an error without one: connect made it.
func addReason(err *connect.Error) *connect.Error {
	if len(err.Details()) > 0 || connect.IsNotModifiedError(err) {
		return err
	}
	out := reject(err.Code(), err.Message())
	for name, values := range err.Meta() {
		out.Meta()[name] = values
	}
	return out
}
