package api

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
)

// What connect refuses by a status alone gets words here, in the protocol of the
// request as far as that can be told.

// Reasons of these.
const (
	reasonNoProcedure = "NO_SUCH_PROCEDURE"
	reasonMethod      = "METHOD_NOT_ALLOWED"
	reasonMediaType   = "UNSUPPORTED_MEDIA_TYPE"
)

// NotFound answers an RPC that there is not.
func (a *API) NotFound(w http.ResponseWriter, r *http.Request) { notFound(a.errors, w, r) }

// Reject answers a request that was stopped by a status of HTTP, in front of everything,
// in the request's own protocol.
func (a *API) Reject(w http.ResponseWriter, r *http.Request, status int, reason, text string) {
	code, retry := connect.CodeInvalidArgument, time.Duration(0)
	switch status {
	case http.StatusRequestHeaderFieldsTooLarge:
		code = connect.CodeResourceExhausted
	case http.StatusTooManyRequests:
		code, retry = connect.CodeResourceExhausted, time.Second
	}
	writeError(a.errors, overruled{w, status}, r, newError(code, reason, text, nil, retry))
}

func notFound(errors *connect.ErrorWriter, w http.ResponseWriter, r *http.Request) {
	path := strings.ToValidUTF8(r.URL.Path, "\ufffd")
	const most = 256
	if len(path) > most {
		path = strings.ToValidUTF8(path[:most], "") + "…"
	}
	err := newError(connect.CodeUnimplemented, reasonNoProcedure, fmt.Sprintf("there is no procedure %q", path), nil, 0)
	writeError(errors, overruled{w, http.StatusNotFound}, r, err)
}

// wordsFor says what was wrong with a request that got a status and nothing else;
// nil where that is not known.
func (k kind) wordsFor(status int, r *http.Request) *connect.Error {
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
			return newError(connect.CodeInvalidArgument, reasonMediaType, "a GET request takes the query parameter encoding=json or encoding=proto, and no body", nil, 0)
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

// overruled answers an error in plain JSON with another status than the usual one
// of its code. Other protocols have errors in answers with 200.
type overruled struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (o overruled) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		status = o.status
	}
	o.ResponseWriter.WriteHeader(status)
}

// writeError writes an error in the protocol of the request.
func writeError(errors *connect.ErrorWriter, w http.ResponseWriter, r *http.Request, err *connect.Error) {
	// An error of a write means that the client is gone.
	_ = errors.Write(w, r, err)
	endLine(w)
}

// endLine ends an answer in JSON with a line end, for those who read it in a
// terminal.
func endLine(w http.ResponseWriter) {
	if w.Header().Get("Content-Type") == "application/json" && w.Header().Get("Content-Encoding") == "" {
		_, _ = w.Write([]byte("\n"))
	}
}
