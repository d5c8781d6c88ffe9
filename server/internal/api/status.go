package api

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// Reasons of requests that connect refuses by a status alone. The answers get a reason and
// a text here, in the protocol of the request where it is known.
const (
	reasonNoProcedure = "NO_SUCH_PROCEDURE"
	reasonMethod      = "METHOD_NOT_ALLOWED"
	reasonMediaType   = "UNSUPPORTED_MEDIA_TYPE"
	reasonTooLarge    = "REQUEST_TOO_LARGE"
)

// NotFound answers a call of a procedure that does not exist.
func (a *API) NotFound(w http.ResponseWriter, r *http.Request) { notFound(a.errors, w, r) }

// Reject answers a request that was refused by an HTTP status before it reached the
// handlers, in the request's own protocol.
func (a *API) Reject(w http.ResponseWriter, r *http.Request, status int, reason, text string) {
	code, retry := connect.CodeInvalidArgument, time.Duration(0)
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		code = connect.CodeResourceExhausted
	case http.StatusTooManyRequests:
		code, retry = connect.CodeResourceExhausted, time.Second
	}
	writeError(a.errors, statusOverride{w, status}, r, newError(code, reason, text, nil, retry))
}

func notFound(errors *connect.ErrorWriter, w http.ResponseWriter, r *http.Request) {
	path := strings.ToValidUTF8(r.URL.Path, "\ufffd")
	const most = 256
	if len(path) > most {
		path = strings.ToValidUTF8(path[:most], "") + "…"
	}
	err := newError(connect.CodeUnimplemented, reasonNoProcedure, fmt.Sprintf("there is no procedure %q", path), nil, 0)
	writeError(errors, statusOverride{w, http.StatusNotFound}, r, err)
}

// explain returns the error that a bare status stands for; nil for other statuses.
func (k kind) explain(status int, r *http.Request) *connect.Error {
	switch status {
	case http.StatusMethodNotAllowed:
		text := "this procedure takes POST"
		if k.safe {
			text += " and GET"
		}
		return newError(connect.CodeUnimplemented, reasonMethod, text, nil, 0)
	case http.StatusUnsupportedMediaType:
		given := "this Content-Type is not taken"
		switch {
		case r.Method == http.MethodGet:
			return newError(connect.CodeInvalidArgument, reasonMediaType,
				"a GET request takes the query parameter encoding=json or encoding=proto, and no body", nil, 0)
		case r.Header.Get("Content-Type") == "":
			given = "the Content-Type is missing"
		}
		text := given + ": this procedure takes " + k.types()
		if k.streams {
			text += ", because it answers with a stream"
		}
		return newError(connect.CodeInvalidArgument, reasonMediaType, text, nil, 0)
	}
	return nil
}

// types lists the types of content that a procedure takes.
func (k kind) types() string {
	own := "application/json, application/proto"
	if k.streams {
		own = "application/connect+json, application/connect+proto"
	}
	return own + ", application/grpc, application/grpc+json, application/grpc+proto, application/grpc-web, application/grpc-web+json, application/grpc-web+proto"
}

// statusOverride replaces the usual HTTP status of an error in plain JSON. Other protocols
// answer errors with 200.
type statusOverride struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (o statusOverride) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		status = o.status
	}
	o.ResponseWriter.WriteHeader(status)
}

// writeError writes an error in the protocol of the request.
func writeError(errors *connect.ErrorWriter, w http.ResponseWriter, r *http.Request, err *connect.Error) {
	// A write fails when the client has disconnected.
	_ = errors.Write(w, r, err)
	endLine(w)
}

// endLine ends a JSON answer with a line break, for readers in a terminal.
func endLine(w http.ResponseWriter) {
	if w.Header().Get("Content-Type") == "application/json" && w.Header().Get("Content-Encoding") == "" {
		_, _ = w.Write([]byte("\n"))
	}
}
