package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// maxRefusal bounds what is kept of an answer that connect gives by itself. Those
// are short; anything longer would be passed on as it is.
const maxRefusal = 64 << 10

// front stands before the handlers of unary RPCs. Connect reads a request before
// any interceptor runs, so what cannot be read (malformed, too large, compressed
// in an unknown way) fails there, with a code but without a reason, and uncounted.
// The front holds answers back until the interceptor was reached; one that comes
// without it is written again with what is missing.
type front struct {
	next   http.Handler
	unary  map[string]bool // by procedure
	errors *connect.ErrorWriter
	report func(ctx context.Context, procedure string, refused *connect.Error, took time.Duration)
}

// unaryProcedures lists those of services.
func unaryProcedures(services []string) (map[string]bool, error) {
	all := map[string]bool{}
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
			if m := service.Methods().Get(i); !m.IsStreamingClient() && !m.IsStreamingServer() {
				all["/"+name+"/"+string(m.Name())] = true
			}
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
	if !f.unary[r.URL.Path] {
		f.next.ServeHTTP(w, r)
		return
	}
	began := time.Now()
	before := w.Header().Clone()
	h := &held{w: w}
	f.next.ServeHTTP(h, r.WithContext(context.WithValue(r.Context(), heldKey{}, h)))
	if h.open {
		return
	}
	refused, ok := h.refusal()
	if !ok { // not an answer in an RPC protocol: a wrong method or type of content
		h.release()
		return
	}
	f.report(r.Context(), r.URL.Path, refused, time.Since(began))
	clear(w.Header())
	for name, values := range before {
		w.Header()[name] = values
	}
	// An error of Write means that the client is gone.
	_ = f.errors.Write(w, r, refused)
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
	switch {
	case h.open:
		h.w.WriteHeader(status)
	case h.status == 0:
		h.status = status
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
		return refuse(connect.Code(code), text), true
	}
	var e struct {
		Code    connect.Code
		Message string
	}
	if h.status < http.StatusBadRequest || json.Unmarshal(h.body.Bytes(), &e) != nil || e.Code == 0 {
		return nil, false
	}
	return refuse(e.Code, e.Message), true
}

// refuse is an error of connect's own with a reason. Its text speaks of what the
// client sent; of anything else it says nothing.
func refuse(code connect.Code, text string) *connect.Error {
	// Protojson varies its spaces, and quotes what it was given.
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\ufffd"), "\u00a0", " ")
	if _, after, ok := strings.Cut(text, "proto: "); ok {
		text = "the request cannot be read: " + after // without the names of Go types
	}
	reason := strings.ToUpper(code.String())
	switch code {
	case connect.CodeResourceExhausted:
		reason = "REQUEST_TOO_LARGE"
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeDataLoss:
		text = "the request cannot be read"
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
