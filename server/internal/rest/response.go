package rest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	errorDomain   = "parley"
	reasonInvalid = "INVALID_ARGUMENT"
	maxError      = 256 << 10 // of an RPC's error; far more than any has
)

// statusOf is the HTTP status of a code.
var statusOf = map[connect.Code]int{
	connect.CodeCanceled:           499,
	connect.CodeUnknown:            http.StatusInternalServerError,
	connect.CodeInvalidArgument:    http.StatusBadRequest,
	connect.CodeDeadlineExceeded:   http.StatusGatewayTimeout,
	connect.CodeNotFound:           http.StatusNotFound,
	connect.CodeAlreadyExists:      http.StatusConflict,
	connect.CodePermissionDenied:   http.StatusForbidden,
	connect.CodeResourceExhausted:  http.StatusTooManyRequests,
	connect.CodeFailedPrecondition: http.StatusBadRequest,
	connect.CodeAborted:            http.StatusConflict,
	connect.CodeOutOfRange:         http.StatusBadRequest,
	connect.CodeUnimplemented:      http.StatusNotImplemented,
	connect.CodeInternal:           http.StatusInternalServerError,
	connect.CodeUnavailable:        http.StatusServiceUnavailable,
	connect.CodeDataLoss:           http.StatusInternalServerError,
	connect.CodeUnauthenticated:    http.StatusUnauthorized,
}

// statusOfReason is the status of reasons for which HTTP has a better one than
// their code.
var statusOfReason = map[string]int{
	"REQUEST_TOO_LARGE": http.StatusRequestEntityTooLarge,
	"STORAGE_FULL":      http.StatusInsufficientStorage,
	"STORAGE_LOW":       http.StatusInsufficientStorage,
	"TOPIC_FULL":        http.StatusInsufficientStorage,
}

// Status is the HTTP status of an error with a code and a reason.
func Status(code connect.Code, reason string) int {
	if better, ok := statusOfReason[reason]; ok {
		return better
	}
	if status, ok := statusOf[code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// fault is an error made here.
type fault struct {
	status     int
	code       connect.Code
	reason     string
	text       string
	violations []*errdetails.BadRequest_FieldViolation
}

func invalid(field, description string) *fault {
	return &fault{
		status: http.StatusBadRequest, code: connect.CodeInvalidArgument, reason: reasonInvalid,
		text:       field + ": " + description,
		violations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: description}},
	}
}

// write answers with the fault. To a response that translates what an RPC answers
// it goes untranslated.
func (f *fault) write(w http.ResponseWriter) {
	if r, ok := w.(*response); ok {
		r.state, w = sent, r.w
	}
	details := []proto.Message{&errdetails.ErrorInfo{Reason: f.reason, Domain: errorDomain}}
	if len(f.violations) > 0 {
		details = append(details, &errdetails.BadRequest{FieldViolations: f.violations})
	}
	s := &spb.Status{Code: int32(f.code), Message: f.text}
	for _, d := range details {
		if detail, err := anypb.New(d); err == nil { // only fails for what is not UTF-8
			s.Details = append(s.Details, detail)
		}
	}
	writeStatus(w, f.status, s)
}

// writeStatus answers with an error as JSON.
func writeStatus(w http.ResponseWriter, status int, s *spb.Status) {
	body, err := protojson.Marshal(s)
	if err != nil { // a detail of a type that is not linked in
		s.Details = nil
		body, _ = protojson.Marshal(s)
	}
	body = append(body, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error means that the client has disconnected
}

// The states of a response.
const (
	waiting = iota // for the status code
	passing        // the body, as the RPC writes it
	failing        // the body is an error, kept until it is complete
	sent           // nothing more is written
)

// response turns what an RPC answers into the answer of its route.
type response struct {
	w      http.ResponseWriter
	route  *route
	state  int
	status int
	kept   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (r *response) Header() http.Header { return r.w.Header() }

// Unwrap is for http.ResponseController.
func (r *response) Unwrap() http.ResponseWriter { return r.w }

// WriteHeader implements http.ResponseWriter.
func (r *response) WriteHeader(status int) {
	if r.state != waiting {
		return
	}
	h := r.w.Header()
	h.Del("Accept-Encoding")
	switch {
	case status == http.StatusNotModified:
		h.Del("Content-Type")
		r.state = sent
	case status >= http.StatusBadRequest:
		r.state, r.status = failing, status
		return
	default:
		h.Set("Content-Type", "application/json")
		r.state, status = passing, r.success(h)
		if status == http.StatusNoContent {
			h.Del("Content-Type")
			h.Del("Content-Length")
			h.Del("Content-Encoding")
			r.state = sent
		}
	}
	r.w.WriteHeader(status)
}

func (r *response) success(h http.Header) int {
	if h.Get("Idempotency-Replayed") == "true" {
		h.Set("X-Idempotent-Replay", "true")
		return r.route.outcome.Replay
	}
	return r.route.outcome.Success
}

// Write implements http.ResponseWriter.
func (r *response) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	switch r.state {
	case passing:
		return r.w.Write(b)
	case failing:
		if r.kept.Len()+len(b) <= maxError {
			r.kept.Write(b)
		}
	}
	return len(b), nil
}

// Flush implements http.Flusher. An answer is written whole.
func (r *response) Flush() {}

// finish completes the answer once the RPC's handler is done.
func (r *response) finish() {
	switch r.state {
	case waiting:
		r.WriteHeader(http.StatusOK)
	case failing:
		status, s := translate(r.status, r.kept.Bytes())
		r.w.Header().Del("Content-Encoding")
		writeStatus(r.w, status, s)
	}
}

// translate makes a google.rpc.Status, and the HTTP status for it, from an error in
// Connect's JSON.
func translate(status int, body []byte) (int, *spb.Status) {
	var e struct {
		Code    connect.Code
		Message string
		Details []struct{ Type, Value string }
	}
	if err := json.Unmarshal(body, &e); err != nil || e.Code == 0 {
		return status, &spb.Status{Code: int32(connect.CodeUnknown), Message: http.StatusText(status)}
	}
	out := &spb.Status{Code: int32(e.Code), Message: e.Message}
	status = Status(e.Code, "")
	for _, d := range e.Details {
		value, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(d.Value, "="))
		if err != nil {
			continue
		}
		detail := &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type, Value: value}
		out.Details = append(out.Details, detail)
		var info errdetails.ErrorInfo
		if detail.UnmarshalTo(&info) == nil {
			status = Status(e.Code, info.GetReason())
		}
	}
	return status, out
}
