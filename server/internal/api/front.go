package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
)

// maxRefusal bounds what is kept of an answer that connect gives by itself. Those
// are short; anything longer would be passed on as it is.
const maxRefusal = 64 << 10

// front stands before the handlers. Connect reads the request of a unary RPC
// before any interceptor runs, so what cannot be read (malformed, too large,
// compressed in an unknown way) fails there, with a code but without a reason, and
// uncounted; a wrong path, method or type of content it refuses without a word.
// The front holds answers back until the interceptor was reached; one that comes
// without it is written again with what is missing.
type front struct {
	next       http.Handler
	procedures map[string]kind
	errors     *connect.ErrorWriter
	report     func(ctx context.Context, procedure string, refused *connect.Error, took time.Duration)
}

// kind of a procedure.
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

type heldKey struct{}

// reached tells the front that the interceptor runs: from now on answers are the
// RPC's own.
func reached(ctx context.Context) {
	if h, ok := ctx.Value(heldKey{}).(*held); ok {
		h.open = true
	}
}

// ServeHTTP implements http.Handler.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	procedure, ok := f.procedures[r.URL.Path]
	if !ok {
		notFound(f.errors, w, r)
		return
	}
	began := time.Now()
	before := w.Header().Clone()
	h := &held{w: w}
	f.next.ServeHTTP(h, r.WithContext(context.WithValue(r.Context(), heldKey{}, h)))
	if h.open {
		if h.status >= http.StatusBadRequest {
			endLine(w)
		}
		return
	}
	refused, ok := h.refusal()
	if !ok {
		if refused = procedure.wordsFor(h.status, r); refused == nil {
			h.release()
			return
		}
		if allow := w.Header().Get("Allow"); allow != "" {
			before.Set("Allow", allow)
		} else {
			before.Set("Accept-Post", procedure.types())
		}
		w = overruled{w, h.status}
	}
	f.report(r.Context(), r.URL.Path, refused, time.Since(began))
	clear(w.Header())
	for name, values := range before {
		w.Header()[name] = values
	}
	writeError(f.errors, w, r, refused)
}

// held is the answer of an RPC that the interceptor has not been reached for yet.
// It is used by one goroutine, that of the handler.
type held struct {
	w      http.ResponseWriter
	open   bool // writes go through
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (h *held) Header() http.Header { return h.w.Header() }

// Unwrap is for http.ResponseController.
func (h *held) Unwrap() http.ResponseWriter { return h.w }

// WriteHeader implements http.ResponseWriter.
func (h *held) WriteHeader(status int) {
	if h.status == 0 {
		h.status = status
	}
	if h.open {
		h.w.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (h *held) Write(b []byte) (int, error) {
	if h.open {
		return h.w.Write(b)
	}
	if h.body.Len()+len(b) > maxRefusal {
		h.release()
		return h.w.Write(b)
	}
	return h.body.Write(b)
}

// Flush implements http.Flusher, which connect asks for by type.
func (h *held) Flush() {
	if h.open {
		_ = http.NewResponseController(h.w).Flush() // what cannot flush does so at the end
	}
}

// release lets go of what is held.
func (h *held) release() {
	h.open = true
	if h.status != 0 {
		h.w.WriteHeader(h.status)
	}
	_, _ = h.w.Write(h.body.Bytes())
}

// refusal reads the error in what connect wrote, in whichever protocol.
func (h *held) refusal() (*connect.Error, bool) {
	header := h.w.Header()
	status := header.Get("Grpc-Status")
	text := header.Get("Grpc-Message")
	if status == "" { // trailers that were not announced
		status, text = header.Get(http.TrailerPrefix+"Grpc-Status"), header.Get(http.TrailerPrefix+"Grpc-Message")
	}
	if status != "" {
		code, err := strconv.ParseUint(status, 10, 32)
		if err != nil || code == 0 {
			return nil, false
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
			return nil, false
		}
		body = end.Error
	} else if h.status < http.StatusBadRequest {
		return nil, false
	}
	if json.Unmarshal(body, &e) != nil || e.Code == 0 {
		return nil, false
	}
	return unreadable(e.Code, e.Message), true
}

// Envelopes of Connect's streams.
const (
	envelopeSize = 5
	endOfStream  = 2
)

// unreadable is what connect found while it read a request, which is the request's
// fault whatever code it has.
func unreadable(code connect.Code, text string) *connect.Error {
	if code == connect.CodeCanceled && strings.HasSuffix(text, io.ErrUnexpectedEOF.Error()) {
		code = connect.CodeDataLoss // whoever sends no more may still read
	}
	switch code {
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeDataLoss:
		why, ok := strings.CutPrefix(text, "protocol error: ")
		if !ok {
			why = "it is broken off, or not what its headers say"
		}
		return newError(connect.CodeInvalidArgument, reasonInvalid, "the request cannot be read: "+strings.ToValidUTF8(why, "\ufffd"), nil, 0)
	}
	return refuse(code, text)
}

// refuse is an error of connect's own with a reason. Its text speaks of what the
// client sent; of anything else it says nothing.
func refuse(code connect.Code, text string) *connect.Error {
	// Protojson varies its spaces, and quotes what it was given.
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
		reason = "REQUEST_TOO_LARGE"
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeDataLoss:
		text = "the answer cannot be written"
	}
	return newError(code, reason, text, nil, 0)
}

// complete gives a reason to an error that has none, which is one of connect's.
func complete(err *connect.Error) *connect.Error {
	if len(err.Details()) > 0 || connect.IsNotModifiedError(err) {
		return err
	}
	out := refuse(err.Code(), err.Message())
	for name, values := range err.Meta() {
		out.Meta()[name] = values
	}
	return out
}
